"""The scheduler under random traffic: entries wait in a log, as behind a leader, and are applied in batches.

After each step the marks, the picks and what is left are compared with the ready tasks of the real machine, and with
caps counted one by one. Some tasks come in runs, and are picked in slices: what is expected of them is the same.
"""

import dataclasses
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import Limits, default_policy
from holdfast.broker.scheduler import lines, windows
from holdfast.broker.scheduler import oldest as ages
from holdfast.broker.scheduler import scheduler as scheduler_module
from holdfast.broker.scheduler import subqueues as subqueues
from holdfast.broker.scheduler.lines import ReadyRef
from holdfast.broker.scheduler.scheduler import Picked, Scheduler
from holdfast.broker.scheduler.slices import still_there
from holdfast.machine import entries, run_entries
from holdfast.machine.entries import AGE_MARK, Claim, ClaimRef, Entry, Mark
from holdfast.machine.ids import later_task_id
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Claimed
from holdfast.machine.rows import CLAIMED, READY, Execution
from tests.unit.machine.machine_shard import KEEP_MS, LEASE_MS, QUEUE, Shard, new_run, new_task, use_short_rows

PLENTY = 1 << 40
EXAMPLES = 60
REPEATED = b"repeated"  # the claim request of a worker that asks for ever
SUBQUEUES = [(b"", b""), (b"", b"x"), (b"a", b""), (b"a", b"x"), (b"b", b""), (b"b", b"x"), (b"b", b"y"), (b"c", b"y")]

Subqueue = tuple[bytes, bytes]


class ShardWithRuns(Shard):
    def task(self, task_id: bytes) -> Execution:
        """Also of one that is in a run."""
        (task,) = self.machine.reader.executions([task_id])
        assert task is not None
        return task


def single_ids(task_ids: list[bytes], counts: list[int]) -> list[bytes]:
    """Every task of slices that begin with these."""
    return [later_task_id(first, index) for first, n in zip(task_ids, counts, strict=True) for index in range(n)]


def picked_places(picked: Picked) -> list[tuple[ReadyRef, int]]:
    """The ready ref of each task, and its place in that, in the order of the picks."""
    singles = [[(ref, index) for index in range(ref[1][3])] for ref in picked.ready_refs]
    if not picked.order:
        return [single for of_ref in singles for single in of_ref]
    iterators = [iter(of_ref) for of_ref in singles]
    return [next(iterators[index]) for index in picked.order]


def picked_ids(picked: Picked) -> list[bytes]:
    return [later_task_id(ref[1][1], index) for ref, index in picked_places(picked)]


