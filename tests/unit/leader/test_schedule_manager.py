"""The leader's part of schedules: what is due becomes tasks, also with other leaders, refusals and clocks that leap."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from structlog.testing import capture_logs

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader import schedule_manager as schedule_manager
from holdfast.broker.leader import sweeps
from holdfast.broker.leader.schedule_manager import GRACE_MS, PAGE_SCHEDULES, ScheduleManager
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.policies import Policies
from holdfast.cron.ticks import CATCH_UP_TICKS_MAX
from holdfast.machine import keys
from holdfast.machine.entries import Entry
from holdfast.machine.invariants import violations
from holdfast.machine.operator_entries import DropSchedule, FireSchedule, PutSchedule
from holdfast.machine.outcomes import Changed, Outcome
from holdfast.machine.rows import READY, Schedule
from holdfast.proto.v1 import schedules_pb2 as pb
from holdfast.proto.v1 import tasks_pb2
from holdfast.serving.refusals import OutcomeUnknownError, disk_low
from tests.unit.machine.machine_shard import QUEUE, Shard

START_MS = 1_711_850_400_000  # 2024-03-31 02:00 in UTC
HOUR_MS = 3_600_000
NAME = b"each-second"
TURNS = 12
CONFIG = BrokerConfig()
WORKS, REFUSED, LOST, UNKNOWN = "works", "refused", "lost", "unknown"  # what becomes of a write


class Stage:
    """A state, time that is set by hand, and the keepers of those who lead or think that they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        if monkeypatch is not None:
            monkeypatch.setattr(sweeps, "RETRY_SECONDS", 0)
        self.shard = Shard()
        self.shard.now_ms = START_MS
        self.proposed: list[FireSchedule] = []
        self.fates: list[str] = []  # of the next writes; those behind them work
        self.limiter: asyncio.Event | None = None  # writes wait for it
        self.managers: list[ScheduleManager] = []
        self.metrics = Metrics()

    # Leaders.

    def manager(self) -> ScheduleManager:
        reader = self.shard.machine.reader
        return ScheduleManager(reader, CONFIG, self.metrics, Policies(reader, CONFIG), self, self)

    def lead(self) -> ScheduleManager:
        manager = self.manager()
        manager.start()
        self.managers.append(manager)
        return manager

    def now_ms(self) -> int:
        return self.shard.now_ms

    async def submit_housekeeping(self, entry: Entry) -> list[Outcome]:
        assert isinstance(entry, FireSchedule)
        self.proposed.append(entry)
        if self.limiter is not None:
            await self.limiter.wait()
        await asyncio.sleep(0)
        fate = self.fates.pop(0) if self.fates else WORKS
        if fate == REFUSED:
            raise disk_low(0, 1)
        if fate == LOST:
            raise OutcomeUnknownError
        outcomes = self.apply(entry)
        if fate == UNKNOWN:
            raise OutcomeUnknownError
        return outcomes

    def apply(self, entry: Entry) -> list[Outcome]:
        outcomes = self.shard.apply(entry)
        for manager in self.managers:
            manager.arm(self.shard.effects)
        return outcomes

    async def end(self, *managers: ScheduleManager) -> None:
        for manager in managers or tuple(self.managers):
            self.managers.remove(manager)
            await manager.stop()
            assert manager.failed() is None

    # Time.

    async def pass_time(self, ms: int = 0) -> None:
        """Time goes on, and everything happens that can."""
        self.shard.now_ms += ms
        await self.settle()

    async def settle(self) -> None:
        done = -1
        while done != len(self.proposed):
            done = len(self.proposed)
            for manager in self.managers:
                manager._sweep.poll_again()  # its real sleep is too long for a test
            for _ in range(TURNS):
                await asyncio.sleep(0)

    # Schedules.

    def put(self, expression: str = "* * * * * *", name: bytes = NAME, **changes: Any) -> int:
        """A new schedule, or a changed one: its version."""
        spec = pb.ScheduleSpec(expression=expression, catch_up=changes.pop("catch_up", pb.CATCH_UP_ALL))
        spec.overlap = changes.pop("overlap", pb.OVERLAP_UNSPECIFIED)
        spec.task.CopyFrom(tasks_pb2.TaskSpec(queue=QUEUE.decode(), type="t", **changes.pop("task", {})))
        body = changes.pop("body", spec.SerializeToString())
        row = self.shard.kv.get(keys.schedule(QUEUE, name))
        version = 0 if row is None else Schedule.decode(row).version
        next_ms = changes.pop("next_ms", START_MS + 1000)
        [outcome] = self.apply(PutSchedule(self.shard.now_ms, QUEUE, name, version, 0, 0, next_ms, body))
        assert isinstance(outcome, Changed)
        return outcome.number

    def schedule(self, name: bytes = NAME) -> Schedule:
        row = self.shard.kv.get(keys.schedule(QUEUE, name))
        assert row is not None
        return Schedule.decode(row)

    def ticks(self, name: bytes = NAME) -> list[int]:
        """Those that have tasks, in the order of the tasks; seconds since the start."""
        start, stop = keys.family_start(keys.ENVELOPE), keys.family_start(keys.ENVELOPE + 1)
        tasks = [tasks_pb2.TaskSpec.FromString(row) for _, row in self.shard.kv.scan(start, stop, 100_000)]
        mine = [task.headers for task in tasks if task.headers["holdfast-schedule"] == name.decode()]
        return [(int(headers["holdfast-tick-ms"]) - START_MS) // 1000 for headers in mine]


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    stage = Stage(monkeypatch)
    yield stage
    await stage.end()
    assert violations(stage.shard.kv) == []


@asynccontextmanager
async def logged() -> AsyncIterator[Callable[[], list[str]]]:
    with capture_logs() as lines:
        yield lambda: [line["schedule"] for line in lines if line["event"] == "schedule_unusable"]


def seconds(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


async def test_each_tick_is_a_task_when_its_time_has_come(stage: Stage) -> None:
    stage.put(task={"payload": b"p", "headers": {"a": "b"}})
    stage.lead()
    await stage.pass_time(999)
    assert stage.ticks() == []
    await stage.pass_time(1)
    await stage.pass_time(1000)
    assert stage.ticks() == [1, 2]
    assert (stage.schedule().last_ms, stage.schedule().next_ms) == (START_MS + 2000, START_MS + 3000)
    [_, (_, row)] = stage.shard.kv.scan(keys.family_start(keys.ENVELOPE), keys.family_start(keys.ENVELOPE + 1), 9)
    task = tasks_pb2.TaskSpec.FromString(row)
    assert (task.payload, task.queue, task.type) == (b"p", QUEUE.decode(), "t")
    headers = {"a": "b", "holdfast-schedule": "each-second", "holdfast-tick-ms": str(START_MS + 2000)}
    assert dict(task.headers) == headers
    assert b"holdfast_tasks_enqueued_total 2.0" in stage.metrics.render()


async def test_a_schedule_without_another_tick_is_left_alone(stage: Stage) -> None:
    far_ms = 253_000_000_000_000
    stage.put(next_ms=far_ms, catch_up=pb.CATCH_UP_ONE)
    stage.shard.now_ms = far_ms + 10**12  # there are no ticks so late
    stage.lead()
    await stage.pass_time()
    assert stage.schedule().next_ms == 0
    assert len(stage.proposed) == 1


CATCH_UPS = [
    (pb.CATCH_UP_NONE, lambda _age_s: []),
    (pb.CATCH_UP_ONE, lambda age_s: [age_s]),
    (pb.CATCH_UP_UNSPECIFIED, lambda age_s: [age_s]),
    (pb.CATCH_UP_ALL, lambda age_s: seconds(max(1, age_s - CATCH_UP_TICKS_MAX + 1), age_s)),
]


@pytest.mark.parametrize(("catch_up", "expected"), CATCH_UPS)
@pytest.mark.parametrize("age_s", [62, 900, 5000])
async def test_after_an_outage_the_policy_counts(
    stage: Stage, catch_up: int, expected: Callable[[int], list[int]], age_s: int
) -> None:
    stage.put(catch_up=catch_up)
    stage.shard.now_ms += age_s * 1000
    stage.lead()
    await stage.pass_time()
    assert stage.ticks() == expected(age_s)
    assert stage.schedule().next_ms == START_MS + (age_s + 1) * 1000
    await stage.pass_time(1000)
    assert stage.ticks() == [*expected(age_s), age_s + 1]


@pytest.mark.parametrize("catch_up", [catch_up for catch_up, _ in CATCH_UPS])
async def test_a_fail_over_is_no_outage(stage: Stage, catch_up: int) -> None:
    stage.put(catch_up=catch_up)
    stage.shard.now_ms += GRACE_MS + 1000
    stage.lead()
    await stage.pass_time()
    assert stage.ticks() == seconds(1, 61)


async def test_nothing_is_passed_over_if_all_is_too_old(stage: Stage) -> None:
    stage.put("0 0 * * *", catch_up=pb.CATCH_UP_NONE, next_ms=START_MS - 2 * HOUR_MS)
    stage.lead()
    await stage.pass_time()
    assert stage.ticks() == []
    assert (stage.schedule().last_ms, stage.schedule().next_ms) == (START_MS - 2 * HOUR_MS, START_MS + 22 * HOUR_MS)


@pytest.mark.parametrize("catch_up", [catch_up for catch_up, _ in CATCH_UPS])
async def test_a_leader_that_was_there_and_slow_misses_nothing(stage: Stage, catch_up: int) -> None:
    stage.put("@every 1m", catch_up=catch_up, next_ms=START_MS + 60_000)
    stage.lead()
    await stage.pass_time()
    stage.shard.now_ms += 10 * 60_000  # as if thousands had been before it
    await stage.pass_time()
    assert stage.ticks() == seconds(60, 600)[::60]


async def test_ticks_over_which_the_clock_leapt_were_missed(stage: Stage) -> None:
    stage.put(catch_up=pb.CATCH_UP_ONE)
    manager = stage.lead()
    await stage.settle()
    stage.shard.now_ms += HOUR_MS
    manager.time_was_moved()
    await stage.settle()
    assert stage.ticks() == [3600]


async def test_while_nothing_can_be_written_nobody_is_there(stage: Stage) -> None:
    stage.put(catch_up=pb.CATCH_UP_ONE)
    stage.lead()
    await stage.settle()
    stage.limiter = asyncio.Event()
    await stage.pass_time(1000)
    stage.shard.now_ms += HOUR_MS
    stage.fates = [REFUSED]
    stage.limiter.set()
    await stage.settle()
    assert stage.ticks() == [3601]


@pytest.mark.parametrize("fate", [REFUSED, LOST, UNKNOWN])
async def test_a_write_that_failed_is_tried_again_and_counts_once(stage: Stage, fate: str) -> None:
    stage.put()
    stage.lead()
    stage.fates = [fate] * 3
    await stage.pass_time(1000)
    await stage.pass_time(1000)
    assert stage.ticks() == [1, 2]
    assert len(stage.proposed) == (2 if fate == UNKNOWN else 5)


async def test_one_schedule_that_cannot_be_written_is_not_all_of_them(stage: Stage) -> None:
    for number in range(5):
        stage.put(name=b"s%d" % number)
    stage.lead()
    stage.fates = [WORKS, REFUSED, WORKS, LOST]
    await stage.pass_time(1000)
    for number in range(5):
        assert stage.ticks(b"s%d" % number) == [1]


async def test_missed_ticks_of_a_large_task_go_in_entries_of_bounded_size(stage: Stage) -> None:
    stage.put(task={"payload": bytes(300_000)})
    stage.shard.now_ms += 10_000
    stage.lead()
    await stage.settle()
    assert stage.ticks() == seconds(1, 10)
    assert [len(entry.ticks) for entry in stage.proposed] == [3, 3, 3, 1]
    assert [entry.next_ms for entry in stage.proposed] == [START_MS + 1000 * next_s for next_s in (4, 7, 10, 11)]


async def test_a_task_larger_than_an_entry_should_be_goes_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_manager, "ENTRY_BYTES_MAX", 100)
    stage.put(task={"payload": bytes(200)})
    stage.shard.now_ms += 2000
    stage.lead()
    await stage.settle()
    assert [len(entry.ticks) for entry in stage.proposed] == [1, 1]
    assert stage.ticks() == [1, 2]


async def test_one_with_much_to_make_up_for_does_not_hold_up_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_manager, "ENTRY_BYTES_MAX", 1)
    monkeypatch.setattr(schedule_manager, "PAGE_SCHEDULES", 2)
    stage.put(name=b"much")
    for name in (b"a", b"b", b"c"):
        stage.put("@every 40s", name=name, next_ms=START_MS + 40_000)
    stage.shard.now_ms += 40_000
    stage.lead()
    await stage.settle()
    order = [entry.name for entry in stage.proposed]
    turn = schedule_manager.ENTRIES_PER_TURN
    assert [order[: turn + 1].count(b"a"), order[turn + 1 : 2 * turn + 2].count(b"b")] == [1, 1]
    assert stage.ticks(b"much") == seconds(1, 40)
    assert stage.ticks(b"a") == stage.ticks(b"b") == stage.ticks(b"c") == [40]


