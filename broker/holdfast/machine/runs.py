"""The runs of a draft: found by their tasks, changed stretch by stretch, with the index rows of the stretches."""

from bisect import bisect_left, insort
from collections.abc import Iterable

from holdfast.machine import keys
from holdfast.machine.ids import task_id_sequence
from holdfast.machine.kv import Rows
from holdfast.machine.new_runs import SIZE_BYTES
from holdfast.machine.ready_rows import ready_row
from holdfast.machine.rows import CLAIMED, READY, SUCCEEDED, Execution
from holdfast.machine.run_rows import RUN_TASKS_MAX, STRETCH_KEPT_BYTES, Run, RunPayloads, Stretch, stretch_row
from holdfast.machine.running import claim_row

RUNS_CACHED_BYTES_MAX = 8 * 1024 * 1024  # some three thousand of which all tasks do the same

Writes = dict[bytes, bytes | None]
RunPlace = tuple[Run, int]  # a run, and the place of a task in it


def find_run(rows: Rows, task_id: bytes) -> Run | None:
    """The run that a task is in, or was before it departed, as a state has it."""
    run = _read_run(rows, task_id_sequence(task_id))
    return run if run is not None and run.place(task_id) is not None else None


def _read_run(rows: Rows, sequence: int) -> Run | None:
    """The run that has this sequence, or one behind it. No further than a run is long: behind a task that is gone there
    may be as many tombstones as there were runs."""
    found = rows.scan(keys.run(sequence), keys.run(sequence + RUN_TASKS_MAX), 1)
    return Run.decode(found[0][1]) if found else None


def payloads_key(run: Run, end: int) -> bytes:
    """Of the row of payloads that ends before this place."""
    return keys.run_payloads(run.first_sequence + end - 1)


def payloads_keys(run: Run) -> list[bytes]:
    """Of all rows of its payloads."""
    return [payloads_key(run, end) for end, _ in run.parts]


def index_key(run: Run, stretch: Stretch) -> bytes | None:
    """Under which a stretch is in the index of its state."""
    end, state, _, _, timer_ms, _ = stretch
    if state == READY:
        return keys.ready(run.queue, run.priority, run.first_sequence + end - 1, *run.names)
    if state == CLAIMED:
        return keys.claim_expiry(timer_ms, run.id_at(end - 1))
    return keys.retention(timer_ms, run.id_at(end - 1)) if state == SUCCEEDED else None


def index_row(run: Run, start: int, stretch: Stretch) -> tuple[bytes, bytes] | None:
    """The row of a stretch that begins at `start`, in the index of its state."""
    key, count = index_key(run, stretch), stretch.end - start
    if key is None:
        return None
    if stretch.state == READY:
        return key, ready_row(run.id_at(start), run.largest_bytes, count)
    return key, claim_row(run.queue, *run.names, count) if stretch.state == CLAIMED else stretch_row(count)


class Runs:
    """Those that were touched lately are kept at hand."""

    __slots__ = ("_changed", "_known", "_order", "_payloads", "_rows", "kept_bytes")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[int, Run] = {}  # by the sequence of the last task
        self._order: list[int] = []  # these sequences
        self._changed: dict[int, Run] = {}  # since the last commit
        self.kept_bytes = 0  # about what all that are known take
        self._payloads: tuple[bytes, RunPayloads] | None = None  # the row read last: many tasks of a run depart at once

    def find(self, task_id: bytes) -> RunPlace | None:
        """The run of a task, also if it has departed from there."""
        sequence = task_id_sequence(task_id)
        run = self._at_hand(sequence) or self._read(sequence)
        place = None if run is None else run.place(task_id)
        return None if run is None or place is None else (run, place)

    def _at_hand(self, sequence: int) -> Run | None:
        position = bisect_left(self._order, sequence)
        if position == len(self._order):
            return None
        run = self._known[self._order[position]]
        return run if run.first_sequence <= sequence else None

    def _read(self, sequence: int) -> Run | None:
        run = _read_run(self._rows, sequence)
        if run is None or run.last_sequence in self._known:
            return None  # what is known does not have that sequence, or it would have been found
        self._known[run.last_sequence] = run
        self.kept_bytes += run.kept_bytes
        insort(self._order, run.last_sequence)
        return run

    def add(self, run: Run, header: bytes, payloads: bytes | memoryview, writes: Writes) -> None:
        """A new one: it comes behind all others."""
        last = run.last_sequence
        self._known[last] = self._changed[last] = run
        self.kept_bytes += run.kept_bytes
        self._order.append(last)
        start = offset = 0
        view = memoryview(payloads)
        for key, (end, end_offset) in zip(payloads_keys(run), run.parts, strict=True):
            sizes = run.sizes[start * SIZE_BYTES : end * SIZE_BYTES]
            writes[key] = RunPayloads.encode(header, sizes, view[offset:end_offset])
            start, offset = end, end_offset
        self._enter(run, run.spans(), writes)

    def change(self, run: Run, start: int, stretch: Stretch, writes: Writes) -> None:
        """The tasks from `start` up to the end of the stretch are in its state from now on."""
        self._changed[run.last_sequence] = run
        went, came = run.replace(start, stretch)
        self.kept_bytes += STRETCH_KEPT_BYTES * (len(came) - len(went))
        _, (end, state, _, _, timer_ms, _) = came[-1]
        for _, former in went:
            if former.end == end and former.state == state and former.timer_ms == timer_ms:
                continue  # what is taken from the front changes no key
            key = index_key(run, former)
            if key is not None:
                writes[key] = None
        self._enter(run, came, writes)
        if not run.unfinished:
            for key in payloads_keys(run):
                writes[key] = None

    def _enter(self, run: Run, came: Iterable[tuple[int, Stretch]], writes: Writes) -> None:
        for start, stretch in came:
            row = index_row(run, start, stretch)
            if row is not None:
                writes[row[0]] = row[1]

    def envelope(self, run: Run, place: int, writes: Writes) -> bytes:
        """Of a task that has not finished."""
        start, end = run.part_at(place)
        key = payloads_key(run, end)
        if self._payloads is None or self._payloads[0] != key:
            row = writes.get(key) or self._rows.get(key)
            assert row is not None, "a run has its payloads as long as one of its tasks has not finished"
            self._payloads = key, RunPayloads(row)
        return self._payloads[1].envelope(place - start, run.request_id_at(place))

    def at_hand(self, task_id: bytes) -> Run | None:
        """The run that a task is in, or was before it departed, if nothing need be read for it."""
        return self._at_hand(task_id_sequence(task_id))

    def execution_at_hand(self, task_id: bytes) -> Execution | None:
        """The same as `execution` of a task for which nothing need be read."""
        run = self.at_hand(task_id)
        place = None if run is None else run.place(task_id)
        return None if run is None or place is None else run.execution(place)

    def execution(self, task_id: bytes) -> Execution | None:
        """Of a task that is in a run, for reading; None if it is in none, or has departed."""
        found = self.find(task_id)
        return None if found is None else found[0].execution(found[1])

    def write(self, writes: Writes) -> None:
        """The rows of those that have changed."""
        for last, run in self._changed.items():
            writes[keys.run(last)] = run.encode() if run.there else None

    def were_written(self) -> None:
        for last, run in self._changed.items():
            if not run.there:
                del self._known[last]
                del self._order[bisect_left(self._order, last)]
                self.kept_bytes -= run.kept_bytes
        self._changed = {}
        self._payloads = None
        if self.kept_bytes > RUNS_CACHED_BYTES_MAX:
            self._known, self._order, self.kept_bytes = {}, [], 0
