"""Read-only looks at a shard's state, as it was last committed."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.machine import keys
from holdfast.machine.kv import Rows
from holdfast.machine.ready_lines import ReadyIn, read_oldest
from holdfast.machine.ready_rows import ready_slice_of
from holdfast.machine.rows import (
    CLAIMED,
    HAD_RESULT,
    HAS_ATTEMPTS,
    READY,
    REPORT_CONFLICT,
    REPORT_ERROR,
    REPORT_RESULT,
    Attempt,
    AttemptsRow,
    Discard,
    Execution,
    Outbox,
    OutboxMessage,
    Queue,
    SettingsRow,
    TaskReport,
)
from holdfast.machine.run_entries import TaskRange
from holdfast.machine.run_rows import Run, RunPayloads
from holdfast.machine.runs import find_run, payloads_key

EnvelopeOf = Callable[[bytes], bytes | None]  # of an unfinished task, by its id

PAYLOADS_KEPT = 2  # rows: who hands out tasks one by one, or across the end of one, asks for them again at once
MESSAGES_PAGE = 16  # read at once: each may be as large as a call


@dataclass(frozen=True, slots=True)
class TaskView:
    """Everything that is known of a task."""

    task_id: bytes
    execution: Execution
    envelope: bytes | None  # gone once the task has finished
    error: bytes | None  # the last one that a worker reported
    conflict: bytes | None  # the task that its request id stands for: why it is dead
    result: bytes | None
    result_expired_ms: int = 0  # when the result went; 0: it is there, or there was none
    attempts: tuple[Attempt, ...] = ()  # the newest that came to nothing

    @classmethod
    def make(
        cls,
        task_id: bytes,
        execution: Execution,
        now_ms: int,
        *,
        envelope: bytes | None = None,
        report: TaskReport | None = None,
        attempts: tuple[Attempt, ...] = (),
    ) -> "TaskView":
        """A result is shown for its time only, also where the row is still there because its deletion is late."""
        is_in_time = now_ms < execution.result_end_ms
        kind, body = (0, None) if report is None else (report.kind, report.body)
        return cls(
            task_id,
            execution,
            envelope,
            error=body if kind == REPORT_ERROR else None,
            conflict=body if kind == REPORT_CONFLICT else None,
            result=body if kind == REPORT_RESULT and is_in_time else None,
            result_expired_ms=execution.result_end_ms if execution.flags & HAD_RESULT and not is_in_time else 0,
            attempts=attempts,
        )

    @property
    def size_bytes(self) -> int:
        """About what was read for it."""
        return self.execution.size_bytes + len(self.error or b"") + len(self.result or b"")


class Reader:
    """The rows of a state. The machine owns it; whoever decides reads through it, and only the machine writes."""

    __slots__ = ("_payloads", "_run_at_hand", "get", "get_many", "scan")

    # As the state has them: nothing in between, because whoever picks tasks reads much.
    get: Callable[[bytes], bytes | None]
    get_many: Callable[[list[bytes]], list[bytes | None]]
    scan: Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]]

    def __init__(self, rows: Rows, run_at_hand: Callable[[bytes], Run | None] = lambda _task_id: None) -> None:
        """`run_at_hand`: the run of a task, where it need not be read to know which tasks are in it."""
        self.get, self.get_many, self.scan = rows.get, rows.get_many, rows.scan
        self._run_at_hand = run_at_hand
        self._payloads: dict[bytes, RunPayloads] = {}  # that were read last, by key

    # --- tasks ------------------------------------------------------------------------------------------------

    def task(self, task_id: bytes, now_ms: int) -> TaskView | None:
        row = self.get(keys.execution(task_id))
        if row is None:
            return self._task_in_run(task_id, now_ms)
        execution = Execution.decode(row)
        envelope, report_row = self.get_many([keys.envelope(task_id), keys.report(task_id)])
        attempts_row = self.get(keys.attempts(task_id)) if execution.flags & HAS_ATTEMPTS else None
        attempts = AttemptsRow() if attempts_row is None else AttemptsRow.decode(attempts_row)
        report = TaskReport.decode(report_row) if report_row is not None else None
        return TaskView.make(task_id, execution, now_ms, envelope=envelope, report=report, attempts=attempts.kept)

    def _task_in_run(self, task_id: bytes, now_ms: int) -> TaskView | None:
        in_runs = RunReader(self)
        execution = in_runs.execution(task_id)
        if execution is None:
            return None
        return TaskView.make(task_id, execution, now_ms, envelope=in_runs.envelope(task_id))

    def executions(self, task_ids: list[bytes]) -> list[Execution | None]:
        rows = self.get_many([keys.execution(task_id) for task_id in task_ids])
        in_runs = RunReader(self)
        return [
            Execution.decode(row) if row is not None else in_runs.execution(task_id)
            for task_id, row in zip(task_ids, rows, strict=True)
        ]

    def envelopes(self, task_ids: list[bytes]) -> list[bytes | None]:
        """Of unfinished tasks; None for one that finished meanwhile."""
        found = [self._envelope_at_hand(task_id) for task_id in task_ids]
        unknown = [index for index, envelope in enumerate(found) if envelope is None]
        if unknown:
            in_runs = RunReader(self)
            rows = self.get_many([keys.envelope(task_ids[index]) for index in unknown])
            for index, row in zip(unknown, rows, strict=True):
                found[index] = in_runs.envelope(task_ids[index]) if row is None else row
        return found

    def _envelope_at_hand(self, task_id: bytes) -> bytes | None:
        """Of an unfinished task of a run that is at hand. What else is known at hand may be ahead of the state."""
        run = self._run_at_hand(task_id)
        place = None if run is None else run.place(task_id)
        if run is None or place is None or run.stretch_at(place)[1].state not in (READY, CLAIMED):
            return None
        start, end = run.part_at(place)
        payloads = self.payloads_of(run, end)
        return None if payloads is None else payloads.envelope(place - start, run.request_id_at(place))

    def envelope_reader(self) -> EnvelopeOf:
        """The same one by one, until something is applied: of neighbours in a run, what they share is read once."""
        in_runs = RunReader(self)

        def read(task_id: bytes) -> bytes | None:
            row = self.get(keys.envelope(task_id))
            return in_runs.envelope(task_id) if row is None else row

        return read

    def run_slice(self, task_id: bytes, count: int) -> tuple[bytes, list[bytes], list[bytes]] | None:
        """What so many consecutive tasks of a run share, the payload of each, and their own request ids, if they have
        any; None if none of them is in a run, or all have finished."""
        run = self._run_at_hand(task_id)
        if run is None or run.place(task_id) is None:
            run = find_run(self, task_id)
        place = None if run is None else run.place(task_id)
        if run is None or place is None or not run.unfinished:
            return None
        found = self._payloads_from(run, place, count)
        return None if found is None else (*found, run.request_ids_of(place, count))

    def _payloads_from(self, run: Run, place: int, count: int) -> tuple[bytes, list[bytes]] | None:
        header, found = b"", list[bytes]()
        while len(found) < count and place < run.count:
            start, end = run.part_at(place)
            payloads = self.payloads_of(run, end)
            if payloads is None:
                return None
            header = payloads.header
            found += payloads.slice(place - start, count - len(found))
            place = end
        return header, found

    def payloads_of(self, run: Run, end: int) -> RunPayloads | None:
        """The row of payloads that ends before this place, of a run some of whose tasks have not finished. They never
        change, so it does not matter when they were read."""
        key = payloads_key(run, end)
        payloads = self._payloads.get(key)
        if payloads is None:
            row = self.get(key)
            if row is None:
                return None
            payloads = RunPayloads(row)
            if len(self._payloads) >= PAYLOADS_KEPT:
                del self._payloads[next(iter(self._payloads))]
            self._payloads[key] = payloads
        return payloads

    def ranges_at(self, task_ids: list[bytes]) -> list[TaskRange]:
        """The tasks that a row stands for in an index of CLAIM_EXPIRY or RETENTION: that of a stretch has the id of
        the last one. They come with the first one's."""
        rows = self.get_many([keys.execution(task_id) for task_id in task_ids])
        in_runs = RunReader(self)
        return [
            in_runs.range_at(task_id) if row is None else TaskRange(task_id, 1)
            for task_id, row in zip(task_ids, rows, strict=True)
        ]

    def reports(self, bytes_max: int) -> "ReportReader":
        return ReportReader(self, bytes_max)

    def dead(
        self, queue: bytes, after: bytes, limit: int, from_ms: int = 0, before_ms: int | None = None
    ) -> tuple[list[bytes], bool]:
        """The places of a queue's dead letters (time of death, task id), oldest first, and whether there are more.

        `after` is the last place of the page before, empty for the first page. It is a place, not a count, so that
        dead letters that are retried or discarded between two pages shift nothing.
        """
        prefix = keys.dead_prefix(queue)
        start = max(prefix + after + b"\0" if after else prefix, prefix + from_ms.to_bytes(8, "big"))
        stop = keys.after_prefix(prefix) if before_ms is None else prefix + before_ms.to_bytes(8, "big")
        rows = self.scan(start, stop, limit + 1) if start < stop else []
        return [key[len(prefix) :] for key, _ in rows[:limit]], len(rows) > limit

    def discards(self, after: bytes, limit: int) -> tuple[list[tuple[bytes, Discard]], bool]:
        """What was discarded, each with its place (time, task id), the oldest first, and whether there is more."""
        family = keys.family_start(keys.DISCARD)
        rows = self.scan(family + after + b"\0" if after else family, keys.family_start(keys.DISCARD + 1), limit + 1)
        return [(key[1:], Discard.decode(row)) for key, row in rows[:limit]], len(rows) > limit

    # --- queues -----------------------------------------------------------------------------------------------

    def queues(self, after: bytes, limit: int) -> tuple[list[tuple[bytes, Queue]], bool]:
        """The queues whose names come after `after`, by name, and whether there are more."""
        start = keys.queue(after) + b"\0" if after else keys.family_start(keys.QUEUE)
        rows = self.scan(start, keys.family_start(keys.QUEUE + 1), limit + 1)
        return [(key[1:], Queue.decode(row)) for key, row in rows[:limit]], len(rows) > limit

    def queue_names(self, limit: int) -> list[bytes]:
        rows = self.scan(keys.family_start(keys.QUEUE), keys.family_start(keys.QUEUE + 1), limit)
        return [key[1:] for key, _ in rows]

    def oldest_ready(self, ready_in: ReadyIn, name: bytes, queue: Queue) -> bytes | None:
        """The id of a queue's oldest ready task: the oldest of the heads of its plain sub-queues, each found from its
        mark, and of the first of all other sub-queues by age. Or the oldest suspect."""
        heads = []
        if queue.suspects:
            rows = self.scan(keys.suspects_of(name), keys.after_prefix(keys.suspects_of(name)), 1)
            heads += [ready_slice_of(keys.ready_sequence(key), row)[:2] for key, row in rows]
        for priority, mark in enumerate(queue.marks):
            start, stop = keys.ready(name, priority, mark), keys.after_prefix(keys.ready_subqueue(name, priority))
            heads += [ready_slice_of(keys.ready_sequence(key), row)[:2] for key, row in self.scan(start, stop, 1)]
        oldest = read_oldest(self, ready_in, name, queue.age_mark) if any(queue.subqueues) else None
        if oldest is not None:
            heads.append(oldest)
        return min(heads)[1] if heads else None

    def settings(self, queue: bytes) -> SettingsRow | None:
        """What is set for a queue; None if nothing is."""
        row = self.get(keys.settings(queue))
        return None if row is None else SettingsRow.decode(row)

    def settings_version(self, queue: bytes) -> int:
        settings = self.settings(queue)
        return 0 if settings is None else settings.version

    def all_settings(self, after: bytes, limit: int) -> tuple[list[tuple[bytes, SettingsRow]], bool]:
        """Of queues whose names come after `after`, by name, and whether there are more."""
        start = keys.settings(after + b"\0") if after else keys.family_start(keys.SETTINGS)
        rows = self.scan(start, keys.family_start(keys.SETTINGS + 1), limit + 1)
        return [(key[1:], SettingsRow.decode(row)) for key, row in rows[:limit]], len(rows) > limit

    # --- other shards -----------------------------------------------------------------------------------------

    def outboxes(self) -> list[tuple[int, Outbox]]:
        """How far the messages to each destination are."""
        found = []
        start = keys.family_start(keys.OUTBOX)
        while rows := self.scan(start, keys.family_start(keys.OUTBOX + 1), 1):
            destination, _ = keys.outbox_place(rows[0][0])
            found.append((destination, Outbox.decode(rows[0][1])))
            start = keys.outbox_end(destination)
        return found

    def outbox_messages(self, destination: int, messages_max: int, bytes_max: int) -> tuple[int, list[OutboxMessage]]:
        """The messages to bring next and the sequence of the first one, which may be as large as it likes."""
        row = self.get(keys.outbox(destination, 0))
        first = 1 if row is None else Outbox.decode(row).delivered + 1
        messages: list[OutboxMessage] = []
        size = 0
        while len(messages) < messages_max:
            start = keys.outbox(destination, first + len(messages))
            rows = self.scan(start, keys.outbox_end(destination), MESSAGES_PAGE)
            for _, row in rows[: messages_max - len(messages)]:
                size += len(row)
                if messages and size > bytes_max:
                    return first, messages
                messages.append(OutboxMessage.decode(row))
            if len(rows) < MESSAGES_PAGE:
                break
        return first, messages