async def test_many_missed_ticks_go_in_several_entries(stage: Stage) -> None:
    stage.put()
    stage.shard.now_ms += HOUR_MS
    stage.lead()
    await stage.settle()
    assert max(len(entry.ticks) for entry in stage.proposed) <= CONFIG.sweep_batch_tasks
    assert stage.ticks() == seconds(2601, 3600)


@pytest.mark.parametrize("catch_up", [pb.CATCH_UP_NONE, pb.CATCH_UP_ONE, pb.CATCH_UP_ALL])
@pytest.mark.parametrize("fate", [WORKS, LOST, UNKNOWN])
@pytest.mark.parametrize("died_at", range(6))
async def test_a_leader_may_die_at_every_write(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, catch_up: int, fate: str, died_at: int
) -> None:
    """Five entries with three ticks each: the next leader goes on where the state says."""
    monkeypatch.setattr(schedule_manager, "ENTRY_BYTES_MAX", 3500)
    stage.put(catch_up=catch_up, task={"payload": bytes(1000)})
    stage.shard.now_ms += 15_000
    stage.fates = [WORKS] * died_at + [fate]
    first = stage.lead()
    while len(stage.proposed) <= died_at and stage.schedule().next_ms <= stage.shard.now_ms:
        await asyncio.sleep(0)
    await stage.end(first)
    stage.fates = []
    stage.lead()
    await stage.pass_time(1000)
    assert stage.ticks() == seconds(1, 16)
    assert {len(entry.ticks) for entry in stage.proposed} <= {1, 2, 3}


