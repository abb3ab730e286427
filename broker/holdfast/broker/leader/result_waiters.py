"""Calls that wait for tasks to finish: woken by the event that ends the last of them.

A wake-up is only a reason to look again: a dead task may have been retried meanwhile, and is unfinished then. Looking
and waiting are one step of the event loop, so no end can fall between them.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast.machine.ids import later_task_id
from holdfast.machine.rows import CANCELLED, DEAD, SUCCEEDED, Execution
from holdfast.serving.refusals import overloaded, shutting_down

ENDS = frozenset({SUCCEEDED, DEAD, CANCELLED})

ReadExecutions = Callable[[list[bytes]], list[Execution | None]]


class _Watcher:
    """One waiting call."""

    __slots__ = ("future", "task_ids")

    def __init__(self, task_ids: set[bytes]) -> None:
        self.task_ids = task_ids  # those it still waits for
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def refuse(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ResultWaiters:
    """The tasks of a shard that somebody waits for, and who does."""

    def __init__(self, read: ReadExecutions, *, watched_tasks_max: int, calls_max: int) -> None:
        self._read = read
        self._watched_tasks_max = watched_tasks_max
        self._calls_max = calls_max
        self._watchers: dict[_Watcher, None] = {}
        self._by_task: dict[bytes, list[_Watcher]] = {}
        self._watched = 0
        self._draining = False

    @property
    def watched(self) -> int:
        """For how many tasks somebody waits; a task counts once for each call that waits for it."""
        return self._watched

    async def wait(self, task_ids: list[bytes], wait_ms: int) -> list[Execution | None]:
        """Waits until all are finished or unknown, or the time is over; returns what each is then."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_ms / 1000
        was_sent_home = False
        while True:
            found = self._read(task_ids)
            unfinished = _unfinished(task_ids, found)
            left_s = ends_s - loop.time()
            if not unfinished or left_s <= 0 or was_sent_home:
                return found
            if self._draining:
                raise shutting_down()  # an answer would only make the caller ask again at once
            await self._watch(unfinished, left_s)
            was_sent_home = self._draining

    async def _watch(self, task_ids: set[bytes], wait_s: float) -> None:
        """Returns once each of the tasks has finished since, or the time is over."""
        if len(self._watchers) >= self._calls_max:
            raise overloaded("calls that wait for tasks to finish", self._calls_max)
        if self._watched + len(task_ids) > self._watched_tasks_max:
            raise overloaded("tasks that are waited for", self._watched_tasks_max)
        watcher = _Watcher(task_ids)
        self._add(watcher)
        timer = asyncio.get_running_loop().call_later(wait_s, watcher.wake)
        try:
            await watcher.future
        finally:  # also when the caller has gone
            timer.cancel()
            self._remove(watcher)

    def _add(self, watcher: _Watcher) -> None:
        self._watchers[watcher] = None
        self._watched += len(watcher.task_ids)
        for task_id in watcher.task_ids:
            self._by_task.setdefault(task_id, []).append(watcher)

    def _remove(self, watcher: _Watcher) -> None:
        del self._watchers[watcher]
        self._watched -= len(watcher.task_ids)
        for task_id in watcher.task_ids:
            watchers = self._by_task[task_id]
            watchers.remove(watcher)
            if not watchers:
                del self._by_task[task_id]
        watcher.task_ids = set()

    def follow(self, finished: Iterable[bytes], ranges: Iterable[tuple[bytes, int]] = ()) -> None:
        """Wakes those who waited for nothing but these tasks. `ranges`: the first of a run's, and how many."""
        if not self._by_task:
            return
        for task_id in finished:
            self._has_finished(task_id)
        for first_id, tasks in ranges:
            for task_id in self._watched_of(first_id, tasks):
                self._has_finished(task_id)

    def _watched_of(self, first_id: bytes, tasks: int) -> list[bytes]:
        """Of the tasks of a range, at least those that somebody waits for."""
        if len(self._by_task) < tasks:
            end = later_task_id(first_id, tasks)
            return [task_id for task_id in self._by_task if first_id <= task_id < end]
        return [later_task_id(first_id, index) for index in range(tasks)]

    def _has_finished(self, task_id: bytes) -> None:
        for watcher in self._by_task.pop(task_id, ()):
            watcher.task_ids.discard(task_id)
            self._watched -= 1
            if not watcher.task_ids:
                watcher.wake()

    def drain(self) -> None:
        """Sends everyone who waits home."""
        self._draining = True
        for watcher in self._watchers:
            watcher.wake()

    def dismiss(self, error: Exception) -> None:
        """Somebody else knows how tasks end now: tells everyone who waits."""
        self._draining = True
        for watcher in self._watchers:
            watcher.refuse(error)


def _unfinished(task_ids: list[bytes], found: Sequence[Execution | None]) -> set[bytes]:
    return {
        task_id for task_id, task in zip(task_ids, found, strict=True) if task is not None and task.state not in ENDS
    }
