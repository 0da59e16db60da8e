"""The socket of the web server."""

from __future__ import annotations

import socket

from gateway.config import Address
from gateway.core.errors import ListenFailed

BACKLOG = 1_024


def bind(address: Address, *, shared: bool = False) -> tuple[socket.socket, Address]:
    """A socket that is to listen on `address`, and that address with the port taken.

    Other processes of the same user can listen on a `shared` one too, each gets its part of the
    connections. Raises ListenFailed if the port is taken or the host is not ours.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        raise ListenFailed(
            f"cannot listen on {address}: {error.strerror}. Stop what uses it, or give --listen another"
            " address; port 0 takes a free one"
        ) from None
    listener.setblocking(False)
    host, port = listener.getsockname()[:2]
    return listener, Address(host, port)


def bind_first(address: Address) -> tuple[socket.socket, Address]:
    """As `bind` does for a `shared` address, but not beside another server that is there already."""
    alone, address = bind(address)
    alone.close()
    return bind(address, shared=True)
