"""Shards whose writes go nowhere although they have a leader: the others do not write what it sends them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

STALL_SECONDS: Final = 3.0  # before anybody has waited for five


class Written(NamedTuple):
    """How far the log of a shard has come at its leader."""

    committed: int
    last: int


class Stalls:
    """Of the shards that this node leads: since when nothing more was committed, although there is something to be."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}  # by shard: what was committed, and since when no more

    def poll(self, led: Mapping[int, Written], now_s: float) -> None:
        waiting = {shard: written for shard, written in led.items() if written.last > written.committed}
        before, self._seen = self._seen, {}
        for shard, written in waiting.items():
            committed, since_s = before.get(shard, (written.committed, now_s))
            self._seen[shard] = (written.committed, since_s if committed == written.committed else now_s)

    def stalled(self, now_s: float) -> list[int]:
        return sorted(shard for shard, (_, since_s) in self._seen.items() if now_s - since_s >= STALL_SECONDS)