class SchedulerTraffic(RuleBasedStateMachine):
    """Plain sub-queues only, without limits: the order of picks is known exactly."""

    gives_back = False
    subqueues: tuple[Subqueue, ...] = ((b"", b""),)
    shares: tuple[int, ...] = (0,)
    caps: tuple[int, ...] = (0,)

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.shard = ShardWithRuns()
        self.window_tasks_max = data.draw(st.integers(1, 6))
        queue_max, tenant_max, key_max = (data.draw(st.sampled_from(self.caps)) for _ in range(3))
        self.limits = Limits(queue_max, tenant_max, key_max)
        self.share_percent = data.draw(st.sampled_from(self.shares))
        self.log: list[tuple[Entry, Picked | None]] = []
        self.known: list[bytes] = []
        self.restart()
        # A claim that holds for ever, in another queue: who repeats its request gets it, and nothing else.
        self.held = self.shard.enqueue(queue=b"other")
        self.shard.apply(Claim(self.shard.now_ms, 2**50, b"w", REPEATED, 2**50, [self.held], []))

    def restart(self) -> None:
        default = default_policy(BrokerConfig())
        self.scheduler = Scheduler(
            self.shard.machine,
            policy_of=lambda _queue: dataclasses.replace(
                default, oldest_share_percent=self.share_percent, limits=self.limits
            ),
            now_ms=lambda: self.shard.now_ms,
            window_tasks_max=self.window_tasks_max,
        )

    # The reference.

    def ready(self) -> list[tuple[bytes, Execution]]:
        """The ready tasks that are not on their way to a claim, the oldest first."""
        taken = self.on_their_way()
        tasks = [(task_id, self.shard.task(task_id)) for task_id in self.known if task_id not in taken]
        return sorted(((i, task) for i, task in tasks if task.state == READY), key=lambda item: item[1].sequence)

    def on_their_way(self) -> list[bytes]:
        return [task_id for _, picked in self.log if picked is not None for task_id in picked_ids(picked)]

    def running(self) -> list[Execution]:
        claimed = [task for task in map(self.shard.task, self.known) if task.state == CLAIMED]
        return claimed + [self.shard.task(task_id) for task_id in self.on_their_way()]

    def over(self, running: list[Execution], excess: int = 0) -> set[tuple[str, bytes]]:
        """Which caps have no room, or with an excess of 1, are exceeded."""
        limits = self.limits
        found = set()
        for what, limit, names in (
            ("queue", limits.concurrency_max, [b"q" for _ in running]),
            ("tenant", limits.tenant_concurrency_max, [task.tenant for task in running if task.tenant]),
            ("key", limits.key_concurrency_max, [task.limit_key for task in running if task.limit_key]),
        ):
            if limit:
                found |= {(what, name) for name, count in Counter(names).items() if count >= limit + excess}
        return found

    def open_tasks(self) -> list[tuple[bytes, Execution]]:
        over = self.over(self.running())
        return [
            (task_id, task)
            for task_id, task in self.ready()
            if not over & {("queue", b"q"), ("tenant", task.tenant), ("key", task.limit_key)}
        ]

    # Steps.

    @rule(data=st.data(), count=st.integers(1, 8))
    def enqueue(self, data: st.DataObject, count: int) -> None:
        tasks = []
        for _ in range(count):
            tenant, limit_key = data.draw(st.sampled_from(self.subqueues))
            priority = data.draw(st.sampled_from((0, 4, 9)))
            tasks.append(new_task(priority=priority, tenant=tenant, limit_key=limit_key))
        self.log.append((entries.Enqueue(self.shard.now_ms, tasks), None))

    @rule(
        data=st.data(),
        counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
        priority=st.sampled_from((0, 4, 9)),
    )
    def enqueue_runs(self, data: st.DataObject, counts: list[int], priority: int) -> None:
        runs = []
        for count in counts:
            tenant, limit_key = data.draw(st.sampled_from(self.subqueues))
            runs.append(new_run(count, priority=priority, tenant=tenant, limit_key=limit_key))
        self.log.append((run_entries.EnqueueRuns(self.shard.now_ms, runs), None))

    @rule(tasks_max=st.integers(1, 12), repeated=st.booleans())
    def pick(self, tasks_max: int, repeated: bool) -> None:
        before = self.open_tasks()
        if len(self.subqueues) == 1:
            line = [task_id for task_id, _ in sorted(before, key=lambda item: (-item[1].priority, item[1].sequence))]
        picked = self.probe(tasks_max)
        task_ids = picked_ids(picked) if picked is not None else []
        if len(self.subqueues) == 1 and self.caps == (0,):
            assert task_ids == line[:tasks_max]
        if picked is not None:
            self.check_order(picked, dict(before))
            request_id = REPEATED if repeated and self.gives_back else b""
            now_ms = self.shard.now_ms
            claim = Claim(now_ms, now_ms + LEASE_MS, b"w", request_id, now_ms + KEEP_MS, picked.task_ids, picked.marks)
            claim.counts = picked.counts
            assert picked.tasks == len(task_ids)
            self.log.append((claim, picked))
            self.check_marks(picked)
        assert not self.over(self.running(), 1), "a cap is exceeded"
        if len(task_ids) < tasks_max and QUEUE not in self.scheduler.unfinished:
            assert not self.open_tasks(), "something was left that could be claimed"

    def probe(self, tasks_max: int) -> Picked | None:
        for _ in range(200):
            self.scheduler.unfinished.clear()
            picked = self.scheduler.pick(QUEUE, tasks_max, PLENTY)
            if picked is not None or QUEUE not in self.scheduler.unfinished:
                return picked
        raise AssertionError("a look for tasks does not end")

    def check_order(self, picked: Picked, before: dict[bytes, Execution]) -> None:
        """First in, first out in each sub-queue; without a share for the oldest, the highest priority that is open."""
        taken: set[bytes] = set()
        singles = picked_places(picked)
        assert len(singles) == sum(picked.counts)
        for task_id, ((priority, place, tenant, limit_key), position) in zip(picked_ids(picked), singles, strict=True):
            task = before[task_id]  # was ready, open and not on its way
            assert (task.priority, task.sequence, task.tenant, task.limit_key) == (
                priority, place[0] + position, tenant, limit_key,
            )  # fmt: skip
            rest = [(i, other) for i, other in before.items() if i not in taken]
            subqueue = [i for i, o in rest if (o.priority, o.tenant, o.limit_key) == (priority, tenant, limit_key)]
            assert subqueue[0] == task_id
            if not self.share_percent and self.caps == (0,):
                assert priority == max(other.priority for _, other in rest)
            taken.add(task_id)

    def check_marks(self, picked: Picked) -> None:
        for mark in picked.marks:
            subqueue = (mark.priority, mark.tenant, mark.limit_key)
            for _, task in self.ready():
                if mark.priority == AGE_MARK:
                    assert task.is_plain or mark.sequence <= task.sequence
                elif subqueue == (task.priority, task.tenant, task.limit_key):
                    assert mark.sequence <= task.sequence

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ready = [task_id for task_id in self.known if self.shard.state(task_id) == READY]
        if ready:
            task_id = data.draw(st.sampled_from(ready))
            self.log.append((entries.Cancel(self.shard.now_ms, KEEP_MS, [task_id]), None))

    @rule()
    def raise_marks(self) -> None:
        """As the leader does behind what was cancelled: to the first task of each sub-queue."""
        queue = self.shard.machine.queue(QUEUE)
        if queue is not None:
            end = self.shard.machine.meta.next_sequence
            places = [((task.priority, task.tenant, task.limit_key), task.sequence) for _, task in self.ready()]
            subqueues = {(priority, *subqueue) for priority in (0, 4, 9) for subqueue in self.subqueues}
            firsts = {
                subqueue: min((place for other, place in places if other == subqueue), default=end)
                for subqueue in subqueues
            }
            marks = [
                Mark(QUEUE, queue.mark_version, subqueue[0], first, *subqueue[1:]) for subqueue, first in firsts.items()
            ]
            oldest = min((place for subqueue, place in places if any(subqueue[1:])), default=end)
            marks.append(Mark(QUEUE, queue.mark_version, AGE_MARK, oldest))
            self.log.append((Claim(self.shard.now_ms, 0, b"", b"", 0, [], marks), None))

    @rule(data=st.data(), ends=st.booleans())
    def release(self, data: st.DataObject, ends: bool) -> None:
        claimed = [task_id for task_id in self.known if self.shard.state(task_id) == CLAIMED]
        if claimed:
            picks = data.draw(st.lists(st.sampled_from(claimed), max_size=4, unique=True))
            refs = [ClaimRef(task_id, self.shard.task(task_id).token) for task_id in picks]
            if ends:
                items = [entries.AckItem(*ref, None, ()) for ref in refs]
                self.log.append((entries.Ack(self.shard.now_ms, KEEP_MS, items), None))
            else:
                self.log.append((entries.Release(self.shard.now_ms, KEEP_MS, refs), None))

    @rule(count=st.integers(1, 4))
    def apply(self, count: int) -> None:
        batch, self.log = self.log[:count], self.log[count:]
        machine = self.shard.machine
        refused: list[bool] = []
        for entry, _ in batch:
            outcomes = machine.apply(machine.meta.applied_index + 1, 1, entry)
            refused.append(not all(isinstance(outcome, Claimed) for outcome in outcomes))
            if isinstance(entry, Claim) and entry.request_id:
                assert [outcome.task_id for outcome in outcomes if isinstance(outcome, Claimed)] == [self.held]
        effects = machine.commit()
        ready, withdrawn = still_there(effects.ready, effects.withdrawn)
        self.scheduler.was_withdrawn(withdrawn)
        for (entry, picked), came_to_nothing in zip(batch, refused, strict=True):
            if picked is None or not isinstance(entry, Claim):
                continue
            if entry.request_id:
                self.scheduler.give_back(picked)
            else:
                self.scheduler.settle(picked, refused=came_to_nothing)
        self.scheduler.became_ready(ready)
        self.scheduler.was_freed(effects.freed)
        queue = machine.queue(QUEUE)
        for entry, picked in batch:
            if isinstance(entry, Claim) and picked is None and queue is not None:
                self.scheduler.marks_were_raised([m for m in entry.marks if m.mark_version == queue.mark_version])
        known = set(self.known)
        came = single_ids([task.task_id for task in effects.ready], [task.tasks for task in effects.ready])
        self.known += [task_id for task_id in came if task_id not in known]

    @rule(data=st.data(), fails_over=st.booleans())
    def lose_what_waits(self, data: st.DataObject, fails_over: bool) -> None:
        """As when the disk is full: what waits is never applied, but the first few may be in the log already."""
        if fails_over:
            self.log.clear()
            self.restart()
            return
        self.log = self.log[: data.draw(st.integers(0, len(self.log)))]
        self.scheduler.reset()
        for _, picked in self.log:
            if picked is not None:
                self.scheduler.adopt(picked)

    @invariant()
    def marks_are_below_what_is_ready(self) -> None:
        queue = self.shard.machine.queue(QUEUE) if hasattr(self, "shard") else None
        if queue is not None:
            for _, task in self.ready():
                if task.is_plain:
                    assert queue.marks[task.priority] <= task.sequence
                else:
                    assert queue.age_mark <= task.sequence

    @invariant()
    def what_is_available_can_be_picked(self) -> None:
        if hasattr(self, "shard"):
            available, open_tasks = self.scheduler.available(QUEUE), len(self.open_tasks())
            if self.caps == (0,):
                assert available == open_tasks
            elif open_tasks:
                assert available, "whoever waits would not be told"

    def teardown(self) -> None:
        """In the end every ready task is handed out, and nothing is counted that is not there."""
        if not hasattr(self, "shard"):
            return
        while self.log:
            self.apply(4)
        while any(self.shard.state(task_id) == READY for task_id in self.known):
            for task_id in self.known:
                if self.shard.state(task_id) == CLAIMED:
                    item = entries.AckItem(task_id, self.shard.task(task_id).token, None, ())
                    self.log.append((entries.Ack(self.shard.now_ms, KEEP_MS, [item]), None))
            while self.log:
                self.apply(4)
            self.pick(3, repeated=False)
            assert self.log, "nothing is picked although nothing runs"
            self.apply(1)
        assert not violations(self.shard.kv)
        window = self.scheduler.windows.get(QUEUE)
        if window is not None:
            assert self.probe(1) is None
            limiters = window.limiters
            assert not any(limiter.coming for limiter in (*limiters.tenants.values(), *limiters.limit_keys.values()))
            assert not window.lines.claiming
            if not self.limits.has_any:
                assert (window.round_robins, window.shared_state.subqueues, window.lines.size) == (0, 0, 0)