async def test_two_leaders_at_the_same_time_make_one_task_of_each_tick(stage: Stage) -> None:
    """The old one does not know yet that it leads no more, and its writes got through."""
    stage.put()
    stage.lead()
    stage.lead()
    await stage.settle()
    stage.limiter = asyncio.Event()
    await stage.pass_time(1000)
    assert [entry.ticks for entry in stage.proposed] == [[START_MS + 1000]] * 2
    stage.limiter.set()
    await stage.settle()
    for _ in range(5):
        await stage.pass_time(1700)
    assert stage.ticks() == seconds(1, 9)
    assert stage.schedule().fired_total == 9


async def test_what_was_decided_on_an_older_version_counts_for_nothing(stage: Stage) -> None:
    stage.put(task={"payload": b"old"})
    stage.lead()
    await stage.settle()
    stage.limiter = asyncio.Event()
    await stage.pass_time(1000)
    stage.put("@every 5s", task={"payload": b"new"}, next_ms=START_MS + 5000)
    stage.limiter.set()
    await stage.pass_time(4000)
    assert stage.ticks() == [5]


async def test_a_schedule_that_is_deleted_meanwhile_makes_no_task(stage: Stage) -> None:
    stage.put()
    stage.lead()
    await stage.settle()
    stage.limiter = asyncio.Event()
    await stage.pass_time(1000)
    stage.apply(DropSchedule(stage.shard.now_ms, QUEUE, NAME))
    stage.limiter.set()
    await stage.pass_time(5000)
    assert stage.ticks() == []
    assert len(stage.proposed) == 1


