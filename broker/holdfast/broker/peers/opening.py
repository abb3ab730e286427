"""A connected socket becomes a connection, with TLS or without; one that is given up meanwhile is closed for certain.

If the making of a connection is cancelled at the moment at which its handshake ends, asyncio says goodbye to the other
side by itself, for up to a second and for nobody. So it is never cancelled: its socket is shut, which ends it at once.
"""

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

TLS_CLOSE_S: Final = 1.0  # for the other side to agree that this is the end


class Abortable(Protocol):
    lost: asyncio.Event  # the socket is closed

    def abort(self) -> None: ...


C = TypeVar("C", bound=Abortable)


async def open_connection(sock: socket.socket, making: Coroutine[Any, Any, tuple[asyncio.Transport, C]]) -> C:
    """`making` is of the event loop, and of this socket. The socket is closed if it fails or is cancelled."""
    made = asyncio.ensure_future(making)
    try:
        return (await asyncio.shield(made))[1]
    except asyncio.CancelledError:
        with suppress(OSError):  # the other side was quicker
            sock.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([made])
        if made.exception() is None:
            connection = made.result()[1]
            connection.abort()
            await connection.lost.wait()
        raise
    finally:
        if not made.done() or made.exception() is not None:
            sock.close()
