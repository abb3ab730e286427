"""The scheduler's window onto the ready line, over the real machine."""

import dataclasses
from collections.abc import Callable

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import default_policy
from holdfast.broker.scheduler import lines
from holdfast.broker.scheduler import scheduler as scheduler_module
from holdfast.broker.scheduler.lines import REFILL_TASKS
from holdfast.broker.scheduler.scheduler import Picked, Scheduler
from holdfast.broker.scheduler.slices import still_there
from holdfast.machine.effects import Effects, ReadyTask
from holdfast.machine.ids import later_task_id
from holdfast.machine.outcomes import AcceptedRun
from holdfast.machine.run_entries import EnqueueRuns
from tests.unit.machine.machine_shard import QUEUE, Shard, new_run, new_task

PLENTY = 1 << 40


class Bench:
    """A shard whose effects reach the scheduler at once."""

    def __init__(self, *, window_tasks_max: int = 4096, oldest_share_percent: int = 0) -> None:
        self.shard = Shard()
        policy = dataclasses.replace(default_policy(BrokerConfig()), oldest_share_percent=oldest_share_percent)
        self.scheduler = Scheduler(
            self.shard.machine, policy_of=lambda _queue: policy, now_ms=lambda: self.shard.now_ms,
            window_tasks_max=window_tasks_max,
        )  # fmt: skip

    def follow(self, effects: Effects | None = None) -> None:
        effects = effects or self.shard.effects
        self.scheduler.was_withdrawn(effects.withdrawn)
        self.scheduler.became_ready(effects.ready)

    def enqueue(self, count: int = 1, *, priority: int = 4, size_bytes: int = 8) -> list[bytes]:
        accepted = self.shard.enqueue_all(*[new_task(priority=priority, envelope=bytes(size_bytes))] * count)
        self.follow()
        return [outcome.task_id for outcome in accepted]

    def enqueue_run(self, count: int, *, priority: int = 4, size_bytes: int = 8) -> list[bytes]:
        run = new_run(count, priority=priority, size_bytes=size_bytes)
        (accepted,) = self.shard.apply(EnqueueRuns(self.shard.now_ms, [run]))
        assert isinstance(accepted, AcceptedRun)
        self.follow()
        return [later_task_id(accepted.task_id, index) for index in range(count)]

    def pick(self, tasks_max: int = 1, bytes_max: int = PLENTY) -> Picked:
        picked = self.scheduler.pick(QUEUE, tasks_max, bytes_max)
        assert picked is not None
        return picked

    def take(self, tasks_max: int = 1, bytes_max: int = PLENTY) -> list[bytes]:
        """Picks and claims."""
        picked = self.pick(tasks_max, bytes_max)
        self.shard.claim_all(*picked.task_ids, marks=tuple(picked.marks))
        self.scheduler.settle(picked)
        self.follow()
        return picked.task_ids

    def take_all(self, at_once: int = 7) -> list[bytes]:
        taken: list[bytes] = []
        while not self.is_empty():
            taken += self.take(at_once)
        return taken

    def release(self, *task_ids: bytes) -> None:
        for task_id in task_ids:
            self.shard.release(task_id, self.shard.task(task_id).token)
            self.follow()

    def cancel(self, task_id: bytes) -> None:
        self.shard.cancel(task_id)
        self.follow()

    def is_empty(self) -> bool:
        return self.scheduler.available(QUEUE) == 0


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- order ----------------------------------------------------------------------------------------------------


def test_an_unknown_queue_has_nothing(bench: Bench) -> None:
    assert bench.scheduler.pick(b"unknown", 1, PLENTY) is None


@pytest.mark.parametrize("window_first", [True, False])
def test_by_priority_and_in_order_within_one(bench: Bench, window_first: bool) -> None:
    if window_first:
        bench.enqueue()
        bench.take()
    low, high, middle = bench.enqueue(3, priority=0), bench.enqueue(3, priority=9), bench.enqueue(3, priority=5)
    more = bench.enqueue(1, priority=9)
    assert bench.take(8) == [*high, *more, *middle, low[0]]
    assert bench.take(8) == low[1:]
    assert bench.scheduler.pick(QUEUE, 1, PLENTY) is None


def test_queues_do_not_mix(bench: Bench) -> None:
    bench.enqueue()
    other = bench.shard.enqueue(queue=b"mail.slow")
    bench.follow()
    picked = bench.scheduler.pick(b"mail.slow", 10, PLENTY)
    assert picked is not None
    assert (picked.queue, picked.task_ids) == (b"mail.slow", [other])


