"""Reports how handlers ended, many at a time: whatever has come together while the last report was on its way.

A report is repeated until the server has answered it, for as long as that takes; the leases are kept alive meanwhile.
An answer that was lost does no harm: the server gives the first answer again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from holdfast.client._batches import take_batch
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError, InvalidArgument, Rejected
from holdfast.client.models import Ack, Acked, Failed, Failure, Released, TaskError
from holdfast.client.worker.jobs import AttemptFailed, Interrupted, Job, Outcome, Snoozed, Succeeded, with_note
from holdfast.client.worker.outages import PASSING_REFUSALS, Outage

log = logging.getLogger("holdfast.worker")

_BATCH_MAX = 500
_BATCH_BYTES_MAX = 1024 * 1024
_ITEM_BYTES = 100  # what an item costs beside its result or its error
_CALL_S_MAX = 10.0
_REFUSED_MAX = 2  # reports of one failure; then there is nothing left to be left out

ReportT = TypeVar("ReportT", bound=Outcome)
AnswerT = TypeVar("AnswerT")
Answered = Callable[[Job, Acked | Failed | Released | Rejected], None]


class Settler:
    """Takes outcomes and reports them. `answered` is called once per job, with the server's last word on it."""

    def __init__(self, client: AsyncClient, answered: Answered) -> None:
        self._answered = answered
        self._refused: dict[Job, int] = {}  # how often the report of a failure was not taken; another is on its way

        async def ack(jobs: Sequence[Job], reports: Sequence[Succeeded]) -> list[Acked | Rejected]:
            items = [Ack(job.claim, report.result) for job, report in zip(jobs, reports, strict=True)]
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
                told = await client.release_many(claims, delay_ms=delay_ms, timeout_s=_CALL_S_MAX)
                answers |= zip(same, told, strict=True)
            return [answers[job] for job in jobs]

        self._acks = _Lane("report successes", ack, self._ack_answered)
        self._failures = _Lane("report failures", fail, self._failure_answered)
        self._releases = _Lane("give tasks back", release, self._release_answered)
        self._snoozes = _Lane("snooze tasks", snooze, self._snooze_answered)

    def put(self, job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, Succeeded):
            self._acks.put(job, outcome, len(outcome.result or b""))
        elif isinstance(outcome, AttemptFailed):
            self._failures.put(job, outcome, len(outcome.error.message) + len(outcome.error.traceback))
        elif isinstance(outcome, Snoozed):
            self._snoozes.put(job, outcome, 0)
        else:
            self._releases.put(job, outcome, 0)

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run until it is cancelled: one for each kind of report, so that none waits for another."""
        return [self._acks.run(), self._failures.run(), self._releases.run(), self._snoozes.run()]

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


class _Lane(Generic[ReportT, AnswerT]):
    """Reports of one kind: one call at a time, and everything that came meanwhile goes with the next."""

    def __init__(
        self,
        what: str,
        send: Callable[[Sequence[Job], Sequence[ReportT]], Awaitable[list[AnswerT | Rejected]]],
        answered: Callable[[Job, ReportT, AnswerT | Rejected], None],
    ) -> None:
        self._send = send
        self._answered = answered
        self._outage = Outage(what)
        self._waiting: deque[tuple[Job, ReportT, int]] = deque()
        self._filled = asyncio.Event()

    def put(self, job: Job, report: ReportT, size_bytes: int) -> None:
        self._waiting.append((job, report, size_bytes + _ITEM_BYTES))
        self._filled.set()

    async def run(self) -> None:
        alone = 0  # how many of the next items go one by one, because together the server refused them
        while True:
            while not self._waiting:
                self._filled.clear()
                await self._filled.wait()
            items_max = 1 if alone else _BATCH_MAX
            batch = take_batch(self._waiting, items_max, _BATCH_BYTES_MAX, lambda waiting: waiting[2])
            alone = max(0, alone - 1)
            jobs, reports = [job for job, _, _ in batch], [report for _, report, _ in batch]
            try:
                answers = await self._send(jobs, reports)
            except InvalidArgument as error:
                if len(batch) > 1:
                    alone = len(batch)
                    self._waiting.extendleft(reversed(batch))
                else:
                    self._answered(jobs[0], reports[0], error)
                continue
            except HoldfastError as error:
                self._waiting.extendleft(reversed(batch))
                await self._outage.pause(error)
                continue
            self._outage.over()
            await self._note(batch, answers)

    async def _note(self, batch: list[tuple[Job, ReportT, int]], answers: list[AnswerT | Rejected]) -> None:
        last_refusal: Rejected | None = None
        for item, answer in zip(batch, answers, strict=True):
            if isinstance(answer, PASSING_REFUSALS):
                last_refusal = answer
                self._waiting.append(item)
            else:
                self._answered(item[0], item[1], answer)
        if last_refusal is not None:
            await self._outage.pause(last_refusal)
