"""When it is time to say that a shard has no leader. Pure."""

from collections.abc import Collection
from typing import Final

FIRST_SECONDS: Final = 10.0  # an election takes a second or two
AGAIN_SECONDS: Final = 60.0


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
