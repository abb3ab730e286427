"""When the replicas of a node have something to do next, if nothing comes before that. Pure.

A deadline moves with every round of its replica, nearly always away, so the earliest is looked for only once it has
come: what a round costs does not grow with the number of replicas that have no part in it.
"""

import math


class Deadlines:
    """By the number of a shard."""

    def __init__(self) -> None:
        self._at_s: dict[int, float] = {}
        self.earliest_s = math.inf  # none is before it, and none need be at it

    def put(self, number: int, at_s: float) -> None:
        self._at_s[number] = at_s
        self.earliest_s = min(self.earliest_s, at_s)

    def drop(self, number: int) -> None:
        self._at_s.pop(number, None)

    def look(self) -> float:
        """The earliest."""
        self.earliest_s = min(self._at_s.values(), default=math.inf)
        return self.earliest_s

    def take_due(self, now_s: float) -> list[int]:
        """Those whose time has come. Each has none until it is put again."""
        if now_s < self.earliest_s:
            return []
        due = [number for number, at_s in self._at_s.items() if at_s <= now_s]
        for number in due:
            del self._at_s[number]
        self.look()
        return due
