"""A disk that does not answer: noticed while the node runs, and no reason for a process that never ends."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from holdfast.serving.logs import get_logger
from holdfast.wal.errors import DiskFailedError

SYNC_SECONDS_MAX = 60.0  # for one write and sync of the log; until it returns nothing is served
END_SECONDS_MAX = 10.0  # for closing what can still be closed after a failure

Work = Callable[[], None]

_log = get_logger(__name__)


class Watched:
    """Work of the thread, for whoever waits for it: in line, for a bounded time, or beside what else the loop does.

    Made of a lock and little else: a future of `concurrent` costs more than a fast disk.
    """

    __slots__ = ("_error", "_has_ended", "_is_cancelled", "_is_running", "_loop", "_seconds", "_woken", "_work")

    def __init__(self, work: Work) -> None:
        self._work = work
        self._is_running = threading.Lock()  # of the thread, until it has ended
        self._is_running.acquire()
        self._is_cancelled = self._has_ended = False
        self._error: BaseException | None = None
        self._seconds = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None  # of whoever awaits it
        self._woken: asyncio.Future[None] | None = None

    def run(self, monotonic: Callable[[], float]) -> None:
        """In the thread."""
        began_s = monotonic()
        try:
            if not self._is_cancelled:
                self._work()
        except BaseException as failure:  # noqa: BLE001 - it is for whoever waits
            self._error = failure
        self._seconds = monotonic() - began_s
        del self._work  # a round can be large, and the next one may be far

    def end(self) -> None:
        """In the thread, when all that it does is done."""
        self._has_ended = True
        self._is_running.release()
        # Whoever awaits it says so first and then looks whether it has ended: one of the two sees the other.
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop may be closed, and then nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def done(self) -> bool:
        return self._has_ended

    def wait(self, seconds_max: float) -> None:
        """Blocks until it is done, or for so long."""
        if self._is_running.acquire(timeout=seconds_max):
            self._is_running.release()

    def __await__(self) -> Generator[Any, None, float]:
        """For how many seconds it ran."""
        if not self._has_ended:
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            self._loop = loop
            if not self._has_ended:
                yield from self._woken
        if self._error is not None:
            raise self._error
        return self._seconds

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def cancel(self) -> None:
        """It is not to be begun any more. What has begun goes on."""
        self._is_cancelled = True


class WatchedThread:
    """Runs blocking work one after the other in a thread of its own, and knows how long the present one has taken."""

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_s: float | None = None
        # No executor: to hand work over to one costs more than the work.
        self._given: SimpleQueue[Watched | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> Watched:
        watched = Watched(work)
        self._began_s = self._monotonic()
        self._given.put(watched)
        return watched

    def close(self) -> None:
        """Returns once what was begun is done. May be called more than once."""
        self._given.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (given := self._given.get()) is not None:
            given.run(self._monotonic)
            self._began_s = None
            given.end()
            del given

    @property
    def busy_s(self) -> float:
        """For how long the present work has been under way; 0 if there is none."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._monotonic() - began_s

    def check(self) -> None:
        """Raises if the present work does not come back. A call that hangs in the kernel cannot be taken back, so the
        only way on is another process, on this disk or, in a cluster, without it."""
        if self.busy_s > SYNC_SECONDS_MAX:
            raise DiskFailedError(
                f"Expected the disk to have written and synced the log within {SYNC_SECONDS_MAX:g} s, but it has not "
                "answered. Check the disk."
            )


def end_in_time(failure: BaseException) -> None:
    """Ends the process soon, whatever its threads hang in: a failed disk may block every orderly way out, and then
    nobody would start the node anew. What was acknowledged is in the log."""
    ending = threading.Timer(END_SECONDS_MAX, _end, [failure])
    ending.daemon = True
    ending.start()


def _end(failure: BaseException) -> None:
    detail = f"closing what was open took longer than {END_SECONDS_MAX:g} s"
    _log.error("stopped_by_failure", error=str(failure), detail=detail)
    os._exit(1)
