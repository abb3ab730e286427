"""A TCP proxy that a test can make misbehave: hold what passes through, lose it, or break connections."""

import socket
import struct
import threading
from enum import Enum

from tests.integration.server import Closed

_CHUNK_BYTES = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Flow(Enum):
    """What becomes of the bytes of one direction."""

    PASS = "pass"
    HOLD = "hold"  # they wait until the flow passes again
    LOSE = "lose"  # never seen again; the connection is of no use afterwards, so reset it


class Proxy(Closed):
    """Listens on a port of its own and passes everything on to `target_port`, which may change."""

    def __init__(self, target_port: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Where it listens; 0 takes a free port."""
        self.target_port = target_port
        self._changed = threading.Condition()
        self._requests = Flow.PASS
        self._answers = Flow.PASS
        self._refuses = False
        self._closed = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.sent = 0  # pieces that callers have sent
        self._listener = socket.create_server((host, port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def set(self, *, requests: Flow = Flow.PASS, answers: Flow = Flow.PASS, refuses: bool = False) -> None:
        """What happens from now on; `refuses` breaks new connections at once."""
        with self._changed:
            self._requests, self._answers, self._refuses = requests, answers, refuses
            self._changed.notify_all()

    def reset(self) -> None:
        """Breaks all connections; from then on everything passes again, unless new connections are refused."""
        with self._changed:
            pairs, self._pairs = self._pairs, []
            self._requests = self._answers = Flow.PASS
            self._changed.notify_all()
        for pair in pairs:
            for side in pair:
                _break(side)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # Closing alone would not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self.reset()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refuses:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self.target_port), timeout=10)
            except OSError:
                _break(near)
                near.close()
                continue
            far.settimeout(None)
            with self._changed:
                self._pairs.append((near, far))
            for ends in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pump, args=(*ends, ends[0] is near), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                self.sent += is_request
                if self._flow_of(source, is_request) is Flow.PASS:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _break(sink)
        finally:
            source.close()

    def _flow_of(self, source: socket.socket, is_request: bool) -> Flow:
        """The flow once it is no longer held. A connection that was broken meanwhile has nothing to pass."""
        with self._changed:
            while not self._closed and any(source in pair for pair in self._pairs):
                flow = self._requests if is_request else self._answers
                if flow is not Flow.HOLD:
                    return flow
                self._changed.wait()
            return Flow.LOSE


def _break(side: socket.socket) -> None:
    """A reset for the other end, and an end for the thread that reads here."""
    try:
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is broken already
