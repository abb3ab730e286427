"""A disk that does not answer: noticed while the node runs, and no reason for a process that never ends."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor

from holdfast.serving.logs import get_logger
from holdfast.wal.errors import DiskFailedError

SYNC_SECONDS_MAX = 60.0  # for one write and sync of the log; until it returns nothing is served
END_SECONDS_MAX = 10.0  # for closing what can still be closed after a failure

_log = get_logger(__name__)


class WatchedThread:
    """Runs blocking work one after the other in a thread, and knows how long the present one has taken."""

    def __init__(self, executor: Executor, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._monotonic = monotonic
        self._began_s: float | None = None

    async def run(self, work: Callable[[], None]) -> None:
        self._began_s = self._monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._began_s = None

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
