"""What tests share: gateways and nodes as real processes, and the events of a real catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import servers


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., servers.Server]]:
    """Start gateways, each in a folder of its own unless `data` is given; all are stopped at the end."""
    started: list[servers.Server] = []

    def start(*options: str, data: Path | None = None, **environment: str) -> servers.Server:
        folder = data or tmp_path / f"gateway-{len(started)}"
        server = servers.gateway(folder, *options, **environment)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., servers.Server]]:
    """Start event log nodes; all are stopped at the end."""
    started: list[servers.Server] = []

    def start(*options: str, data: Path | None = None) -> servers.Server:
        folder = data or tmp_path / f"node-{len(started)}"
        server = servers.log_node(folder, *options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
