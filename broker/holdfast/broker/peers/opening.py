"""A connected socket becomes a connection, with TLS or without; one that is given up meanwhile is closed for certain.

If the making of a connection is cancelled at the moment at which its handshake ends, asyncio says goodbye to the other
side by itself, for up to a second and for nobody. So it is never cancelled: its socket is shut, which ends it at once.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

TLS_CLOSE_S: Final = 1.0  # for the other side to agree that this is the end


class Abortable(Protocol):
    lost: asyncio.Event  # the socket is closed

    def abort(self) -> None: ...


C = TypeVar("C", bound=Abortable)


async def open_connection(
    sock: socket.socket, make: Callable[[], C], connect: Callable[[Callable[[], C]], Coroutine[Any, Any, object]]
) -> C:
    """What `make` makes. `connect` is of the event loop, and of this socket, which is closed if it fails or is
    cancelled. What it returns is not looked at: with TLS, uvloop returns a protocol of its own."""
    connections: list[C] = []

    def make_one() -> C:
        connections.append(make())
        return connections[-1]

    made = asyncio.ensure_future(connect(make_one))
    try:
        await asyncio.shield(made)
        return connections[0]
    except asyncio.CancelledError:
        with suppress(OSError):  # the other side was quicker
            sock.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([made])
        if made.exception() is None:
            connections[0].abort()
            await connections[0].lost.wait()
        raise
    finally:
        if not made.done() or made.exception() is not None:
            sock.close()
