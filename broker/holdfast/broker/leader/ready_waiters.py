"""Calls that wait until there is a task to claim, without claiming it: a router asks so at every shard of a queue.

A task is offered to one call, in the order in which the calls came, and a call is offered as many as it can take: one
task must not wake thousands of routers, nor thousands of workers behind one of them. Whoever was told of a task may
have found another one meanwhile. So what is still there after a moment is offered again, to the next in line.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.broker.leader.suspects import is_suspects_line
from holdfast.broker.leader.waiters import Waiters
from holdfast.common.shared_deadlines import SharedDeadlines

OFFER_SECONDS = 0.05  # how long a task is left to those who were told of it


@dataclass(frozen=True, slots=True)
class AwaitWanted:
    """A request to hear of tasks, already validated."""

    queues: list[bytes]
    wait_ms: int
    worker: bytes
    request_id: bytes
    tasks_max: int = 1
    callers: int = 1  # whom the call waits for
    empty_handed: bool | None = None  # None: it does not say
    suspects_only: bool = False


class Awaited(NamedTuple):
    tasks: int  # how many are offered to this call
    held: bool = False  # they have been claimed already, by this request
    suspects: bool = False  # they are


NOTHING = Awaited(0)
READY = Awaited(1)
HELD = Awaited(1, held=True)


class _Watcher:
    """One waiting call."""

    __slots__ = ("callers", "future", "lines", "tasks_max")

    def __init__(self, wanted: AwaitWanted, lines: list[bytes]) -> None:
        self.lines = lines
        self.tasks_max = wanted.tasks_max
        self.callers = wanted.callers
        self.future: asyncio.Future[Awaited] = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        self.notify(NOTHING)

    def notify(self, answer: Awaited) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class ReadyWaiters:
    """The calls of a shard that wait so. `available` counts what could be claimed now by those who wait in a line: that
    of a queue, or of its suspects."""

    def __init__(
        self, available: Callable[[bytes], int], *, calls_max: int, may_offer: Callable[[], bool] = lambda: True
    ) -> None:
        self._available = available
        self._may_offer = may_offer  # whether a claim would be let in
        self._line: Waiters[_Watcher] = Waiters(calls_max, "calls that wait for tasks")
        self._deadlines: SharedDeadlines[_Watcher] = SharedDeadlines(_Watcher.give_up)
        self._by_request: dict[tuple[bytes, bytes], _Watcher] = {}  # those that can be repeated, by worker and request
        self._offered: dict[bytes, int] = {}  # by queue: how many tasks were told of that nobody has taken yet
        self._timers: dict[bytes, asyncio.TimerHandle] = {}  # one for each queue in `_offered`

    def __len__(self) -> int:
        return len(self._line)

    def waiting_for(self, queue: bytes) -> int:
        """How many callers do."""
        return sum(watcher.callers for watcher in self._line.of(queue))

    async def wait(self, wanted: AwaitWanted, lines: list[bytes]) -> Awaited:
        """Returns once something is offered to this call, or the time is over. `lines`: where it waits."""
        offered = self._offer(lines, wanted.tasks_max)
        if offered != NOTHING:
            return offered
        if not wanted.wait_ms:
            # Others were told, but this caller does not wait its turn.
            return READY if any(self._available(line) for line in lines) else NOTHING
        watcher = _Watcher(wanted, lines)
        self._line.add(watcher)
        name = (wanted.worker, wanted.request_id)
        if wanted.request_id:
            self._by_request[name] = watcher
        step = self._deadlines.add(watcher, wanted.wait_ms / 1000)
        try:
            return await watcher.future
        finally:  # also when the caller has gone: what it was told of is offered again in a moment
            self._deadlines.remove(watcher, step)
            self._line.remove(watcher)
            if self._by_request.get(name) is watcher:
                del self._by_request[name]

    def send_home(self, worker: bytes, request_id: bytes) -> None:
        """Who repeats a request no longer waits for its first answer."""
        older = self._by_request.get((worker, request_id))
        if older is not None:
            older.notify(NOTHING)

    def was_claimed(self, worker: bytes, request_id: bytes) -> None:
        """A claim of this request was applied, for a call that came before the one that waits."""
        watcher = self._by_request.get((worker, request_id))
        if watcher is not None:
            watcher.notify(HELD)

    @property
    def has_offers(self) -> bool:
        """Whether tasks were told of that nobody has taken yet."""
        return bool(self._offered)

    def was_taken(self, queue: bytes, count: int) -> None:
        """Tasks of the queue were picked for a claim, most likely by those who were told of them."""
        offered = self._offered.get(queue)
        if offered is not None:
            self._offered[queue] = max(0, offered - count)

    def poll(self, queues: Iterable[bytes]) -> None:
        """There may be more to claim in these queues, or other lines, than there was."""
        for queue in queues:
            while (watcher := self._line.first(queue)) is not None:
                if watcher.future.done():  # was told something, and has not had its turn
                    self._line.remove(watcher)
                    continue
                offered = self._offer([queue], watcher.tasks_max)
                if offered == NOTHING:
                    break
                watcher.notify(offered)

    def poll_all(self) -> None:
        self.poll(self._line.lines())

    def _offer(self, lines: list[bytes], tasks_max: int) -> Awaited:
        """How many tasks of one of the lines nobody was told of, up to so many; they count as told of then."""
        for queue in lines:
            offered = self._offered.get(queue, 0)
            tasks = min(tasks_max, self._available(queue) - offered)
            if tasks > 0 and self._may_offer():
                self._offered[queue] = offered + tasks
                if queue not in self._timers:
                    again = asyncio.get_running_loop().call_later(OFFER_SECONDS, self._offer_again, queue)
                    self._timers[queue] = again
                return Awaited(tasks, suspects=is_suspects_line(queue))
        return NOTHING

    def _offer_again(self, queue: bytes) -> None:
        """Those who were told have had their time: what is still there is for the next."""
        del self._timers[queue]
        del self._offered[queue]
        self.poll([queue])

    def drain(self) -> None:
        """Sends everyone who waits home."""
        self._stop_timers()
        for watcher in self._line.everyone():
            watcher.notify(NOTHING)

    def dismiss(self, error: Exception) -> None:
        """Somebody else knows of the tasks now: tells everyone who waits."""
        self._stop_timers()
        for watcher in self._line.everyone():
            if not watcher.future.done():
                watcher.future.set_exception(error)

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._offered.clear()
