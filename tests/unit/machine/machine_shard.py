"""A shard in memory for the machine's example tests: entries in, outcomes out, each entry committed at once."""

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.machine import (
    draft,
    entries,
    keys,
    outcomes,
    ready_lines,
    ready_rows,
    rows,
    run_rows,
    run_transitions,
    runs,
)
from holdfast.machine.effects import Effects
from holdfast.machine.entries import (
    AckItem,
    BucketLevel,
    ClaimRef,
    Entry,
    ExpireItem,
    ExtendItem,
    FailItem,
    Mark,
)
from holdfast.machine.handlers import runs as run_handlers
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import Machine
from holdfast.machine.new_runs import NewRun, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import (
    KEEP_PRIORITY,
    KEEP_START,
    START_AT,
    DiscardDead,
    TtlExpire,
    UpdateItem,
    UpdateTasks,
)
from holdfast.machine.ready_lines import read_rows, read_subqueue
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED

START_MS = 1_000_000
LEASE_MS = 1_000
KEEP_MS = 10_000
DEAD_KEEP_MS = 50_000
WINDOW_MS = 20_000
BACKOFF_MS = 500
PAUSE_MS = 600_000
SECRET = 0x5EC2E7  # of every claim
QUEUE = b"mail"
NOBODY = bytes(16)  # the id of no task
WAITING = (READY, DELAYED, RETRY_PENDING)
ALL_STATES = (READY, CLAIMED, DELAYED, RETRY_PENDING, SUCCEEDED, DEAD, CANCELLED)


def names(states: Iterable[int]) -> list[str]:
    return [rows.STATE_NAMES[state] for state in states]


def new_task(**changes: Any) -> NewTask:
    plain = NewTask(
        queue=QUEUE,
        priority=4,
        tenant=b"",
        request_id=b"",
        dedup_window_ms=WINDOW_MS,
        run_at_ms=0,
        max_attempts=3,
        max_claims=5,
        result_ttl_ms=0,
        envelope=b"envelope",
    )
    return plain._replace(**changes)


def new_run(count: int, *, size_bytes: int = 1, **changes: Any) -> NewRun:
    """Of tasks as `new_task` makes them, with payloads of so many bytes."""
    plain = NewRun(
        queue=QUEUE,
        priority=4,
        request_id=b"",
        dedup_window_ms=WINDOW_MS,
        max_attempts=3,
        max_claims=5,
        result_ttl_ms=0,
        type=b"",
        flags=0,
        timeout_ms=0,
        header=b"",
        sizes=pack_sizes([size_bytes] * count),
        payloads=bytes(count * size_bytes),
    )
    return plain._replace(**changes)


