"""One pick: takes tasks out of the window of a queue, for a claim."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.broker.scheduler.limiter import Name
from holdfast.broker.scheduler.lines import PLAIN, Line, Names, ReadyRef
from holdfast.broker.scheduler.slices import part, span
from holdfast.broker.scheduler.subqueues import PriorityLevel
from holdfast.broker.scheduler.windows import Found, Window
from holdfast.machine.entries import AGE_MARK, BucketLevel, Mark
from holdfast.machine.ids import later_task_id
from holdfast.machine.ready_rows import ReadySlice

SCANS_PER_TASK = 4  # sub-queues that a pick may look at in vain for each task that it finds, besides the first ones


@dataclass(slots=True)
class Picked:
    """Tasks of one queue that were taken out of the window for a claim.

    The claim must be proposed before anything else is picked: its marks hold only if the log has claims in the order
    of the picks.
    """

    window: Window
    ready_refs: list[ReadyRef]
    marks: list[Mark]
    size_bytes: int  # of all envelopes
    levels: list[BucketLevel]
    tasks: int  # how many they are: a ready ref may stand for several
    taken_ms: int  # shard time of the pick, if there are limits
    is_suspect: bool = False  # one, for a claim of its own
    # To which of the ready refs each task belongs, in the order in which they were picked; empty: one behind the other.
    order: Sequence[int] = ()

    @property
    def queue(self) -> bytes:
        return self.window.queue

    @property
    def task_ids(self) -> list[bytes]:
        return [ready_ref[1][1] for ready_ref in self.ready_refs]

    @property
    def counts(self) -> list[int]:
        """How many tasks each id stands for: it, and those behind it in its run."""
        return [ready_ref[1][3] for ready_ref in self.ready_refs]


class Pick:
    """What was taken so far. There is room for so many tasks and so many bytes, but always for one task."""

    __slots__ = (
        "_bytes_max", "_claiming", "_is_mixed", "_order", "_rests", "_touched", "_went", "blocked", "now_ms",
        "ready_refs", "room_bytes", "tasks", "tasks_max", "window",
    )  # fmt: skip

    def __init__(self, window: Window, tasks_max: int, bytes_max: int, now_ms: int) -> None:
        self.window = window
        self._claiming = window.lines.claiming
        self._went = window.ages.went
        self.tasks_max = tasks_max
        self._bytes_max = self.room_bytes = bytes_max
        self.now_ms = now_ms
        self.ready_refs: list[ReadyRef] = []
        self.tasks = 0  # how many they are
        self._order: list[tuple[int, int]] = []  # which ready ref got how many tasks
        self._is_mixed = False  # a ready ref got more after others had begun
        # By line: what is left of the slice that was taken of last, and which ready ref its tasks belong to. Turns take
        # tasks one by one; what they take of the same run is claimed together nevertheless.
        self._rests: dict[tuple[int, bytes, bytes], tuple[ReadySlice, int]] = {}
        self.blocked: dict[Name, int] = {}  # what a rate holds up, and until when
        self._touched: dict[tuple[int, bytes, bytes], Line] = {}  # lines whose marks the state is to be told

    @property
    def is_full(self) -> bool:
        return self.tasks >= self.tasks_max or (self.room_bytes <= 0 and bool(self.tasks))

    def take_turns(self, level: PriorityLevel, tasks_max: int) -> int:
        """Takes up to so many tasks of those whose turn it is, as long as it is plain to see that they may be taken,
        and returns how many. Whoever is next then must be looked at closely, by `Window.next_subqueue`."""
        round_robin, window = level.round_robin, self.window
        if round_robin is None:
            return 0
        limiters, first = window.limiters, self.tasks
        last = min(self.tasks_max, first + tasks_max)
        while self.tasks < last and (self.room_bytes > 0 or not self.tasks):
            subqueue = round_robin.subqueue_at_once()
            if subqueue is None:
                break
            tenant, line = subqueue.tenant, subqueue.line
            both = limiters.of(subqueue.names)
            count = last - self.tasks
            for limiter in both:
                if limiter.taken + count > limiter.open_until:
                    count = limiter.open_until - limiter.taken
            if line is None or count <= 0:
                break
            if not tenant.credit and not tenant.begin_turn(limiters.rules.weights.get(tenant.name, 1)):
                round_robin.finish_turn(tenant)  # it gave all of this turn before
                continue
            if tenant.only is None:
                count = 1
            elif tenant.credit < count:
                count = tenant.credit
            count = self._take_of_line(level.priority, subqueue.names, line, count)
            for limiter in both:
                limiter.taken += count
            window.finish_turn(level, subqueue, count)
        self._count(self.tasks - first)
        return self.tasks - first

    def take(self, found: Found, tasks_max: int) -> None:
        """Takes what was found: one task, or up to so many if they are simply the next ones."""
        level, names, source, subqueue = found
        window, count = self.window, 1
        if isinstance(source, Line):
            if subqueue is None:
                count = min(tasks_max, self.tasks_max - self.tasks)
                head = source.head()
                if head is not None and source.is_mixed:  # what is behind it need not be next, or ready
                    count = min(count, head[3])
            count = self._take_of_line(level.priority, names, source, count)
        else:  # it is in no line that was read
            self._note(level.priority, names, source)
            self.tasks += 1
        window.limiters.take(names, count, self.now_ms)
        self._count(count)
        if subqueue is not None:
            window.finish_turn(level, subqueue, count)
        else:
            window.gave_out_of_turn(level, names[0])

    def _take_of_line(self, priority: int, names: Names, line: Line, tasks_max: int) -> int:
        """Up to so many tasks, at least one; returns how many."""
        held, count, ready_slices = line.line, 0, 0
        while True:
            ready_slice = line.pop() if line.returned else held.popleft()
            ready_slices += 1
            if ready_slice[3] == 1:
                self._note(priority, names, ready_slice)
                count += 1
            else:
                rest = self._note_slice(priority, names, ready_slice, tasks_max - count)
                count += ready_slice[3]
                if rest is not None:
                    line.put_back((rest,))
                    count -= rest[3]
                    ready_slices -= 1
            if count == tasks_max or not held or self.room_bytes <= 0:
                break
        self.tasks += count
        self.window.lines.size -= ready_slices
        line.until_mark -= count
        if line.until_mark <= 0:
            self._touched[priority, *names] = line
        return count

    def _note(self, priority: int, names: Names, ready_slice: ReadySlice) -> None:
        sequence = ready_slice[0]
        self._claiming[sequence] = names
        self._went(sequence)
        if self._rests:
            self._add(priority, names, ready_slice, ready_slice, None)
        else:
            self._order.append((len(self.ready_refs), 1))
            self.ready_refs.append((priority, ready_slice, *names))
        self.room_bytes -= ready_slice[2]

    def _note_slice(self, priority: int, names: Names, ready_slice: ReadySlice, tasks_max: int) -> ReadySlice | None:
        """Of a slice as many tasks as there is room for, at least one; returns what is left of it."""
        sequence, task_id, size_bytes, count = ready_slice
        if tasks_max == 1:  # as a rule, where tenants take turns
            self._claiming[sequence] = names
            if names != PLAIN:
                self._went(sequence)
            taken = (sequence, task_id, size_bytes, 1)
            rest: ReadySlice | None = (sequence + 1, later_task_id(task_id, 1), size_bytes, count - 1)
        else:
            taken, rest = self._cut(ready_slice, min(count, tasks_max))
            self.window.lines.hold_back(taken, names)
            if names != PLAIN:
                self.window.ages.all_went(span(taken))
        self._add(priority, names, ready_slice, taken, rest)
        self.room_bytes -= taken[3] * size_bytes
        return rest

    def _cut(self, ready_slice: ReadySlice, count: int) -> tuple[ReadySlice, ReadySlice | None]:
        """So many tasks as far as there is room for their bytes, at least one, and what is left."""
        sequence, _, size_bytes, tasks = ready_slice
        count = max(1, min(count, -(-self.room_bytes // max(1, size_bytes))))
        if count == tasks:
            return ready_slice, None
        return part(ready_slice, sequence, sequence + count), part(ready_slice, sequence + count, sequence + tasks)

    def _add(self, priority: int, names: Names, whole: ReadySlice, taken: ReadySlice, rest: ReadySlice | None) -> None:
        """`whole`: what the line had, of which `rest` is left."""
        line, refs = (priority, *names), self.ready_refs
        known, index = self._rests.pop(line, (None, len(refs)))
        if known is whole:
            self._is_mixed |= index + 1 < len(refs)
            sequence, task_id, size_bytes, count = refs[index][1]
            refs[index] = (priority, (sequence, task_id, size_bytes, count + taken[3]), *names)
        else:
            index = len(refs)
            refs.append((priority, taken, *names))
        self._order.append((index, taken[3]))
        if rest is not None:
            self._rests[line] = rest, index

    def _count(self, count: int) -> None:
        window = self.window
        window.picks += count
        window.shared_state.scan_budget.left += SCANS_PER_TASK * count

    def picked(self, mark_version: int) -> Picked | None:
        """All that was taken, with what the log is to be told about it; None if there is nothing."""
        window, ready_refs = self.window, self.ready_refs
        if not ready_refs:
            return None
        marks = []
        for (priority, tenant, limit_key), line in self._touched.items():
            if line.is_plain or not line.is_spent:  # a sub-queue that has given its last begins anew with the next task
                line.was_marked()
                marks.append(Mark(window.queue, mark_version, priority, line.mark(), tenant, limit_key))
        if any(tenant or limit_key for _, _, tenant, limit_key in ready_refs):
            marks.append(Mark(window.queue, mark_version, AGE_MARK, window.ages.mark(window.lines.claiming)))
        levels = window.limiters.levels(ready_refs, self.now_ms)
        size_bytes = self._bytes_max - self.room_bytes
        order = [index for index, count in self._order for _ in range(count)] if self._is_mixed else []
        return Picked(window, ready_refs, marks, size_bytes, levels, self.tasks, self.now_ms, order=order)
