"""When it is time to say that a shard is stuck: it has no leader, or its writes go nowhere although it has one, because
the others do not write what it sends them. Pure.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

FIRST_SECONDS: Final = 10.0  # without a leader: an election takes a second or two
AGAIN_SECONDS: Final = 60.0
STALL_SECONDS: Final = 3.0  # before anybody has waited for five


class Leaderless:
    """Shards of which this node knows no leader: since when, and when that is to be said."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._due_s: dict[int, float] = {}

    def poll(self, shards: Collection[int], now_s: float) -> list[tuple[int, float]]:
        """`shards` have no leader now. Those that are to be told of now, each with for how long in seconds."""
        for shard in [number for number in self._since_s if number not in shards]:
            del self._since_s[shard], self._due_s[shard]
        reported: list[tuple[int, float]] = []
        for shard in shards:
            since_s = self._since_s.setdefault(shard, now_s)
            if now_s >= self._due_s.setdefault(shard, now_s + FIRST_SECONDS):
                self._due_s[shard] = now_s + AGAIN_SECONDS
                reported.append((shard, now_s - since_s))
        return reported


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
