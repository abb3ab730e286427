"""The operators' HTTP port: metrics and health. The only file that knows starlette and uvicorn.

Whoever reaches the port can open connections and say nothing, or not read what they asked for. One connection too many
pushes out the oldest, not the newest: whoever asks whether the node lives gets an answer at once, and is gone before
it is the oldest. So that this holds while thousands connect, few are accepted in one turn of the loop: what those have
sent is read before so many others have come. The rest waits in the system's queue, and the loop does other work.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.serving.ports import listening_socket
from holdfast.serving.scrapes import Scrapes, Shown
from holdfast.serving.tls_door import TlsDoor

CONNECTIONS_MAX = 100
ACCEPTED_AT_ONCE = 8  # it takes about five turns of the loop until one is answered
QUEUED_MAX = 2048  # connections that are not accepted yet
REQUEST_SECONDS_MAX = 10.0  # until a connection has asked for something
LIFE_SECONDS_MAX = 60.0  # of any connection
_STOP_SECONDS_MAX = 2


class OpsServerError(Exception):
    """The HTTP port cannot be opened."""


class OpsServer:
    """Serves /metrics, /livez and /readyz in the caller's event loop.

    readiness tells whether the node takes work and, if not, why. It is called on the loop and must not block.
    """

    def __init__(
        self, host: str, port: int, metrics: Shown, readiness: Callable[[], tuple[bool, str]],
        tls: Callable[[], ssl.SSLContext] | None = None, *, shows_metrics: bool = True,
    ) -> None:  # fmt: skip
        """`tls`: of a connection that comes now; None for plain HTTP."""
        self._door = None if tls is None else TlsDoor(tls, "ops", half_open_max=CONNECTIONS_MAX)
        self.host = host
        self.port = port  # after start: the port really bound, also when 0 was asked for
        self._scrapes = Scrapes(metrics)
        self._readiness = readiness
        self._shows_metrics = shows_metrics
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once requests are answered."""
        listener = _listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        routes = [
            Route("/", self._index),
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
        ]
        if self._shows_metrics:
            routes.append(Route("/metrics", self._show_metrics))
        config = uvicorn.Config(
            Starlette(routes=routes),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS_MAX,
            backlog=ACCEPTED_AT_ONCE,  # asyncio takes it for that too
        )
        self._server = _Server(config)
        # With TLS uvicorn listens on nothing, and is given connections that have shaken hands.
        listeners = [listener] if self._door is None else []
        self._serving = asyncio.create_task(self._server.serve(sockets=listeners), name="ops-http")
        is_up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({is_up, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():  # it ended before it began: let its error out
            is_up.cancel()
            self._serving.result()
        listener.listen(QUEUED_MAX)
        if self._door is not None:
            self._door.open(listener, self._server.connection)

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._scrapes.stop()
            if self._door is not None:
                await self._door.stop()
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    async def _index(self, _request: Request) -> Response:
        metrics = "  /metrics  what the node counts, for Prometheus\n" if self._shows_metrics else ""
        return PlainTextResponse(
            f"Holdfast\n{metrics}"
            "  /livez    200 while the process runs its loop\n"
            "  /readyz   200 while the node takes calls, otherwise 503; with the reason, or what it waits for\n"
        )

    async def _show_metrics(self, _request: Request) -> Response:
        return Response(await self._scrapes.text(), media_type=self._scrapes.content_type)

    async def _livez(self, _request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _readyz(self, _request: Request) -> Response:
        is_ready, reason = self._readiness()
        return JSONResponse({"ready": is_ready, "reason": reason}, status_code=200 if is_ready else 503)


class _Connection(H11Protocol):
    """One of a bounded number of connections, each with a bounded life."""

    _began_s = 0.0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._make_room()
        self._began_s = self.loop.time()
        self._patience = self.loop.call_later(REQUEST_SECONDS_MAX, self._poll)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        others: set[Any] = self.connections
        if len(others) >= CONNECTIONS_MAX:
            # Of those that have asked for something, or of those that have not, whichever are more: neither a scrape
            # nor a probe whose request is on its way pays for a flood of the other kind.
            silent = [other for other in others if other.cycle is None]
            many = silent if 2 * len(silent) >= len(others) else others.difference(silent)
            oldest: _Connection = min(many, key=lambda connection: connection._began_s)
            others.discard(oldest)  # at once, so that it is not counted until it has closed
            oldest.transport.abort()

    def _poll(self) -> None:
        left_s = self._began_s + LIFE_SECONDS_MAX - self.loop.time()
        if self.cycle is None or left_s <= 0:
            self.transport.abort()
        else:
            self._patience = self.loop.call_later(left_s, self._poll)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers (the node has its own) and with a way to wait until it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    def connection(self) -> asyncio.Protocol:
        """What hears of a connection that was taken in elsewhere."""
        return _Connection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _listen(host: str, port: int) -> socket.socket:
    """Bound here and not by uvicorn, which would end the process over a taken port."""
    try:
        return listening_socket(host, port, ACCEPTED_AT_ONCE)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"HTTP port {port} on {host} is taken by another process. Stop it, or set another ops_port."
        else:
            message = f"Cannot listen for HTTP on {host} port {port}: {error.strerror}."
        raise OpsServerError(message) from error
