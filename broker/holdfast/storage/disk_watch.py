"""A disk that does not answer: noticed while the node runs, and no reason for a process that never ends."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
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
    """Work of the thread, for whoever waits for it: in line, for a bounded time, or beside what else the loop does."""

    def __init__(self, ended: Future[float]) -> None:
        self._ended = ended

    def done(self) -> bool:
        return self._ended.done()

    def wait(self, seconds_max: float) -> None:
        """Blocks until it is done, or for so long."""
        with suppress(TimeoutError):
            self._ended.exception(seconds_max)

    def __await__(self) -> Generator[Any, None, float]:
        """For how many seconds it ran."""
        if not self._ended.done():
            yield from asyncio.wrap_future(self._ended).__await__()
        return self._ended.result()

    def cancel(self) -> None:
        """It is not to be begun any more. What has begun goes on."""
        self._ended.cancel()


class WatchedThread:
    """Runs blocking work one after the other in a thread of its own, and knows how long the present one has taken."""

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_s: float | None = None
        # No executor: to hand work over to one costs more than the work.
        self._given: SimpleQueue[tuple[Work, Future[float]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> Watched:
        ended: Future[float] = Future()
        self._began_s = self._monotonic()
        self._given.put((work, ended))
        return Watched(ended)

    def close(self) -> None:
        """Returns once what was begun is done. May be called more than once."""
        self._given.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (given := self._given.get()) is not None:
            self._run(*given)
            del given  # a round can be large, and the next one may be far

    def _run(self, work: Work, ended: Future[float]) -> None:
        is_wanted, error = ended.set_running_or_notify_cancel(), None
        began_s = self._monotonic()
        try:
            if is_wanted:
                work()
        except BaseException as failure:  # noqa: BLE001 - it is for whoever waits
            error = failure
        self._began_s = None
        if error is not None:
            ended.set_exception(error)
        elif is_wanted:
            ended.set_result(self._monotonic() - began_s)

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