@pytest.mark.parametrize("share_percent", [0, 1, 10, 33, 50, 99, 100])
def test_the_oldest_get_their_share(share_percent: int) -> None:
    bench = Bench(oldest_share_percent=share_percent)
    old = set(bench.enqueue(100, priority=0))
    bench.enqueue(100, priority=9)
    taken = bench.take(100)
    assert len(old.intersection(taken)) == share_percent


def test_the_share_is_spread_evenly() -> None:
    bench = Bench(oldest_share_percent=10)
    old = bench.enqueue(2, priority=0)
    high = bench.enqueue(18, priority=9)
    assert [bench.take()[0] for _ in range(20)] == [*high[:9], old[0], *high[9:], old[1]]


def test_with_a_full_share_age_is_all_that_counts() -> None:
    bench = Bench(oldest_share_percent=100)
    tasks = [bench.enqueue(priority=priority)[0] for priority in (3, 9, 0, 9, 3)]
    assert bench.take(5) == tasks


# --- bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bytes_max", "count"), [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (1000, 5)])
def test_bytes_stop_a_pick_but_never_before_the_first_task(bench: Bench, bytes_max: int, count: int) -> None:
    tasks = bench.enqueue(5, size_bytes=10)
    picked = bench.pick(10, bytes_max)
    assert picked.task_ids == tasks[:count]
    assert picked.size_bytes == 10 * count


def test_a_backlog_larger_than_a_refill(bench: Bench) -> None:
    tasks = [task for _ in range(3) for task in bench.enqueue(REFILL_TASKS - 1)]
    assert bench.take(1) == tasks[:1]
    tasks += bench.enqueue(5)
    assert bench.take(400) == tasks[1:401]
    assert bench.take_all(100) == tasks[401:]


@pytest.mark.parametrize("exactly", [REFILL_TASKS - 1, REFILL_TASKS, REFILL_TASKS + 1])
def test_a_backlog_of_about_a_refill(bench: Bench, exactly: int) -> None:
    tasks = bench.enqueue(exactly)
    assert bench.take(1000) == tasks
    later = bench.enqueue(2)
    assert bench.take(1000) == later


@pytest.mark.parametrize("share_percent", [0, 50])
def test_a_window_smaller_than_the_backlog_loses_nothing(share_percent: int) -> None:
    bench = Bench(window_tasks_max=4, oldest_share_percent=share_percent)
    bench.enqueue()
    bench.take()
    tasks = [task for _ in range(40) for task in bench.enqueue(10, priority=4)]
    taken = bench.take_all()
    assert sorted(taken) == tasks
    if not share_percent:
        assert taken == tasks


# --- coming back ----------------------------------------------------------------------------------------------


def test_tasks_that_come_back_have_their_old_place(bench: Bench) -> None:
    tasks = bench.enqueue(6)
    bench.take(4)
    bench.release(tasks[2], tasks[0])
    assert bench.take(10) == [tasks[0], tasks[2], *tasks[4:]]


def test_after_a_reset_tasks_that_come_back_have_their_old_place(bench: Bench) -> None:
    tasks = bench.enqueue(4)
    bench.take(3)
    bench.release(tasks[0])
    bench.scheduler.reset()
    assert not bench.is_empty()
    bench.release(tasks[2], tasks[1])
    assert bench.take_all(1) == tasks


def test_a_full_window_takes_back_by_reading_again() -> None:
    bench = Bench(window_tasks_max=2)
    tasks = bench.enqueue(8)
    bench.take(3)
    bench.release(*tasks[:3])
    assert bench.take_all(1) == tasks


def test_reading_again_passes_over_claims_on_their_way() -> None:
    bench = Bench(window_tasks_max=2)
    tasks = bench.enqueue(8)
    bench.take(1)
    on_their_way = bench.pick(2)
    bench.release(tasks[0])
    assert bench.take_all(1) == [tasks[0], *tasks[3:]]
    bench.scheduler.give_back(on_their_way)
    assert bench.take_all(2) == tasks[1:3]


def test_given_back_tasks_are_picked_again_in_place(bench: Bench) -> None:
    tasks = bench.enqueue(3, priority=9) + bench.enqueue(2, priority=0)
    picked = bench.pick(4)
    bench.scheduler.give_back(picked)
    assert bench.take(10) == tasks


def test_giving_several_back_to_a_full_window_keeps_their_order() -> None:
    bench = Bench(window_tasks_max=2)
    tasks = bench.enqueue(8)
    bench.scheduler.give_back(bench.pick(3))
    assert bench.take_all(1) == tasks


def test_a_picked_task_is_not_picked_again_until_it_is_back(bench: Bench) -> None:
    (first, second) = bench.enqueue(2)
    picked = bench.pick()
    assert picked.task_ids == [first]
    assert bench.pick().task_ids == [second]
    assert bench.scheduler.pick(QUEUE, 1, PLENTY) is None
    bench.scheduler.give_back(picked)
    assert bench.pick().task_ids == [first]


