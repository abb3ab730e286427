"""A bounded window onto lines of ready tasks, each first in, first out, read from the index as it is used up."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable

from holdfast.broker.scheduler.slices import part, span, without
from holdfast.machine.kv import Rows
from holdfast.machine.ready_lines import read_rows, read_subqueue
from holdfast.machine.ready_rows import ReadySlice

REFILL_TASKS = 256  # here and below a slice counts as one: it takes as much room as a task
SUBQUEUE_REFILL_TASKS = (
    4  # of a sub-queue that has just been met: most give one task in their turn; each refill is larger
)
ROOM_STEP_TASKS = 1024  # what a queue takes of the room of all at a time, and has for itself in any case
MARKED_EACH = (
    16  # so many tombstones of a sub-queue may be walked over: a mark for each task would cost more than they do
)

Names = tuple[bytes, bytes]  # tenant and limit key
PLAIN: Names = (b"", b"")
ReadyRef = tuple[int, ReadySlice, bytes, bytes]  # priority, what is ready, tenant, limit key


class Line:
    """The ready tasks of one sub-queue, in order.

    Every ready task whose sequence is below `cursor` is in `line`, in `returned` or on its way to a claim; those at or
    above it are only in the index. `complete` says that the index holds none there. Tasks of a run that follow each
    other are held as one slice.
    """

    __slots__ = (
        "complete", "cursor", "is_listed", "is_plain", "line", "prefix", "refill_tasks", "returned", "until_mark",
        "withdrawn",
    )  # fmt: skip

    def __init__(self, prefix: bytes, cursor: int, *, complete: bool, is_plain: bool) -> None:
        self.prefix = prefix
        self.cursor = cursor
        self.complete = complete
        self.is_plain = is_plain
        self.is_listed = is_plain  # among those whose tasks may be forgotten, or never to be
        self.refill_tasks = REFILL_TASKS if is_plain else SUBQUEUE_REFILL_TASKS
        # After how many more tasks the state should be told a mark. A sub-queue that is read from the index tells with
        # its first: it may be forgotten at once, and is read from the mark again.
        self.until_mark = MARKED_EACH if complete and not is_plain else 0
        self.line: deque[ReadySlice] = deque()
        self.returned: list[ReadySlice] = []  # a heap of tasks that came back behind the cursor
        self.withdrawn: set[int] = set()  # sequences that are held and no longer ready

    def __len__(self) -> int:
        return len(self.line) + len(self.returned)

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left, also in the index."""
        return self.complete and not self.line and not self.returned

    @property
    def is_mixed(self) -> bool:
        """Whether its head need not be the first of `line`, or not be ready any more."""
        return bool(self.returned or self.withdrawn)

    def head(self) -> ReadySlice | None:
        if self.returned and (not self.line or self.returned[0] < self.line[0]):
            return self.returned[0]
        return self.line[0] if self.line else None

    def pop(self) -> ReadySlice:
        if self.returned and (not self.line or self.returned[0] < self.line[0]):
            return heapq.heappop(self.returned)
        return self.line.popleft()

    def put_back(self, parts: Iterable[ReadySlice]) -> None:
        """What is left of the slice that was popped, in order."""
        self.line.extendleft(reversed([*parts]))

    def mark(self) -> int:
        """No ready task that is not on its way to a claim has a smaller sequence."""
        if not self.line and not self.returned:
            return self.cursor
        head = self.head()
        return min(head[0], self.cursor) if head is not None else self.cursor

    def was_marked(self) -> None:
        """The state is told the mark."""
        self.until_mark = 0 if self.is_plain else MARKED_EACH

    def rewind(self, sequence: int | None = None) -> None:
        """Forgets what is held, to read it again from the index, at the latest from `sequence` on."""
        mark = self.mark()
        self.cursor = mark if sequence is None else min(mark, sequence)
        self.line.clear()
        self.returned.clear()
        self.withdrawn.clear()
        self.complete = False
        if not self.is_plain:
            self.refill_tasks = SUBQUEUE_REFILL_TASKS