class RunReader:
    """Reads tasks that are in runs. One run is kept at hand: who asks for many tasks mostly asks for its neighbours."""

    __slots__ = ("_reader", "_run")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._run: Run | None = None

    def _find(self, task_id: bytes) -> tuple[Run, int] | None:
        if self._run is None or self._run.place(task_id) is None:
            self._run = find_run(self._reader, task_id)
        place = None if self._run is None else self._run.place(task_id)
        return None if self._run is None or place is None else (self._run, place)

    def execution(self, task_id: bytes) -> Execution | None:
        found = self._find(task_id)
        return None if found is None else found[0].execution(found[1])

    def envelope(self, task_id: bytes) -> bytes | None:
        found = self._find(task_id)
        if found is None or found[0].stretch_at(found[1])[1].state not in (READY, CLAIMED):
            return None
        run, place = found
        start, end = run.part_at(place)
        payloads = self._reader.payloads_of(run, end)
        return None if payloads is None else payloads.envelope(place - start, run.request_id_at(place))

    def range_at(self, last_id: bytes) -> TaskRange:
        found = self._find(last_id)
        if found is None:
            return TaskRange(last_id, 1)
        run, place = found
        start, _ = run.stretch_at(place)
        return TaskRange(run.id_at(start), place + 1 - start)


class ReportReader:
    """Reads what workers last said about tasks, until together it is too much for one answer; the first one always."""

    def __init__(self, rows: Rows, bytes_max: int) -> None:
        self._rows = rows
        self._bytes_max = bytes_max
        self._room_bytes = bytes_max

    def read(self, task_id: bytes) -> tuple[TaskReport | None, bool]:
        """The report, and whether there may be one that is left out."""
        if not self._room_bytes:
            return None, True  # nothing more is read
        row = self._rows.get(keys.report(task_id))
        if row is None:
            return None, False
        if len(row) > self._room_bytes < self._bytes_max:
            self._room_bytes = 0
            return None, True
        self._room_bytes = max(0, self._room_bytes - len(row))
        return TaskReport.decode(row), False
