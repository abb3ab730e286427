"""Calls whose server is silent: other servers are asked who leads.

A leader that has been stopped, or cut off, keeps its connections open and says nothing. A deadline alone cannot tell it
from one that is slow, and moving a call because of mere slowness would make a busy leader do everything twice. So while
a call is silent, another server is asked. If it names another leader, the call is given up here, and is sent there if
that does no harm. If it names the same one, the call goes on waiting. If nobody can say, it is given up after a while.

But not if it waits at a router, in the place of a leader that was out of reach, and the router cannot say either. Then
nobody leads, and the router sends the call on as soon as somebody does. A call that is given up there may have been
carried out for all that is known here, and whoever sent it would have to find that out first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from holdfast.client._leaders import Leaders

_LOOK_S = 0.25
_CALL_QUIET_S = 0.5  # after this much silence others are asked, again and again
_POLL_QUIET_S = 2.0  # the same for calls that are meant to wait: an idle worker should cost next to nothing
_CONFIRMED_S = 1.5  # how long a call goes on waiting because another server named its server as the leader
_LIMIT_S_MIN = 0.5
_LIMIT_S_MAX = 2.0
_ASK_S_MAX = 0.5


class Leader(NamedTuple):
    """Who leads, as some server sees it."""

    address: str  # empty if it knows of nobody
    epoch: int


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Flight:
    """A call under way. Not a dataclass: one is made for every call."""

    __slots__ = ("address", "call", "gave_up", "leaders", "limit_s", "look_at_s", "quiet_s", "repeatable", "shard")

    def __init__(
        self, leaders: Leaders, shard: int | None, address: str, call: Cancellable, *, wait_s: float, timeout_s: float,
        repeatable: bool, now_s: float,
    ) -> None:  # fmt: skip
        """`wait_s`: how long the server was asked to wait before it answers; `timeout_s`: how long the caller waits."""
        self.leaders = leaders
        self.shard = shard
        self.address = address
        self.call = call
        self.repeatable = repeatable
        self.quiet_s = _POLL_QUIET_S if wait_s > _POLL_QUIET_S else wait_s + _CALL_QUIET_S
        self.look_at_s = now_s + self.quiet_s
        answer_s = timeout_s - wait_s
        self.limit_s = now_s + wait_s + min(_LIMIT_S_MAX, max(_LIMIT_S_MIN, answer_s / 3))
        self.gave_up = False  # the call was cancelled because another server leads, or may lead

    def give_up(self) -> None:
        if self.repeatable and not self.gave_up:
            self.gave_up = True
            self.call.cancel()


class SilenceWatch:
    """Looks after the flights it is given; a task that runs only while there are some."""

    def __init__(self, ask: Callable[[str, int | None, float], Awaitable[Leader | None]]) -> None:
        """`ask(address, shard, timeout_s)`: who leads; None if there is no answer. Without a shard the call is for
        whichever the servers take it for."""
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
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        try:
            while self._flights:
                await asyncio.sleep(_LOOK_S)
                now_s = time.monotonic()
                silent = [flight for flight in self._flights if flight.look_at_s <= now_s]
                for leaders, shard in {(flight.leaders, flight.shard) for flight in silent}:
                    await self._look([flight for flight in silent if flight.leaders is leaders], leaders, shard)
        finally:
            self._task = None

    async def _look(self, silent: list[Flight], leaders: Leaders, shard: int | None) -> None:
        at = {flight.address for flight in silent}
        if leaders.named is None or leaders.named in at:  # otherwise it is known already that another one leads
            found = await self._who_leads((each for each in leaders.known if each not in at), shard)
            now_s = time.monotonic()
            if found is not None and leaders.name(found.address, found.epoch, now_s):
                for flight in silent:
                    if flight.address == found.address:
                        flight.limit_s = max(flight.limit_s, now_s + _CONFIRMED_S)
        now_s = time.monotonic()
        overdue: dict[str, list[Flight]] = {}  # by address
        for flight in silent:
            flight.look_at_s = now_s + flight.quiet_s
            if leaders.named is not None and leaders.named != flight.address:
                flight.give_up()
            elif now_s >= flight.limit_s:
                overdue.setdefault(flight.address, []).append(flight)
        for address, flights in overdue.items():
            if leaders.is_direct and address != leaders.named and await self._looks_for_a_leader(address, shard):
                _wait_on(flights)
            else:
                _leave(leaders, address, flights)

    async def _who_leads(self, others: Iterable[str], shard: int | None) -> Leader | None:
        for address in others:
            found = await self._ask(address, shard, _ASK_S_MAX)
            if found is not None and found.address:
                return found
        return None

    async def _looks_for_a_leader(self, address: str, shard: int | None) -> bool:
        """Whether this server answers, and knows of no leader."""
        found = await self._ask(address, shard, _ASK_S_MAX)
        return found is not None and not found.address


def _wait_on(flights: Iterable[Flight]) -> None:
    now_s = time.monotonic()
    for flight in flights:
        flight.limit_s = now_s + _CONFIRMED_S


def _leave(leaders: Leaders, address: str, flights: Iterable[Flight]) -> None:
    leaders.left(address, time.monotonic(), suspect=True)
    for flight in flights:
        flight.limit_s = float("inf")
        flight.give_up()
