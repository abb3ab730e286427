"""Reports how handlers ended, many at a time: whatever has come together while the last report was on its way.

A report is repeated until the server has answered it, for as long as that takes; the leases are kept alive meanwhile.
An answer that was lost does no harm: the server gives the first answer again.

Each shard has reports of its own, because a call for several shards is answered when the last of them has answered: one
that is silent, or has no leader, would hold up the reports of all others.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.client._batches import take_batch
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError, InvalidArgument, Rejected
from holdfast.client.models import Ack, Acked, Failed, Failure, Released, TaskError
from holdfast.client.worker.jobs import AttemptFailed, Interrupted, Job, Outcome, Snoozed, Succeeded, with_note
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.outages import PASSING_REFUSALS, Outage
from holdfast.client.worker.standstill import Standstill
from holdfast.common.service import Service
from holdfast.routing.task_ids import shard_of_task

log = logging.getLogger("holdfast.worker")

_BATCH_MAX = 500
_BATCH_BYTES_MAX = 1024 * 1024
_ITEM_BYTES = 100  # what an item costs beside its result or its error
_CALL_S_MAX = 10.0
LATE_S = 1.0  # a shard that has not answered for so long is not expected to do so soon
_REFUSED_MAX = 2  # reports of one failure; then there is nothing left to be left out

ReportT = TypeVar("ReportT", bound=Outcome)
AnswerT = TypeVar("AnswerT")
Answered = Callable[[Job, Acked | Failed | Released | Rejected], None]


class Settler(Service):
    """Takes outcomes and reports them. `answered` is called once per job, with the server's last word on it;
    `late_changed` with the number of reports that wait for shards which do not answer, whenever that is another."""

    def __init__(
        self,
        client: AsyncClient,
        answered: Answered,
        standstill: Standstill,
        meter: Meter,
        late_changed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._answered = answered
        self._late_changed = late_changed
        self._late = 0
        self._refused: dict[Job, int] = {}  # how often the report of a failure was not taken; another is on its way

        async def ack(jobs: Sequence[Job], reports: Sequence[Succeeded]) -> list[Acked | Rejected]:
            items = [
                job.claim if report.result is None else Ack(job.claim, report.result)
                for job, report in zip(jobs, reports, strict=True)
            ]
            return await client.ack_many(items, timeout_s=_CALL_S_MAX)

        async def fail(jobs: Sequence[Job], reports: Sequence[AttemptFailed]) -> list[Failed | Rejected]:
            items = [
                Failure(
                    job.claim,
                    report.error,
                    retry_delay_ms=report.retry_delay_ms,
                    retry_at_ms=report.retry_at_ms,
                    dead=report.dead,
                )
                for job, report in zip(jobs, reports, strict=True)
            ]
            return await client.fail_many(items, timeout_s=_CALL_S_MAX)

        async def release(jobs: Sequence[Job], reports: Sequence[Interrupted]) -> list[Released | Rejected]:
            return await client.release_many([job.claim for job in jobs], timeout_s=_CALL_S_MAX)

        async def snooze(jobs: Sequence[Job], reports: Sequence[Snoozed]) -> list[Released | Rejected]:
            # A call has one delay. If one of several calls fails, all are made again: the first answers stand.
            answers: dict[Job, Released | Rejected] = {}
            for delay_ms in dict.fromkeys(report.delay_ms for report in reports):
                same = [job for job, report in zip(jobs, reports, strict=True) if report.delay_ms == delay_ms]
                claims = [job.claim for job in same]
                reported = await client.release_many(claims, delay_ms=delay_ms, timeout_s=_CALL_S_MAX)
                answers |= zip(same, reported, strict=True)
            return [answers[job] for job in jobs]

        def outages(what: str, shard: int | None) -> Outage:
            return Outage(what, standstill, meter, shard, has_answered=True)

        self._acks = _Reports("report successes", ack, self._ack_answered, outages, self._count_late)
        self._failures = _Reports("report failures", fail, self._failure_answered, outages, self._count_late)
        self._releases = _Reports("give tasks back", release, self._release_answered, outages, self._count_late)
        self._snoozes = _Reports("snooze tasks", snooze, self._snooze_answered, outages, self._count_late)
        super().__init__(self._acks.run, self._failures.run, self._releases.run, self._snoozes.run)

    def put(self, job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, Succeeded):
            self._acks.put(job, outcome, len(outcome.result or b""))
        elif isinstance(outcome, AttemptFailed):
            self._failures.put(job, outcome, len(outcome.error.message) + len(outcome.error.traceback))
        elif isinstance(outcome, Snoozed):
            self._snoozes.put(job, outcome, 0)
        else:
            self._releases.put(job, outcome, 0)

    def _count_late(self) -> None:
        late = sum(reports.late for reports in (self._acks, self._failures, self._releases, self._snoozes))
        if late != self._late:
            self._late = late
            self._late_changed(late)

    def _ack_answered(self, job: Job, _report: Succeeded, answer: Acked | Rejected) -> None:
        if isinstance(answer, InvalidArgument):
            # The result is what the server will not take, e.g. because it is too large: no attempt can change that.
            error = TaskError("holdfast.ResultRefused", f"The handler returned, but its result was refused: {answer}")
            self.put(job, AttemptFailed(error, dead=True))
        else:
            self._answered(job, answer)

    def _failure_answered(self, job: Job, report: AttemptFailed, answer: Failed | Rejected) -> None:
        """That it failed must be known. If the server does not take the report it is the delay or the moment that is
        left out, and if that was not it, the error."""
        times = self._refused.pop(job, 0)
        if not isinstance(answer, InvalidArgument) or times == _REFUSED_MAX:
            self._answered(job, answer)
            return
        if not times:
            error = with_note(report.error, f"When to try again is not as the handler said; this was refused: {answer}")
        else:
            error = TaskError("holdfast.FailureRefused", f"The handler failed, but the report was refused: {answer}")
        self._refused[job] = times + 1
        self.put(job, AttemptFailed(error, dead=report.dead))

    def _release_answered(self, job: Job, _report: Interrupted, answer: Released | Rejected) -> None:
        self._answered(job, answer)

    def _snooze_answered(self, job: Job, _report: Snoozed, answer: Released | Rejected) -> None:
        if isinstance(answer, InvalidArgument):
            # Given back at once it would come again at once, and for ever: a mistake has to cost an attempt.
            error = TaskError("holdfast.SnoozeRefused", f"The handler snoozed, but the server refused: {answer}")
            self.put(job, AttemptFailed(error))
        else:
            self._answered(job, answer)


class _Line(Generic[ReportT]):
    """The reports of one kind for one shard. It is there while it has any."""

    def __init__(self, outage: Outage) -> None:
        self.waiting: deque[tuple[Job, ReportT, int]] = deque()
        self.unanswered = 0  # those that wait, and those that are on their way
        self.alone = 0  # how many of the next go one by one, because together the server refused them
        self.outage = outage
        self.is_late = False


class _Reports(Service, Generic[ReportT, AnswerT]):
    """Reports of one kind: one call at a time for each shard, and everything that came meanwhile goes with the next.

    As bounded as the tasks that a worker holds: there is no call, and nothing to remember, without one.
    """

    def __init__(
        self,
        what: str,
        send: Callable[[Sequence[Job], Sequence[ReportT]], Awaitable[list[AnswerT | Rejected]]],
        answered: Callable[[Job, ReportT, AnswerT | Rejected], None],
        make_outage: Callable[[str, int | None], Outage],
        late_changed: Callable[[], None],
    ) -> None:
        super().__init__()
        self._what = what
        self._send = send
        self._answered = answered
        self._make_outage = make_outage
        self._late_changed = late_changed
        self._lines: dict[int | None, _Line[ReportT]] = {}  # by shard; None: of ids that no shard could have made

    @property
    def late(self) -> int:
        """How many wait for a shard that does not answer."""
        return sum(line.unanswered for line in self._lines.values() if line.is_late)

    def put(self, job: Job, report: ReportT, size_bytes: int) -> None:
        shard = shard_of_task(job.claim.task_id)
        line = self._lines.get(shard)
        if line is None:
            line = self._lines[shard] = _Line(self._make_outage(self._what, shard))
            self.spawn(self._report(shard, line))
        line.waiting.append((job, report, size_bytes + _ITEM_BYTES))
        line.unanswered += 1
        if line.is_late:
            self._late_changed()

    async def _report(self, shard: int | None, line: _Line[ReportT]) -> None:
        """Until there is nothing left for this shard."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None  # since the last answer
        try:
            while line.waiting:
                timer = timer or loop.call_later(LATE_S, self._set_late, line, True)
                error = await self._send_next(line)
                if error is not None:
                    await line.outage.pause(error)
                    continue
                timer.cancel()
                timer = None
                line.outage.over()
                self._set_late(line, False)
        finally:
            if timer is not None:
                timer.cancel()
            del self._lines[shard]

    async def _send_next(self, line: _Line[ReportT]) -> HoldfastError | None:
        """Returns why something of it has to be repeated."""
        items_max = 1 if line.alone else _BATCH_MAX
        batch = take_batch(line.waiting, items_max, _BATCH_BYTES_MAX, lambda waiting: waiting[2])
        line.alone = max(0, line.alone - 1)
        answers: Sequence[AnswerT | Rejected]
        try:
            answers = await self._send([job for job, _, _ in batch], [report for _, report, _ in batch])
        except InvalidArgument as error:
            if len(batch) > 1:
                line.alone = len(batch)
                line.waiting.extendleft(reversed(batch))
                return None
            answers = [error]
        except HoldfastError as error:
            line.waiting.extendleft(reversed(batch))
            return error
        last_refusal: Rejected | None = None
        for item, answer in zip(batch, answers, strict=True):
            if isinstance(answer, PASSING_REFUSALS):
                last_refusal = answer
                line.waiting.append(item)
            else:
                line.unanswered -= 1
                self._answered(item[0], item[1], answer)
        return last_refusal

    def _set_late(self, line: _Line[ReportT], is_late: bool) -> None:
        if line.is_late != is_late:
            line.is_late = is_late
            self._late_changed()
