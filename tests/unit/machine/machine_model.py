"""A second, plain telling of the machine's rules, to compare the machine with: dicts, no key layout, no index rows."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.machine import entries, keys, operator_entries, rows, run_entries
from holdfast.machine.entries import AckItem, ClaimRef, Entry, ExpireItem, ExpiringKey, ExtendItem, FailItem
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from tests.unit.machine.machine_model_task import Subqueue, Task, ids_from
from tests.unit.machine.machine_picture import Answer, Handle, handle_of

SHARD = 0x1234
INCARNATION = 3
FINISHED = (SUCCEEDED, CANCELLED)
ENDED = (SUCCEEDED, CANCELLED, DEAD)
WAITING = (READY, DELAYED, RETRY_PENDING)
PAUSE_MS = 600_000
STATES_WITH_KEY = {rows.UNIQUE_UNTIL_DONE: (*WAITING, CLAIMED), rows.UNIQUE_WHILE_WAITING: WAITING}


class Model:
    def __init__(self) -> None:
        self.now_ms = 0
        self.stepped_ms = 0
        self.next_place = 1
        self.next_token = 1
        self.tasks: dict[bytes, Task] = {}
        self.totals: dict[bytes, Counter[str]] = {}
        self.marks: dict[bytes, list[int]] = {}
        self.age_marks: dict[bytes, int] = {}
        self.subqueue_marks: dict[Subqueue, int] = {}  # of sub-queues with ready tasks
        self.unique: dict[tuple[bytes, bytes], bytes] = {}  # (queue, unique key) to the task that has it
        self.memory: dict[Handle, tuple[Any, int]] = {}  # what is remembered, until when
        self.level = 1
        self.settings: dict[bytes, tuple[int, bytes, int]] = {}
        self.outgoing: dict[int, list[tuple[int, bytes]]] = {}  # all messages that ever were, by destination
        self.delivered: Counter[int] = Counter()
        self.inbox: dict[tuple[int, int], int] = {}
        self.allocations: dict[tuple[bytes, int, int], bytes] = {}
        self.timings: list[tuple[bytes, bytes, int, int]] = []  # of the newest entry

    def apply(self, entry: Entry) -> list[Answer]:
        self.now_ms = max(self.now_ms, entry.now_ms)
        self.timings = []
        wholes: dict[type[Entry], Callable[[Any], list[Answer]]] = {
            entries.LeaderStarted: self._leader_started,
            entries.RaiseLevel: self._raise_level,
            entries.SetQueue: self._set_queue,
            entries.Receive: self._receive,
            entries.Delivered: self._delivered,
            entries.Claim: self._claim,
            operator_entries.SetAllocations: self._set_allocations,
        }
        if type(entry) in wholes:
            return wholes[type(entry)](entry)
        rules: dict[type[Entry], Callable[[Any, Any], Answer]] = {
            entries.Enqueue: self._enqueue,
            entries.Ack: self._ack,
            entries.AckAway: self._ack,
            entries.Fail: self._fail,
            entries.Extend: self._extend,
            entries.Release: self._release,
            entries.Expire: self._expire,
            entries.Promote: self._promote,
            entries.Cancel: self._cancel,
            entries.RetryDead: self._retry_dead,
            operator_entries.DiscardDead: self._discard_dead,
            operator_entries.UpdateTasks: self._update,
            operator_entries.TtlExpire: self._ttl_expire,
            entries.Purge: self._purge,
            entries.ExpireKeys: self._expire_key,
        }
        names = ("task_ids", "items", "tasks")
        items: list[Any] = next(getattr(entry, name) for name in names if hasattr(entry, name))
        return [rules[type(entry)](item, entry) for item in items]

    def line(self, queue: bytes) -> list[bytes]:
        """The ready tasks of a queue, sub-queue by sub-queue."""
        ready = [task for task in self.tasks.values() if task.is_in_line and task.new.queue == queue]
        return [task.id for task in sorted(ready, key=lambda task: (-task.priority, *task.subqueue[2:], task.place))]

    # What a shard is told.

    def _leader_started(self, entry: entries.LeaderStarted) -> list[Answer]:
        self.stepped_ms = self.now_ms if entry.stepped else self.stepped_ms
        return []

    def _raise_level(self, entry: entries.RaiseLevel) -> list[Answer]:
        if entry.level <= self.level:
            return ["OLD_LEVEL"]
        self.level = entry.level
        return [("Changed", entry.level)]

    def _set_queue(self, entry: entries.SetQueue) -> list[Answer]:
        if entry.queue in self.settings and entry.version <= self.settings[entry.queue][0]:
            return ["OLD_VERSION"]
        since_ms = self.settings[entry.queue][2] if entry.queue in self.settings else 0
        since_ms = self.now_ms if entry.changes_rates else since_ms
        self.settings[entry.queue] = entry.version, entry.policy, since_ms
        return [("Changed", entry.version)]

    def _set_allocations(self, entry: operator_entries.SetAllocations) -> list[Answer]:
        for shard, body in entry.allocations:
            self.allocations.pop((entry.queue, entry.what, shard), None)
            if body:
                self.allocations[entry.queue, entry.what, shard] = body
        return [("Changed", len(entry.allocations))]

    # Tasks that come.

    def _enqueue(self, new: NewTask, _: entries.Enqueue) -> Answer:
        return "REQUEST_ID_CONFLICT" if self._conflict([new]) else ("Accepted", *self._accept(new))

    def _conflict(self, tasks: Iterable[NewTask], ending: bytes = b"") -> bool:
        """Whether one of these has a request id that stands for another content, also for that of one before it."""
        contents: dict[tuple[bytes, bytes], int] = {}
        for new in tasks:
            known = self._request(new, ending)
            content = contents.setdefault((new.queue, new.request_id), new.digest if known is None else known[2])
            if new.request_id and content and new.digest and content != new.digest:
                return True
        return False

    def _request(self, new: NewTask, ending: bytes = b"") -> tuple[bytes, int, int] | None:
        """What its request id stands for: for as long as its window, counted from when it was accepted, and while the
        task lives that it made, which `ending` is about not to do."""
        what, until_ms = self.memory.get(("request", new.queue, new.request_id), (None, 0))
        if what is None or not new.request_id:
            return None
        task_id, window_ms, digest = what
        made_ms = int.from_bytes(task_id[:6], "big")
        ends_ms = made_ms + window_ms if window_ms else until_ms  # without a window it made no task
        living = {task.id for task in self.tasks.values() if task.state not in FINISHED} - {ending}
        incarnations = window_ms > 0 and task_id in living
        return (task_id, window_ms, digest) if self.now_ms < ends_ms or incarnations or self._paused() else None

    def _accept(self, new: NewTask) -> tuple[bytes, bool, int]:
        handle = ("request", new.queue, new.request_id)
        known = self._request(new)
        if known is not None:
            return self._known(known[0])
        holder = self.unique.get((new.queue, new.unique_key))
        task_id = self._make(new) if holder is None else holder
        if new.request_id:
            window_ms = new.dedup_window_ms if holder is None else 0
            self.memory[handle] = (task_id, window_ms, new.digest), self.now_ms + new.dedup_window_ms
        return (task_id, False, 0) if holder is None else self._known(holder)

    def _known(self, task_id: bytes) -> tuple[bytes, bool, int]:
        return task_id, True, self.tasks[task_id].state if task_id in self.tasks else 0

    def _bury(self, new: NewTask, other_id: bytes, keep_ms: int) -> tuple[bytes, bool, int]:
        """A task whose request id stands for another one, and that cannot be refused, is a dead letter."""
        task = self._write_down(new)
        task.report = rows.REPORT_CONFLICT, other_id
        self.totals[new.queue]["enqueued_total"] += 1
        self._die(task, rows.REQUEST_ID_CONFLICT, keep_ms)
        return task.id, False, DEAD

    def _make(self, new: NewTask) -> bytes:
        task = self._write_down(new)
        later = new.run_at_ms > self.now_ms
        task.lined_up_ms = 0 if later else self.now_ms
        self._move(task, DELAYED if later else READY, new.run_at_ms if later else 0, "enqueued_total")
        return task.id

    def _write_down(self, new: NewTask) -> Task:
        place, now_ms = self._next_place(), self.now_ms
        bits = f"{now_ms:048b}1000{SHARD >> 4:012b}10{SHARD & 15:04b}{place:058b}"
        task_id = int(bits, 2).to_bytes(16, "big")
        self.totals.setdefault(new.queue, Counter())
        self.marks.setdefault(new.queue, [0] * 10)
        self.age_marks.setdefault(new.queue, 0)
        task = self.tasks[task_id] = Task(task_id, new, place, new.priority, now_ms, new.start_by_ms)
        return task

    def _receive(self, entry: entries.Receive) -> list[Answer]:
        source = entry.source, entry.incarnation
        last = self.inbox.get(source, entry.first_sequence - 1)
        numbered = list(enumerate(entry.tasks, start=entry.first_sequence))
        if entry.first_sequence - last > 1:
            return ["OUT_OF_ORDER"]
        accepted = []
        for number, new in numbered:
            if number > last:
                known = self._request(new) if self._conflict([new]) else None
                accepted.append(self._accept(new) if known is None else self._bury(new, known[0], entry.dead_keep_ms))
                self.inbox[source] = number
        return [("Received", self.inbox.get(source, last), tuple(accepted))]

    def _delivered(self, entry: entries.Delivered) -> list[Answer]:
        messages, before = self.outgoing.get(entry.destination, []), self.delivered[entry.destination]
        if entry.sequence not in range(before + 1, len(messages) + 1):
            return ["NOT_WAITING"]
        self.delivered[entry.destination] = min(entry.sequence, before + 1000)
        return [("Changed", self.delivered[entry.destination])]

    def _put_into_outbox(self, remote_follow_ups: Iterable[entries.RemoteFollowUp]) -> None:
        for remote in remote_follow_ups:
            self.outgoing.setdefault(remote.destination, []).append((remote.run_at_ms, remote.envelope))

    # How tasks move.

    def _next_place(self) -> int:
        self.next_place += 1
        return self.next_place - 1

    def _move(self, task: Task, state: int, timer_ms: int, *totals: str, priority: int | None = None) -> None:
        left = task.subqueue if task.is_in_line else None
        task.state, task.timer_ms, task.changed_ms = state, timer_ms, self.now_ms
        task.priority = task.priority if priority is None else priority
        if state in ENDED or (state in WAITING and task.claims):
            task.start_by_ms = 0
        self.totals[task.new.queue].update(totals)
        if left is not None and not self._ready_in(left, task):
            self.subqueue_marks.pop(left, None)
        if task.is_in_line and not task.is_plain:
            self.subqueue_marks[task.subqueue] = min(self.subqueue_marks.get(task.subqueue, task.place), task.place)
            self.age_marks[task.new.queue] = min(self.age_marks[task.new.queue], task.place)
        self._claim_key(task)

    def _ready_in(self, subqueue: Subqueue, moved: Task) -> bool:
        return any(task.is_in_line and task.subqueue == subqueue for task in self.tasks.values() if task is not moved)

    def _claim_key(self, task: Task) -> None:
        """The unique key of a task that has just entered its state."""
        name = task.new.queue, task.new.unique_key
        may_have = any(task.state in states for flag, states in STATES_WITH_KEY.items() if task.new.flags & flag)
        if not may_have and self.unique.get(name) == task.id:
            del self.unique[name]
        elif may_have and task.state in WAITING:
            task.lost_key = self.unique.setdefault(name, task.id) != task.id

    def _return(self, task: Task) -> None:
        """Back to its old place in the line, or among the suspects."""
        if task.suspect:
            self._move(task, READY, 0)
            return
        marks = self.marks[task.new.queue]
        if task.is_plain:
            marks[task.priority] = min(marks[task.priority], task.place)
        self._move(task, READY, 0, "mark_version")

    def _finish(self, task: Task, state: int, keep_ms: int) -> None:
        self._move(task, state, self.now_ms + keep_ms, "succeeded_total" if state == SUCCEEDED else "cancelled_total")

    def _die(self, task: Task, reason: int, keep_ms: int) -> None:
        task.dead_reason = reason
        self._move(task, DEAD, self.now_ms + keep_ms, "dead_total")

    def _line_up(self, task: Task, priority: int | None = None) -> None:
        """To the end of the line."""
        task.place, task.lined_up_ms = self._next_place(), self.now_ms
        self._move(task, READY, 0, priority=priority)

    # Claims.

    def _held(self, task_id: bytes, token: int) -> Task | None:
        task = self.tasks.get(task_id)
        return task if task is not None and task.state == CLAIMED and task.token == token else None

    def _claim(self, entry: entries.Claim) -> list[Answer]:
        for level in entry.levels:
            self.memory["bucket", *level[:3]] = level[3:5], level.full_ms
        wanted = [
            task_id
            for first_id, count in zip(entry.task_ids, entry.counts or [1] * len(entry.task_ids), strict=True)
            for task_id in ids_from(first_id, count)
        ]
        handle = ("reserve", entry.worker, entry.request_id)
        before = self.memory[handle][0] if handle in self.memory else ()
        held = [
            task_id for task_id, token in before if (task := self._held(task_id, token)) and task.timer_ms > self.now_ms
        ]
        if entry.request_id and held:
            for task_id in wanted:
                if task_id in self.tasks:
                    self.totals[self.tasks[task_id].new.queue]["mark_version"] += 1
            return [self._granted(task_id) for task_id in held]
        answers = [self._claim_one(task_id, entry) for task_id in wanted]
        given = [(answer[1], answer[2]) for answer in answers if not isinstance(answer, str)]
        for mark in entry.marks:
            if mark.queue in self.totals and self.totals[mark.queue]["mark_version"] == mark.mark_version:
                self._raise_mark(mark)
        if entry.request_id and given:
            self.memory[handle] = tuple(given), entry.key_expiry_ms
        return answers

    def _claim_one(self, task_id: bytes, entry: entries.Claim) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state != READY:
            return "TASK_NOT_FOUND" if task is None else "NOT_READY"
        if task.suspect != entry.is_alone or (entry.is_alone and len(entry.task_ids) != 1):
            return "NOT_ALONE"
        if 0 < task.start_by_ms <= self.now_ms:
            self.totals[task.new.queue]["mark_version"] += 1
            return "START_TOO_LATE"
        self.timings.append((task.new.queue, task.new.type, 0, self.now_ms - task.changed_ms))
        task.token = (INCARNATION * 2**48 + self.next_token) * 2**64 + entry.secret
        self.next_token += 1
        task.worker = entry.worker
        task.claims += 1
        expiry_ms = entry.type_expiries.get(task.new.type, entry.expiry_ms)
        last_ms = self.now_ms + task.new.timeout_ms if task.new.timeout_ms else expiry_ms
        self._move(task, CLAIMED, min(expiry_ms, last_ms), "claimed_total")
        return self._granted(task_id)

    def _raise_mark(self, mark: entries.Mark) -> None:
        subqueue = mark.queue, mark.priority, mark.tenant, mark.limit_key
        if mark.priority == 255:
            self.age_marks[mark.queue] = max(self.age_marks[mark.queue], mark.sequence)
        elif subqueue in self.subqueue_marks:
            self.subqueue_marks[subqueue] = max(self.subqueue_marks[subqueue], mark.sequence)
        elif (mark.tenant, mark.limit_key) == (b"", b""):
            marks = self.marks[mark.queue]
            marks[mark.priority] = max(marks[mark.priority], mark.sequence)

    def _granted(self, task_id: bytes) -> Answer:
        task = self.tasks[task_id]
        numbers = task.token, task.timer_ms, task.failures, task.claims, task.enqueued_ms
        return ("Claimed", task_id, *numbers, task.suspect)

    def _refusal(self, task_id: bytes, code: str) -> str:
        return code if task_id in self.tasks else "TASK_NOT_FOUND"

    def _first_answer(self, item: AckItem | FailItem | ClaimRef, kind: str, code: str = "STALE_TOKEN") -> Answer:
        task_id, answer = self.memory.get(("answer", item.token), ((b"", ""), 0))[0]
        first: Answer = answer
        return first if (task_id, first[:1]) == (item.task_id, (kind,)) else self._refusal(item.task_id, code)

    def _ack(self, item: AckItem, entry: entries.Ack | entries.AckAway | run_entries.AckRanges) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            done = self.tasks.get(item.task_id)
            if done is None or done.state != SUCCEEDED or done.token != item.token or done.had_follow_ups:
                return self._first_answer(item, "Acked")
            return ("Acked", ())
        if self._conflict(item.follow_ups, item.task_id):
            return "REQUEST_ID_CONFLICT"
        if isinstance(entry, entries.AckAway):
            for remote in item.remote_follow_ups:
                coming = sum(other.destination == remote.destination for other in item.remote_follow_ups)
                waiting = len(self.outgoing.get(remote.destination, ())) - self.delivered[remote.destination]
                if waiting + coming > entry.waiting_max:
                    return "OUTBOX_FULL"
        keep_ms = entry.keep_ms
        if item.result is not None and task.new.result_ttl_ms:
            task.report, task.had_result = (rows.REPORT_RESULT, item.result), True
            if task.new.result_ttl_ms < keep_ms:
                self.memory["result", task.id] = None, self.now_ms + task.new.result_ttl_ms
            keep_ms = max(keep_ms, task.new.result_ttl_ms)
        self.timings.append((task.new.queue, task.new.type, 1, self.now_ms - task.changed_ms))
        self._finish(task, SUCCEEDED, keep_ms)
        here, away = iter(item.follow_ups), {remote.place for remote in item.remote_follow_ups}
        count = len(item.follow_ups) + len(item.remote_follow_ups)
        task.had_follow_ups = count > 0
        accepted = [(bytes(16), False, 0) if index in away else self._accept(next(here)) for index in range(count)]
        self._put_into_outbox(item.remote_follow_ups)
        answer = ("Acked", tuple(accepted))
        if task.had_follow_ups:
            self.memory["answer", item.token] = (item.task_id, answer), self.now_ms + keep_ms
        return answer

    def _fail(self, item: FailItem, entry: entries.Fail) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            return self._first_answer(item, "Failed")
        task.failures += 1
        task.suspect = False
        task.cleared += 1
        task.report = rows.REPORT_ERROR, item.error
        task.note_attempt(rows.ATTEMPT_FAILED, self.now_ms, item.brief)
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
        last_ms = task.changed_ms + task.new.timeout_ms if task.new.timeout_ms else item.expiry_ms
        task.timer_ms = min(item.expiry_ms, last_ms)
        return ("Extended", task.timer_ms, task.cancel)

    def _release(self, item: ClaimRef, entry: entries.Release) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None:
            return self._first_answer(item, "Moved")
        if task.cancel:
            self._finish(task, CANCELLED, entry.keep_ms)
        else:
            task.claims -= 1
            if entry.ready_at_ms > self.now_ms:
                task.suspect = False
                task.cleared += 1
                self._move(task, DELAYED, entry.ready_at_ms)
            else:
                self._return(task)
        self.memory["answer", item.token] = (item.task_id, ("Moved", task.state)), self.now_ms + entry.keep_ms
        return ("Moved", task.state)

    def _expire(self, item: ExpireItem, entry: entries.Expire) -> Answer:
        task = self._held(item.task_id, item.token)
        if task is None or task.timer_ms > self.now_ms:
            return self._refusal(item.task_id, "NOT_EXPIRED")
        totals = self.totals[task.new.queue]
        totals["expired_total"] += 1
        task.note_attempt(item.how, self.now_ms, item.brief)
        if item.how == rows.ATTEMPT_TIMED_OUT:
            task.failures += 1
            totals["failed_total"] += 1
        if item.error:
            task.report = rows.REPORT_ERROR, item.error
        if task.cancel:
            self._finish(task, CANCELLED, entry.keep_ms)
        elif item.how == rows.ATTEMPT_TIMED_OUT and not item.dead_reason:
            self._move(task, RETRY_PENDING, item.retry_at_ms)
        elif item.how == rows.ATTEMPT_TIMED_OUT:
            self._die(task, item.dead_reason, entry.dead_keep_ms)
        else:
            self._worker_died(task, item, entry)
        return ("Moved", task.state)

    def _worker_died(self, task: Task, item: ExpireItem, entry: entries.Expire) -> None:
        """Alone it costs a claim, in company nothing, but the task is a suspect."""
        if task.suspect:
            task.deaths_alone += 1
            if item.dead_reason:
                self._die(task, item.dead_reason, entry.dead_keep_ms)
            else:
                self._return(task)
        else:
            task.deaths_in_company += 1
            task.suspect = True
            task.claims -= 1
            task.start_by_ms = 0
            self._move(task, READY, 0)

    # What time and people bring about.

    def _promote(self, task_id: bytes, _: entries.Promote) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state not in (DELAYED, RETRY_PENDING) or task.timer_ms > self.now_ms:
            return self._refusal(task_id, "NOT_DUE")
        self._line_up(task)
        return ("Moved", READY)

    def _ttl_expire(self, task_id: bytes, entry: operator_entries.TtlExpire) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state not in WAITING or not 0 < task.start_by_ms <= self.now_ms:
            return self._refusal(task_id, "NOT_EXPIRED")
        task.report = rows.REPORT_ERROR, entry.error
        self._die(task, rows.TTL_PASSED, entry.dead_keep_ms)
        return ("Moved", DEAD)

    def _cancel(self, task_id: bytes, entry: entries.Cancel) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state in (SUCCEEDED, DEAD):
            return self._refusal(task_id, "TASK_FINISHED")
        if task.state == CLAIMED and entry.waiting_only:
            return "TASK_NOT_WAITING"
        if task.state == CLAIMED:
            task.cancel = True
        elif task.state != CANCELLED:
            self._finish(task, CANCELLED, entry.keep_ms)
        return ("Moved", task.state)

    def _update(self, item: operator_entries.UpdateItem, _: operator_entries.UpdateTasks) -> Answer:
        task = self.tasks.get(item.task_id)
        if task is None or task.state not in WAITING:
            return self._refusal(item.task_id, "TASK_NOT_WAITING")
        priority = task.priority if item.priority == 255 else item.priority
        if item.start and item.run_at_ms > self.now_ms:
            later = RETRY_PENDING if task.state == RETRY_PENDING else DELAYED
            self._move(task, later, item.run_at_ms, priority=priority)
        elif task.state != READY:
            task.priority = priority
            if item.start:
                self._line_up(task)
        elif priority != task.priority:
            since = task.changed_ms, task.lined_up_ms
            self._line_up(task, priority)
            task.changed_ms, task.lined_up_ms = since
        return ("Moved", task.state)

    def _retry_dead(self, task_id: bytes, _: entries.RetryDead) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state != DEAD:
            return self._refusal(task_id, "NOT_DEAD")
        task.claims = task.failures = task.dead_reason = task.deaths_alone = 0
        self._line_up(task)
        return ("Moved", READY)

    def _discard_dead(self, task_id: bytes, entry: operator_entries.DiscardDead) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.state != DEAD:
            return self._refusal(task_id, "NOT_DEAD")
        if entry.keep_ms:
            names = task.new.queue, task.new.type, task.new.tenant, entry.by, entry.note
            record = (task.dead_reason, task.changed_ms, 0, *names)
            self.memory["discard", self.now_ms, task_id] = record, self.now_ms + entry.keep_ms
        del self.tasks[task_id]
        return ("Moved", DEAD)

    def _paused(self) -> bool:
        return self.stepped_ms > 0 and self.now_ms < self.stepped_ms + PAUSE_MS

    def _purge(self, task_id: bytes, _: entries.Purge) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or self._paused() or task.state not in ENDED or task.timer_ms > self.now_ms:
            return self._refusal(task_id, "KEPT")
        del self.tasks[task_id]
        self.memory.pop(("result", task_id), None)
        return ("Moved", task.state)

    def _expire_key(self, item: ExpiringKey, _: entries.ExpireKeys) -> Answer:
        handle = handle_of(item.key)
        what, until_ms = self.memory.get(handle, (None, -1))
        if until_ms != item.when_ms or item.when_ms > self.now_ms or self._paused():
            return "KEPT"
        if handle[0] == "request":
            task_id, window_ms, _digest = what
            task = self.tasks.get(task_id)
            if window_ms and task is not None and task.state not in FINISHED:
                age_ms = min(self.now_ms - task.enqueued_ms, 3_600_000)
                self.memory[handle] = what, self.now_ms + max(window_ms, age_ms)
                return ("Moved", task.state)
        if handle[0] == "result":
            self.tasks[handle[1]].report = None
        del self.memory[handle]
        return ("Moved", 0)

    # What there is.

    def picture(self) -> dict[str, Any]:
        """All that the state says, in the form that `picture_of` gives a state."""
        tasks = self.tasks.values()
        states = Counter((task.new.queue, task.state) for task in tasks)
        kinds = {"ready": READY, "claimed": CLAIMED, "delayed": DELAYED, "retrying": RETRY_PENDING, "dead": DEAD}
        claimed = [task for task in tasks if task.state == CLAIMED]
        running = Counter((task.new.queue, keys.SCOPE_TENANT, task.new.tenant) for task in claimed if task.new.tenant)
        running.update((t.new.queue, keys.SCOPE_KEY, t.new.limit_key) for t in claimed if t.new.limit_key)
        aged = [task for task in tasks if task.is_in_line and not task.is_plain]
        suspects = [task for task in tasks if task.state == READY and task.suspect]
        suspects_of = Counter(task.new.queue for task in suspects)
        in_subqueues = Counter(task.subqueue for task in aged)
        return {
            "clock": (self.now_ms, self.stepped_ms, self.next_place, self.next_token),
            "tasks": {task_id: task.fields() for task_id, task in self.tasks.items()},
            "envelopes": {task.id: task.new.envelope for task in tasks if task.state not in FINISHED},
            "reports": {task.id: task.report for task in tasks if task.report},
            "lines": {queue: line for queue in self.totals if (line := self.line(queue))},
            "queues": {
                queue: {name: states[queue, state] for name, state in kinds.items()}
                | +totals
                | ({"suspects": suspects_of[queue]} if suspects_of[queue] else {})
                for queue, totals in self.totals.items()
            },
            "marks": {queue: (marks, self.age_marks[queue]) for queue, marks in self.marks.items()},
            "sub-queue counts": {
                queue: [sum(subqueue[:2] == (queue, priority) for subqueue in in_subqueues) for priority in range(10)]
                for queue in self.totals
            },
            "subqueues": {subqueue: (ready, self.subqueue_marks[subqueue]) for subqueue, ready in in_subqueues.items()},
            "ages": {(t.new.queue, t.place): t.id for t in aged},
            "timers": {timer for task in tasks for timer in task.timers()},
            "dead": {(t.new.queue, t.changed_ms, id_) for id_, t in self.tasks.items() if t.state == DEAD},
            "memory": self.memory,
            "level": self.level,
            "outbox": {
                (destination, number): message
                for destination, messages in self.outgoing.items()
                for number, message in enumerate(messages, start=1)
                if number > self.delivered[destination]
            },
            "outboxes": {
                destination: (len(messages), self.delivered[destination])
                for destination, messages in self.outgoing.items()
            },
            "inbox": self.inbox,
            "settings": self.settings,
            "workers": Counter(task.worker for task in claimed if task.worker),
            "suspects": {(task.new.queue, task.place): task.id for task in suspects},
            "alone": Counter(task.worker for task in claimed if task.worker and task.suspect),
            "running": running,
            "unique": self.unique,
            "attempts": {task.id: task.attempts for task in tasks if task.attempts},
            "allocations": self.allocations,
        }  # fmt: skip
