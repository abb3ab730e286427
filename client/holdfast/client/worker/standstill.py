"""Notices that this process stood still: it was stopped, or a handler held the interpreter.

Meanwhile no lease is extended and no answer is read. What is lost by that is not the server's doing, and the log says
so.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.client.worker.jobs import Job

log = logging.getLogger("holdfast.worker")

# Of the shortest lease: what stands still for less of it loses nothing.
_NOTICED_SHARE = 0.25
_NOTICED_S_MIN = 0.25
_POLLS_PER_NOTICED = 4
_SAME_MOMENT_S = 0.001  # no look of its own: asking for the use of the processors is a system call
_KEPT_MAX = 8
_NAMES_SHOWN_MAX = 5
_RECENT_S = 1.0


class _Stop(NamedTuple):
    began_s: float
    ended_s: float


class Standstill:
    """Looks at the clock every now and then; a look that comes far too late tells of a standstill."""

    def __init__(
        self,
        running: Callable[[], Sequence[Job]],
        lease_ms_min: int,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`running`: whose handlers run now. `cpu_s`: what this process has used of the processors."""
        self._running = running
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._noticed_s = max(_NOTICED_S_MIN, lease_ms_min / 1000 * _NOTICED_SHARE)
        self._poll_s = self._noticed_s / _POLLS_PER_NOTICED
        self._polled_s = now_s()
        self._used_s = cpu_s()
        self._stops: deque[_Stop] = deque(maxlen=_KEPT_MAX)  # the newest last

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            self.poll()

    def poll(self) -> None:
        now_s = self._now_s()
        if 0 <= now_s - self._polled_s < _SAME_MOMENT_S:  # as for one of many handlers that end together
            return
        used_s = self._cpu_s()
        began_s, stood_s, worked_s = self._polled_s, now_s - self._polled_s, used_s - self._used_s
        self._polled_s, self._used_s = now_s, used_s
        if stood_s >= self._noticed_s + self._poll_s:
            self._stops.append(_Stop(began_s, now_s))
            log.warning("This worker stood still for %.1f s: %s.", stood_s, self._cause(stood_s, worked_s))

    def _cause(self, stood_s: float, worked_s: float) -> str:
        jobs = self._running()
        if not jobs:
            return "its process was stopped, or its machine had no time for it"
        names = [f"{job.claim.type} ({job.claim.task_id})" for job in jobs[:_NAMES_SHOWN_MAX]]
        more = f" and {len(jobs) - len(names)} more" if len(jobs) > len(names) else ""
        if worked_s >= stood_s / 2:
            likely = "most likely a handler held the interpreter"
        else:
            likely = "its process was stopped, or a handler held the interpreter and did nothing"
        return f"{likely}. At that time it ran {', '.join(names)}{more}"

    def why_lost(self, job: Job, otherwise: str) -> str:
        """Why a lease was lost: `otherwise`, unless this process stood still while it should have been extended."""
        self.poll()  # whoever asks may be the first to run again
        since_s = job.lease_ends_s - max(job.lease_ms, job.claim.lease_ms) / 1000
        stood_s = sum(max(0.0, stop.ended_s - max(stop.began_s, since_s)) for stop in self._stops)
        if stood_s < self._noticed_s:
            return otherwise
        return f"this worker itself stood still for {stood_s:.1f} s, so that its lease was not extended"

    def is_recent(self) -> bool:
        """Whether it has just ended: calls that failed by now may have failed by it."""
        self.poll()
        return bool(self._stops) and self._now_s() < self._stops[-1].ended_s + _RECENT_S
