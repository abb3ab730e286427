"""A worker's HTTP port for probes and metrics: /livez, /readyz, /metrics.

On asyncio alone, because the server's web framework is none of the client's dependencies: GET, an answer, and the
connection is closed. Whoever reaches the port can open connections and say nothing: one too many pushes out the oldest,
so that a probe, which asks at once, always gets its answer.
"""

import asyncio
import errno
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from holdfast.client.errors import OpsPortFailed
from holdfast.client.worker.meters import CONTENT_TYPE

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 8 * 1024
LIFE_S_MAX = 10.0  # of a connection

_INDEX = (
    "Holdfast worker\n"
    "  /metrics  what the worker counts, for Prometheus\n"
    "  /livez    200 while its loop turns\n"
    "  /readyz   200 while it claims tasks, otherwise 503 with the reason\n"
)
_PLAIN = "text/plain; charset=utf-8"
_JSON = "application/json"

_Answer = tuple[HTTPStatus, str, str]  # status, type of the content, content


class WorkerView(Protocol):
    """What is shown."""

    def metrics_text(self) -> str: ...
    def readiness(self) -> tuple[bool, str]:
        """Whether it claims tasks, and if not, why."""
        ...


class OpsServer:
    """Serves in the caller's event loop, so that an answer is a sign of life of that loop."""

    def __init__(self, host: str, port: int, watched: WorkerView) -> None:
        self.host = host
        self.port = port  # after start: the one really bound, also when 0 was asked for
        self._pages: dict[str, Callable[[], _Answer]] = {
            "/": lambda: (HTTPStatus.OK, _PLAIN, _INDEX),
            "/livez": lambda: (HTTPStatus.OK, _JSON, json.dumps({"live": True})),
            "/readyz": self._readyz,
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE, watched.metrics_text()),
        }
        self._watched = watched
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def start(self) -> None:
        """Returns once requests are answered; raises OpsPortFailed."""
        try:
            self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            cause = "it is taken by another process" if taken else error.strerror or str(error)
            raise OpsPortFailed(self.host, self.port, cause) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._connections):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]  # at once, so that it is not counted until it has closed
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(LIFE_S_MAX):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._connections.pop(writer, None)

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        page = self._pages.get(rest.partition(" ")[0].partition("?")[0])
        if method not in ("GET", "HEAD"):
            status, kind, text = HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, "Expected GET or HEAD.\n"
        elif page is None:
            status, kind, text = HTTPStatus.NOT_FOUND, _PLAIN, _INDEX
        else:
            status, kind, text = page()
        body = text.encode()
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if method == "HEAD" else body)

    def _readyz(self) -> _Answer:
        is_ready, reason = self._watched.readiness()
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, _JSON, json.dumps({"ready": is_ready, "reason": reason})
