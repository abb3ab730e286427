"""The retry state of one call: at which server it is, and where it goes when that fails. What failed in which way, and
so whether there is another attempt, is up to routers and clients.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from holdfast.common.backoff import Backoff
from holdfast.routing.leaders import KnownLeader

HOPS_MAX = 4  # redirects that one call follows before it looks for the leader by itself
# Short, because the question is cheap: it goes to all servers in turn until one of them leads.
BACKOFF = Backoff(first_s=0.05, max_s=0.2)

LeaderT = TypeVar("LeaderT", bound=KnownLeader)


def named_leader(metadata: Mapping[str, str]) -> tuple[str, int] | None:
    """Whom a server that does not lead names, and in which epoch."""
    address, epoch = metadata.get("leader", ""), metadata.get("epoch", "")
    return (address, int(epoch)) if address and epoch.isdecimal() else None


class RetryState(Generic[LeaderT]):
    """Follows redirects, and otherwise goes round all servers, again and again."""

    def __init__(self, leader: LeaderT, address: str, draw: Callable[[], float], *, starts_over: bool = True) -> None:
        """`address`: where it is. `starts_over`: when all servers were asked; otherwise each is asked once."""
        self._leader = leader
        self.address = address  # empty: no server has one
        self._draw = draw
        self._starts_over = starts_over
        self._avoid: set[str] = set()  # where it was in this round of all servers
        self._hops = 0  # redirects followed in this round
        self._has_moved = False  # without a pause, since the last one
        self._pauses = 0

    def follows(self, named: tuple[str, int] | None, now_s: float) -> bool:
        """Whether the next attempt is at the leader that was named."""
        if named is None or named[0] == self.address or self._hops >= HOPS_MAX:
            return False
        if not self._leader.name(*named, now_s):
            return False
        self._hops += 1
        self._avoid.add(self.address)
        self._avoid.discard(named[0])
        self.address = named[0]
        return True

    def leave(self, now_s: float, *, suspect: bool) -> None:
        if self.address:
            self._leader.left(self.address, now_s, suspect=suspect)
            self._avoid.add(self.address)

    def moves_on(self, now_s: float) -> bool:
        """Whether there is a server for the next attempt."""
        following = self._leader.pick(now_s, self._avoid)
        if following is None:
            if not self._starts_over:
                return False
            self._avoid.clear()
            self._hops = 0
            self._has_moved = True  # everybody was asked: some time must pass
            self._leader.forget_epoch()
            following = self._leader.pick(now_s)
        self.address = following or ""
        return True

    def pause_s(self) -> float:
        """Nothing before the first move, then growing."""
        if self._has_moved:
            return self.back_off_s()
        self._has_moved = True
        return 0.0

    def back_off_s(self) -> float:
        self._pauses += 1
        self._has_moved = False
        return BACKOFF.pause_s(self._pauses, self._draw)
