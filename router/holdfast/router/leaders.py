"""Which broker a call goes to: who leads each shard, as far as this router knows, and the way of one call that fails.

No channel and no clock in here. Who is believed about who leads is in `routing.leaders`.
"""

import random
from collections.abc import Callable, Collection
from typing import Protocol

from holdfast.router.failures import ELSEWHERE, CallFailedError
from holdfast.routing.leaders import KnownLeader
from holdfast.routing.sets import QueueRoute

HOPS_MAX = 4  # redirects that one call follows before it looks for the leader by itself
_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 0.2  # short, because the question is cheap


class Map(Protocol):
    """What a router needs of the partition map."""

    @property
    def shard_count(self) -> int:
        """0 if there is no cluster."""
        ...

    def route(self, queue: str) -> QueueRoute: ...

    def leader_hint(self, shard: int) -> tuple[str, int] | None:
        """Address and epoch of the leader, if it is known."""
        ...

    def replica_addresses(self, shard: int) -> list[str]:
        """Where its replicas are, were, or soon will be."""
        ...


class MappedLeader(KnownLeader):
    """What is known of the leader of one shard: the map says where its replicas are, and who may lead it."""

    def __init__(self, shard: int, find_map: Callable[[], Map]) -> None:
        super().__init__()
        self._shard = shard
        self._find_map = find_map
        self._hint: tuple[str, int] | None = None  # the last one of the map that was looked at

    def candidates(self) -> list[str]:
        """Everybody who may know of this shard; the hint first."""
        table = self._find_map()
        hint = table.leader_hint(self._shard)
        first = [address for address in (self.named, hint[0] if hint else None) if address]
        return list(dict.fromkeys((*first, *table.replica_addresses(self._shard))))

    def pick(self, now_s: float, avoid: Collection[str] = ()) -> str | None:
        """Where a call goes: to the leader if it is known, or else to the next replica; None if there is none left."""
        self.look_at_map(now_s)
        if self.named is not None and self.named not in avoid:
            return self.named
        left = [each for each in self.candidates() if each not in avoid]
        suspects = {each for each, (until_s, _) in self._suspects.items() if now_s < until_s}
        return next((each for each in left if each not in suspects), left[0] if left else None)

    def look_at_map(self, now_s: float) -> None:
        """Its hint counts once, when it is new."""
        hint = self._find_map().leader_hint(self._shard)
        if hint is not None and hint != self._hint:
            self._hint = hint
            self.name(*hint, now_s)


class Leaders:
    """The leaders of all shards."""

    def __init__(self, find_map: Callable[[], Map]) -> None:
        self._find_map = find_map
        self._known: dict[int, MappedLeader] = {}

    def of(self, shard: int) -> MappedLeader:
        known = self._known.get(shard)
        if known is None:
            known = self._known[shard] = MappedLeader(shard, self._find_map)
        return known


class Course:
    """The way of one call whose first attempt failed."""

    def __init__(self, leader: MappedLeader, address: str | None) -> None:
        self._leader = leader
        self.address = address  # None: no replica has an address
        self.is_unknown = False  # an attempt may have been carried out
        self._avoid: set[str] = set()  # where it was in this round of all replicas
        self._hops = 0  # redirects followed in this round
        self._moves = 0  # redirects and changes of the server since the last pause
        self._pauses = 0

    def after(self, failure: CallFailedError, may_repeat: Callable[[], bool], now_s: float) -> float | None:
        """How long to pause before the next attempt, at `address`; None if there is to be none."""
        if failure.is_unknown:
            self.is_unknown = True
            if not may_repeat():
                return None
            if failure.reason not in ("", "OUTCOME_UNKNOWN"):
                return None  # a fault of the broker: it would meet it again
        elif not (failure.never_sent or failure.reason in ELSEWHERE):
            return None
        named = failure.leader
        if named is not None and self._follows(*named, now_s):
            return self._pause_s()
        if self.address is not None:
            self._leader.left(self.address, now_s, suspect=failure.never_sent or failure.is_lost)
            self._avoid.add(self.address)
        following = self._leader.pick(now_s, self._avoid)
        if following is None:
            self._avoid.clear()
            self._hops = 0
            self._moves = 1  # everybody was asked: some time must pass
            self._leader.forget_epoch()
            following = self._leader.pick(now_s)
        self.address = following
        return self._pause_s()

    def _follows(self, leader: str, epoch: int, now_s: float) -> bool:
        if leader == self.address or self._hops >= HOPS_MAX:
            return False
        if not self._leader.name(leader, epoch, now_s):
            return False
        self._hops += 1
        if self.address is not None:
            self._avoid.add(self.address)
        self._avoid.discard(leader)
        self.address = leader
        return True

    def _pause_s(self) -> float:
        """None before the first move, then growing, with a spread for calls that failed together."""
        self._moves += 1
        if self._moves == 1:
            return 0.0
        self._pauses += 1
        self._moves = 0
        return min(_PAUSE_MAX_S, _PAUSE_FIRST_S * (1 << min(self._pauses - 1, 4))) * random.uniform(0.5, 1.0)
