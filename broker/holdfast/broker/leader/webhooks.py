"""Tells other systems of what happened here, by HTTP. It may be told twice or not at all, and holds up nothing.

Whoever has something told hears whether it was, from the thread that told it.
"""

import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from holdfast.broker.leader.webhook_rules import ForbiddenError, WebhookRules
from holdfast.serving.logs import get_logger

WAITING_MAX = 100
ATTEMPTS_MAX = 3
TIMEOUT_SECONDS = 5.0
PAUSE_SECONDS = 1.0  # before the second attempt, and twice that before the third
SHUN_SECONDS = 60.0  # how long a host that failed gets one attempt for each message: others wait behind it
SHUNNED_MAX = 100

_log = get_logger(__name__)


class Notifier(Protocol):
    """Tells other systems. `Webhooks` is the real one."""

    def post(self, url: str, message: dict[str, Any], on_end: Callable[[bool], None]) -> None:
        """`on_end` hears, from any thread, whether it was told; not at all if the process ends first."""
        ...


class NoWebhooks:
    """Where there are no other systems."""

    def post(self, url: str, message: dict[str, Any], on_end: Callable[[bool], None]) -> None:
        """Nobody is told."""


class _Refused(Exception):  # noqa: N818 - nobody catches it by that name
    """The other side said no."""


def _post(url: str, body: bytes, rules: WebhookRules) -> None:
    """The name is looked up once, and the address that was checked is the one that is called: a name that leads
    elsewhere a moment later leads nowhere. Nothing is followed from there, and no proxy is asked."""
    parts = urlsplit(url)
    host, is_secret = parts.hostname or "", parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("only http and https are spoken")
    rules.check_host(host)
    found = socket.getaddrinfo(host, parts.port or (443 if is_secret else 80), type=socket.SOCK_STREAM)
    address = rules.choose([str(entry[4][0]) for entry in found])
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = http.client.HTTPSConnection if is_secret else http.client.HTTPConnection
    connection = kind(host, parts.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.sock = _connected((address, connection.port), host if is_secret else None)
        connection.request("POST", target, body, {"Content-Type": "application/json", "User-Agent": "holdfast"})
        answer = connection.getresponse()
        answer.read(1024)
        if not 200 <= answer.status < 300:
            raise _Refused(f"HTTP status {answer.status}")
    finally:
        connection.close()


def _connected(address: tuple[str, int], name: str | None) -> socket.socket:
    """`name`: whose certificate is expected; None for no TLS."""
    connection = socket.create_connection(address, TIMEOUT_SECONDS)
    if name is None:
        return connection
    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=name)
    except BaseException:
        connection.close()
        raise


class Webhooks:
    """Posts of one node, one after the other.

    They have a thread of their own that nobody waits for, not even the end of the process: a name server or a host that
    does not answer can hold it up for as long as it likes.
    """

    def __init__(
        self, rules: WebhookRules, on_failed: Callable[[], None] = lambda: None, *, pause_s: float = PAUSE_SECONDS
    ) -> None:
        self._rules = rules
        self._on_failed = on_failed  # from any thread: something was not told
        self._pause_s = pause_s
        self._waiting: queue.Queue[tuple[str, bytes, Callable[[bool], None]]] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._shunned: dict[str, float] = {}  # by host: until when

    def post(
        self, url: str, message: dict[str, Any], on_end: Callable[[bool], None] = lambda _is_reported: None
    ) -> None:
        """Sends it soon. If too many wait already it is dropped, and said so."""
        if self._closed.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-webhooks", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait((url, json.dumps(message).encode(), on_end))
        except queue.Full:
            _log.warning("webhook_dropped", host=_host(url), waiting=WAITING_MAX)
            self._on_failed()
            on_end(False)

    async def close(self) -> None:
        """Sends nothing more. What is under way is left to itself."""
        self._closed.set()
        try:
            self._waiting.put_nowait(("", b"", lambda _is_reported: None))  # wakes the thread
        except queue.Full:
            pass  # it is awake

    def _run(self) -> None:
        while True:
            url, body, on_end = self._waiting.get()
            if self._closed.is_set():
                return
            on_end(self._send(url, body))

    def _send(self, url: str, body: bytes) -> bool:
        """Whether it was told."""
        host = _host(url)
        attempts = 1 if self._shunned.get(host, 0.0) > time.monotonic() else ATTEMPTS_MAX
        problem = ""
        for attempt in range(1, attempts + 1):
            try:
                _post(url, body, self._rules)
            except ForbiddenError as error:
                _log.warning("webhook_refused", host=host, why=str(error))
                self._on_failed()
                return False
            except Exception as error:  # noqa: BLE001 - whoever is told there may answer with anything
                problem = _problem(error)
            else:
                self._shunned.pop(host, None)
                return True
            if attempt < attempts and self._closed.wait(self._pause_s * attempt):
                return False
        if len(self._shunned) >= SHUNNED_MAX:
            self._shunned.clear()
        self._shunned[host] = time.monotonic() + SHUN_SECONDS
        _log.warning("webhook_failed", host=host, attempts=attempts, error=problem)
        self._on_failed()
        return False


def _problem(error: Exception) -> str:
    """Without the address, which may be a secret."""
    return str(error) if isinstance(error, _Refused) else type(error).__name__


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