@pytest.mark.parametrize("late", [Scheduler.give_back, Scheduler.settle])
def test_a_pick_from_before_a_reset_changes_nothing(bench: Bench, late: Callable[[Scheduler, Picked], None]) -> None:
    tasks = bench.enqueue(2)
    picked = bench.pick()
    bench.scheduler.reset()
    again = bench.pick()
    assert again.task_ids == picked.task_ids
    late(bench.scheduler, picked)
    assert bench.pick(5).task_ids == tasks[1:]


def test_more_queues_than_windows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "WINDOWS_MAX", 2)
    tasks = bench.enqueue(2)
    held = bench.pick()
    for name in (b"a", b"b", b"c"):
        other = bench.shard.enqueue(queue=name)
        bench.follow()
        picked = bench.scheduler.pick(name, 1, PLENTY)
        assert picked is not None
        assert picked.task_ids == [other]
        bench.scheduler.settle(picked)
    assert bench.pick(5).task_ids == tasks[1:], "a claim on its way is not forgotten"
    bench.scheduler.give_back(held)
    assert bench.pick(5).task_ids == tasks[:1]


# --- withdrawn ------------------------------------------------------------------------------------------------


def test_room_is_taken_when_it_is_needed_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues there were before: a long one holds as much as it may, as long as not too many are long."""
    monkeypatch.setattr(lines, "ROOM_STEP_TASKS", 4)
    monkeypatch.setattr(scheduler_module, "FULL_WINDOWS", 2)
    bench = Bench(window_tasks_max=20)
    names = [b"q%d" % number for number in range(10)]

    def pick(name: bytes) -> None:
        picked = bench.scheduler.pick(name, 1, PLENTY)
        assert picked is not None
        bench.shard.claim_all(*picked.task_ids, marks=tuple(picked.marks))
        bench.scheduler.settle(picked)

    def fill(name: bytes) -> int:
        """How many of 100 tasks it holds."""
        bench.shard.enqueue_all(new_task(queue=name))
        pick(name)
        bench.shard.enqueue_all(*[new_task(queue=name)] * 100)
        bench.follow()
        return bench.scheduler._windows[name].lines.size

    held = [fill(name) for name in names]
    assert held == [20, 20, 12, *[4] * 7], "each has a little in any case"
    assert sum(held) == 2 * 20 + 10 * 4
    for _ in range(100):
        pick(names[0])
    assert bench.scheduler._windows[names[0]].lines.tasks_max == 4
    assert fill(b"late") == 20, "what one gave back another one has"
    bench.scheduler.reset()
    assert bench.scheduler._lines_budget.left == 2 * 20


def test_withdrawn_tasks_are_passed_over(bench: Bench) -> None:
    tasks = bench.enqueue(6)
    bench.take(2)
    bench.release(tasks[0])
    for task_id in (tasks[0], tasks[3], tasks[5]):
        bench.cancel(task_id)
    assert bench.take(10) == [tasks[2], tasks[4]]
    assert bench.is_empty()


def test_withdrawn_tasks_that_were_never_read_are_passed_over() -> None:
    bench = Bench(window_tasks_max=2)
    tasks = bench.enqueue(REFILL_TASKS + 3)
    bench.take()
    bench.cancel(tasks[-1])
    bench.cancel(tasks[-3])
    assert bench.take_all(100) == [*tasks[1:-3], tasks[-2]]


def test_a_task_withdrawn_on_its_way_is_not_picked_again(bench: Bench) -> None:
    bench.enqueue(2)
    picked = bench.pick()
    bench.cancel(picked.task_ids[0])
    bench.scheduler.settle(picked)
    assert len(bench.take(10)) == 1


def test_a_task_withdrawn_on_its_way_and_given_back_is_not_picked_again(bench: Bench) -> None:
    tasks = bench.enqueue(2)
    picked = bench.pick()
    bench.cancel(tasks[0])
    bench.scheduler.give_back(picked)
    assert bench.pick(10).task_ids == tasks[1:]


# --- marks ----------------------------------------------------------------------------------------------------


def test_marks_name_the_first_task_that_is_left(bench: Bench) -> None:
    high, low = bench.enqueue(2, priority=9), bench.enqueue(3, priority=1)
    picked = bench.pick(4)
    sequences = {mark.priority: mark.sequence for mark in picked.marks}
    assert sequences == {9: bench.shard.task(high[1]).sequence + 1, 1: bench.shard.task(low[2]).sequence}
    assert {mark.mark_version for mark in picked.marks} == {0}


def test_a_mark_stays_at_a_task_that_came_back(bench: Bench) -> None:
    tasks = bench.enqueue(5)
    bench.take(3)
    bench.release(tasks[0], tasks[1])
    (mark,) = bench.pick().marks
    assert mark.sequence == bench.shard.task(tasks[1]).sequence
    assert mark.mark_version == 2


# --- slices of runs -------------------------------------------------------------------------------------------


def slices_of(picked: Picked) -> list[tuple[bytes, int]]:
    return list(zip(picked.task_ids, picked.counts, strict=True))


@pytest.mark.parametrize("window_first", [True, False])
@pytest.mark.parametrize("share_percent", [0, 10, 100])
def test_a_run_is_picked_in_slices_as_large_as_there_is_room_for(window_first: bool, share_percent: int) -> None:
    bench = Bench(oldest_share_percent=share_percent)
    if window_first:
        bench.enqueue()
        bench.take()
    task_ids = bench.enqueue_run(50)
    (single,) = bench.enqueue()
    assert slices_of(bench.pick(30)) == [(task_ids[0], 30)]
    assert (bench.scheduler.coming(QUEUE), bench.scheduler.available(QUEUE)) == (30, 21)
    last = bench.pick(30)
    assert (slices_of(last), last.tasks) == ([(task_ids[30], 20), (single, 1)], 21)
    assert bench.scheduler.pick(QUEUE, 1, PLENTY) is None


@pytest.mark.parametrize(("bytes_max", "tasks"), [(1, 1), (100, 1), (101, 2), (1000, 10), (1001, 11), (PLENTY, 20)])
def test_bytes_are_counted_by_task(bytes_max: int, tasks: int) -> None:
    bench = Bench()
    bench.enqueue_run(20, size_bytes=98)  # 100 with its tag and its length
    picked = bench.pick(1000, bytes_max)
    assert (picked.tasks, picked.size_bytes) == (tasks, 100 * tasks)


def test_what_left_a_slice_is_not_picked_with_it(bench: Bench) -> None:
    task_ids = bench.enqueue_run(10)
    assert bench.pick().task_ids == [task_ids[0]]
    for index in (3, 4, 9):
        bench.cancel(task_ids[index])
    assert bench.scheduler.available(QUEUE) == 6
    assert slices_of(bench.pick(100)) == [(task_ids[1], 2), (task_ids[5], 4)]


def test_what_left_a_slice_on_its_way_does_not_come_back_with_it(bench: Bench) -> None:
    task_ids = bench.enqueue_run(10)
    picked = bench.pick(8)
    bench.cancel(task_ids[2])
    bench.cancel(task_ids[9])
    bench.scheduler.give_back(picked)
    assert bench.scheduler.available(QUEUE) == 8
    assert slices_of(bench.pick(100)) == [(task_ids[0], 2), (task_ids[3], 5), (task_ids[8], 1)]


@pytest.mark.parametrize("count", [3, 10])
def test_a_line_that_is_read_again_does_not_have_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(lines, "REFILL_TASKS", 1)
    bench = Bench(window_tasks_max=1)
    task_ids = bench.enqueue_run(10)
    picked, further = bench.pick(count), bench.pick(2) if count < 10 else None
    bench.enqueue()
    bench.scheduler.give_back(picked)  # with no room for it, all is forgotten
    assert bench.pick(1).task_ids == [task_ids[0]]
    assert further is None or slices_of(further) == [(task_ids[3], 2)]
    rest = bench.pick(100)
    assert rest.tasks == 10 - (0 if further is None else further.tasks)  # one was picked, one came behind the run
    assert bench.scheduler.available(QUEUE) == 0


def test_tasks_of_a_batch_that_came_and_went_were_never_there() -> None:
    run = ReadyTask(QUEUE, 4, 10, bytes(16), 8, tasks=5)
    others = [run._replace(sequence=sequence, tasks=1) for sequence in (9, 11, 14)]
    stayed, withdrawn = still_there([run], others)
    assert [(task.sequence, int.from_bytes(task.task_id, "big"), task.tasks) for task in stayed] == [
        (10, 0, 1),
        (12, 2, 2),
    ]
    assert withdrawn == others[:1]


def test_a_purge_of_slices_makes_a_line_no_larger() -> None:
    """Of what is withdrawn there may be far more than places: then the line is read again."""
    bench = Bench(window_tasks_max=4)
    task_ids = bench.enqueue_run(20)
    for task_id in task_ids[:15]:
        bench.cancel(task_id)
    assert bench.scheduler.available(QUEUE) == 5
    assert slices_of(bench.pick(100)) == [(task_ids[15], 5)]
