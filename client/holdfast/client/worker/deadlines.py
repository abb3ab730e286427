"""Ends attempts that take longer than their timeout.

The server does the same a moment later, and whoever is faster decides nothing else: the attempt has failed. Here is
where the handler gets to know of it.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from holdfast.client.worker.handlers import interrupt
from holdfast.client.worker.jobs import Job, Phase
from holdfast.client.worker.task_logs import fields_of

log = logging.getLogger("holdfast.worker")


class Deadlines:
    """A timer for each job that has a deadline. `watch` it again when its deadline has changed."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Job, asyncio.TimerHandle] = {}

    @property
    def pending(self) -> int:
        """How many attempts are watched."""
        return len(self._timers)

    def watch(self, job: Job) -> None:
        self.forget(job)
        if job.deadline_s is not None and job.phase is Phase.RUNNING and not job.timed_out:
            self._timers[job] = self._loop.call_later(max(0.0, job.deadline_s - self._now_s()), self._passed, job)

    def forget(self, job: Job) -> None:
        timer = self._timers.pop(job, None)
        if timer is not None:
            timer.cancel()

    def _passed(self, job: Job) -> None:
        del self._timers[job]
        time_out(job)


def time_out(job: Job) -> None:
    """Whatever the handler returns from now on is not the task's result."""
    if job.phase is Phase.RUNNING and not job.lease_lost and not job.timed_out:
        job.timed_out = True
        text = "Task %s (%s) has taken too long: its handler is told to stop."
        log.info(text, job.claim.task_id, job.claim.type, extra=fields_of(job))
        interrupt(job)
