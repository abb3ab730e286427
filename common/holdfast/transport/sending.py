"""One call until it is answered: attempts at one server after the other, each watched while it is silent. What is sent,
and whether there is another attempt, is up to routers and clients.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection

from holdfast.routing.leaders import KnownLeader
from holdfast.routing.silence import InFlightCall
from holdfast.transport.channels import CallFailedError, OutgoingCall
from holdfast.transport.giving_up import Patience
from holdfast.transport.silence import Others, SilenceWatch


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
