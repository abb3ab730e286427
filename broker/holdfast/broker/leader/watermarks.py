"""Raises low-water marks behind ready tasks that left their lines without a claim: purged, cancelled, ttl-expired,
put off.

Each of them leaves a tombstone in the index, and only claims raise marks on their way. A queue that is purged, or whose
tasks outlive their time while no worker comes, would have whoever looks for its first task walk over all of them, at
every look. So once enough have left, the leader looks for the first task itself and has the marks raised to it by an
entry. One look walks over what has left since the last one, so it stays short.

A mark that is decided here on the applied state holds for as long as no task returns to a place that it had: whatever
else becomes ready is behind all that was. That is what the version of the marks guards (see rows.Queue).
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from holdfast.broker.leader.roles import Housekeeping, Time
from holdfast.common.service import Service
from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.entries import AGE_MARK, Claim, Mark
from holdfast.machine.machine import Machine
from holdfast.machine.ready_lines import read_oldest, read_subqueue
from holdfast.machine.ready_rows import ready_slice_of
from holdfast.machine.rows import Queue
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

RAISE_AT = 500  # tasks of a queue that have left
SUBQUEUE_RAISE_AT = 50  # of them, of a sub-queue that is not plain
SUBQUEUES_MAX = 1000  # of a queue, that are counted apart
MARKS_MAX = 100  # in one entry
QUEUES_MAX = 10_000
RETRY_SECONDS = 1.0

_Subqueue = tuple[int, bytes, bytes]  # priority, tenant, limit key


class _Left:
    """What has left a queue without a claim."""

    __slots__ = ("subqueues", "total")

    def __init__(self) -> None:
        self.total = 0  # since marks were raised
        self.subqueues: Counter[_Subqueue] = Counter()  # since that of the sub-queue was

    def forget(self, total: int, subqueues: Counter[_Subqueue]) -> None:
        """Marks were raised behind so many."""
        self.total -= total
        self.subqueues -= subqueues
        if len(self.subqueues) >= SUBQUEUES_MAX:  # of few each: others must be counted, too
            self.subqueues = Counter(
                {subqueue: count for subqueue, count in self.subqueues.items() if _is_plain(subqueue)}
            )


def _is_plain(subqueue: _Subqueue) -> bool:
    return subqueue[1:] == (b"", b"")


class WatermarkManager(Service):
    """The marks of one shard. `passed` is told where marks are then."""

    def __init__(
        self,
        machine: Machine,
        time: Time,
        log: Housekeeping,
        *,
        passed: Callable[[list[Mark]], None],
    ) -> None:
        super().__init__(self._run)
        self._reader = machine.reader
        self._machine = machine
        self._now_ms = time.now_ms
        self._submit = log.submit_housekeeping
        self._passed = passed
        self._left: dict[bytes, _Left] = {}
        self._due: dict[bytes, None] = {}
        self._woken = asyncio.Event()

    def follow(self, effects: Effects) -> None:
        """Takes note of what left its line."""
        for task in effects.withdrawn:
            if task.is_suspect:
                continue  # it was in no line
            left = self._left.get(task.queue)
            if left is None:
                if len(self._left) >= QUEUES_MAX:
                    self._left = {queue: self._left[queue] for queue in self._due}
                left = self._left[task.queue] = _Left()
            left.total += 1
            subqueue = task.priority, task.tenant, task.limit_key
            if len(left.subqueues) < SUBQUEUES_MAX or subqueue in left.subqueues or _is_plain(subqueue):
                left.subqueues[subqueue] += 1
            if left.total >= RAISE_AT and task.queue not in self._due:
                self._due[task.queue] = None
                self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            if not self._due:
                self._woken.clear()
            elif not await self.raise_marks(queue := next(iter(self._due))):
                self._due[queue] = self._due.pop(queue)  # others first
                await asyncio.sleep(RETRY_SECONDS)

    async def raise_marks(self, queue: bytes) -> bool:
        """False if it came to nothing and is to be tried again."""
        left, counters = self._left[queue], self._machine.queue(queue)
        assert counters is not None, "tasks have left it"
        seen, version = left.total, counters.mark_version
        many = [
            (subqueue, n) for subqueue, n in left.subqueues.items() if n >= SUBQUEUE_RAISE_AT or _is_plain(subqueue)
        ][:MARKS_MAX]
        marks = self._subqueue_marks(queue, counters, [subqueue for subqueue, _ in many])
        if any(not _is_plain(subqueue) for subqueue in left.subqueues):
            oldest = None
            if any(counters.subqueues):
                oldest = read_oldest(self._reader, self._machine.ready_in_age_page, queue, counters.age_mark)
            first = self._machine.meta.next_sequence if oldest is None else oldest[0]
            marks.append(Mark(queue, version, AGE_MARK, first))
        now_ms = self._now_ms()
        try:
            # A claim of no task, which is how all marks are raised.
            await self._submit(Claim(now_ms, now_ms, b"", b"", now_ms, [], marks))
        except (RefusedError, OutcomeUnknownError):
            return False
        counters = self._machine.queue(queue)
        if counters is None or counters.mark_version != version:  # something returned meanwhile: they do not count
            return False
        left.forget(seen, Counter(dict(many)))
        if left.total < RAISE_AT:
            del self._due[queue]
        self._passed(marks)
        return True

    def _subqueue_marks(self, queue: bytes, counters: Queue, subqueues: list[_Subqueue]) -> list[Mark]:
        """Up to where nothing is ready."""
        marks = []
        for priority, tenant, limit_key in subqueues:
            line = keys.ready_subqueue(queue, priority, tenant, limit_key)
            if not tenant and not limit_key:
                first = self._first(line, counters.marks[priority], is_empty=not counters.in_line)
            else:
                places, _ = read_subqueue(self._reader, line, 0, 1)
                if not places:
                    continue  # it is empty, and its next task begins it anew
                first = places[0][0]
            marks.append(Mark(queue, counters.mark_version, priority, first, tenant, limit_key))
        return marks

    def _first(self, prefix: bytes, mark: int, *, is_empty: bool) -> int:
        """The place of the first task from a mark on; that of the next one that comes if there is none."""
        found = [] if is_empty else self._reader.scan(keys.ready_at(prefix, mark), keys.after_prefix(prefix), 1)
        if not found:
            return self._machine.meta.next_sequence
        [(key, row)] = found
        return ready_slice_of(keys.ready_sequence(key), row)[0]