class Shard:
    def __init__(self, *, shard: int = 7, incarnation: int = 1) -> None:
        self.kv = MemoryKV()
        self.machine = Machine(self.kv, shard=shard, incarnation=incarnation)
        self.now_ms = START_MS
        self.effects = Effects()  # of the newest entry

    def apply(self, entry: Entry) -> list[outcomes.Outcome]:
        done = self.machine.apply(self.machine.meta.applied_index + 1, 1, entry)
        self.effects = self.machine.commit()
        return done

    def restart(self) -> None:
        self.machine = Machine(self.kv)

    # One-item forms of the entries.

    def enqueue(self, **changes: Any) -> bytes:
        outcome = self.enqueue_all(new_task(**changes))[0]
        return outcome.task_id

    def enqueue_all(self, *tasks: NewTask) -> list[outcomes.Accepted]:
        done = self.apply(entries.Enqueue(self.now_ms, list(tasks)))
        return [outcome for outcome in done if isinstance(outcome, outcomes.Accepted)]

    def claim_all(
        self,
        *task_ids: bytes,
        request_id: bytes = b"",
        worker: bytes = b"worker",
        marks: tuple[Mark, ...] = (),
        levels: tuple[BucketLevel, ...] = (),
        is_alone: bool = False,
    ) -> list[outcomes.Outcome]:
        entry = entries.Claim(
            self.now_ms,
            self.now_ms + LEASE_MS,
            worker,
            request_id,
            self.now_ms + KEEP_MS,
            list(task_ids),
            list(marks),
            list(levels),
            secret=SECRET,
            is_alone=is_alone,
        )
        return self.apply(entry)

    def claim(self, task_id: bytes) -> int:
        """The token. A suspect is claimed alone."""
        task = self.machine.execution(task_id)
        (outcome,) = self.claim_all(task_id, is_alone=task is not None and task.is_suspect)
        assert isinstance(outcome, outcomes.Claimed)
        return outcome.token

    def ack(
        self, task_id: bytes, token: int, result: bytes | None = None, follow_ups: tuple[NewTask, ...] = ()
    ) -> outcomes.Outcome:
        return self.apply(entries.Ack(self.now_ms, KEEP_MS, [AckItem(task_id, token, result, follow_ups)]))[0]

    def fail(
        self, task_id: bytes, token: int, *, dead_reason: int = 0, error: bytes = b"error", brief: bytes = b""
    ) -> outcomes.Outcome:
        retry_at_ms = 0 if dead_reason else self.now_ms + BACKOFF_MS
        item = FailItem(task_id, token, retry_at_ms, dead_reason, error, brief)
        return self.apply(entries.Fail(self.now_ms, KEEP_MS, DEAD_KEEP_MS, [item]))[0]

    def extend(self, task_id: bytes, token: int, expiry_ms: int) -> outcomes.Outcome:
        return self.apply(entries.Extend(self.now_ms, [ExtendItem(task_id, token, expiry_ms)]))[0]

    def release(self, task_id: bytes, token: int, ready_at_ms: int = 0) -> outcomes.Outcome:
        return self.apply(entries.Release(self.now_ms, KEEP_MS, [ClaimRef(task_id, token)], ready_at_ms))[0]

    def expire(self, task_id: bytes, token: int, dead_reason: int = 0, **more: Any) -> outcomes.Outcome:
        item = ExpireItem(task_id, token, dead_reason, **more)
        return self.apply(entries.Expire(self.now_ms, KEEP_MS, DEAD_KEEP_MS, [item]))[0]

    def make_suspect(self, task_id: bytes) -> None:
        """Its worker dies. Other leases are not looked at."""
        token = self.claim(task_id)
        self.extend(task_id, token, self.now_ms)
        self.expire(task_id, token)

    def promote(self, task_id: bytes) -> outcomes.Outcome:
        return self.apply(entries.Promote(self.now_ms, [task_id]))[0]

    def cancel(self, task_id: bytes) -> outcomes.Outcome:
        return self.apply(entries.Cancel(self.now_ms, KEEP_MS, [task_id]))[0]

    def retry_dead(self, task_id: bytes) -> outcomes.Outcome:
        return self.apply(entries.RetryDead(self.now_ms, [task_id]))[0]

    def discard_dead(self, task_id: bytes, keep_ms: int = 0) -> outcomes.Outcome:
        return self.apply(DiscardDead(self.now_ms, [task_id], keep_ms, b"ann", b"why"))[0]

    def ttl_expire(self, task_id: bytes) -> outcomes.Outcome:
        return self.apply(TtlExpire(self.now_ms, DEAD_KEEP_MS, b"too late", [task_id]))[0]

    def update(self, task_id: bytes, priority: int = KEEP_PRIORITY, run_at_ms: int | None = None) -> outcomes.Outcome:
        start = KEEP_START if run_at_ms is None else START_AT
        return self.apply(UpdateTasks(self.now_ms, [UpdateItem(task_id, priority, start, run_at_ms or 0)]))[0]

    def purge(self, task_id: bytes) -> outcomes.Outcome:
        return self.apply(entries.Purge(self.now_ms, [task_id]))[0]

    def expire_key(self, when_ms: int, key: bytes) -> outcomes.Outcome:
        return self.apply(entries.ExpireKeys(self.now_ms, [entries.ExpiringKey(when_ms, key)]))[0]

    # What the state says.

    def state_rows(self) -> dict[bytes, bytes]:
        """Everything but META, which moves with every entry."""
        return {key: row for key, row in self.kv.rows().items() if key != keys.META_KEY}

    def task(self, task_id: bytes) -> rows.Execution:
        row = self.kv.get(keys.execution(task_id))
        assert row is not None
        return rows.Execution.decode(row)

    def state(self, task_id: bytes) -> int:
        return self.task(task_id).state

    def queue(self, name: bytes = QUEUE) -> rows.Queue:
        row = self.kv.get(keys.queue(name))
        assert row is not None
        return rows.Queue.decode(row)

    def line(self, queue: bytes = QUEUE, priority: int = 4, tenant: bytes = b"", limit_key: bytes = b"") -> list[bytes]:
        """The ready tasks of one sub-queue in order."""
        subqueue = keys.ready_subqueue(queue, priority, tenant, limit_key)
        is_plain = not tenant and not limit_key
        found = read_rows(self.kv, subqueue, 0, 1000) if is_plain else read_subqueue(self.kv, subqueue, 0, 1000)[0]
        return [task_id for _, task_id, *_ in found]

    def attempts(self, task_id: bytes) -> tuple[rows.Attempt, ...]:
        row = self.kv.get(keys.attempts(task_id))
        return () if row is None else rows.AttemptsRow.decode(row).kept

    def armed(self) -> list[tuple[int, bytes]]:
        """(when, key) of what will be forgotten."""
        found = self.kv.scan(keys.family_start(keys.KEY_EXPIRY), keys.family_start(keys.KEY_EXPIRY + 1), 1000)
        return [keys.timed(key) for key, _ in found]

    def task_in(self, state: int, **changes: Any) -> bytes:
        """A new task, brought into `state`."""
        if state == DELAYED:
            return self.enqueue(run_at_ms=self.now_ms + BACKOFF_MS, **changes)
        task_id = self.enqueue(**changes)
        if state == CANCELLED:
            self.cancel(task_id)
        elif state != READY:
            token = self.claim(task_id)
            if state == SUCCEEDED:
                self.ack(task_id, token)
            elif state == RETRY_PENDING:
                self.fail(task_id, token)
            elif state == DEAD:
                self.fail(task_id, token, dead_reason=rows.WORKER_GAVE_UP)
        assert self.state(task_id) == state
        return task_id


def code(outcome: outcomes.Outcome) -> str:
    assert isinstance(outcome, Rejection), outcome
    return outcome.code


def use_short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few tasks need several rows of sub-queues and of ages, and more than is kept at hand of them."""
    monkeypatch.setattr(ready_rows, "SUBQUEUE_TASKS_MAX", 2)
    for module in (ready_rows, ready_lines, draft, run_transitions):
        monkeypatch.setattr(module, "AGE_PAGE_PLACES", 4)
    for limit, tasks_max in {"RUN_TASKS_MAX": 5, "RUN_BYTES_MAX": 12}.items():
        monkeypatch.setattr(run_handlers, limit, tasks_max)
    monkeypatch.setattr(run_rows, "PART_BYTES_MAX", 5)
    monkeypatch.setattr(runs, "RUNS_CACHED_BYTES_MAX", 5_000)
    for cache, entries_max in {"AGE_PAGES": 2, "SUBQUEUES": 3, "TASKS": 5}.items():
        monkeypatch.setattr(draft, f"{cache}_CACHED_MAX", entries_max)
