"""A second, plain telling of the machine's rules, to compare the machine with: dicts, no key layout, no index rows."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.machine import entries, keys, outcomes, rows
from holdfast.machine.entries import AckItem, ClaimRef, Entry, ExpireItem, ExtendItem, FailItem, ForgetItem, NewTask
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED

SHARD = 0x1234
INCARNATION = 3
FINISHED = (SUCCEEDED, CANCELLED)
ENDED = (SUCCEEDED, CANCELLED, DEAD)
PAUSE_MS = 600_000

Answer = tuple[Any, ...] | str  # (name of the outcome, its fields…), or the code of a rejection
Handle = tuple[Any, ...]  # ("request", queue, request id), ("answer", token) or ("reserve", claim request id)


@dataclass
class Task:
    new: NewTask
    place: int
    state: int
    enqueued_ms: int
    changed_ms: int
    timer_ms: int = 0
    token: int = 0
    worker: bytes = b""
    claims: int = 0
    failures: int = 0
    cancel: bool = False
    dead_reason: int = 0
    report: tuple[int, bytes] | None = None
    had_follow_ups: bool = False

    def fields(self) -> dict[str, Any]:
        """Named as in rows.Execution."""
        new = self.new
        return {
            "queue": new.queue, "tenant": new.tenant, "request_id": new.request_id, "worker": self.worker,
            "state": self.state, "priority": new.priority, "cancel_requested": int(self.cancel),
            "dead_reason": self.dead_reason, "had_follow_ups": int(self.had_follow_ups), "sequence": self.place,
            "token": self.token, "timer_ms": self.timer_ms, "enqueued_ms": self.enqueued_ms,
            "changed_ms": self.changed_ms, "result_ttl_ms": new.result_ttl_ms, "claims": self.claims,
            "failures": self.failures, "max_attempts": new.max_attempts, "max_claims": new.max_claims,
            "size_bytes": len(new.envelope),
        }  # fmt: skip


class Model:
    def __init__(self) -> None:
        self.now_ms = 0
        self.stepped_ms = 0
        self.next_place = 1
        self.next_token = 1
        self.tasks: dict[bytes, Task] = {}
        self.totals: dict[bytes, Counter[str]] = {}
        self.marks: dict[bytes, list[int]] = {}
        self.memory: dict[Handle, tuple[Any, int]] = {}  # what is remembered, until when
        self.level = 1
        self.settings: dict[bytes, tuple[int, bytes]] = {}
        self.posted: dict[int, list[tuple[int, bytes]]] = {}  # all letters that ever were, by destination
        self.delivered: Counter[int] = Counter()
        self.inbox: dict[tuple[int, int], int] = {}

    def apply(self, entry: Entry) -> list[Answer]:
        self.now_ms = max(self.now_ms, entry.now_ms)
        if isinstance(entry, entries.LeaderStarted):
            self.stepped_ms = self.now_ms if entry.stepped else self.stepped_ms
            return []
        if isinstance(entry, entries.RaiseLevel):
            if entry.level <= self.level:
                return ["OLD_LEVEL"]
            self.level = entry.level
            return [("Changed", entry.level)]
        if isinstance(entry, entries.SetQueue):
            return [self._set_queue(entry)]
        if isinstance(entry, entries.Receive):
            return [self._receive(entry)]
        if isinstance(entry, entries.Delivered):
            return [self._delivered(entry)]
        if isinstance(entry, entries.Claim):
            return self._claim(entry)
        if isinstance(entry, entries.Enqueue):
            return [("Accepted", *self._accept(new)) for new in entry.tasks]
        rules: dict[type[Entry], Callable[[Any, Any], Answer]] = {
            entries.Ack: self._ack,
            entries.AckAway: self._ack,
            entries.Fail: self._fail,
            entries.Extend: self._extend,
            entries.Release: self._release,
            entries.Expire: self._expire,
            entries.Promote: self._promote,
            entries.Cancel: self._cancel,
            entries.RetryDead: self._retry_dead,
            entries.DiscardDead: self._discard_dead,
            entries.Purge: self._purge,
            entries.Forget: self._forget,
        }
        items: list[Any] = entry.task_ids if hasattr(entry, "task_ids") else entry.items
        return [rules[type(entry)](item, entry) for item in items]

    def line(self, queue: bytes) -> list[bytes]:
        """The ready tasks of a queue in the order in which they are to be handed out."""
        ready = [(id_, task) for id_, task in self.tasks.items() if task.state == READY and task.new.queue == queue]
        return [id_ for id_, task in sorted(ready, key=lambda pair: (-pair[1].new.priority, pair[1].place))]

    def _accept(self, new: NewTask) -> tuple[bytes, bool]:
        handle = ("request", new.queue, new.request_id)
        if new.request_id and handle in self.memory:
            return self.memory[handle][0][0], True
        place, now_ms = self._next_place(), self.now_ms
        bits = f"{now_ms:048b}1000{SHARD >> 4:012b}10{SHARD & 15:04b}{place:058b}"
        task_id = int(bits, 2).to_bytes(16, "big")
        later = new.run_at_ms > now_ms
        self.tasks[task_id] = Task(new, place, DELAYED if later else READY, now_ms, now_ms)
        self.tasks[task_id].timer_ms = new.run_at_ms if later else 0
        self.totals.setdefault(new.queue, Counter())["enqueued_total"] += 1
        self.marks.setdefault(new.queue, [0] * 10)
        if new.request_id:
            self.memory[handle] = (task_id, new.dedup_window_ms), now_ms + new.dedup_window_ms
        return task_id, False

    def _set_queue(self, entry: entries.SetQueue) -> Answer:
        if entry.queue in self.settings and entry.version <= self.settings[entry.queue][0]:
            return "OLD_VERSION"
        self.settings[entry.queue] = entry.version, entry.policy
        return ("Changed", entry.version)

    def _receive(self, entry: entries.Receive) -> Answer:
        source = entry.source, entry.incarnation
        last = self.inbox.get(source, entry.first_sequence - 1)
        numbered = list(enumerate(entry.tasks, start=entry.first_sequence))
        if entry.first_sequence - last > 1:
            return "OUT_OF_ORDER"
        accepted = []
        for number, new in numbered:
            if number > last:
                accepted.append(self._accept(new))
                self.inbox[source] = number
        return ("Received", self.inbox.get(source, last), tuple(accepted))

    def _delivered(self, entry: entries.Delivered) -> Answer:
        letters, before = self.posted.get(entry.destination, []), self.delivered[entry.destination]
        if entry.sequence not in range(before + 1, len(letters) + 1):
            return "NOT_WAITING"
        self.delivered[entry.destination] = min(entry.sequence, before + 1000)
        return ("Changed", self.delivered[entry.destination])

    def _post(self, parcels: Iterable[entries.Parcel]) -> None:
        for parcel in parcels:
            self.posted.setdefault(parcel.destination, []).append((parcel.run_at_ms, parcel.envelope))

    def _next_place(self) -> int:
        self.next_place += 1
        return self.next_place - 1

    def _held(self, task_id: bytes, token: int) -> Task | None:
        task = self.tasks.get(task_id)
        return task if task is not None and task.state == CLAIMED and task.token == token else None

    def _claim(self, entry: entries.Claim) -> list[Answer]:
        handle = ("reserve", entry.worker, entry.request_id)
        before = self.memory[handle][0] if handle in self.memory else ()
        held = [
            task_id for task_id, token in before if (task := self._held(task_id, token)) and task.timer_ms > self.now_ms
        ]
        if entry.request_id and held:
            for task_id in entry.task_ids:
                if task_id in self.tasks:
                    self.totals[self.tasks[task_id].new.queue]["mark_version"] += 1
            return [self._granted(task_id) for task_id in held]
        answers: list[Answer] = []
        given: list[tuple[bytes, int]] = []
        for task_id in entry.task_ids:
            task = self.tasks.get(task_id)
            if task is None or task.state != READY:
                answers.append("TASK_NOT_FOUND" if task is None else "NOT_READY")
                continue
            task.token = INCARNATION * 2**48 + self.next_token
            self.next_token += 1
            task.worker = entry.worker
            task.claims += 1
            self._move(task, CLAIMED, entry.expiry_ms, "claimed_total")
            given.append((task_id, task.token))
            answers.append(self._granted(task_id))
        for mark in entry.marks:
            if mark.queue in self.totals and self.totals[mark.queue]["mark_version"] == mark.mark_version:
                marks = self.marks[mark.queue]
                marks[mark.priority] = max(marks[mark.priority], mark.sequence)
        if entry.request_id and given:
            self.memory[handle] = tuple(given), entry.forget_ms
        return answers

    def _granted(self, task_id: bytes) -> Answer:
        task = self.tasks[task_id]
        return ("Claimed", task_id, task.token, task.timer_ms, task.failures, task.claims, task.enqueued_ms)

    def _move(self, task: Task, state: int, timer_ms: int, *totals: str) -> None:
        task.state, task.timer_ms, task.changed_ms = state, timer_ms, self.now_ms
        self.totals[task.new.queue].update(totals)

    def _return(self, task: Task) -> None:
        """Back to its old place in the line."""
        marks, priority = self.marks[task.new.queue], task.new.priority
        marks[priority] = min(marks[priority], task.place)
        self._move(task, READY, 0, "mark_version")

    def _finish(self, task: Task, state: int, keep_ms: int) -> None:
        self._move(task, state, self.now_ms + keep_ms, "succeeded_total" if state == SUCCEEDED else "cancelled_total")

    def _die(self, task: Task, reason: int, keep_ms: int) -> None:
        task.dead_reason = reason
        self._move(task, DEAD, self.now_ms + keep_ms, "dead_total")

    def _refusal(self, task_id: bytes, code: str) -> str:
        return code if task_id in self.tasks else "TASK_NOT_FOUND"

    def _first_answer(self, item: AckItem | FailItem | ClaimRef, kind: str, code: str = "STALE_TOKEN") -> Answer:
        task_id, answer = self.memory.get(("answer", item.token), ((b"", ""), 0))[0]
        first: Answer = answer
        return first if (task_id, first[:1]) == (item.task_id, (kind,)) else self._refusal(item.task_id, code)

    def _ack(self, item: AckItem, entry: entries.Ack | entries.AckAway) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            done = self.tasks.get(item.task_id)
            if done is None or done.state != SUCCEEDED or done.token != item.token or done.had_follow_ups:
                return self._first_answer(item, "Acked")
            return ("Acked", ())
        if isinstance(entry, entries.AckAway):
            for parcel in item.parcels:
                coming = sum(other.destination == parcel.destination for other in item.parcels)
                waiting = len(self.posted.get(parcel.destination, ())) - self.delivered[parcel.destination]
                if waiting + coming > entry.waiting_max:
                    return "OUTBOX_FULL"
        keep_ms = entry.keep_ms
        if item.result is not None and task.new.result_ttl_ms:
            task.report = rows.REPORT_RESULT, item.result
            keep_ms = max(keep_ms, task.new.result_ttl_ms)
        self._finish(task, SUCCEEDED, keep_ms)
        here, away = iter(item.follow_ups), {parcel.place for parcel in item.parcels}
        count = len(item.follow_ups) + len(item.parcels)
        task.had_follow_ups = count > 0
        accepted = [(bytes(16), False) if at in away else self._accept(next(here)) for at in range(count)]
        self._post(item.parcels)
        answer = ("Acked", tuple(accepted))
        if task.had_follow_ups:
            self.memory["answer", item.token] = (item.task_id, answer), self.now_ms + keep_ms
        return answer

    def _fail(self, item: FailItem, entry: entries.Fail) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            return self._first_answer(item, "Failed")
        task.failures += 1
        task.report = rows.REPORT_ERROR, item.error
        self.totals[task.new.queue]["failed_total"] += 1
        if task.cancel:
            self._finish(task, CANCELLED, entry.keep_ms)
        elif item.retry_at_ms:
            self._move(task, RETRY_PENDING, item.retry_at_ms)
        else:
            self._die(task, item.dead_reason, entry.dead_keep_ms)
        answer = ("Failed", task.state, item.retry_at_ms if task.state == RETRY_PENDING else 0)
        self.memory["answer", item.token] = (item.task_id, answer), self.now_ms + entry.keep_ms
        return answer

    def _extend(self, item: ExtendItem, _: entries.Extend) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            return self._refusal(item.task_id, "STALE_TOKEN")
        task.timer_ms = item.expiry_ms
        return ("Extended", item.expiry_ms, task.cancel)

    def _release(self, item: ClaimRef, entry: entries.Release) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            return self._first_answer(item, "Moved")
        if task.cancel:
            self._finish(task, CANCELLED, entry.keep_ms)
        else:
            task.claims -= 1
            self._return(task)
        self.memory["answer", item.token] = (item.task_id, ("Moved", task.state)), self.now_ms + entry.keep_ms
        return ("Moved", task.state)

    def _expire(self, item: ExpireItem, entry: entries.Expire) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None or task.timer_ms > self.now_ms:
            return self._refusal(item.task_id, "NOT_EXPIRED")
        self.totals[task.new.queue]["expired_total"] += 1
        if task.cancel:
            self._finish(task, CANCELLED, entry.keep_ms)
        elif item.dead_reason:
            self._die(task, item.dead_reason, entry.dead_keep_ms)
        else:
            self._return(task)
        return ("Moved", task.state)

    def _promote(self, task_id: bytes, _: entries.Promote) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state not in (DELAYED, RETRY_PENDING) or task.timer_ms > self.now_ms:
            return self._refusal(task_id, "NOT_DUE")
        task.place = self._next_place()
        self._move(task, READY, 0)
        return ("Moved", READY)

    def _cancel(self, task_id: bytes, entry: entries.Cancel) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state in (SUCCEEDED, DEAD):
            return self._refusal(task_id, "TASK_FINISHED")
        if task.state == CLAIMED:
            task.cancel = True
        elif task.state != CANCELLED:
            self._finish(task, CANCELLED, entry.keep_ms)
        return ("Moved", task.state)

    def _retry_dead(self, task_id: bytes, _: entries.RetryDead) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state != DEAD:
            return self._refusal(task_id, "NOT_DEAD")
        task.claims = task.failures = task.dead_reason = 0
        task.place = self._next_place()
        self._move(task, READY, 0)
        return ("Moved", READY)

    def _discard_dead(self, task_id: bytes, _: entries.DiscardDead) -> Answer:
        if task_id not in self.tasks or self.tasks[task_id].state != DEAD:
            return self._refusal(task_id, "NOT_DEAD")
        del self.tasks[task_id]
        return ("Moved", DEAD)

    def _paused(self) -> bool:
        return self.stepped_ms > 0 and self.now_ms < self.stepped_ms + PAUSE_MS

    def _purge(self, task_id: bytes, _: entries.Purge) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or self._paused() or task.state not in ENDED or task.timer_ms > self.now_ms:
            return self._refusal(task_id, "KEPT")
        del self.tasks[task_id]
        return ("Moved", task.state)

    def _forget(self, item: ForgetItem, _: entries.Forget) -> Answer:
        handle = handle_of(item.key)
        what, until_ms = self.memory.get(handle, (None, -1))
        if until_ms != item.when_ms or item.when_ms > self.now_ms or self._paused():
            return "KEPT"
        if handle[0] == "request":
            task_id, window_ms = what
            task = self.tasks.get(task_id)
            if task is not None and task.state not in FINISHED:
                age_ms = min(self.now_ms - task.enqueued_ms, 3_600_000)
                self.memory[handle] = what, self.now_ms + max(window_ms, age_ms)
                return ("Moved", task.state)
        del self.memory[handle]
        return ("Moved", 0)

    def picture(self) -> dict[str, Any]:
        """All that the state says, in the form that `picture_of` gives a state."""
        states = Counter((task.new.queue, task.state) for task in self.tasks.values())
        kinds = {"ready": READY, "claimed": CLAIMED, "delayed": DELAYED, "retrying": RETRY_PENDING, "dead": DEAD}
        timers = {
            (family, task.timer_ms, task_id)
            for task_id, task in self.tasks.items()
            for family in timer_families(task.state)
        }
        return {
            "clock": (self.now_ms, self.stepped_ms, self.next_place, self.next_token),
            "tasks": {task_id: task.fields() for task_id, task in self.tasks.items()},
            "envelopes": {id_: task.new.envelope for id_, task in self.tasks.items() if task.state not in FINISHED},
            "reports": {task_id: task.report for task_id, task in self.tasks.items() if task.report},
            "lines": {queue: line for queue in self.totals if (line := self.line(queue))},
            "queues": {
                queue: {name: states[queue, state] for name, state in kinds.items()} | +totals
                for queue, totals in self.totals.items()
            },
            "marks": self.marks,
            "timers": timers,
            "dead": {(t.new.queue, t.changed_ms, id_) for id_, t in self.tasks.items() if t.state == DEAD},
            "memory": self.memory,
            "level": self.level,
            "outbox": {
                (destination, number): letter
                for destination, letters in self.posted.items()
                for number, letter in enumerate(letters, start=1)
                if number > self.delivered[destination]
            },
            "outboxes": {
                destination: (len(letters), self.delivered[destination]) for destination, letters in self.posted.items()
            },
            "inbox": self.inbox,
            "settings": self.settings,
            "workers": Counter(task.worker for task in self.tasks.values() if task.state == CLAIMED and task.worker),
        }


def timer_families(state: int) -> tuple[int, ...]:
    if state == READY:
        return ()
    return {CLAIMED: (keys.CLAIM_EXPIRY,), DELAYED: (keys.DUE,), RETRY_PENDING: (keys.DUE,)}.get(
        state, (keys.RETENTION,)
    )


def handle_of(key: bytes) -> Handle:
    if key[0] == keys.DEDUP:
        return ("request", *key[1:].split(b"\0", 1))
    if key[0] == keys.RECENT:
        return ("answer", int.from_bytes(key[1:], "big"))
    return ("reserve", *key[1:].split(b"\0", 1))


def fields_of(row: object) -> dict[str, Any]:
    names: tuple[str, ...] = type(row).__slots__  # type: ignore[attr-defined]
    return {name: getattr(row, name) for name in names if not name.startswith("_")}


def remembered(key: bytes, row: bytes) -> Any:
    if key[0] == keys.DEDUP:
        dedup = rows.Dedup.decode(row)
        return dedup.task_id, dedup.window_ms
    if key[0] == keys.CLAIM_REQUEST:
        return rows.ClaimRequest.decode(row).claims
    task_id, kind, state, retry_at_ms, follow_ups = rows.Recent.decode(row)
    answers: dict[int, Answer] = {
        rows.ANSWER_ACK: ("Acked", follow_ups),
        rows.ANSWER_FAIL: ("Failed", state, retry_at_ms),
        rows.ANSWER_RELEASE: ("Moved", state),
    }
    return task_id, answers[kind]


def picture_of(state: dict[bytes, bytes]) -> dict[str, Any]:
    families: dict[int, list[tuple[bytes, bytes]]] = {family: [] for family in keys.FAMILIES}
    for key in sorted(state):
        families[key[0]].append((key, state[key]))
    meta = rows.Meta.decode(state[keys.META_KEY])
    forgotten = {keys.timed(key)[1]: keys.timed(key)[0] for key, _ in families[keys.FORGET]}
    kept = families[keys.DEDUP] + families[keys.RECENT] + families[keys.CLAIM_REQUEST]
    lines: dict[bytes, list[bytes]] = {}
    for key, row in families[keys.READY]:
        task_id = rows.split_ready_row(row)[0]
        lines.setdefault(key[1:].split(b"\0", 1)[0], []).append(task_id)
    queues = {key[1:]: fields_of(rows.Queue.decode(row)) for key, row in families[keys.QUEUE]}
    marks = {name: queue.pop("marks") for name, queue in queues.items()}
    numbers = ("ready", "claimed", "delayed", "retrying", "dead")
    timed = families[keys.CLAIM_EXPIRY] + families[keys.DUE] + families[keys.RETENTION]
    return {
        "clock": (meta.now_ms, meta.stepped_ms, meta.next_sequence, meta.next_token),
        "tasks": {key[1:]: fields_of(rows.Execution.decode(row)) for key, row in families[keys.EXECUTION]},
        "envelopes": {key[1:]: row for key, row in families[keys.ENVELOPE]},
        "reports": {key[1:]: tuple(rows.Report.decode(row)) for key, row in families[keys.REPORT]},
        "lines": lines,
        "queues": {
            name: {field: count for field, count in queue.items() if count or field in numbers}
            for name, queue in queues.items()
        },
        "marks": marks,
        "timers": {(key[0], *keys.timed(key)) for key, _ in timed},
        "dead": {
            (queue, int.from_bytes(rest[:8], "big"), rest[8:])
            for queue, rest in (key[1:].split(b"\0", 1) for key, _ in families[keys.DEAD])
        },
        "memory": {handle_of(key): (remembered(key, row), forgotten.get(key)) for key, row in kept},
        "level": meta.machine_level,
        "outbox": {
            keys.outbox_place(key): tuple(rows.Letter.decode(row))
            for key, row in families[keys.OUTBOX]
            if keys.outbox_place(key)[1]
        },
        "outboxes": {
            keys.outbox_place(key)[0]: tuple(rows.Outbox.decode(row))
            for key, row in families[keys.OUTBOX]
            if not keys.outbox_place(key)[1]
        },
        "inbox": {
            (int.from_bytes(key[1:3], "big"), int.from_bytes(key[3:], "big")): rows.Inbox.decode(row).last
            for key, row in families[keys.INBOX]
        },
        "settings": {key[1:]: tuple(rows.Settings.decode(row)) for key, row in families[keys.SETTINGS]},
        "workers": {key[1:]: int.from_bytes(row, "big") for key, row in families[keys.WORKER]},
    }


def answer_of(outcome: outcomes.Outcome) -> Answer:
    return outcome.code if isinstance(outcome, Rejection) else (type(outcome).__name__, *outcome)
