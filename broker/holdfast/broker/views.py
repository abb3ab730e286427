"""Read-only looks at a shard's state."""

from dataclasses import dataclass

from holdfast.machine import keys
from holdfast.machine.ids import format_task_id
from holdfast.machine.kv import OrderedKV
from holdfast.machine.ready_lines import ReadyIn, read_oldest
from holdfast.machine.ready_rows import split_ready_row
from holdfast.machine.rows import (
    HAD_RESULT,
    HAS_ATTEMPTS,
    REPORT_CONFLICT,
    REPORT_ERROR,
    REPORT_RESULT,
    Attempt,
    Attempts,
    Discard,
    Execution,
    Letter,
    Outbox,
    Queue,
    Report,
    Settings,
)
from holdfast.proto.v1 import tasks_pb2 as pb

LETTERS_PAGE = 16  # read at once: each may be as large as a call
REQUEST_ID_CONFLICT = "RequestIdConflict"


@dataclass(frozen=True, slots=True)
class TaskView:
    """Everything that is known of a task."""

    task_id: bytes
    execution: Execution
    envelope: bytes | None  # gone once the task has finished
    error: bytes | None  # the last one
    result: bytes | None
    result_expired_ms: int = 0  # when the result went; 0: it is there, or there was none
    attempts: tuple[Attempt, ...] = ()  # the newest that came to nothing

    @property
    def size_bytes(self) -> int:
        """About what was read for it."""
        return self.execution.size_bytes + len(self.error or b"") + len(self.result or b"")


def read_task(kv: OrderedKV, task_id: bytes, now_ms: int) -> TaskView | None:
    row = kv.get(keys.execution(task_id))
    if row is None:
        return None
    execution = Execution.decode(row)
    envelope, report_row = kv.get_many([keys.envelope(task_id), keys.report(task_id)])
    attempts_row = kv.get(keys.attempts(task_id)) if execution.flags & HAS_ATTEMPTS else None
    attempts = Attempts() if attempts_row is None else Attempts.decode(attempts_row)
    report = Report.decode(report_row) if report_row is not None else None
    return make_view(task_id, execution, envelope, report, now_ms, attempts.kept)


def make_view(
    task_id: bytes,
    execution: Execution,
    envelope: bytes | None,
    report: Report | None,
    now_ms: int,
    attempts: tuple[Attempt, ...] = (),
) -> TaskView:
    """A result is shown for its time only, also where the row is still there because its deletion is late."""
    is_in_time = now_ms < execution.result_end_ms
    is_result = report is not None and report.kind == REPORT_RESULT and is_in_time
    return TaskView(
        task_id,
        execution,
        envelope,
        error=None if report is None else _error_of(execution, report),
        result=report.body if report is not None and is_result else None,
        result_expired_ms=execution.result_end_ms if execution.flags & HAD_RESULT and not is_in_time else 0,
        attempts=attempts,
    )


def _error_of(execution: Execution, report: Report) -> bytes | None:
    if report.kind == REPORT_CONFLICT:
        return conflict_error(execution, report.body).SerializeToString()
    return report.body if report.kind == REPORT_ERROR else None


def conflict_error(execution: Execution, other_id: bytes) -> pb.TaskError:
    """Of a task whose request id stands for another one."""
    message = (
        f'The request id "{execution.request_id.decode()}" of queue {execution.queue.decode()} stands for task '
        f"{format_task_id(other_id)}, which has another type, payload, headers, tenant or key. Retry this letter to "
        "run it without the id, or discard it; a task of its own needs a request id of its own."
    )
    return pb.TaskError(type=REQUEST_ID_CONFLICT, message=message)


def read_executions(kv: OrderedKV, task_ids: list[bytes]) -> list[Execution | None]:
    rows = kv.get_many([keys.execution(task_id) for task_id in task_ids])
    return [Execution.decode(row) if row is not None else None for row in rows]


class ReportReader:
    """Reads what workers last said about tasks, until together it is too much for one answer; the first one always."""

    def __init__(self, kv: OrderedKV, bytes_max: int) -> None:
        self._kv = kv
        self._bytes_max = bytes_max
        self._room_bytes = bytes_max

    def read(self, task_id: bytes) -> tuple[Report | None, bool]:
        """The report, and whether there may be one that is left out."""
        if not self._room_bytes:
            return None, True  # nothing more is read
        row = self._kv.get(keys.report(task_id))
        if row is None:
            return None, False
        if len(row) > self._room_bytes < self._bytes_max:
            self._room_bytes = 0
            return None, True
        self._room_bytes = max(0, self._room_bytes - len(row))
        return Report.decode(row), False


