"""For how long the tasks of an app are claimed: each for the lease that its own declaration says. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

# That one call may name besides the lease of all others.
_TYPES_MAX = 100


class HasLease(Protocol):
    @property
    def lease_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Leases:
    """What a claim asks for."""

    others_ms: int  # of tasks whose type is not named
    by_type: Mapping[str, int]

    @property
    def longest_ms(self) -> int:
        return max((self.others_ms, *self.by_type.values()))

    def of(self, name: str) -> int:
        return self.by_type.get(name, self.others_ms)


def leases_of(tasks: Mapping[str, HasLease]) -> Leases:
    """Named are the types whose lease is not that of most. If these are too many, those with the longest leases are
    named, and the others are claimed for the shortest of all: heartbeats give them the rest."""
    leases = {name: task.lease_ms for name, task in tasks.items()}
    counts = Counter(leases.values())
    others_ms = min(counts, key=lambda lease_ms: (-counts[lease_ms], lease_ms))
    if len(leases) - counts[others_ms] > _TYPES_MAX:
        others_ms = min(counts)
    named = sorted((name for name in leases if leases[name] != others_ms), key=lambda name: (-leases[name], name))
    return Leases(others_ms, {name: leases[name] for name in named[:_TYPES_MAX]})
