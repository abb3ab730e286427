"""The ready tasks of all sub-queues of a queue but the plain ones, by age: a small window onto the READY_AGE index."""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from holdfast.machine.ids import later_task_id
from holdfast.machine.machine import Machine
from holdfast.machine.ready_lines import read_ages
from holdfast.machine.ready_rows import Aged, ReadySlice
from holdfast.machine.rows import READY

AGE_PAGES = 2  # rows that are read at a time where many of the first are blocked
HELD_MAX = 64
READ_AHEAD = 8  # of those that were found: most of them are handed out soon, as the oldest or in their turn


class OldestReady(NamedTuple):
    """A ready task, and where it waits."""

    ready_slice: ReadySlice
    priority: int
    tenant: bytes
    limit_key: bytes


class OldestReadyIndex:
    """Every ready task below `_cursor` is in `_live`, or on its way to a claim.

    What is taken or withdrawn only leaves `_live`; its place is passed over when it comes to the head.
    """

    __slots__ = (
        "_complete",
        "_cursor",
        "_live",
        "_machine",
        "_queue",
        "_reader",
        "_returned",
        "all_went",
        "line",
        "went",
    )

    def __init__(self, machine: Machine, queue: bytes, cursor: int, *, complete: bool) -> None:
        self._reader = machine.reader
        self._machine = machine
        self._queue = queue
        self._cursor = cursor
        self._complete = complete
        self.line: deque[Aged] = deque()  # in order; with those that have gone since, up to the head
        self._returned: list[Aged] = []  # a heap
        self._live: set[int] = set()
        self.went = self._live.discard  # a task was picked or withdrawn, by its sequence
        self.all_went = self._live.difference_update

    def came(self, ready_slice: ReadySlice) -> None:
        """A task became ready, or is ready again; or several of a run did."""
        sequence, task_id, _, count = ready_slice
        if sequence < self._cursor:
            for index in range(count):
                self._came_back(sequence + index, later_task_id(task_id, index))
            return
        held = min(count, HELD_MAX - len(self.line)) if self._complete else 0
        if held > 0:
            self.line.extend([(sequence + index, later_task_id(task_id, index)) for index in range(held)])
            self._live.update(range(sequence, sequence + held))
            self._cursor = sequence + held
        if held < count:
            self._complete = False

    def _came_back(self, sequence: int, task_id: bytes) -> None:
        if sequence >= self._cursor:  # it was rewound meanwhile, and reads this one from the index again
            self._complete = False
        elif len(self._returned) >= HELD_MAX:
            self._rewind(sequence)
        else:
            heapq.heappush(self._returned, (sequence, task_id))
            self._live.add(sequence)

    def pass_over(self, sequence: int) -> None:
        """Nothing before this place is ready."""
        self._cursor = max(self._cursor, sequence)

    def mark(self, claiming: Container[int]) -> int:
        """No such task has a smaller sequence."""
        head = self._head(claiming)
        return self._cursor if head is None else min(head[0], self._cursor)

    def oldest_ready(self, claiming: Container[int], count_max: int) -> Iterator[OldestReady]:
        """The oldest ones in order; nothing may change meanwhile."""
        if self._head(claiming) is None:
            return
        held: Iterable[Aged] = heapq.merge(self.line, sorted(self._returned)) if self._returned else self.line
        while True:
            for sequence, task_id in held:
                oldest = self._read_oldest(sequence, task_id) if sequence in self._live else None
                if oldest is not None:
                    yield oldest
                    count_max -= 1
                    if not count_max:
                        return
            if self._complete:
                return
            # Those behind a blocked one that have gone would pile up: they are passed over only at the head.
            self.line = deque(aged for aged in self.line if aged[0] in self._live)
            known = len(self.line)
            self._refill(claiming, AGE_PAGES)
            held = islice(self.line, known, None)

    def _read_oldest(self, sequence: int, task_id: bytes) -> OldestReady | None:
        task = self._machine.execution(task_id)
        if task is None or task.state != READY or task.sequence != sequence:
            return None
        return OldestReady((sequence, task_id, task.size_bytes, 1), task.priority, task.tenant, task.limit_key)

    def _head(self, claiming: Container[int]) -> Aged | None:
        """The oldest that is ready and not on its way to a claim."""
        while (head := self._first()) is None and not self._complete:
            self._refill(claiming, 1)
        return head

    def _first(self) -> Aged | None:
        line, returned, live = self.line, self._returned, self._live
        while line and line[0][0] not in live:
            line.popleft()
        while returned and returned[0][0] not in live:
            heapq.heappop(returned)
        if returned and (not line or returned[0] < line[0]):
            return returned[0]
        return line[0] if line else None

    def _refill(self, claiming: Container[int], pages: int) -> None:
        found, after = read_ages(self._reader, self._machine.ready_in_age_page, self._queue, self._cursor, pages)
        fresh = [aged for aged in found if aged[0] not in claiming]
        self._machine.read_ahead([task_id for _, task_id in fresh[:READ_AHEAD]])
        self.line.extend(fresh)
        self._live.update(aged[0] for aged in fresh)
        end = self._machine.meta.next_sequence  # the last page may have room for those that come yet
        self._complete = after is None or after >= end
        self._cursor = end if after is None else min(after, end)

    def _rewind(self, sequence: int) -> None:
        first = self._first()
        self._cursor = min(sequence, self._cursor if first is None else first[0])
        self.line.clear()
        self._returned.clear()
        self._live.clear()
        self._complete = False
