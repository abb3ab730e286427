"""Which broker a call goes to: who leads each shard, as far as this router knows, and the way of one call that fails.

No channel and no clock in here. What is known comes from four sources:
  * the map has a hint of who leads, and in which epoch
  * a broker that does not lead refuses with NOT_LEADER, and names the leader and its epoch if it knows them
  * other replicas are asked when a leader is silent (`silence`)
  * a broker that carries out a call leads, until something says otherwise

Somebody who names a leader is believed unless its epoch is older than the newest in which a leader was named, or the
leader it names has just failed: it may not have noticed yet.
"""

import random
from collections.abc import Callable, Collection
from typing import Protocol

from holdfast.router.failures import ELSEWHERE, CallFailedError
from holdfast.routing.sets import QueueRoute

HOPS_MAX = 4  # redirects that one call follows before it looks for the leader by itself
SUSPECT_S = 1.0  # as long as it may take the others to notice that a leader has gone
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


class _Known:
    """What is known of the leader of one shard."""

    __slots__ = ("address", "epoch", "hint", "suspects")

    def __init__(self) -> None:
        self.address: str | None = None
        self.epoch = 0  # the newest in which a leader was named
        self.hint: tuple[str, int] | None = None  # the last one of the map that was looked at
        self.suspects: dict[str, tuple[float, int]] = {}  # who has failed: suspected until when, and in which epoch


class Leaders:
    """The leaders of all shards."""

    def __init__(self, find_map: Callable[[], Map]) -> None:
        self._find_map = find_map
        self._known: dict[int, _Known] = {}

    def _of(self, shard: int) -> _Known:
        known = self._known.get(shard)
        if known is None:
            known = self._known[shard] = _Known()
        return known

    def named(self, shard: int) -> str | None:
        """The leader, unless that would be a guess."""
        return self._of(shard).address

    def pick(self, shard: int, now_s: float, avoid: Collection[str] = ()) -> str | None:
        """Where a call goes: to the leader if it is known, or else to the next replica; None if there is none left."""
        known = self._of(shard)
        self.look_at_map(shard, now_s)
        if known.address is not None and known.address not in avoid:
            return known.address
        left = [each for each in self.candidates(shard) if each not in avoid]
        suspects = {each for each, (until_s, _) in known.suspects.items() if now_s < until_s}
        return next((each for each in left if each not in suspects), left[0] if left else None)

    def look_at_map(self, shard: int, now_s: float) -> None:
        """Its hint counts once, when it is new."""
        known = self._of(shard)
        hint = self._find_map().leader_hint(shard)
        if hint is not None and hint != known.hint:
            known.hint = hint
            self.name(shard, *hint, now_s)

    def candidates(self, shard: int) -> list[str]:
        """Everybody who may know of this shard; the hint first."""
        table = self._find_map()
        hint = table.leader_hint(shard)
        named = self._of(shard).address
        first = [address for address in (named, hint[0] if hint else None) if address]
        return list(dict.fromkeys((*first, *table.replica_addresses(shard))))

    def name(self, shard: int, address: str, epoch: int, now_s: float) -> bool:
        """Somebody says who leads. Whether that is believed: then calls go there from now on."""
        known = self._of(shard)
        suspected_until_s, suspected_epoch = known.suspects.get(address, (0.0, -1))
        if epoch < known.epoch or (now_s < suspected_until_s and epoch <= suspected_epoch):
            return False
        known.suspects.pop(address, None)
        known.epoch = epoch
        known.address = address
        return True

    def answered(self, shard: int, address: str) -> None:
        """A call was carried out there."""
        known = self._of(shard)
        known.suspects.pop(address, None)
        if known.address is None:
            known.address = address

    def left(self, shard: int, address: str, now_s: float, *, suspect: bool) -> None:
        """It does not lead, or does not answer. A suspect's name counts only in a newer epoch."""
        known = self._of(shard)
        if suspect:
            known.suspects[address] = (now_s + SUSPECT_S, known.epoch)
            known.suspects = {each: since for each, since in known.suspects.items() if since[0] > now_s}
        if known.address == address:
            known.address = None

    def forget_epoch(self, shard: int) -> None:
        """Nobody who was asked leads. Then an older epoch is better than none: the shard may have been made anew."""
        self._of(shard).epoch = 0


class Course:
    """The way of one call whose first attempt failed."""

    def __init__(self, leaders: Leaders, shard: int, address: str | None) -> None:
        self._leaders = leaders
        self._shard = shard
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
            self._leaders.left(self._shard, self.address, now_s, suspect=failure.never_sent or failure.is_lost)
            self._avoid.add(self.address)
        following = self._leaders.pick(self._shard, now_s, self._avoid)
        if following is None:
            self._avoid.clear()
            self._hops = 0
            self._moves = 1  # everybody was asked: some time must pass
            self._leaders.forget_epoch(self._shard)
            following = self._leaders.pick(self._shard, now_s)
        self.address = following
        return self._pause_s()

    def _follows(self, leader: str, epoch: int, now_s: float) -> bool:
        if leader == self.address or self._hops >= HOPS_MAX:
            return False
        if not self._leaders.name(self._shard, leader, epoch, now_s):
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
