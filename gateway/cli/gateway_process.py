"""The gateway put together: stores, ingests, publishers and the web server, from one configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from aiohttp import web

from gateway.amqp.backoff import Backoff
from gateway.amqp.client import Broker, parse_broker
from gateway.amqp.consumer import discover
from gateway.amqp.ingest import Ingest
from gateway.amqp.publisher import LogPublisher
from gateway.amqp.repair import keep_pages_whole
from gateway.amqp.visibility import Visibility
from gateway.config import Address, Config, LogConfig
from gateway.core.errors import GatewayError, StoreFailed
from gateway.core.event import parse_name
from gateway.core.mapping import native_mapping
from gateway.http.app import make_app
from gateway.http.connection import LimitedRunner
from gateway.http.documents import DocumentCache
from gateway.http.live import LiveLog, Site
from gateway.storage.filestore import FeedStore, feed_folder
from gateway.storage.snapshots import SnapshotFolder

from .listener import BACKLOG, bind, bind_first
from .workers import Workers

STOP_WAIT_S = 15.0

_log = logging.getLogger("wes.serve")


class LogService:
    """One log's way through the gateway: its feeds, and what fills them."""

    def __init__(self, config: Config, log: LogConfig, broker: Broker, site: Site) -> None:
        self._config = config
        self._log = log
        self._broker = broker
        self._site = site
        self._visibility = Visibility()
        self._ingests: dict[str, Ingest] = {}
        self._stores: list[FeedStore] = []
        self._trouble: str | None = f"log {log.name}: its partitions are not known yet"
        self._tasks: list[asyncio.Task[None]] = []
        self._ingest_tasks: list[asyncio.Task[None]] = []
        self._publisher = LogPublisher(
            broker,
            log.name,
            self._visibility,
            wait_max_s=config.http.publish_wait_max_s,
            pending_max=config.http.publish_pending_max,
            obstacle=self._obstacle,
            behind=lambda: any(ingest.behind for ingest in self._ingests.values()),
        )
        self.live = LiveLog(
            log.name,
            log.prefix,
            self._publisher,
            log.extra_headers,
            log.preconditions_required,
            SnapshotFolder(config.snapshots, log.name),
        )

    async def start(self) -> None:
        """Open the feeds that are stored; the rest comes when the log names its partitions."""
        folder = feed_folder(self._config.data, self._log.name, "0").parent
        stored = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        for partition in stored:
            await self._open(partition)
        self._run(self._publisher.run())
        self._run(self._discover())

    async def stop(self) -> None:
        """Commit and settle what was received, then let go of everything."""
        for ingest in self._ingests.values():
            ingest.stop()
        if self._ingest_tasks:
            await asyncio.wait(self._ingest_tasks, timeout=STOP_WAIT_S)
        tasks = self._tasks + self._ingest_tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in self._stores:
            await asyncio.to_thread(store.close)

    def problems(self) -> list[str]:
        """What keeps events of this log from flowing, a sentence each."""
        publishing = self._publisher.trouble
        return [*self._obstacles(), *([] if publishing is None else [publishing])]

    def _obstacle(self) -> str | None:
        return next(self._obstacles(), None)

    def _obstacles(self) -> Iterator[str]:
        """What keeps events from becoming visible, a sentence each."""
        if self._trouble is not None:
            yield self._trouble
        for ingest in self._ingests.values():
            if (trouble := ingest.trouble) is not None:
                yield trouble

    async def _discover(self) -> None:
        """Ask the log for its partitions until it answers, and open those that are new."""
        backoff = Backoff()
        while True:
            try:
                for partition in await discover(self._broker, self._log.name, "wes-discovery"):
                    await self._open(parse_name(partition, "partition"))
                self._trouble = None
                return
            except StoreFailed as error:
                self._trouble = str(error)
                _log.error("feed_not_opened", extra={"log": self._log.name, "reason": str(error)})
            except GatewayError as error:
                self._trouble = f"log {self._log.name}: {error}"
                _log.warning("log_unavailable", extra={"log": self._log.name, "reason": str(error)})
            await asyncio.sleep(backoff.next_s())

    async def _open(self, partition: str) -> None:
        if partition in self._ingests:
            return
        settings = self._log.feed_settings(self._config.authority, partition)
        folder = feed_folder(self._config.data, self._log.name, partition)
        store = await asyncio.to_thread(FeedStore, folder, settings)
        self._stores.append(store)
        for page in store.damaged_pages():
            _log.error(
                "page_damaged",
                extra={"log": self._log.name, "partition": partition, "page": page.number},
            )
        feed = self._site.add_feed(self.live, store)
        mapping = native_mapping(self._log.extra_headers)
        ingest = Ingest(self._broker, store, mapping, self._visibility, changed=feed.changed)
        self._ingests[partition] = ingest
        self._ingest_tasks.append(asyncio.create_task(ingest.run()))
        self._run(keep_pages_whole(self._broker, store, mapping))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))


class Gateway:
    """All logs and the web server over them."""

    def __init__(self, config: Config, node: Address | None) -> None:
        self._config = config
        self._site = Site(self, DocumentCache(config.http.page_cache_bytes_max), shared=config.workers > 0)
        self._services: list[LogService] = []
        for log in config.logs:
            if log.broker:
                broker = parse_broker(log.broker)
            else:
                assert node is not None, "a log without a broker is on the embedded node"
                broker = Broker(node.host, node.port)
            service = LogService(config, log, broker, self._site)
            self._services.append(service)
            self._site.logs[log.name] = service.live
        self._runner = LimitedRunner(make_app(self._site, config.http))
        self._workers = Workers(config, self._site) if config.workers else None

    async def start(self) -> Address:
        """Open everything and listen; returns where. Raises GatewayError."""
        listener, address = (bind_first if self._workers else bind)(self._config.listen)
        for service in self._services:
            await service.start()
        await self._runner.setup()
        if self._workers is not None:
            await self._workers.start(address)
        await web.SockSite(self._runner, listener, backlog=BACKLOG).start()
        return address

    async def stop(self) -> None:
        """Drain: not ready, no more waits, answer what is under way, then commit and close."""
        self._site.drain()
        if self._workers is None:
            await self._runner.cleanup()
        else:
            await asyncio.gather(self._workers.drain(), self._runner.cleanup())
            await self._workers.stop()
        for service in self._services:
            await service.stop()

    def problems(self) -> list[str]:
        """See `gateway.http.live.Readiness`."""
        return [problem for service in self._services for problem in service.problems()]
