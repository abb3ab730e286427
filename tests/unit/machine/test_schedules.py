"""Schedules in the log: each tick is one task, whoever proposes it and however often."""

from typing import Any

import pytest

from holdfast.machine import keys, outcomes
from holdfast.machine.entries import Enqueue
from holdfast.machine.invariants import violations
from holdfast.machine.operator_entries import (
    OVERLAP_ALLOW,
    OVERLAP_REPLACE,
    OVERLAP_SKIP,
    DropSchedule,
    FireSchedule,
    PutSchedule,
)
from holdfast.machine.outcomes import Changed, Fired
from holdfast.machine.rows import (
    CANCELLED,
    CLAIMED,
    DEAD,
    DELAYED,
    NO_TASK,
    READY,
    RETRY_PENDING,
    SUCCEEDED,
    UNIQUE_UNTIL_DONE,
    WORKER_GAVE_UP,
    Schedule,
)
from tests.unit.machine.machine_shard import ALL_STATES, KEEP_MS, QUEUE, START_MS, Shard, code, new_task

NAME = b"nightly"
NEXT_MS = START_MS + 1000


class Bench:
    def __init__(self) -> None:
        self.shard = Shard()
        self.version = 0

    def put(self, next_ms: int = NEXT_MS, version: int = 0, **changes: Any) -> outcomes.Outcome:
        given = {"paused": 0, "skip_missed": 0, "body": b"body", **changes}
        entry = PutSchedule(self.shard.now_ms, QUEUE, NAME, version, next_ms=next_ms, **given)
        (outcome,) = self.apply(entry)
        if isinstance(outcome, Changed):
            self.version = outcome.number
        return outcome

    def fire(self, *ticks: int, **options: Any) -> list[Fired]:
        return [outcome for outcome in self.propose(*ticks, **options) if isinstance(outcome, Fired)]

    def propose(
        self, *ticks: int, next_ms: int = 0, overlap: int = OVERLAP_ALLOW, version: int = 0, **changes: Any
    ) -> list[outcomes.Outcome]:
        entry = FireSchedule(
            self.shard.now_ms, QUEUE, NAME, version or self.version, next_ms, KEEP_MS, overlap, list(ticks),
            [new_task(**changes)] * len(ticks),
        )  # fmt: skip
        return self.apply(entry)

    def drop(self) -> outcomes.Outcome:
        return self.apply(DropSchedule(self.shard.now_ms, QUEUE, NAME))[0]

    def apply(self, entry: PutSchedule | DropSchedule | FireSchedule) -> list[outcomes.Outcome]:
        done = self.shard.apply(entry)
        assert violations(self.shard.kv) == []
        return done

    @property
    def row(self) -> Schedule | None:
        row = self.shard.kv.get(keys.schedule(QUEUE, NAME))
        return None if row is None else Schedule.decode(row)

    @property
    def known(self) -> Schedule:
        assert self.row is not None
        return self.row

    def due(self) -> list[int]:
        start, stop = keys.family_start(keys.SCHEDULE_DUE), keys.family_start(keys.SCHEDULE_DUE + 1)
        return [keys.timed(key)[0] for key, _ in self.shard.kv.scan(start, stop, 10)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.put()
    return bench


def test_a_schedule_is_made_changed_and_deleted() -> None:
    bench = Bench()
    assert code(bench.put(version=3)) == "SCHEDULE_NOT_FOUND"
    assert code(bench.drop()) == "SCHEDULE_NOT_FOUND"
    bench.put()
    assert bench.due() == [NEXT_MS]
    assert bench.shard.effects.schedule_ms == NEXT_MS
    first = bench.version
    assert bench.put(version=first, next_ms=0, paused=1, body=b"other") == Changed(first + 1)
    assert bench.due() == []
    assert bench.known == Schedule(first + 1, 0, 0, 1, 0, 0, NO_TASK, b"other")
    assert bench.drop() == Changed(first + 1)
    assert bench.row is None


def test_a_change_of_what_was_changed_meanwhile_counts_for_nothing(bench: Bench) -> None:
    rows = bench.shard.state_rows()
    assert code(bench.put()) == "SCHEDULE_EXISTS"
    assert code(bench.put(version=bench.version + 1)) == "SCHEDULE_CHANGED"
    assert code(bench.propose(NEXT_MS, version=bench.version + 1)[0]) == "SCHEDULE_CHANGED"
    assert bench.shard.state_rows() == rows


def test_a_change_keeps_what_was_done(bench: Bench) -> None:
    [fired] = bench.fire(NEXT_MS, next_ms=NEXT_MS + 5)
    bench.put(version=bench.version, next_ms=NEXT_MS + 70)
    assert (bench.known.last_ms, bench.known.fired_total) == (NEXT_MS, 1)
    assert bench.known.last_task_id == fired.task_id
    bench.shard.now_ms += 9000
    bench.put(version=bench.version, next_ms=NEXT_MS + 10_000, skip_missed=1)
    assert bench.known.last_ms == bench.shard.now_ms


def test_what_was_decided_on_a_deleted_schedule_is_not_done_to_one_that_came_after_it(bench: Bench) -> None:
    decided_on = bench.version
    bench.drop()
    bench.put()
    assert bench.version > decided_on
    assert code(bench.propose(NEXT_MS, version=decided_on)[0]) == "SCHEDULE_CHANGED"


def test_the_version_of_a_schedule_that_came_after_one_that_was_often_changed(bench: Bench) -> None:
    for _ in range(5):
        bench.put(version=bench.version)
    often_changed = bench.version
    bench.drop()
    bench.put()
    assert bench.version > often_changed


def test_each_tick_is_one_task_also_if_two_leaders_propose_it(bench: Bench) -> None:
    ticks = NEXT_MS, NEXT_MS + 1000, NEXT_MS + 2000
    first, second = bench.fire(*ticks[:2], next_ms=ticks[2])
    assert [first.duplicate, second.duplicate] == [False, False]
    assert bench.due() == [ticks[2]] == [bench.shard.effects.schedule_ms]
    again, anew, third = bench.fire(*ticks, next_ms=ticks[2] + 1000)
    assert again == anew == Fired(NO_TASK, True)
    assert bench.shard.line() == [first.task_id, second.task_id, third.task_id]
    assert (bench.known.fired_total, bench.known.last_ms) == (3, ticks[2])
    assert bench.known.last_task_id == third.task_id
    assert bench.shard.queue().enqueued_total == 3


def test_a_deleted_schedule_makes_no_task(bench: Bench) -> None:
    bench.drop()
    assert code(bench.propose(NEXT_MS)[0]) == "SCHEDULE_NOT_FOUND"
    assert bench.due() == []


@pytest.mark.parametrize("state", ALL_STATES)
def test_skip_and_replace_look_at_whether_the_task_before_is_finished(bench: Bench, state: int) -> None:
    unfinished = state in (READY, CLAIMED, DELAYED, RETRY_PENDING)
    shard = bench.shard
    [before] = bench.fire(NEXT_MS, next_ms=NEXT_MS + 1, run_at_ms=shard.now_ms + 500 if state == DELAYED else 0)
    _bring_to(shard, before.task_id, state)
    [skipped] = bench.fire(NEXT_MS + 1, next_ms=NEXT_MS + 2, overlap=OVERLAP_SKIP)
    assert (skipped.task_id == NO_TASK) == unfinished
    assert bench.known.skipped_total == unfinished
    assert bench.known.last_ms == NEXT_MS + 1, "a tick without a task is dealt with"
    if unfinished:
        [after] = bench.fire(NEXT_MS + 2, overlap=OVERLAP_REPLACE)
        assert shard.state(after.task_id) == READY
        assert shard.task(before.task_id).cancel_requested == (state == CLAIMED)
        assert shard.state(before.task_id) == (CLAIMED if state == CLAIMED else CANCELLED)


def _bring_to(shard: Shard, task_id: bytes, state: int) -> None:
    if state == CANCELLED:
        shard.cancel(task_id)
    elif state not in (READY, DELAYED):
        token = shard.claim(task_id)
        if state == SUCCEEDED:
            shard.ack(task_id, token)
        elif state == RETRY_PENDING:
            shard.fail(task_id, token)
        elif state == DEAD:
            shard.fail(task_id, token, dead_reason=WORKER_GAVE_UP)
    assert shard.state(task_id) == state


def test_overlap_allow_looks_at_nothing(bench: Bench) -> None:
    first, second = bench.fire(NEXT_MS, NEXT_MS + 1)
    assert bench.shard.state(first.task_id) == bench.shard.state(second.task_id) == READY


def test_of_ticks_that_are_made_up_for_together_skip_keeps_one(bench: Bench) -> None:
    first, second, third = bench.fire(NEXT_MS, NEXT_MS + 1, NEXT_MS + 2, overlap=OVERLAP_SKIP)
    assert second == third == Fired(NO_TASK, False)
    assert bench.shard.line() == [first.task_id]
    assert (bench.known.fired_total, bench.known.skipped_total) == (1, 2)


def test_a_task_that_has_its_unique_key_is_not_taken_for_its_own(bench: Bench) -> None:
    others = bench.shard.enqueue(unique_key=b"report", flags=UNIQUE_UNTIL_DONE)
    bench.fire(NEXT_MS, unique_key=b"report", flags=UNIQUE_UNTIL_DONE)
    assert bench.known.last_task_id == NO_TASK
    assert (bench.known.fired_total, bench.known.skipped_total, bench.known.last_ms) == (0, 1, NEXT_MS)
    bench.fire(NEXT_MS + 1, overlap=OVERLAP_REPLACE)
    assert bench.shard.state(others) == READY, "it is not this schedule's to replace"


def test_a_task_on_request_leaves_the_ticks_alone(bench: Bench) -> None:
    [fired] = bench.fire(0, overlap=OVERLAP_REPLACE, request_id=b"now")
    assert bench.fire(0, request_id=b"now") == [Fired(fired.task_id, True, READY)]
    assert bench.known == Schedule(bench.version, NEXT_MS, 0, 0, 1, 0, NO_TASK, b"body")
    assert bench.due() == [NEXT_MS]


def test_a_task_on_request_whose_id_stands_for_another_changes_nothing(bench: Bench) -> None:
    bench.fire(0, request_id=b"now", digest=7)
    before = bench.shard.state_rows()
    assert code(bench.propose(0, request_id=b"now", digest=8, overlap=OVERLAP_REPLACE)[0]) == "REQUEST_ID_CONFLICT"
    assert bench.shard.state_rows() == before
    assert bench.fire(0, request_id=b"now", digest=7)[0].duplicate
    [refused] = bench.shard.apply(Enqueue(START_MS, [new_task(request_id=b"now", digest=8)]))
    assert code(refused) == "REQUEST_ID_CONFLICT"


@pytest.mark.parametrize("overlap", [OVERLAP_SKIP, OVERLAP_REPLACE])
def test_a_task_on_request_is_beside_that_of_the_tick_before(bench: Bench, overlap: int) -> None:
    [tick] = bench.fire(NEXT_MS, next_ms=NEXT_MS + 1)
    [asked_for] = bench.fire(0, overlap=overlap)
    assert bench.shard.line() == [tick.task_id, asked_for.task_id]
    assert bench.known.last_task_id == tick.task_id


def test_ticks_that_are_passed_over_are_dealt_with(bench: Bench) -> None:
    later_ms = NEXT_MS + 500
    assert bench.propose(next_ms=later_ms) == []
    assert (bench.known.last_ms, bench.known.next_ms, bench.due()) == (NEXT_MS, later_ms, [later_ms])
    assert bench.propose(next_ms=later_ms) == []
    assert bench.known.last_ms == NEXT_MS, "what is still to come is not passed over by the same request twice"
    assert bench.propose(next_ms=0) == []
    assert (bench.known.last_ms, bench.due()) == (later_ms, [])
