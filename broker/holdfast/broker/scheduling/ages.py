"""The ready tasks of all lanes of a queue but the plain ones, by age: a small window onto the READY_AGE index."""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from holdfast.machine import keys
from holdfast.machine.kv import OrderedKV
from holdfast.machine.ready_rows import Aged, Place

AGES_PAGE = 64
AGES_PAGE_FIRST = 8  # who is behind the oldest has often gone, also from the index, when it comes to him
_HELD_MAX = AGES_PAGE


class Elder(NamedTuple):
    """A ready task, and where it waits."""

    place: Place
    priority: int
    tenant: bytes
    limit_key: bytes


class Ages:
    """Every ready task below `_cursor` is in `_live`, or on its way to a claim.

    What is taken or withdrawn only leaves `_live`; its place is passed over when it comes to the head.
    """

    __slots__ = ("_complete", "_cursor", "_kv", "_line", "_live", "_prefix", "_returned")

    def __init__(self, kv: OrderedKV, queue: bytes, cursor: int, *, complete: bool) -> None:
        self._kv = kv
        self._prefix = keys.ready_age_queue(queue)
        self._cursor = cursor
        self._complete = complete
        self._line: deque[Elder] = deque()
        self._returned: list[Elder] = []  # a heap
        self._live: set[int] = set()

    def came(self, place: Place, priority: int, tenant: bytes, limit_key: bytes) -> None:
        """A task became ready, or is ready again."""
        sequence = place[0]
        if sequence < self._cursor:
            if len(self._returned) >= _HELD_MAX:
                self._rewind(sequence)
                return
            heapq.heappush(self._returned, Elder(place, priority, tenant, limit_key))
            self._live.add(sequence)
        elif self._complete and len(self._line) < _HELD_MAX:
            self._line.append(Elder(place, priority, tenant, limit_key))
            self._live.add(sequence)
            self._cursor = sequence + 1
        else:
            self._complete = False

    def went(self, sequence: int) -> None:
        """The task was picked or withdrawn."""
        self._live.discard(sequence)

    def pass_over(self, sequence: int) -> None:
        """Nothing before this place is ready."""
        self._cursor = max(self._cursor, sequence)

    def head(self, claiming: Container[int]) -> Elder | None:
        """The oldest that is ready and not on its way to a claim."""
        page_rows = min(AGES_PAGE_FIRST, AGES_PAGE)
        while (head := self._first()) is None and not self._complete:
            self._refill(claiming, page_rows)
            page_rows = min(AGES_PAGE, page_rows * 4)
        return head

    def elders(self, claiming: Container[int], count_max: int) -> Iterator[Elder]:
        """The oldest ones in order; nothing may change meanwhile."""
        if self.head(claiming) is None:
            return
        held: Iterable[Elder] = heapq.merge(self._line, sorted(self._returned)) if self._returned else self._line
        while True:
            for elder in held:
                if elder.place[0] in self._live:
                    yield elder
                    count_max -= 1
                    if not count_max:
                        return
            if self._complete:
                return
            # Those behind a blocked one that have gone would pile up: they are passed over only at the head.
            self._line = deque(elder for elder in self._line if elder.place[0] in self._live)
            known = len(self._line)
            self._refill(claiming, AGES_PAGE)
            held = islice(self._line, known, None)

    def mark(self, claiming: Container[int]) -> int:
        """No such task has a smaller sequence."""
        head = self.head(claiming)
        return self._cursor if head is None else min(head.place[0], self._cursor)

    def _first(self) -> Elder | None:
        line, returned, live = self._line, self._returned, self._live
        while line and line[0].place[0] not in live:
            line.popleft()
        while returned and returned[0].place[0] not in live:
            heapq.heappop(returned)
        if returned and (not line or returned[0] < line[0]):
            return returned[0]
        return line[0] if line else None

    def _refill(self, claiming: Container[int], page_rows: int) -> None:
        start = self._prefix + self._cursor.to_bytes(8, "big")
        rows = self._kv.scan(start, keys.after_prefix(self._prefix), page_rows)
        for key, row in rows:
            sequence = keys.ready_sequence(key)
            self._cursor = sequence + 1
            if sequence not in claiming:
                aged = Aged.decode(row)
                place = sequence, aged.task_id, aged.size_bytes
                self._line.append(Elder(place, aged.priority, aged.tenant, aged.limit_key))
                self._live.add(sequence)
        self._complete = len(rows) < page_rows

    def _rewind(self, sequence: int) -> None:
        first = self._first()
        self._cursor = min(sequence, self._cursor if first is None else first.place[0])
        self._line.clear()
        self._returned.clear()
        self._live.clear()
        self._complete = False