async def test_overlap_skip_and_replace(stage: Stage) -> None:
    stage.put(name=b"skip", overlap=pb.OVERLAP_SKIP)
    stage.put(name=b"replace", overlap=pb.OVERLAP_REPLACE)
    stage.lead()
    for _ in range(3):
        await stage.pass_time(1000)
    assert stage.ticks(b"skip") == [1]
    assert (stage.schedule(b"skip").fired_total, stage.schedule(b"skip").skipped_total) == (1, 2)
    assert stage.ticks(b"replace") == [3], "those before are cancelled, and their envelopes are gone"
    assert stage.schedule(b"replace").fired_total == 3
    assert stage.shard.state(stage.schedule(b"skip").last_task_id) == READY
    stage.shard.ack(stage.schedule(b"skip").last_task_id, stage.shard.claim(stage.schedule(b"skip").last_task_id))
    await stage.pass_time(1000)
    assert stage.schedule(b"skip").fired_total == 2


UNUSABLE: dict[str, dict[str, Any]] = {
    "no message": {"body": b"\xff\xff\xff"},
    "no expression": {"body": b""},
    "a zone that is gone": {"body": pb.ScheduleSpec(expression="* * * * *", time_zone="Mars/Base").SerializeToString()},
    "a task that is none": {"task": {"priority": 77}},
}


