"""How much may be under way at once. What is beyond gets a typed refusal, so that callers back off. Pure.

Calls that wait have a budget of their own: workers without work must not keep others from reporting what they did.
"""

from holdfast.serving.refusals import overloaded


class Budget:
    """Of calls of one kind, and of the bytes of their requests if these are bounded here."""

    def __init__(self, what: str, calls_max: int, bytes_max: int | None = None) -> None:
        self._what = what
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self.calls = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.calls >= self._calls_max

    def check(self) -> None:
        """Refuses if no call can be taken now."""
        if self.is_full:
            raise overloaded(self._what, self._calls_max)

    def enter(self, size: int) -> None:
        """A call of so many bytes has come in: `leave` must follow, unless this refuses it."""
        if self.calls >= self._calls_max:
            self.check()
        if self._bytes_max is not None and self.bytes + size > self._bytes_max and self.calls:
            raise overloaded(f"bytes of {self._what}", self._bytes_max)
        self.calls += 1
        self.bytes += size

    def enter_again(self, size: int) -> None:
        """One that was in before, and may have been carried out: to refuse it now would say too much."""
        self.calls += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        self.calls -= 1
        self.bytes -= size


class Admission:
    """Counts calls: those that wait, all others, and of these also by shard."""

    def __init__(
        self, *, calls_max: int, calls_per_shard_max: int, waits_max: int = 20_000, wait_bytes_max: int = 64 << 20
    ) -> None:
        self.working = Budget("calls under way", calls_max)
        self.waiting = Budget("calls that wait", waits_max, wait_bytes_max)
        self._calls_per_shard_max = calls_per_shard_max
        self._by_shard: dict[int, int] = {}

    @property
    def calls(self) -> int:
        """Of both kinds."""
        return self.working.calls + self.waiting.calls

    def check(self, *, may_wait: bool) -> None:
        """Refuses a call that cannot be taken now, whatever is in it. `may_wait`: its request says whether it does."""
        if not may_wait or self.waiting.is_full:
            self.working.check()

    def enter_shard(self, shard: int) -> None:
        """One goes to this shard and does not wait there: `leave_shard` must follow, unless this refuses it."""
        calls = self._by_shard.get(shard, 0)
        if calls >= self._calls_per_shard_max:
            raise overloaded(f"calls to shard {shard} under way", self._calls_per_shard_max)
        self._by_shard[shard] = calls + 1

    def enter_shard_again(self, shard: int) -> None:
        """As `Budget.enter_again`."""
        self._by_shard[shard] = self._by_shard.get(shard, 0) + 1

    def leave_shard(self, shard: int) -> None:
        left = self._by_shard[shard] - 1
        if left:
            self._by_shard[shard] = left
        else:
            del self._by_shard[shard]
