"""The listening side: takes connections in, with a deadline and a bound until they have said hello.

Whoever reaches the port may open connections and say nothing. Each has `hello_seconds_max` for TLS and hello together,
and one more than `half_open_max` pushes the oldest out, not the newest: a node that says hello at once gets in even
while somebody keeps the port busy.
"""

import asyncio
import socket
import ssl
from functools import partial
from typing import Protocol

from holdfast.broker.peers.connections import IncomingConnection, Owner, tune
from holdfast.broker.peers.opening import TLS_CLOSE_S, open_connection
from holdfast.broker.peers.reasons import Reason
from holdfast.common.service import Service, end_tasks, report_bug

_BACKLOG = 128
_BREATH_S = 0.1  # when the system has no descriptor left


class AcceptingOwner(Owner, Protocol):
    def accepting_context(self) -> ssl.SSLContext | None:
        """Of a connection that comes now."""
        ...


class Acceptor:
    """Owns the listening socket and all connections that have not said hello."""

    def __init__(self, owner: AcceptingOwner, background: Service) -> None:
        self._limits = owner.limits
        self._counters = owner.counters
        self._warnings = owner.warnings
        self._connection = partial(IncomingConnection, owner)
        self._context = owner.accepting_context
        self._half_open: dict[asyncio.Task[None], None] = {}  # oldest first
        self._untouched: set[socket.socket] = set()  # whose task has not begun: cancelled before, it would not close it
        self._listener: socket.socket | None = None
        self._background = background
        self._admitting = Service(on_error=report_bug)  # whoever comes must not end the node
        self._accepting: asyncio.Task[None] | None = None

    @property
    def half_open(self) -> int:
        return len(self._half_open)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which is chosen by the system if 0 was asked for."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._accepting = self._background.spawn(self._accept(self._listener), "peers accept")
        return int(self._listener.getsockname()[1])

    async def stop(self) -> None:
        """Nobody gets in any more; those without a hello are cut off. Welcome connections are not touched."""
        if self._accepting is not None:
            await end_tasks([self._accepting])
        await self._admitting.stop()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, or gone before it was taken in
                self._warnings.say("cannot take a connection in", error=str(error))
                await asyncio.sleep(_BREATH_S)
                continue
            self._make_room()
            self._untouched.add(sock)
            task = self._admitting.spawn(self._admit(sock), "peers hello")
            self._half_open[task] = None
            task.add_done_callback(partial(self._forget, sock))

    def _make_room(self) -> None:
        if len(self._half_open) < self._limits.half_open_max:
            return
        oldest = next(iter(self._half_open))
        del self._half_open[oldest]
        oldest.cancel()
        self._refused(Reason.HALF_OPEN_MAX)

    def _forget(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        if sock in self._untouched:
            self._untouched.discard(sock)
            sock.close()
        self._half_open.pop(task, None)

    async def _admit(self, sock: socket.socket) -> None:
        """Until the hello is welcome or the connection has ended; then the connection goes on by itself."""
        self._untouched.discard(sock)
        loop = asyncio.get_running_loop()
        connection: IncomingConnection | None = None
        context = self._context()
        shutdown = TLS_CLOSE_S if context else None
        try:
            async with asyncio.timeout(self._limits.hello_seconds_max):
                tune(sock, self._limits.dead_seconds)
                connection = await open_connection(
                    sock,
                    self._connection,
                    lambda make: loop.connect_accepted_socket(make, sock, ssl=context, ssl_shutdown_timeout=shutdown),
                )
                await connection.settled.wait()
                if connection.hello is None:
                    await connection.lost.wait()  # a refusal has time to leave
        except TimeoutError:
            self._refused(Reason.HELLO_LATE)
        except OSError as error:  # TLS that failed is one of these; otherwise the other side is gone already
            if context is not None:
                self._refused(Reason.TLS_FAILED, found=str(error))
        finally:
            if connection is not None and connection.hello is None:
                connection.abort()
                await connection.lost.wait()

    def _refused(self, reason: Reason, found: str = "") -> None:
        self._counters.refused[reason] += 1
        self._warnings.closed("connection refused", reason, found=found, direction="incoming")