@pytest.mark.parametrize("changes", UNUSABLE.values(), ids=UNUSABLE)
async def test_a_schedule_that_cannot_be_used_is_put_aside_until_it_changes(
    stage: Stage, changes: dict[str, Any]
) -> None:
    stage.put(name=b"bad", **changes)
    stage.put(name=b"good")
    async with logged() as names:
        stage.lead()
        for _ in range(3):
            await stage.pass_time(1000)
        assert stage.ticks(b"good") == [1, 2, 3]
        assert names() == ["bad"]
        stage.put(name=b"bad", next_ms=START_MS + 4000)
        await stage.pass_time(1000)
        assert stage.ticks(b"bad") == [4]
        stage.put(name=b"bad", next_ms=START_MS + 5000, **changes)
        await stage.pass_time(1000)
        assert names() == ["bad", "bad"]


async def test_pages_of_schedules_that_cannot_be_used_do_not_hold_up_the_others(stage: Stage) -> None:
    for number in range(2 * PAGE_SCHEDULES + 1):
        stage.put(name=b"bad%d" % number, body=b"")
    stage.put(name=b"good")
    async with logged() as names:
        stage.lead()
        await stage.pass_time(1000)
        await stage.pass_time(1000)
        assert len(names()) == 2 * PAGE_SCHEDULES + 1
    assert stage.ticks(b"good") == [1, 2]


async def test_many_schedules_of_the_same_moment_go_in_pages(stage: Stage) -> None:
    count = 3 * PAGE_SCHEDULES + 1
    for number in range(count):
        stage.put(name=b"s%d" % number)
    stage.lead()
    stage.limiter = asyncio.Event()
    await stage.pass_time(1000)
    assert len(stage.proposed) == PAGE_SCHEDULES
    stage.limiter.set()
    await stage.settle()
    assert Counter(entry.name for entry in stage.proposed) == Counter(b"s%d" % number for number in range(count))


async def test_a_state_that_cannot_be_read_is_told_and_no_fault_of_a_schedule(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put()
    manager = stage.lead()
    await stage.settle()
    assert manager.failed() is None
    broken = OSError("the disk is gone")

    def get(_key: bytes) -> bytes:
        raise broken

    with monkeypatch.context() as patch:
        patch.setattr(stage.shard.machine.reader, "get", get)
        await stage.pass_time(1000)
    assert manager.failed() is broken
    await manager.stop()
    stage.managers.remove(manager)


def test_a_manager_that_was_never_started_can_be_stopped() -> None:
    asyncio.run(Stage().manager().stop())


STEPS = st.one_of(
    st.tuples(st.just("time"), st.integers(0, 25_000)),
    st.tuples(st.just("fates"), st.lists(st.sampled_from([WORKS, REFUSED, LOST, UNKNOWN]), max_size=4)),
    st.tuples(st.just("another leader"), st.booleans()),
)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(STEPS, min_size=3, max_size=12),
    catch_up=st.sampled_from([pb.CATCH_UP_NONE, pb.CATCH_UP_ONE, pb.CATCH_UP_ALL]),
    period_s=st.sampled_from([1, 7, 30]),
)
def test_each_tick_is_one_task_whatever_happens(steps: Sequence[tuple[str, Any]], catch_up: int, period_s: int) -> None:
    """Leaders come and go, also two at once; writes are refused, are lost, or get through unheard."""
    asyncio.run(_live_through(steps, catch_up, period_s))


async def _live_through(steps: Sequence[tuple[str, Any]], catch_up: int, period_s: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stage = Stage(monkeypatch)
        first_s = period_s - START_MS // 1000 % period_s
        stage.put(f"@every {period_s}s", catch_up=catch_up, next_ms=START_MS + first_s * 1000)
        stage.lead()
        for what, how in steps:
            if what == "time":
                await stage.pass_time(how)
            elif what == "fates":
                stage.fates = list(how)
            else:
                old = list(stage.managers)
                stage.lead()
                if how:
                    await stage.settle()
                await stage.end(*old)
        stage.fates = []
        await stage.pass_time(1)
        await stage.end()
        now_s = (stage.shard.now_ms - START_MS) // 1000
        assert stage.ticks() == list(range(first_s, now_s + 1, period_s))
        assert violations(stage.shard.kv) == []
