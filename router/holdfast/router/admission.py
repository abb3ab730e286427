"""How much may be under way at once. What is beyond gets a typed refusal, so that callers back off. Pure."""

from collections import Counter

from holdfast.serving.refusals import overloaded


class Admission:
    """Counts calls, all and by shard."""

    def __init__(self, *, calls_max: int, calls_per_shard_max: int) -> None:
        self._calls_max = calls_max
        self._calls_per_shard_max = calls_per_shard_max
        self.calls = 0
        self._by_shard: Counter[int] = Counter()

    def check(self) -> None:
        """Refuses if no call can be taken now."""
        if self.calls >= self._calls_max:
            raise overloaded("calls under way", self._calls_max)

    def enter(self) -> None:
        """A call has come in: `leave` must follow, unless this refuses it."""
        self.check()
        self.calls += 1

    def leave(self) -> None:
        self.calls -= 1

    def enter_shard(self, shard: int) -> None:
        """One goes to this shard and does not wait there: `leave_shard` must follow, unless this refuses it."""
        if self._by_shard[shard] >= self._calls_per_shard_max:
            raise overloaded(f"calls to shard {shard} under way", self._calls_per_shard_max)
        self._by_shard[shard] += 1

    def leave_shard(self, shard: int) -> None:
        left = self._by_shard[shard] - 1
        if left:
            self._by_shard[shard] = left
        else:
            del self._by_shard[shard]
