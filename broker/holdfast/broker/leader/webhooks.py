"""Tells other systems of what happened here, by HTTP. It may be told twice or not at all, and holds up nothing.

Whoever has something told hears whether it was, from the thread that told it.
"""

import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

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


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is told here is for one address only."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        return None


def _post(url: str, body: bytes) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("only http and https are spoken")
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "holdfast"})
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        answer.read(1024)


class Webhooks:
    """Posts of one node, one after the other.

    They have a thread of their own that nobody waits for, not even the end of the process: a name server or a host that
    does not answer can hold it up for as long as it likes.
    """

    def __init__(self, on_failed: Callable[[], None] = lambda: None, *, pause_s: float = PAUSE_SECONDS) -> None:
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
                _post(url, body)
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
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return type(error.reason).__name__
    return type(error).__name__


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
