"""Running handlers on real threads and a real loop: every job ends exactly once, whatever its handler does."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Queue
from typing import Any

import pytest

from holdfast.client import ClaimedTask, GiveUp, Holdfast, current_task
from holdfast.client.context import RunningTask, Snooze, StopReason
from holdfast.client.worker.handlers import UNKNOWN_TYPE, Handlers, interrupt
from holdfast.client.worker.jobs import AttemptFailed, Interrupted, Job, Outcome, Snoozed, Succeeded, new_job

WAIT_S = 20

app = Holdfast("localhost:1")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
async def add_async(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@app.task
def nothing() -> None: ...


@app.task
def leave() -> None:
    sys.exit(3)


@app.task
async def leave_async() -> None:
    raise KeyboardInterrupt


@app.task
def give_up() -> None:
    raise GiveUp("no such account")


@app.task
def snooze() -> None:
    raise Snooze(5)


@app.task
async def snooze_async() -> None:
    raise Snooze(5)


@app.task
def snooze_badly() -> None:
    raise Snooze(-1)


@app.task
async def snooze_badly_async() -> None:
    raise Snooze(-1)


@app.task
def not_json() -> object:
    return {1, 2}


class Shifty(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("changed meanwhile")


@app.task
def shifty_result() -> object:
    return Shifty(a=1)


@app.task
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@app.task
async def waits_for_ever() -> None:
    await asyncio.Event().wait()


@app.task
async def takes_no_notice() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "done all the same"
    return ""


@app.task
def who_am_i() -> list[object]:
    task = current_task()
    about = [task.id, task.idempotency_key, task.queue, task.type, task.attempt, task.tenant, task.limit_key]
    return [*about, task.headers]


@app.task
async def who_am_i_async() -> list[object]:
    await asyncio.sleep(0)
    task = current_task()
    return [task.id, task.attempt, task.should_stop]


class Ended:
    def __init__(self) -> None:
        self.queue: Queue[tuple[Job, Outcome]] = Queue()

    def __call__(self, job: Job, outcome: Outcome) -> None:
        self.queue.put((job, outcome))

    def next(self) -> Outcome:
        return self.queue.get(timeout=WAIT_S)[1]


@contextmanager
def running(threads_max: int = 4, *, more: Holdfast | None = None) -> Iterator[tuple[Handlers, Ended]]:
    ended = Ended()
    handlers = Handlers({**app.tasks, **(more.tasks if more else {})}, threads_max, ended)
    try:
        yield handlers, ended
    finally:
        handlers.close()
    assert ended.queue.empty(), "a job ended twice"


def job(name: str, payload: bytes = b"") -> Job:
    claim = ClaimedTask(
        task_id="01a", token=1, queue="q", type=name, payload=payload, headers={"trace": "1"}, attempt=3, tenant="acme",
        limit_key="disk-7",
    )  # fmt: skip
    return new_job(claim, 30_000, 30_000)


@pytest.mark.parametrize("name", ["add", "add_async"])
@pytest.mark.parametrize("payload", [b"[1, 2]", b'{"a": 1, "b": 2}'])
def test_a_handler_gets_its_arguments_and_its_result_is_json(name: str, payload: bytes) -> None:
    with running() as (handlers, ended):
        handlers.start(job(name, payload))
        assert ended.next() == Succeeded(b"3")


def test_a_handler_that_returns_nothing_has_no_result() -> None:
    with running() as (handlers, ended):
        handlers.start(job("nothing"))
        assert ended.next() == Succeeded(None)


@pytest.mark.parametrize(
    ("name", "payload", "kind", "dead"),
    [
        ("leave", b"", "SystemExit", False),
        ("leave_async", b"", "KeyboardInterrupt", False),
        ("give_up", b"", "holdfast.client.errors.GiveUp", True),
        ("not_json", b"", "holdfast.client.errors.NotJson", True),
        ("shifty_result", b"", "RuntimeError", False),
        ("cancels_itself", b"", "asyncio.exceptions.CancelledError", False),
        ("add", b"not json", "holdfast.client.errors.NotJson", True),
        ("add_async", b"7", "holdfast.client.errors.NotJson", True),
        ("add", b"[1]", "TypeError", False),
        ("add_async", b"[1]", "TypeError", False),
        ("no_such_task", b"", UNKNOWN_TYPE, False),
    ],
)
def test_whatever_goes_wrong_is_a_failed_attempt_and_the_next_handler_runs(
    name: str, payload: bytes, kind: str, dead: bool
) -> None:
    with running() as (handlers, ended):
        handlers.start(job(name, payload))
        outcome = ended.next()
        assert isinstance(outcome, AttemptFailed)
        assert (outcome.error.type, outcome.dead) == (kind, dead)
        handlers.start(job("add", b"[1, 2]"))
        assert ended.next() == Succeeded(b"3")
        handlers.start(job("add_async", b"[1, 2]"))
        assert ended.next() == Succeeded(b"3")


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt])
def test_a_task_that_a_handler_starts_cannot_end_the_worker(how: type[BaseException]) -> None:
    async def leave() -> None:
        raise how

    own = Holdfast("localhost:1")

    @own.task
    async def leaves_in_a_task() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())

    with running(more=own) as (handlers, ended):
        handlers.start(job("leaves_in_a_task"))
        outcome = ended.next()
        assert isinstance(outcome, AttemptFailed)
        handlers.start(job("add_async", b"[1, 2]"))
        assert ended.next() == Succeeded(b"3")


def test_an_outcome_that_cannot_be_told_is_a_failure_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(error: BaseException) -> AttemptFailed:
        raise RuntimeError("cannot describe it")

    monkeypatch.setattr("holdfast.client.worker.handlers.outcome_of", broken)
    with running() as (handlers, ended):
        for name in ("leave", "leave_async"):
            handlers.start(job(name))
            outcome = ended.next()
            assert isinstance(outcome, AttemptFailed)
            assert outcome.error.type == "RuntimeError"


def test_an_async_handler_is_interrupted_where_it_waits() -> None:
    with running() as (handlers, ended):
        waiting = job("waits_for_ever")
        handlers.start(waiting)
        interrupt(waiting)
        interrupt(waiting)
        assert ended.next() == Interrupted()


@pytest.mark.parametrize("name", ["snooze", "snooze_async"])
def test_a_handler_can_snooze(name: str) -> None:
    with running() as (handlers, ended):
        handlers.start(job(name))
        assert ended.next() == Snoozed(5_000)


@pytest.mark.parametrize("name", ["snooze_badly", "snooze_badly_async"])
def test_a_snooze_that_is_wrong_is_a_failed_attempt_that_says_so(name: str) -> None:
    with running() as (handlers, ended):
        handlers.start(job(name))
        outcome = ended.next()
    assert isinstance(outcome, AttemptFailed)
    assert (outcome.error.type, outcome.dead, outcome.retry_delay_ms) == ("ValueError", False, None)
    assert outcome.error.message == "Expected Snooze with at least 0 seconds and an end, but got -1."


def test_an_async_handler_that_took_too_long_has_failed_where_it_waited() -> None:
    with running() as (handlers, ended):
        waiting = job("waits_for_ever")
        handlers.start(waiting)
        handlers.start(job("add_async", b"[1, 2]"))  # once it has run, the one before it waits
        assert ended.next() == Succeeded(b"3")
        waiting.timed_out = True
        interrupt(waiting)
        outcome = ended.next()
        assert isinstance(outcome, AttemptFailed)
        assert outcome.error.type == "TaskTimeout"
        assert "in waits_for_ever" in outcome.error.traceback


def test_a_handler_knows_why_it_should_stop_and_how_long_it_may_go_on() -> None:
    stopping = job("add")
    task = RunningTask(stopping.claim, stopping)
    assert (task.stop_reason, task.deadline, task.seconds_left) == (None, None, None)
    stopping.deadline_s = time.monotonic() + 60
    assert 50 < (task.seconds_left or 0) <= 60
    assert task.deadline is not None
    assert 50 < (task.deadline - datetime.now(UTC)).total_seconds() <= 60
    stopping.deadline_s = time.monotonic() - 1
    assert task.seconds_left == 0
    interrupt(stopping)
    reasons = [task.stop_reason]
    for flag in ("cancel_requested", "timed_out", "lease_lost"):
        setattr(stopping, flag, True)
        assert getattr(task, flag)
        reasons.append(task.stop_reason)
    assert reasons == [
        StopReason.WORKER_STOPS, StopReason.CANCELLED, StopReason.TIMED_OUT, StopReason.LEASE_LOST
    ]  # fmt: skip


def test_a_handler_that_was_interrupted_and_finished_all_the_same_has_finished() -> None:
    with running() as (handlers, ended):
        stubborn = job("takes_no_notice")
        handlers.start(stubborn)
        handlers.start(job("add_async", b"[1, 2]"))  # once it has run, the one before it waits
        assert ended.next() == Succeeded(b"3")
        interrupt(stubborn)
        assert ended.next() == Succeeded(b'"done all the same"')


def test_handlers_know_their_task_and_nobody_elses() -> None:
    with running() as (handlers, ended):
        handlers.start(job("who_am_i"))
        assert ended.next() == Succeeded(b'["01a","01a","q","who_am_i",3,"acme","disk-7",{"trace":"1"}]')
        handlers.start(job("who_am_i_async"))
        assert ended.next() == Succeeded(b'["01a",3,false]')
    with pytest.raises(LookupError, match="no current task"):
        current_task()


def test_blocking_handlers_run_side_by_side_on_as_many_threads_as_they_need() -> None:
    together = threading.Barrier(4)
    own = Holdfast("localhost:1")

    @own.task
    def meet() -> None:
        together.wait(timeout=WAIT_S)

    with running(threads_max=4, more=own) as (handlers, ended):
        for _ in range(4):
            handlers.start(job("meet"))
        assert [ended.next() for _ in range(4)] == [Succeeded(None)] * 4
        before = threading.active_count()
        for _ in range(4):
            handlers.start(job("nothing"))
            ended.next()
        assert threading.active_count() <= before, "idle threads are used again"


def test_closing_does_not_wait_for_a_blocking_handler() -> None:
    goes_on = threading.Event()
    runs = threading.Event()
    own = Holdfast("localhost:1")

    @own.task
    def blocks() -> None:
        runs.set()
        goes_on.wait(WAIT_S)

    late: list[Any] = []
    record: Callable[[Job, Outcome], None] = lambda job, outcome: late.append(outcome)  # noqa: E731
    try:
        handlers = Handlers(own.tasks, 1, record)
        handlers.start(job("blocks"))
        assert runs.wait(WAIT_S)
        handlers.close()
        assert late == []
    finally:
        goes_on.set()