def read_envelopes(kv: OrderedKV, task_ids: list[bytes]) -> list[bytes | None]:
    """The envelopes of unfinished tasks; None for one that finished meanwhile."""
    return kv.get_many([keys.envelope(task_id) for task_id in task_ids])


def read_dead(
    kv: OrderedKV, queue: bytes, after: bytes, limit: int, from_ms: int = 0, before_ms: int | None = None
) -> tuple[list[bytes], bool]:
    """The places of a queue's dead letters (time of death, task id), oldest first, and whether there are more.

    `after` is the last place of the page before, empty for the first page. It is a place, not a count, so that letters
    that are retried or discarded between two pages shift nothing.
    """
    prefix = keys.dead_prefix(queue)
    start = max(prefix + after + b"\0" if after else prefix, prefix + from_ms.to_bytes(8, "big"))
    stop = keys.after_prefix(prefix) if before_ms is None else prefix + before_ms.to_bytes(8, "big")
    rows = kv.scan(start, stop, limit + 1) if start < stop else []
    return [key[len(prefix) :] for key, _ in rows[:limit]], len(rows) > limit


def read_discards(kv: OrderedKV, after: bytes, limit: int) -> tuple[list[tuple[bytes, Discard]], bool]:
    """What was discarded, each with its place (time, task id), the oldest first, and whether there is more."""
    family = keys.family_start(keys.DISCARD)
    rows = kv.scan(family + after + b"\0" if after else family, keys.family_start(keys.DISCARD + 1), limit + 1)
    return [(key[1:], Discard.decode(row)) for key, row in rows[:limit]], len(rows) > limit


def read_oldest_ready(kv: OrderedKV, ready_in: ReadyIn, name: bytes, queue: Queue) -> bytes | None:
    """The id of a queue's oldest ready task: the oldest of the heads of its plain sub-queues, each found from its mark,
    and of the first of all other sub-queues by age. Or the oldest suspect."""
    heads = []
    if queue.suspects:
        rows = kv.scan(keys.suspects_of(name), keys.after_prefix(keys.suspects_of(name)), 1)
        heads += [(keys.ready_sequence(key), split_ready_row(row)[0]) for key, row in rows]
    for priority, mark in enumerate(queue.marks):
        start, stop = keys.ready(name, priority, mark), keys.after_prefix(keys.ready_subqueue(name, priority))
        heads += [(keys.ready_sequence(key), split_ready_row(row)[0]) for key, row in kv.scan(start, stop, 1)]
    oldest = read_oldest(kv, ready_in, name, queue.age_mark) if any(queue.subqueues) else None
    if oldest is not None:
        heads.append(oldest)
    return min(heads)[1] if heads else None


def read_queues(kv: OrderedKV, after: bytes, limit: int) -> tuple[list[tuple[bytes, Queue]], bool]:
    """The queues whose names come after `after`, by name, and whether there are more."""
    start = keys.queue(after) + b"\0" if after else keys.family_start(keys.QUEUE)
    rows = kv.scan(start, keys.family_start(keys.QUEUE + 1), limit + 1)
    return [(key[1:], Queue.decode(row)) for key, row in rows[:limit]], len(rows) > limit


def read_queue_names(kv: OrderedKV, limit: int) -> list[bytes]:
    rows = kv.scan(keys.family_start(keys.QUEUE), keys.family_start(keys.QUEUE + 1), limit)
    return [key[1:] for key, _ in rows]


def read_outboxes(kv: OrderedKV) -> list[tuple[int, Outbox]]:
    """How far the letters to each destination are."""
    found = []
    start = keys.family_start(keys.OUTBOX)
    while rows := kv.scan(start, keys.family_start(keys.OUTBOX + 1), 1):
        destination, _ = keys.outbox_place(rows[0][0])
        found.append((destination, Outbox.decode(rows[0][1])))
        start = keys.outbox_end(destination)
    return found


def read_letters(kv: OrderedKV, destination: int, letters_max: int, bytes_max: int) -> tuple[int, list[Letter]]:
    """The letters to bring next and the sequence of the first one, which may be as large as it likes."""
    row = kv.get(keys.outbox(destination, 0))
    first = 1 if row is None else Outbox.decode(row).delivered + 1
    letters: list[Letter] = []
    size = 0
    while len(letters) < letters_max:
        rows = kv.scan(keys.outbox(destination, first + len(letters)), keys.outbox_end(destination), LETTERS_PAGE)
        for _, letter in rows[: letters_max - len(letters)]:
            size += len(letter)
            if letters and size > bytes_max:
                return first, letters
            letters.append(Letter.decode(letter))
        if len(rows) < LETTERS_PAGE:
            break
    return first, letters


def read_settings_version(kv: OrderedKV, queue: bytes) -> int:
    row = kv.get(keys.settings(queue))
    return 0 if row is None else Settings.decode(row).version