class SchedulerTrafficWithRepeats(SchedulerTraffic):
    """Some claims repeat an answered request, so what was picked for them is given back."""

    gives_back = True


class SchedulerTrafficOfSubqueues(SchedulerTraffic):
    gives_back = True
    subqueues = tuple(SUBQUEUES)
    shares = (0, 10, 50)


class SchedulerTrafficWithCaps(SchedulerTrafficOfSubqueues):
    caps = (0, 1, 2)


@pytest.fixture(params=["little is held", "all is held"], autouse=True)
def small_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short lines and a few sub-queues need several pages, with room to hold all of them at once or without."""
    monkeypatch.setattr(lines, "REFILL_TASKS", 3)
    monkeypatch.setattr(lines, "SUBQUEUE_REFILL_TASKS", 1)
    monkeypatch.setattr(lines, "MARKED_EACH", 2)
    use_short_rows(monkeypatch)
    if request.param == "all is held":
        return
    monkeypatch.setattr(scheduler_module, "IDLE_CACHED_MAX", 3)
    monkeypatch.setattr(ages, "AGE_PAGES", 1)
    monkeypatch.setattr(ages, "HELD_MAX", 4)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 2)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE_BEHIND_A_WIDE_ONE", 1)
    monkeypatch.setattr(subqueues, "KEYS_PAGE", 1)
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 2)
    monkeypatch.setattr(subqueues, "KEYS_HELD_MAX", 1)
    monkeypatch.setattr(subqueues, "ASIDE_MAX", 1)
    monkeypatch.setattr(subqueues, "SUBQUEUES_HELD_MAX", 3)
    monkeypatch.setattr(scheduler_module, "SCAN_BUDGET", 2)
    monkeypatch.setattr(windows, "KEYS_BLOCKED_MAX", 1)


@pytest.mark.parametrize(
    "traffic",
    [SchedulerTraffic, SchedulerTrafficWithRepeats, SchedulerTrafficOfSubqueues, SchedulerTrafficWithCaps],
)
def test_every_pick_is_the_next_in_line(traffic: type[SchedulerTraffic]) -> None:
    run_state_machine_as_test(traffic, settings=settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None))