class LinesBudget:
    """How many more tasks the lines of all queues together may hold, beyond what each has for itself."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Lines:
    """What all lines of a queue have together: how many tasks they hold, and which are on their way to a claim.

    Mostly a few queues are long. So a queue takes room when it needs it and gives it back when it does not: where many
    are long, each holds less, and what is not held is read when its turn comes.
    """

    __slots__ = (
        "_budget", "_held", "_rows", "_tasks_most", "claiming", "claiming_runs", "size", "suspects", "tasks_max",
        "withdrawn",
    )  # fmt: skip

    def __init__(self, rows: Rows, tasks_most: int, budget: LinesBudget) -> None:
        self._rows = rows
        self._tasks_most = tasks_most  # whatever room there is
        self._budget = budget
        self.tasks_max = min(tasks_most, ROOM_STEP_TASKS)  # that may be held at present
        self.size = 0  # places held in the lines: tasks, and slices of runs
        self.claiming: dict[int, Names] = {}  # sequences on their way to a claim, and whose they are
        self.claiming_runs: set[int] = set()  # the same of plain tasks that are on their way in slices
        self.withdrawn: set[int] = set()  # those among them that are no longer ready
        self.suspects: set[int] = set()  # those among them that wait in no line
        # Lines with tasks, but the plain ones; the one that was longest not used is the first to forget its tasks.
        self._held: OrderedDict[Line, None] = OrderedDict()

    @property
    def coming(self) -> int:
        """How many are on their way to a claim."""
        return len(self.claiming) + len(self.claiming_runs)

    @property
    def coming_from_lines(self) -> int:
        """How many that are in the lines of the state are on their way to a claim."""
        gone = self.withdrawn - self.suspects if self.suspects else self.withdrawn
        return self.coming - len(self.suspects) - len(gone)

    def is_coming(self, sequence: int) -> bool:
        return sequence in self.claiming or sequence in self.claiming_runs

    def hold_back(self, ready_slice: ReadySlice, names: Names) -> None:
        """It is on its way to a claim."""
        if ready_slice[3] == 1:
            self.claiming[ready_slice[0]] = names
        elif names == PLAIN:
            self.claiming_runs.update(span(ready_slice))
        else:
            self.claiming.update(dict.fromkeys(span(ready_slice), names))

    def let_go(self, ready_slice: ReadySlice) -> list[ReadySlice]:
        """It is on its way no more. Returns what was ready of it until now: the whole or parts of it, or nothing."""
        tasks = span(ready_slice)
        if len(tasks) == 1:
            self.claiming.pop(ready_slice[0], None)
        else:
            self.claiming_runs.difference_update(tasks)
            for sequence in tasks if self.claiming else ():
                self.claiming.pop(sequence, None)
        if not self.withdrawn:
            return [ready_slice]
        gone = self.withdrawn.intersection(tasks)
        self.withdrawn -= gone
        return without(ready_slice, gone)

    def settle_suspects(self, ready_refs: Iterable[ReadyRef]) -> None:
        """These are on their way no more."""
        for ready_ref in ready_refs:
            self.suspects.discard(ready_ref[1][0])

    def has_room_for(self, tasks: int) -> bool:
        return self.size + tasks <= self.tasks_max or self._grow(self.size + tasks)

    def _grow(self, tasks: int) -> bool:
        """Takes room for so many; False if there is none."""
        step = min(ROOM_STEP_TASKS, self._tasks_most - self.tasks_max, self._budget.left)
        self._budget.left -= step
        self.tasks_max += step
        return tasks <= self.tasks_max

    @property
    def room_taken(self) -> int:
        return self.tasks_max - min(self._tasks_most, ROOM_STEP_TASKS)

    def give_room_back(self) -> None:
        """All but what is in use, and a little more for what may come."""
        spare = self.tasks_max - self.size
        if spare > 2 * ROOM_STEP_TASKS or not self.size:
            given = min(self.room_taken, spare - ROOM_STEP_TASKS if self.size else spare)
            self._budget.left += given
            self.tasks_max -= given

    def head(self, line: Line) -> ReadySlice | None:
        """The first task of a line that is still ready."""
        while True:
            head = line.head()
            if head is None:
                if line.complete:
                    return None
                self._refill(line)
            elif not line.withdrawn or not self._drop_withdrawn(line, head):
                return head

    def _drop_withdrawn(self, line: Line, head: ReadySlice) -> bool:
        """Takes what is no longer ready out of the head; False if there is nothing."""
        gone = line.withdrawn.intersection(span(head))
        if gone:
            line.pop()
            parts = without(head, gone)
            line.put_back(parts)
            self.size += len(parts) - 1
            line.withdrawn -= gone
        return bool(gone)

    def begin(self, line: Line, ready_slices: list[ReadySlice]) -> None:
        """All tasks of a line of which nothing is held yet."""
        self._take_in(line, ready_slices)
        line.complete = True
        line.until_mark = MARKED_EACH
        if line.line:
            self._list(line)
            self._shrink(line)

    def append(self, line: Line, ready_slice: ReadySlice) -> None:
        """The task became ready."""
        if ready_slice[0] < line.cursor:
            self.take_back(line, ready_slice)
        elif line.complete and (self.size < self.tasks_max or self._grow(self.size + 1)):
            line.line.append(ready_slice)
            line.cursor = ready_slice[0] + ready_slice[3]
            self.size += 1
            if not line.is_listed:
                self._list(line)
        else:
            line.complete = False

    def take_back(self, line: Line, ready_slice: ReadySlice) -> None:
        """The task is ready again, in its old place."""
        if ready_slice[0] >= line.cursor:
            line.complete = False  # the line was rewound meanwhile and reads it from the index again
        elif self.size < self.tasks_max or self._grow(self.size + 1):
            heapq.heappush(line.returned, ready_slice)
            self.size += 1
            if not line.is_listed:
                self._list(line)
        else:
            self.size -= len(line)
            line.rewind(ready_slice[0])

    def was_withdrawn(self, line: Line, sequence: int) -> None:
        """A task that is not on its way is no longer ready."""
        if sequence >= line.cursor:
            return
        line.withdrawn.add(sequence)
        if len(line.withdrawn) > self.tasks_max:  # of slices there may be far more than places
            self.size -= len(line)
            line.rewind()

    def forget(self, line: Line) -> None:
        """The line is not needed any more."""
        if not line.is_plain:
            self.size -= len(line)
            self._held.pop(line, None)
            line.is_listed = False

    def _list(self, line: Line) -> None:
        line.is_listed = True
        self._held[line] = None

    def _refill(self, line: Line) -> None:
        wanted = line.refill_tasks
        if line.is_plain:
            ready_slices = read_rows(self._rows, line.prefix, line.cursor, wanted)
            line.complete = len(ready_slices) < wanted
            self._take_in(line, ready_slices)
            return
        ready_slices, line.complete = read_subqueue(self._rows, line.prefix, line.cursor, wanted)
        self._take_in(line, ready_slices)
        line.refill_tasks = min(REFILL_TASKS, wanted * 4)
        self._list(line)
        self._held.move_to_end(line)
        self._shrink(line)

    def _take_in(self, line: Line, ready_slices: list[ReadySlice]) -> None:
        """Tasks that were read from the index, all up to the last one."""
        if not ready_slices:
            return
        if ready_slices[0][0] < line.cursor:  # of this slice only what is behind the cursor was not known
            ready_slices[0] = part(ready_slices[0], line.cursor, ready_slices[0][0] + ready_slices[0][3])
        found = self._not_coming(ready_slices) if self.claiming or self.claiming_runs else ready_slices
        line.line.extend(found)
        self.size += len(found)
        line.cursor = ready_slices[-1][0] + ready_slices[-1][3]

    def _not_coming(self, ready_slices: list[ReadySlice]) -> list[ReadySlice]:
        """Without what is on its way to a claim, which may be some tasks of a slice."""
        claiming, claiming_runs = self.claiming, self.claiming_runs
        found: list[ReadySlice] = []
        for ready_slice in ready_slices:
            if ready_slice[3] > 1:
                tasks = span(ready_slice)
                found += without(ready_slice, claiming_runs.intersection(tasks) | (claiming.keys() & tasks))
            elif ready_slice[0] not in claiming and ready_slice[0] not in claiming_runs:
                found.append(ready_slice)
        return found

    def _shrink(self, used: Line) -> None:
        while self.size > self.tasks_max and not self._grow(self.size) and len(self._held) > 1:
            line, _ = self._held.popitem(last=False)
            if line is used:
                self._held[line] = None
                return
            line.is_listed = False
            if len(line):
                self.size -= len(line)
                line.rewind()
