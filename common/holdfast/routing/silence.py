"""Calls whose server is silent: others are asked who leads. Pure: what to ask, and what follows from the answers.

A leader that has been stopped, or cut off, keeps its connections open and says nothing. A deadline alone cannot tell it
from one that is slow, and moving a call because of mere slowness would make a busy leader do everything twice. So while
a call is silent, others are asked. If they name another leader, the call is given up here, and is sent there if that
does no harm. If they name the same one, the call goes on waiting. If nobody can say, it is given up after a while.

But not if it waits at a router, in the place of a leader that was out of reach, and the router cannot say either. Then
nobody leads, and the router sends the call on as soon as somebody does. A call that is given up there may have been
carried out for all that is known here, and whoever sent it would have to find that out first.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.routing.leaders import KnownLeader

POLL_S = 0.25
ASK_S_MAX = 0.5
_CALL_QUIET_S = 0.5  # after this much silence others are asked, again and again
_POLL_QUIET_S = 2.0  # the same for calls that are meant to wait: an idle worker should cost next to nothing
_CONFIRMED_S = 1.5  # how long a call goes on waiting because another server named its server as the leader
_LIMIT_S_MIN = 0.5
_LIMIT_S_MAX = 2.0


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class InFlightCall:
    """An attempt under way. Not a dataclass: one is made for every call."""

    __slots__ = ("address", "call", "gave_up", "leader", "limit_s", "may_give_up", "poll_at_s", "quiet_s", "shard")

    def __init__(
        self, leader: KnownLeader, shard: int | None, address: str, call: Cancellable, *, wait_s: float,
        timeout_s: float, now_s: float, may_give_up: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`wait_s`: how long the server was asked to wait before it answers; `timeout_s`: how long the caller waits.
        Without a shard the call is for whichever the servers take it for."""
        self.leader = leader
        self.shard = shard
        self.address = address
        self.call = call
        self.may_give_up = may_give_up
        self.quiet_s = _POLL_QUIET_S if wait_s > _POLL_QUIET_S else wait_s + _CALL_QUIET_S
        self.poll_at_s = now_s + self.quiet_s
        self.limit_s = now_s + wait_s + min(_LIMIT_S_MAX, max(_LIMIT_S_MIN, (timeout_s - wait_s) / 3))
        self.gave_up = False  # the call was cancelled because another server leads, or may lead

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is known that another server leads."""
        return self.leader.named not in (None, self.address)

    def give_up(self) -> None:
        if not self.gave_up and self.may_give_up():
            self.gave_up = True
            self.call.cancel()


class SilentCalls:
    """Calls for one shard that have been silent for some time."""

    def __init__(self, calls: Sequence[InFlightCall]) -> None:
        self._calls = calls
        self._leader = calls[0].leader
        self.shard = calls[0].shard

    def whom_to_ask(self) -> list[str]:
        """Who leads; nobody if it is known already that another one does."""
        called = {call.address for call in self._calls}
        if self._leader.named not in (None, *called):
            return []
        return [candidate for candidate in self._leader.candidates() if candidate not in called]

    def heard(self, leader: tuple[str, int], now_s: float) -> None:
        """Address and epoch, as somebody else named them."""
        if self._leader.name(*leader, now_s):
            for call in self._calls:
                if call.address == leader[0]:
                    call.limit_s = max(call.limit_s, now_s + _CONFIRMED_S)

    def settle(self, now_s: float) -> list["SilentCalls"]:
        """Gives up those whose server does not lead. Returns those whose time is over, by server."""
        overdue: dict[str, list[InFlightCall]] = {}
        for call in self._calls:
            call.poll_at_s = now_s + call.quiet_s
            if call.is_elsewhere:
                call.give_up()
            elif now_s >= call.limit_s:
                overdue.setdefault(call.address, []).append(call)
        return [SilentCalls(calls) for calls in overdue.values()]

    @property
    def address(self) -> str:
        """Of those whose time is over: where they are."""
        return self._calls[0].address

    def wait_on(self, now_s: float) -> None:
        """Their server looks for the leader, and sends them there."""
        for call in self._calls:
            call.limit_s = now_s + _CONFIRMED_S

    def leave(self, now_s: float) -> None:
        self._leader.left(self.address, now_s, suspect=True)
        for call in self._calls:
            call.limit_s = float("inf")
            call.give_up()
