"""Reports: many at a time, repeated until answered, and never stuck on one that the server will not take."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from holdfast.client import (
    Ack,
    Acked,
    AsyncClient,
    ClaimedTask,
    ConnectionFailed,
    Failed,
    Failure,
    InvalidArgument,
    Overloaded,
    Rejected,
    Released,
    StaleToken,
    TaskError,
    TaskState,
    UnexpectedAnswer,
)
from holdfast.client.worker import settling as settling_module
from holdfast.client.worker.jobs import AttemptFailed, Interrupted, Job, Snoozed, Succeeded, new_job
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.settling import Settler
from holdfast.client.worker.standstill import Standstill
from holdfast.machine.ids import format_task_id, make_task_id
from holdfast.routing.task_ids import shard_of_task

_CANCELLED = Released(TaskState.CANCELLED)


class ScriptedCalls:
    """Records what is sent. `answer` decides item by item; what is in `raises` is raised first, call by call."""

    def __init__(self) -> None:
        self.acks: list[list[Ack]] = []
        self.failures: list[list[Failure]] = []
        self.releases: list[list[ClaimedTask]] = []
        self.snoozes: list[tuple[int, list[str]]] = []
        self.refused_snoozes = False
        self.raises: list[Exception] = []
        self.refused_failures = 0  # so many are
        self.answer: Callable[[Ack], Acked | Rejected] = lambda _: Acked()
        self.gate = asyncio.Event()
        self.gate.set()

    async def ack_many(self, claims: list[ClaimedTask | Ack], *, timeout_s: float) -> list[Acked | Rejected]:
        items = [claim if isinstance(claim, Ack) else Ack(claim) for claim in claims]
        self.acks.append(items)
        await self.gate.wait()
        if self.raises:
            raise self.raises.pop(0)
        return [self.answer(item) for item in items]

    async def fail_many(self, items: list[Failure], *, timeout_s: float) -> list[Failed | Rejected]:
        self.failures.append(items)
        if self.refused_failures:
            self.refused_failures -= 1
            return [InvalidArgument("too long", reason="OUT_OF_RANGE") for _ in range(len(items))]
        return [Failed(TaskState.DEAD if item.dead else TaskState.RETRY_PENDING) for item in items]

    async def release_many(
        self, claims: list[ClaimedTask], *, delay_ms: int = 0, timeout_s: float
    ) -> list[Released | Rejected]:
        if not delay_ms:
            self.releases.append(claims)
            return [Released(TaskState.READY) for _ in claims]
        self.snoozes.append((delay_ms, [claim.task_id for claim in claims]))
        if self.raises:
            raise self.raises.pop(0)
        if self.refused_snoozes:
            return [InvalidArgument("too long", reason="OUT_OF_RANGE", field="delay_ms") for _ in claims]
        return [Released(TaskState.DELAYED) if claim.task_id != "6" else _CANCELLED for claim in claims]


class Answers:
    def __init__(self) -> None:
        self.by_task: dict[str, Any] = {}
        self._changed = asyncio.Event()

    def __call__(self, job: Job, answer: object) -> None:
        assert job.claim.task_id not in self.by_task, "answered twice"
        self.by_task[job.claim.task_id] = answer
        self._changed.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.by_task) < count:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def settling() -> AsyncIterator[tuple[Settler, ScriptedCalls, Answers]]:
    calls, answers = ScriptedCalls(), Answers()
    settler = Settler(cast(AsyncClient, calls), answers, Standstill(list, 1000), Meter([]))
    settler.start()
    try:
        yield settler, calls, answers
    finally:
        await settler.stop()


def job(number: int) -> Job:
    ends_s = time.monotonic() + 30
    claim = ClaimedTask(task_id=str(number), token=number, queue="q", type="t", lease_ends_s=ends_s)
    return new_job(claim, 30_000, 30_000)


async def test_outcomes_go_where_they_belong() -> None:
    async with settling() as (settler, calls, answers):
        settler.put(job(1), Succeeded(b"1"))
        settler.put(job(2), AttemptFailed(TaskError("Oops"), retry_delay_ms=5, dead=False))
        settler.put(job(3), Interrupted())
        await answers.wait_for(3)
        assert [(ack.claim.task_id, ack.result) for ack in calls.acks[0]] == [("1", b"1")]
        assert [(fail.claim.task_id, fail.error.type, fail.retry_delay_ms) for fail in calls.failures[0]] == [
            ("2", "Oops", 5)
        ]
        assert [claim.task_id for claim in calls.releases[0]] == ["3"]


async def test_the_moment_of_the_next_attempt_is_passed_on() -> None:
    async with settling() as (settler, calls, answers):
        settler.put(job(1), AttemptFailed(TaskError("Oops"), retry_at_ms=77))
        await answers.wait_for(1)
        [[failure]] = calls.failures
        assert (failure.retry_at_ms, failure.retry_delay_ms, failure.dead) == (77, None, False)


async def test_snoozes_of_the_same_length_go_together_and_each_gets_its_own_answer() -> None:
    async with settling() as (settler, calls, answers):
        calls.raises = [ConnectionFailed("x")]
        for number, delay_ms in ((4, 50), (5, 70), (6, 50), (7, 70)):
            settler.put(job(number), Snoozed(delay_ms))
        await answers.wait_for(4)
        assert calls.snoozes == [(50, ["4", "6"]), (50, ["4", "6"]), (70, ["5", "7"])], "repeated until it is answered"
        assert {name for name, answer in answers.by_task.items() if answer == _CANCELLED} == {"6"}
        assert not calls.releases
        assert not calls.failures


async def test_a_snooze_that_the_server_will_not_take_is_a_failed_attempt() -> None:
    async with settling() as (settler, calls, answers):
        calls.refused_snoozes = True
        settler.put(job(1), Snoozed(50))
        await answers.wait_for(1)
        [[failure]] = calls.failures
        assert (failure.error.type, failure.dead) == ("holdfast.SnoozeRefused", False)
        assert answers.by_task["1"] == Failed(TaskState.RETRY_PENDING)


async def test_what_comes_while_a_report_is_on_its_way_goes_together_with_the_next() -> None:
    async with settling() as (settler, calls, answers):
        calls.gate.clear()
        settler.put(job(0), Succeeded())
        while not calls.acks:
            await asyncio.sleep(0)
        for number in range(1, 1_201):
            settler.put(job(number), Succeeded())
        calls.gate.set()
        await answers.wait_for(1_201)
        assert [len(items) for items in calls.acks] == [1, 500, 500, 200]


async def test_large_results_share_a_report_only_up_to_its_limit() -> None:
    async with settling() as (settler, calls, answers):
        calls.gate.clear()
        settler.put(job(0), Succeeded())
        while not calls.acks:
            await asyncio.sleep(0)
        for number, size in enumerate([2_000_000, 400_000, 400_000, 400_000], 1):
            settler.put(job(number), Succeeded(b"x" * size))
        calls.gate.set()
        await answers.wait_for(5)
        assert [[ack.claim.task_id for ack in items] for items in calls.acks] == [["0"], ["1"], ["2", "3"], ["4"]]


async def test_a_report_is_repeated_until_it_is_answered() -> None:
    async with settling() as (settler, calls, answers):
        calls.raises = [ConnectionFailed("x"), Overloaded("", reason="OVERLOADED", retry_after_ms=1)]
        settler.put(job(1), Succeeded(b"1"))
        await answers.wait_for(1)
        assert len(calls.acks) == 3
        assert answers.by_task == {"1": Acked()}


async def test_an_item_that_is_refused_for_the_moment_is_repeated_alone() -> None:
    async with settling() as (settler, calls, answers):
        refusals = [Overloaded("", reason="OVERLOADED")]
        calls.answer = lambda ack: refusals.pop() if ack.claim.task_id == "1" and refusals else Acked()
        settler.put(job(1), Succeeded())
        settler.put(job(2), Succeeded())
        await answers.wait_for(2)
        assert [[ack.claim.task_id for ack in items] for items in calls.acks] == [["1", "2"], ["1"]]


async def test_the_last_word_of_the_server_is_passed_on() -> None:
    async with settling() as (settler, calls, answers):
        calls.answer = lambda _: StaleToken("", reason="STALE_TOKEN")
        settler.put(job(1), Succeeded())
        await answers.wait_for(1)
        assert isinstance(answers.by_task["1"], StaleToken)
        assert len(calls.acks) == 1, "a stale token is not tried again"


async def test_a_result_that_the_server_will_not_take_makes_a_dead_letter() -> None:
    async with settling() as (settler, calls, answers):
        calls.answer = lambda _: InvalidArgument("too large", reason="TOO_LARGE", field="items[0].result")
        settler.put(job(1), Succeeded(b"x"))
        await answers.wait_for(1)
        [[failure]] = calls.failures
        assert failure.dead
        assert "too large" in failure.error.message
        assert answers.by_task["1"] == Failed(TaskState.DEAD)


async def test_a_failure_that_the_server_will_not_take_is_reported_without_its_delay() -> None:
    """What the handler raised is still what has happened, and may be an error after which no attempt helps."""
    async with settling() as (settler, calls, answers):
        calls.refused_failures = 1
        settler.put(job(1), AttemptFailed(TaskError("Oops", "closed", "line 7"), retry_at_ms=5, dead=True))
        await answers.wait_for(1)
        [first], [second] = calls.failures
        assert (first.error, first.retry_at_ms) == (TaskError("Oops", "closed", "line 7"), 5)
        assert (second.error.type, second.error.traceback, second.dead) == ("Oops", "line 7", True)
        assert (second.retry_at_ms, second.retry_delay_ms) == (None, None)
        assert second.error.message.startswith("closed (")
        assert "too long" in second.error.message
        assert answers.by_task["1"] == Failed(TaskState.DEAD)


async def test_a_failure_that_the_server_will_not_take_at_all_is_reported_in_plain_words() -> None:
    async with settling() as (settler, calls, answers):
        calls.refused_failures = 10
        settler.put(job(1), AttemptFailed(TaskError("Oops", "x" * 16 * 1024), retry_delay_ms=5))
        await answers.wait_for(1)
        reports = [(failure.error.type, failure.retry_delay_ms) for [failure] in calls.failures]
        assert reports == [("Oops", 5), ("Oops", None), ("holdfast.FailureRefused", None)]
        assert all(len(failure.error.message.encode()) <= 16 * 1024 for [failure] in calls.failures)
        assert "too long" in calls.failures[1][0].error.message
        assert isinstance(answers.by_task["1"], InvalidArgument), "then it is the server's last word"


async def test_a_report_that_is_refused_as_a_whole_goes_item_by_item_and_then_together_again() -> None:
    async with settling() as (settler, calls, answers):
        calls.raises = [InvalidArgument("", reason="BATCH_TOO_LARGE")]
        calls.gate.clear()
        for number in range(3):
            settler.put(job(number), Succeeded())
        calls.gate.set()
        await answers.wait_for(3)
        assert [len(items) for items in calls.acks] == [3, 1, 1, 1]
        assert set(answers.by_task.values()) == {Acked()}
        for number in range(3, 6):
            settler.put(job(number), Succeeded())
        await answers.wait_for(6)
        assert len(calls.acks[4]) == 3


def job_of_shard(shard: int, number: int) -> Job:
    ends_s = time.monotonic() + 30
    task_id = format_task_id(make_task_id(0, shard, number))
    claim = ClaimedTask(task_id=task_id, token=number, queue="q", type="t", lease_ends_s=ends_s)
    return new_job(claim, 30_000, 30_000)


class SilentShard(ScriptedCalls):
    """Shard 7 answers when the gate is open; the others do so at once."""

    async def ack_many(self, claims: list[ClaimedTask | Ack], *, timeout_s: float) -> list[Acked | Rejected]:
        items = [claim if isinstance(claim, Ack) else Ack(claim) for claim in claims]
        self.acks.append(items)
        if any(shard_of_task(item.claim.task_id) == 7 for item in items):
            await self.gate.wait()
        return [Acked() for _ in items]


async def test_a_silent_shard_holds_up_only_its_own_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_module, "LATE_S", 0.01)
    calls, answers = SilentShard(), Answers()
    late: list[int] = []
    calls.gate.clear()
    settler = Settler(cast(AsyncClient, calls), answers, Standstill(list, 1000), Meter([]), late.append)
    settler.start()
    silent = [job_of_shard(7, number) for number in range(3)]
    others = [job_of_shard(shard, number) for number in range(10, 20) for shard in (1, 2)]
    try:
        for item in (*silent, *others):
            settler.put(item, Succeeded())
        await answers.wait_for(20)
        assert answers.by_task.keys() == {other.claim.task_id for other in others}
        assert [len(items) for items in calls.acks] == [3, 10, 10], "one call for each shard"
        async with asyncio.timeout(20):
            while late[-1:] != [3]:
                await asyncio.sleep(0.001)
        settler.put(job_of_shard(7, 5), Succeeded())
        assert late[-1] == 4, "they are known to wait"
        calls.gate.set()
        await answers.wait_for(24)
        assert [len(items) for items in calls.acks] == [3, 10, 10, 1]
        assert late[-1] == 0
    finally:
        await settler.stop()


async def test_an_error_that_time_does_not_heal_ends_the_reports() -> None:
    calls, answers = ScriptedCalls(), Answers()
    settler = Settler(cast(AsyncClient, calls), answers, Standstill(list, 1000), Meter([]))
    calls.raises = [UnexpectedAnswer("another API")]
    settler.put(job(1), Succeeded())
    with pytest.raises(UnexpectedAnswer):
        await asyncio.wait_for(settler.run(), 20)
