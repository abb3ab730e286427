"""Calls whose broker is silent: the other replicas are asked who leads.

A leader that has been stopped, or cut off, keeps its connections open and says nothing. A deadline alone cannot tell it
from one that is slow, and moving a call because of mere slowness would make a busy leader do everything twice. So while
a call is silent, the others are asked. If they name another leader, the call is given up here, and is sent there if
that does no harm. If they name the same one, the call goes on waiting. If nobody can say, it is given up after a while.

Nobody has to be asked if the map says that another one leads: a new leader tells it at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from holdfast.common.service import end_tasks
from holdfast.router.leaders import Leaders

_LOOK_S = 0.25
_CALL_QUIET_S = 0.5  # after this much silence others are asked, again and again
_POLL_QUIET_S = 2.0  # the same for calls that are meant to wait: an idle worker should cost next to nothing
_CONFIRMED_S = 1.5  # how long a call goes on waiting because another replica named its broker as the leader
_LIMIT_S_MIN = 0.5
_LIMIT_S_MAX = 2.0
_ASK_S_MAX = 0.5

# Who leads a shard and in which epoch, as the broker at an address sees it; None if that cannot be said there.
Ask = Callable[[str, int, float], Awaitable[tuple[str, int] | None]]


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Flight:
    """A call under way. Not a dataclass: one is made for every call."""

    __slots__ = ("address", "call", "gave_up", "limit_s", "look_at_s", "may_give_up", "quiet_s", "shard")

    def __init__(
        self, shard: int, address: str, call: Cancellable, *, waits: bool, timeout_s: float, now_s: float,
        may_give_up: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`waits`: the broker was asked to wait before it answers; `timeout_s`: how long the caller waits."""
        self.shard = shard
        self.address = address
        self.call = call
        self.may_give_up = may_give_up
        self.quiet_s = _POLL_QUIET_S if waits else _CALL_QUIET_S
        self.look_at_s = now_s + self.quiet_s
        answer_s = min(_LIMIT_S_MAX, max(_LIMIT_S_MIN, timeout_s / 3))
        self.limit_s = float("inf") if waits else now_s + answer_s
        self.gave_up = False  # the call was cancelled because another broker leads, or may lead

    def give_up(self) -> None:
        if not self.gave_up and self.may_give_up():
            self.gave_up = True
            self.call.cancel()


class SilenceWatch:
    """Looks after the flights it is given; a task that runs only while there are some."""

    def __init__(self, leaders: Leaders, ask: Ask) -> None:
        self._leaders = leaders
        self._ask = ask
        self._flights: dict[Flight, None] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, flight: Flight) -> None:
        self._flights[flight] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def end(self, flight: Flight) -> None:
        del self._flights[flight]

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])
            self._task = None

    async def _run(self) -> None:
        try:
            while self._flights:
                await asyncio.sleep(_LOOK_S)
                now_s = time.monotonic()
                silent: dict[int, list[Flight]] = {}
                for flight in self._flights:
                    if flight.look_at_s <= now_s:
                        silent.setdefault(flight.shard, []).append(flight)
                await asyncio.gather(*(self._look(shard, flights) for shard, flights in silent.items()))
        finally:
            self._task = None

    def leaders_changed(self, shards: Collection[int]) -> None:
        """The map has new leaders of these: calls that wait for others wait in vain."""
        now_s = time.monotonic()
        for shard in shards:
            self._leaders.look_at_map(shard, now_s)
        named = {shard: self._leaders.named(shard) for shard in shards}
        for flight in list(self._flights):
            if named.get(flight.shard) not in (None, flight.address):
                flight.give_up()

    async def _look(self, shard: int, silent: list[Flight]) -> None:
        leaders = self._leaders
        at = {flight.address for flight in silent}
        named = leaders.named(shard)
        if named is None or named in at:  # otherwise it is known already that another one leads
            found = await self._who_leads([each for each in leaders.candidates(shard) if each not in at], shard)
            now_s = time.monotonic()
            if found is not None and leaders.name(shard, *found, now_s):
                for flight in silent:
                    if flight.address == found[0]:
                        flight.limit_s = max(flight.limit_s, now_s + _CONFIRMED_S)
        now_s = time.monotonic()
        named = leaders.named(shard)
        for flight in silent:
            flight.look_at_s = now_s + flight.quiet_s
            if named is not None and named != flight.address:
                flight.give_up()
            elif now_s >= flight.limit_s:
                leaders.left(shard, flight.address, now_s, suspect=True)
                flight.limit_s = float("inf")
                flight.give_up()

    async def _who_leads(self, others: list[str], shard: int) -> tuple[str, int] | None:
        """The newest that anybody knows of."""
        answers = await asyncio.gather(*(self._ask(address, shard, _ASK_S_MAX) for address in others))
        found = [answer for answer in answers if answer is not None]
        return max(found, key=lambda answer: answer[1], default=None)
