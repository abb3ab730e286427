"""The scheduler under random traffic: entries wait in a log, as behind a leader, and are applied in batches.

After each step the marks, the picks and what is left are compared with the ready index of the real machine.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast.broker import scheduler as scheduler_module
from holdfast.broker.scheduler import Picked, Scheduler
from holdfast.machine import entries, keys
from holdfast.machine.entries import Claim, ClaimRef, Entry
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Claimed
from holdfast.machine.rows import BANDS, CLAIMED, READY, split_ready_row
from tests.unit.machine_shard import KEEP_MS, LEASE_MS, QUEUE, Shard, new_task

PLENTY = 1 << 40
REFILL_TASKS = 3  # instead of 256, so that short lines need several
REPEATED = b"repeated"  # the claim request of a worker that asks for ever


class SchedulerTraffic(RuleBasedStateMachine):
    gives_back = False

    @initialize(window_tasks_max=st.integers(1, 6))
    def start(self, window_tasks_max: int) -> None:
        self.shard = Shard()
        machine = self.shard.machine
        self.scheduler = Scheduler(
            self.shard.kv, machine.queue, lambda: machine.meta.next_sequence,
            window_tasks_max=window_tasks_max, oldest_share_percent=0,
        )  # fmt: skip
        self.log: list[tuple[Entry, Picked | None]] = []
        self.known: list[bytes] = []
        # A claim that holds for ever, in another queue: who repeats its request gets it, and nothing else.
        self.held = self.shard.enqueue(queue=b"other")
        self.shard.apply(Claim(self.shard.now_ms, 2**50, b"w", REPEATED, 2**50, [self.held], []))

    def ready(self, priority: int) -> list[tuple[int, bytes]]:
        """Sequence and id of the ready tasks that are not on their way to a claim, by the index."""
        band = keys.ready_band(QUEUE, priority)
        rows = self.shard.kv.scan(band, keys.after_prefix(band), 10_000)
        taken = self.on_their_way()
        places = [(keys.ready_sequence(key), split_ready_row(row)[0]) for key, row in rows]
        return [place for place in places if place[1] not in taken]

    def on_their_way(self) -> list[bytes]:
        return [task_id for _, picked in self.log if picked is not None for task_id in picked.task_ids]

    @rule(priorities=st.lists(st.sampled_from((0, 4, 9)), min_size=1, max_size=8))
    def enqueue(self, priorities: list[int]) -> None:
        tasks = [new_task(priority=priority) for priority in priorities]
        self.log.append((entries.Enqueue(self.shard.now_ms, tasks), None))

    @rule(tasks_max=st.integers(1, 5), repeated=st.booleans())
    def pick(self, tasks_max: int, repeated: bool) -> None:
        expected = [task_id for priority in range(BANDS - 1, -1, -1) for _, task_id in self.ready(priority)]
        picked = self.scheduler.pick(QUEUE, tasks_max, PLENTY)
        task_ids = picked.task_ids if picked is not None else []
        assert task_ids == expected[:tasks_max]
        if picked is None:
            return
        request_id = REPEATED if repeated and self.gives_back else b""
        now_ms = self.shard.now_ms
        claim = Claim(now_ms, now_ms + LEASE_MS, b"w", request_id, now_ms + KEEP_MS, task_ids, picked.marks)
        self.log.append((claim, picked))
        for mark in picked.marks:
            assert all(mark.sequence <= sequence for sequence, _ in self.ready(mark.priority))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ready = [task_id for task_id in self.known if self.shard.state(task_id) == READY]
        if ready:
            task_id = data.draw(st.sampled_from(ready))
            self.log.append((entries.Cancel(self.shard.now_ms, KEEP_MS, [task_id]), None))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        claimed = [task_id for task_id in self.known if self.shard.state(task_id) == CLAIMED]
        if claimed:
            picks = data.draw(st.lists(st.sampled_from(claimed), max_size=4, unique=True))
            refs = [ClaimRef(task_id, self.shard.task(task_id).token) for task_id in picks]
            self.log.append((entries.Release(self.shard.now_ms, KEEP_MS, refs), None))

    @rule(count=st.integers(1, 4))
    def apply(self, count: int) -> None:
        batch, self.log = self.log[:count], self.log[count:]
        machine = self.shard.machine
        for entry, _ in batch:
            outcomes = machine.apply(machine.meta.applied_index + 1, 1, entry)
            if isinstance(entry, Claim) and entry.request_id:
                assert [outcome.task_id for outcome in outcomes if isinstance(outcome, Claimed)] == [self.held]
        effects = machine.commit()
        came, gone = ({task.sequence for task in tasks} for tasks in (effects.ready, effects.withdrawn))
        self.scheduler.was_withdrawn([task for task in effects.withdrawn if task.sequence not in came])
        for entry, picked in batch:
            if picked is not None and isinstance(entry, Claim):
                (self.scheduler.give_back if entry.request_id else self.scheduler.settle)(picked)
        self.scheduler.became_ready([task for task in effects.ready if task.sequence not in gone])
        self.known += [task.task_id for task in effects.ready if task.task_id not in self.known]

    @rule()
    def lose_what_waits(self) -> None:
        """As when the disk is full: nothing that waits is ever applied."""
        self.log.clear()
        self.scheduler.reset()

    @invariant()
    def marks_are_below_what_is_ready(self) -> None:
        if hasattr(self, "shard"):
            queue = self.shard.machine.queue(QUEUE)
            for priority in range(BANDS) if queue is not None else ():
                assert queue is not None
                assert all(queue.marks[priority] <= sequence for sequence, _ in self.ready(priority))

    @invariant()
    def what_is_available_can_be_picked(self) -> None:
        if hasattr(self, "shard"):
            ready = sum(len(self.ready(priority)) for priority in range(BANDS))
            assert self.scheduler.available(QUEUE) == ready

    def teardown(self) -> None:
        """In the end every ready task is handed out."""
        if not hasattr(self, "shard"):
            return
        while self.log:
            self.apply(4)
        while any(self.shard.state(task_id) == READY for task_id in self.known):
            self.pick(3, repeated=False)
            self.apply(1)
        assert not [task_id for task_id in self.known if self.shard.state(task_id) == READY]
        assert not violations(self.shard.kv)


class SchedulerTrafficWithRepeats(SchedulerTraffic):
    """Some claims repeat an answered request, so what was picked for them is given back."""

    gives_back = True


@pytest.fixture(autouse=True)
def small_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "REFILL_TASKS", REFILL_TASKS)


@pytest.mark.parametrize("traffic", [SchedulerTraffic, SchedulerTrafficWithRepeats])
def test_every_pick_is_the_next_in_line(traffic: type[SchedulerTraffic]) -> None:
    run_state_machine_as_test(traffic, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
