"""Looks after calls in flight whose server may be silent. What it asks and what follows is in `routing.silence`."""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.routing.leaders import KnownLeader
from holdfast.routing.silence import ASK_S_MAX, POLL_S, InFlightCall, SilentCalls


class Others(Protocol):
    """The servers that can be asked."""

    async def who_leads(self, addresses: Sequence[str], shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        """Address and epoch of the shard's leader as these servers see it; None if they cannot say."""
        ...

    async def waits_for_leader(self, address: str, shard: int | None, timeout_s: float) -> bool:
        """Whether calls may wait at this server because it knows of no leader, and sends them on when it does."""
        ...


class SilenceWatch:
    """Of the calls it is given; a task that runs only while there are some."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._calls: dict[InFlightCall, None] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, call: InFlightCall) -> None:
        self._calls[call] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def end(self, call: InFlightCall) -> None:
        del self._calls[call]

    def leaders_changed(self, leaders: Collection[KnownLeader]) -> None:
        """Others lead now: calls that wait for those before them wait in vain."""
        for call in list(self._calls):
            if call.leader in leaders and call.is_elsewhere:
                call.give_up()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        try:
            while self._calls:
                await asyncio.sleep(POLL_S)
                now_s = time.monotonic()
                silent: dict[KnownLeader, list[InFlightCall]] = {}
                for call in self._calls:
                    if call.poll_at_s <= now_s:
                        silent.setdefault(call.leader, []).append(call)
                await asyncio.gather(*(self._poll(SilentCalls(calls)) for calls in silent.values()))
        finally:
            self._task = None

    async def _poll(self, silent: SilentCalls) -> None:
        if others := silent.whom_to_ask():
            leader = await self._others.who_leads(others, silent.shard, ASK_S_MAX)
            if leader is not None:
                silent.heard(leader, time.monotonic())
        for overdue in silent.settle(time.monotonic()):
            if await self._others.waits_for_leader(overdue.address, overdue.shard, ASK_S_MAX):
                overdue.wait_on(time.monotonic())
            else:
                overdue.leave(time.monotonic())
