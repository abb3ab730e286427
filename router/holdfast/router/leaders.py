"""Which broker a call goes to: who leads each shard, as far as this router knows, and the retry state of one call.

No channel and no clock in here. Who is believed about who leads is in `routing.leaders`, where a call goes next in
`routing.retries`.
"""

import random
from collections.abc import Callable, Collection
from typing import Protocol

from holdfast.router.failures import ELSEWHERE
from holdfast.routing.leaders import KnownLeader
from holdfast.routing.retries import RetryState
from holdfast.routing.sets import QueueRoute
from holdfast.transport.channels import CallFailedError


class Map(Protocol):
    """What a router needs of the partition map, as it is now."""

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

    def __init__(self, shard: int, table: Map) -> None:
        super().__init__()
        self._shard = shard
        self._table = table
        self._hint: tuple[str, int] | None = None  # the last one of the map that was looked at

    def candidates(self) -> list[str]:
        """Everybody who may know of this shard; the hint first."""
        hint = self._table.leader_hint(self._shard)
        first = [address for address in (self.named, hint[0] if hint else None) if address]
        return list(dict.fromkeys((*first, *self._table.replica_addresses(self._shard))))

    def pick(self, now_s: float, avoid: Collection[str] = ()) -> str | None:
        """Where a call goes: to the leader if it is known, or else to the next replica; None if there is none left."""
        self.poll_map(now_s)
        if self.named is not None and self.named not in avoid:
            return self.named
        left = [candidate for candidate in self.candidates() if candidate not in avoid]
        suspects = {address for address, (until_s, _) in self._suspects.items() if now_s < until_s}
        return next((address for address in left if address not in suspects), left[0] if left else None)

    def poll_map(self, now_s: float) -> None:
        """Its hint counts once, when it is new."""
        hint = self._table.leader_hint(self._shard)
        if hint is not None and hint != self._hint:
            self._hint = hint
            self.name(*hint, now_s)


class Leaders:
    """The leaders of all shards."""

    def __init__(self, table: Map) -> None:
        self._table = table
        self._known: dict[int, MappedLeader] = {}

    def of(self, shard: int) -> MappedLeader:
        known = self._known.get(shard)
        if known is None:
            known = self._known[shard] = MappedLeader(shard, self._table)
        return known


class RouterRetryState(RetryState[MappedLeader]):
    """Of a call whose first attempt failed."""

    def __init__(self, leader: MappedLeader, address: str) -> None:
        super().__init__(leader, address, random.random)

    def after(self, failure: CallFailedError, may_repeat: Callable[[], bool], now_s: float) -> float | None:
        """How long to pause before the next attempt, at `address`; None if there is to be none."""
        if failure.is_unknown:
            if not may_repeat():
                return None
            if failure.reason not in ("", "OUTCOME_UNKNOWN"):
                return None  # a fault of the broker: it would meet it again
        elif not (failure.never_sent or failure.reason in ELSEWHERE):
            return None
        if not self.follows(failure.leader, now_s):
            self.leave(now_s, suspect=failure.never_sent or failure.is_lost)
            self.moves_on(now_s)
        return self.pause_s()
