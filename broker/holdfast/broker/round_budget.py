"""How much one round of a node takes, of all its shards together. Pure.

A round that takes everything that waits grows with the number of busy shards, and with it the time until the next
heartbeat. So each round has one budget for the node. Shards take their part of it one after the other; who goes first
is up to the caller, who lets those go first that were served longest ago.
"""

from dataclasses import dataclass
from functools import cache

ENTRIES_MAX = 1024  # of callers
BYTES_MAX = 4 * 1024 * 1024  # of callers; the last entry may be larger than what is left
SEND_BYTES_MAX = 16 * 1024 * 1024  # to other replicas: with those who catch up it is more than what is new
SHARD_ENTRIES_MAX = 256
SHARD_ENTRIES_MIN = 16  # of the share of one of many, as for bytes
SHARD_BYTES_MAX = 2 * 1024 * 1024
SHARD_BYTES_MIN = 128 * 1024  # of the share of one of many: less would make rounds, not waits, shorter
SHARD_SEND_BYTES_MAX = 4 * 1024 * 1024
HOUSEKEEPING_MAX = 16  # entries, but one of each shard at least
SHARD_HOUSEKEEPING_MAX = 4  # a sweep has one at a time, but schedules have many small ones


@dataclass(slots=True)
class RoundBudget:
    """What is left of it."""

    busy: int = 1  # shards with something to propose
    entries: int = ENTRIES_MAX
    size_bytes: int = BYTES_MAX
    send_bytes: int = SEND_BYTES_MAX

    def share(self) -> "ShardBudget":
        """What one shard may take now."""
        entries_each, bytes_each = _each_of(self.busy)
        return ShardBudget(self, min(entries_each, self.entries), min(bytes_each, self.size_bytes))

    @property
    def housekeeping_each(self) -> int:
        return max(1, min(SHARD_HOUSEKEEPING_MAX, HOUSEKEEPING_MAX // max(1, self.busy)))

    @property
    def send_bytes_each(self) -> int:
        return max(0, min(SHARD_SEND_BYTES_MAX, self.send_bytes))


@dataclass(slots=True)
class ShardBudget:
    """The part of one shard."""

    budget: RoundBudget
    entries: int
    size_bytes: int

    @property
    def has_room(self) -> bool:
        return self.entries > 0 and self.size_bytes > 0

    def take(self, size_bytes: int) -> None:
        self.entries -= 1
        self.size_bytes -= size_bytes
        self.budget.entries -= 1
        self.budget.size_bytes -= size_bytes


@cache
def _each_of(busy: int) -> tuple[int, int]:
    """How many entries, and bytes of them, one of so many busy shards may take."""
    busy = max(1, busy)
    entries = min(SHARD_ENTRIES_MAX, max(SHARD_ENTRIES_MIN, ENTRIES_MAX // busy))
    return entries, min(SHARD_BYTES_MAX, max(SHARD_BYTES_MIN, BYTES_MAX // busy))
