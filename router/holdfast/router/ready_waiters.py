"""Callers that wait at a router for tasks, in a line for each queue, first come first served. Pure, but for futures.

When a shard says that it has so many tasks of a queue, as many of the callers in line are woken as could take them, and
no more: each claims for itself. One that comes back with nothing is in its old place.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping


class Waiter:
    """One caller. It is in the lines of its queues from its first wait until it leaves."""

    __slots__ = ("future", "is_empty_handed", "is_free", "wants", "woken_at", "worker")

    def __init__(self, wants: Mapping[str, int], worker: str = "", *, is_empty_handed: bool = False) -> None:
        """`wants`: by queue, how many of its tasks the caller would take. `is_empty_handed`: it may take a suspect."""
        self.wants = wants
        self.worker = worker
        self.is_empty_handed = is_empty_handed
        self.is_free = False  # it waits, and was not woken yet
        # The shard that has something for it; None if the wait is over. It is None itself before the first wait.
        self.future: asyncio.Future[int | None] | None = None
        self.woken_at: tuple[WaiterLine, int] | None = None  # for which queue, and by which shard

    def give_up(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class WaiterLine:
    """Who waits for the tasks of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.free = 0
        self.wanted = 0  # tasks, by those who are free
        self._waiters: dict[Waiter, int] = {}  # in order of arrival, with how many tasks each would take

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter, wants: int) -> None:
        self._waiters.setdefault(waiter, wants)

    def remove(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def became_free(self, waiter: Waiter) -> None:
        self.free += 1
        self.wanted += self._waiters[waiter]

    def was_free(self, waiter: Waiter) -> None:
        self.free -= 1
        self.wanted -= self._waiters[waiter]

    def for_suspect(self) -> list[Waiter]:
        """Whose turn it is if there is a suspect: the first that holds nothing. If there is none, the first of all: the
        broker may ask it to run dry."""
        for waiter in self._waiters if self.free else ():
            if waiter.is_empty_handed and waiter.is_free and waiter.future is not None and not waiter.future.done():
                return [waiter]
        return self.first(1)

    def first(self, tasks: int) -> list[Waiter]:
        """Those whose turn it is if there are so many tasks. Few at the head of the line are not free: they claim."""
        chosen: list[Waiter] = []
        if not self.free:
            return chosen
        for waiter, wants in self._waiters.items():
            if tasks <= 0:
                break
            if waiter.is_free and waiter.future is not None and not waiter.future.done():
                chosen.append(waiter)
                tasks -= wants
        return chosen

    def everyone(self) -> list[Waiter]:
        return list(self._waiters)


class ReadyWaiters:
    """All lines."""

    def __init__(self) -> None:
        self.lines: dict[str, WaiterLine] = {}
        self.count = 0  # of waiters that are in lines
        self.workers: Counter[str] = Counter()  # their names

    def enter(self, waiter: Waiter) -> list[WaiterLine]:
        """The waiter is free from now on, in its old place if it has one. Returns the lines that are new."""
        new: list[WaiterLine] = []
        is_known = waiter.future is not None
        if not is_known:
            self.count += 1
            self.workers[waiter.worker] += 1
        waiter.future = asyncio.get_running_loop().create_future()
        waiter.woken_at = None
        waiter.is_free = True
        for queue, wants in waiter.wants.items():
            line = self.lines.get(queue)
            if line is None:
                line = self.lines[queue] = WaiterLine(queue)
                new.append(line)
            if not is_known:
                line.add(waiter, wants)
            line.became_free(waiter)
        return new

    def not_free(self, waiter: Waiter) -> None:
        """It was woken, or its wait is over: it keeps its place."""
        if waiter.is_free:
            waiter.is_free = False
            for queue in waiter.wants:
                self.lines[queue].was_free(waiter)

    def leave(self, waiter: Waiter) -> list[WaiterLine]:
        """Returns the lines that are empty now: they are no more."""
        if waiter.future is None:
            return []
        self.not_free(waiter)
        waiter.future = None
        self.count -= 1
        self.workers[waiter.worker] -= 1
        if not self.workers[waiter.worker]:
            del self.workers[waiter.worker]
        empty: list[WaiterLine] = []
        for queue in waiter.wants:
            line = self.lines[queue]
            line.remove(waiter)
            if not line:
                del self.lines[queue]
                empty.append(line)
        return empty

    def has_free(self, queue: str) -> bool:
        line = self.lines.get(queue)
        return line is not None and line.free > 0

    def offer(self, line: WaiterLine, shard: int, tasks: int, *, suspects: bool = False) -> int:
        """Wakes those whose turn it is; returns how many."""
        chosen = line.for_suspect() if suspects else line.first(tasks)
        for waiter in chosen:
            assert waiter.future is not None
            waiter.woken_at = (line, shard)
            waiter.future.set_result(shard)
            self.not_free(waiter)
        return len(chosen)

    def refuse(self, line: WaiterLine, error: Exception) -> None:
        """Whoever waits in it is told so."""
        for waiter in line.everyone():
            if waiter.is_free and waiter.future is not None and not waiter.future.done():
                waiter.future.set_exception(error)
                self.not_free(waiter)

    def of(self, queues: Iterable[str]) -> list[WaiterLine]:
        return [line for line in map(self.lines.get, queues) if line is not None]
