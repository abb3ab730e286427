"""One call until it is answered: attempts at one server after the other, each watched while it is silent. What is sent,
and whether there is another attempt, is up to routers and clients. What is asked when a server is silent, and what
follows, is in `routing.silence`.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.common.service import Service, report_bug
from holdfast.routing.leaders import KnownLeader
from holdfast.routing.silence import ASK_S_MAX, POLL_S, InFlightCall, SilentCalls
from holdfast.transport.channels import CallFailedError, OutgoingCall
from holdfast.transport.giving_up import Patience


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
        self._background = Service(on_error=report_bug)
        self._is_looking = False  # it does while there are calls

    def begin(self, call: InFlightCall) -> None:
        self._calls[call] = None
        if not self._is_looking:
            self._is_looking = True
            self._background.spawn(self._run())

    def end(self, call: InFlightCall) -> None:
        del self._calls[call]

    def leaders_changed(self, leaders: Collection[KnownLeader]) -> None:
        """Others lead now: calls that wait for those before them wait in vain."""
        for call in list(self._calls):
            if call.leader in leaders and call.is_elsewhere:
                call.give_up()

    async def close(self) -> None:
        await self._background.stop()

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
            self._is_looking = False

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


class LeaderCall(ABC):
    """For the leader of a shard."""

    def __init__(self, leader: KnownLeader, shard: int | None, address: str, *, is_watched: bool = True) -> None:
        """`address`: of its first attempt; empty if no server has one. `is_watched`: there are others to be asked."""
        self.leader = leader
        self.shard = shard
        self.address = address
        self.is_watched = is_watched
        self.timeout_s = 0.0  # of the attempt under way
        self.wait_s = 0.0  # how long the server is asked to wait in it

    @abstractmethod
    async def begin(self, patience: Patience) -> OutgoingCall:
        """An attempt at `address`. Raises CallFailedError if it cannot be sent there."""

    @abstractmethod
    def may_repeat(self) -> bool:
        """Whether carrying it out twice does no harm."""

    @abstractmethod
    def note(self, failure: CallFailedError) -> None:
        """Of an attempt that was given up: that says nothing about the leader."""

    @abstractmethod
    def after(self, failure: CallFailedError, now_s: float) -> float | None:
        """How long to pause before the next attempt, at `address`; None if there is to be none."""

    @abstractmethod
    def last_word(self, failure: CallFailedError) -> Exception:
        """What the caller hears."""


class Sender:
    """Sends calls, and looks after those whose servers are silent."""

    def __init__(self, others: Others) -> None:
        self.watch = SilenceWatch(others)
        self.repeated = 0  # attempts after the first

    async def close(self) -> None:
        await self.watch.close()

    def leaders_changed(self, leaders: Collection[KnownLeader]) -> None:
        """Others lead now: calls that wait for those before them wait in vain."""
        self.watch.leaders_changed(leaders)

    async def send(self, call: LeaderCall, patience: Patience, failure: CallFailedError | None = None) -> bytes:
        """The answer; raises the call's last word. `failure`: of its first attempt, if that was made already."""
        while True:
            if failure is None:
                try:
                    return await self._attempt(call, patience)
                except CallFailedError as error:
                    # Its traceback would keep the channel for as long as somebody keeps the error.
                    failure = error.with_traceback(None)
            pause_s = None
            if patience.is_over:
                call.note(failure)
            else:
                pause_s = call.after(failure, time.monotonic())
            if pause_s:
                await patience.pause(pause_s)
            if pause_s is None or patience.is_over:
                word = call.last_word(failure)
                raise word from None if word is failure else failure
            self.repeated += 1
            failure = None

    async def _attempt(self, call: LeaderCall, patience: Patience) -> bytes:
        outgoing = await call.begin(patience)
        patience.began(outgoing)
        try:
            answer = await (self._watched(call, outgoing) if call.is_watched else outgoing.answer())
        finally:
            patience.ended()
            del outgoing  # an error holds this frame, which would hold the channel
        if call.leader.named != call.address:
            call.leader.answered(call.address)
        return answer

    async def _watched(self, call: LeaderCall, outgoing: OutgoingCall) -> bytes:
        in_flight = InFlightCall(
            call.leader, call.shard, call.address, outgoing, wait_s=call.wait_s, timeout_s=call.timeout_s,
            now_s=time.monotonic(), may_give_up=lambda: outgoing.is_unsent or call.may_repeat(),
        )  # fmt: skip
        self.watch.begin(in_flight)
        try:
            return await outgoing.answer()
        finally:
            self.watch.end(in_flight)
