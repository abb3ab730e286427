"""Extends leases while handlers run, and notices those that are lost.

A lease is extended when a third of it has passed, all of a shard that are due in one call: a shard that is silent must
not cost the leases of another one. A lease is lost when the server says so, or when it has run out by this machine's
clock without an answer: then the task may be elsewhere already. One that the server extends by less than was asked
for, because the attempt may take no longer, is not lost: see deadlines.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator

from holdfast.client.aio import AsyncClient
from holdfast.client.errors import Conflict, HoldfastError, InvalidArgument, NotFound, Rejected
from holdfast.client.models import Extended, Extension
from holdfast.client.worker.deadlines import Deadlines, time_out
from holdfast.client.worker.handlers import interrupt
from holdfast.client.worker.jobs import Job, Phase, note_extended
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.outages import Outage
from holdfast.client.worker.standstill import Standstill
from holdfast.client.worker.task_logs import fields_of
from holdfast.common.service import Service
from holdfast.routing.task_ids import shard_of_task

log = logging.getLogger("holdfast.worker")

_BATCH_MAX = 1_000
# Looks at the clock this often in the shortest lease, so that two tries fit between the first heartbeat and its end.
_POLLS_PER_LEASE = 8
_SOONER_S = 0.05  # one look for all the short leases that come together


class Heartbeats(Service):
    """Looks after the leases of `jobs`. An error that time cannot heal ends the worker."""

    def __init__(
        self,
        client: AsyncClient,
        jobs: Collection[Job],
        lease_ms_min: int,
        deadlines: Deadlines,
        standstill: Standstill,
        meter: Meter,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._poll_forever)
        self._now_s = now_s
        self._meter = meter
        self._client = client
        self._jobs = jobs
        self._deadlines = deadlines
        self._standstill = standstill
        self._next_poll_s = 0.0
        self._poll_sooner = asyncio.Event()
        self._short: set[int | None] = set()  # shards with a lease that cannot wait for the next look
        self._poll_s = lease_ms_min / 1000 / _POLLS_PER_LEASE
        self._call_s_max = lease_ms_min / 1000 / 3  # the second third: the last one is for another try
        self._called: set[int | None] = set()  # shards that have not answered their last call
        self._outages: dict[int | None, Outage] = {}  # of shards that do not answer

    def added(self, job: Job) -> None:
        """There is one more job. Its lease may be shorter than any that was asked for, if its timeout is."""
        if job.extend_at_s < self._next_poll_s:
            self._short.add(shard_of_task(job.claim.task_id))
            self._poll_sooner.set()

    async def _poll_forever(self) -> None:
        while True:
            await self._wait()
            self._poll()

    async def _wait(self) -> None:
        """Until the next look."""
        self._next_poll_s = self._now_s() + self._poll_s
        self._poll_sooner.clear()
        try:
            async with asyncio.timeout(self._poll_s):
                await self._poll_sooner.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SOONER_S)

    def _poll(self) -> None:
        now_s = self._now_s()
        due: dict[int | None, list[Job]] = {}  # by shard; None: of ids that no shard could have made
        for job in self._jobs:
            end_if_over(job, now_s, "its lease has run out without an answer from the server", self._standstill)
            if job.extend_at_s <= now_s + self._poll_s and _is_kept(job):
                due.setdefault(shard_of_task(job.claim.task_id), []).append(job)
        self._short &= self._called
        for shard, jobs in due.items():
            if shard not in self._called:
                # On its own, because the look-out for lost leases must not wait for a server that does not answer.
                self._called.add(shard)
                self.spawn(self._extend(shard, jobs))

    async def _extend(self, shard: int | None, due: list[Job]) -> None:
        try:
            for batch in _batches(due):
                items = [Extension(job.claim, job.lease_ms) for job in batch]
                try:
                    answers = await self._client.extend_many(items, timeout_s=self._call_s_max)
                except HoldfastError as error:
                    await self._outage_of(shard).pause(error)
                    return
                if shard in self._outages:
                    self._outages.pop(shard).over()
                for job, answer in zip(batch, answers, strict=True):
                    self._note(job, answer)
        finally:
            self._called.discard(shard)
            if shard in self._short:
                self._poll_sooner.set()

    def _outage_of(self, shard: int | None) -> Outage:
        outage = Outage("extend leases", self._standstill, self._meter, shard, has_answered=True)
        return self._outages.setdefault(shard, outage)

    def _note(self, job: Job, answer: Extended | Rejected) -> None:
        if isinstance(answer, Extended):
            note_extended(job, answer)
            self._deadlines.watch(job)
            if answer.cancel_requested and not job.cancel_requested:
                job.cancel_requested = True
                log.info("Task %s is to be cancelled.", job.claim.task_id, extra=fields_of(job))
                interrupt(job)
        elif isinstance(answer, Conflict | NotFound):
            lose(job, self._standstill.why_lost(job, "the server says that its claim has ended"))
        elif isinstance(answer, InvalidArgument):
            raise answer  # e.g. a lease that is longer than the server allows: a mistake that somebody must see
        # Any other refusal, e.g. for overload: the next look tries again.


def _batches(jobs: list[Job]) -> Iterator[list[Job]]:
    for start in range(0, len(jobs), _BATCH_MAX):
        yield jobs[start : start + _BATCH_MAX]


def _is_kept(job: Job) -> bool:
    """Whether its lease is worth extending."""
    return not job.lease_lost and not job.timed_out


def end_if_over(job: Job, now_s: float, why_lost: str, standstill: Standstill) -> None:
    """Takes note of a deadline or a lease that has passed. At the same moment it is the deadline: it ends the lease."""
    if job.deadline_s is not None and now_s >= job.deadline_s:
        time_out(job)
    elif now_s >= job.lease_ends_s:
        lose(job, standstill.why_lost(job, why_lost))


def lose(job: Job, why: str) -> None:
    """Takes away the right to report. Once a report is on its way only the server's answer to that counts."""
    if job.phase is Phase.RUNNING and not job.lease_lost and not job.timed_out:
        job.lease_lost = True
        text = "Lost task %s (%s), attempt %d: %s."
        log.warning(text, job.claim.task_id, job.claim.type, job.claim.attempt, why, extra=fields_of(job))
        interrupt(job)
