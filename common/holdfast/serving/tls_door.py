"""Takes connections in, and has them shake hands, for a server of frames or of HTTP.

Whoever reaches the port may begin a handshake and say nothing more. Each has some seconds for it, and one more than a
bound pushes the oldest out, not the newest: a caller that goes on at once gets in even while somebody keeps the port
busy. Without this a server would keep as many as come, each with a descriptor of its own.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from holdfast.common.service import Service
from holdfast.serving.logs import get_logger

HALF_OPEN_MAX = 256
HANDSHAKE_SECONDS = 10.0
GOODBYE_SECONDS = 1.0  # for the other side to hear that the connection ends
_BREATH_S = 0.1  # when the system has no descriptor left

_log = get_logger(__name__)

Make = Callable[[], asyncio.BaseProtocol]


class TlsDoor:
    """Of one port."""

    def __init__(
        self, context: Callable[[], ssl.SSLContext], what: str, *, half_open_max: int = HALF_OPEN_MAX,
        seconds_max: float = HANDSHAKE_SECONDS,
    ) -> None:  # fmt: skip
        """`context`: of a connection that comes now. `what`: how the log calls the port."""
        self._context = context
        self._what = what
        self._half_open_max = half_open_max
        self._seconds_max = seconds_max
        self._half_open: dict[socket.socket, None] = {}  # the oldest first
        self._background = Service()
        self._accepting: asyncio.Task[None] | None = None
        self.failed = 0  # handshakes, since the start

    @property
    def half_open(self) -> int:
        return len(self._half_open)

    def open(self, listener: socket.socket, make: Make) -> None:
        """From now on `make` makes what hears of each connection that has shaken hands. The listener becomes ours."""
        listener.setblocking(False)
        self._accepting = self._background.spawn(self._accept(listener, make), f"tls {self._what}")

    def close(self) -> None:
        """Nobody gets in any more; those who have not shaken hands are cut off."""
        if self._accepting is not None:
            self._accepting.cancel()
        for sock in list(self._half_open):
            _shut(sock)

    async def stop(self) -> None:
        self.close()
        await self._background.stop()

    async def _accept(self, listener: socket.socket, make: Make) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors, or gone before it was taken in
                    _log.warning("connection_not_accepted", port=self._what, error=error.strerror)
                    await asyncio.sleep(_BREATH_S)
                    continue
                self._make_room()
                self._half_open[sock] = None
                self._background.spawn(self._shake_hands(sock, make), "tls handshake")

    def _make_room(self) -> None:
        if len(self._half_open) >= self._half_open_max:
            oldest = next(iter(self._half_open))
            del self._half_open[oldest]
            _shut(oldest)  # which ends its handshake

    async def _shake_hands(self, sock: socket.socket, make: Make) -> None:
        try:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                make, sock, ssl=self._context(), ssl_handshake_timeout=self._seconds_max,
                ssl_shutdown_timeout=GOODBYE_SECONDS,
            )  # fmt: skip
        except (OSError, TimeoutError) as error:  # ssl.SSLError is one of these
            self.failed += 1
            _log.info("tls_refused", port=self._what, reason=self._reason(sock, error))  # a stranger chooses how often
            sock.close()
        finally:
            self._half_open.pop(sock, None)

    def _reason(self, sock: socket.socket, error: Exception) -> str:
        if sock not in self._half_open:
            return f"more than {self._half_open_max} at once have not finished their handshake"
        reason = getattr(error, "reason", None) or ""
        if reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "PACKET_LENGTH_TOO_LONG"):
            return f"{reason}: the caller does not speak TLS, or none that is new enough"
        return str(error) or type(error).__name__


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # the other side was quicker
        sock.shutdown(socket.SHUT_RDWR)
