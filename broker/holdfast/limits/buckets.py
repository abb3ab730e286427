"""Token buckets in whole numbers, so that a level that was stored and loaded elsewhere continues exactly.

A rate is given in thousandths of a token per second, a level in millionths of a token. So a bucket gains exactly
`per_second_milli` millionths in each millisecond: nothing is ever rounded, and no matter how often a level is stored,
loaded or looked at, the result is the same.

**The bound**: in any window from s to t a bucket gives at most its burst at s plus its rate over t - s; where the rate
or the burst changed in the window, the largest burst plus the sum over the parts. It holds for tokens that were not
given back, over any store and load in between, and for any times: a time before the level's own counts as that one.

**The use**: nothing is lost to who takes the tokens as they come, if the burst is at least one token and what comes in
while he is late, where a millisecond is the least. So a burst of 1 is too small for a rate above 50 in a second.
"""

from typing import NamedTuple

TOKEN_MICRO = 1_000_000
NEVER_MS = (1 << 48) - 1  # the last time that a row can hold: what is due then is not due in this world


class Rate(NamedTuple):
    per_second_milli: int  # thousandths of a token per second: 500 is one token in two seconds
    burst: int  # whole tokens that a bucket holds when it is full; 0: it never gives any


class Level(NamedTuple):
    """What a bucket holds, and when: all there is to store of it. A bucket that is full needs no row at all."""

    level_micro: int
    at_ms: int


def part_of(rate: Rate, amount_milli: int) -> Rate:
    """The rate of a shard that was granted `amount_milli` of a queue's rate, with its part of the burst.

    That part is rounded up, for a bucket that cannot hold one token gives none: the bursts of all shards together are
    less than the burst of the queue plus one token for each shard.
    """
    if rate.per_second_milli <= 0 or amount_milli <= 0:
        return Rate(0, 0)
    amount_milli = min(amount_milli, rate.per_second_milli)
    return Rate(amount_milli, -(-rate.burst * amount_milli // rate.per_second_milli))


class Bucket:
    """One token bucket. `level` None stands for a full one."""

    __slots__ = ("_at_ms", "_changed_ms", "_level_micro", "rate")

    def __init__(self, rate: Rate, level: Level | None = None) -> None:
        self.rate = rate
        full_micro = rate.burst * TOKEN_MICRO
        self._level_micro = full_micro if level is None else max(0, min(level.level_micro, full_micro))
        self._at_ms = 0 if level is None else level.at_ms
        self._changed_ms = -1

    def available(self, now_ms: int) -> int:
        """How many whole tokens there are."""
        return self._micro(now_ms) // TOKEN_MICRO

    def take(self, count: int, now_ms: int) -> bool:
        """Takes all of `count` tokens, or none and says False."""
        level_micro = self._micro(now_ms) - count * TOKEN_MICRO
        if level_micro < 0:
            return False
        self._level_micro = level_micro
        self._at_ms = max(now_ms, self._at_ms)
        return True

    def give_back(self, count: int, taken_ms: int, now_ms: int) -> None:
        """`count` tokens taken at `taken_ms` were not used after all. Only what this very bucket gave can come back.

        Had they not been taken, the bucket might have been full since and have gained nothing. So what it has gained
        meanwhile stays off: less may come back than could, never more, and the bound holds whatever comes back late.
        """
        self._advance(now_ms)
        if taken_ms <= self._changed_ms:
            return  # what was gained under the former rate is not known any more
        gained_micro = self.rate.per_second_milli * max(0, self._at_ms - taken_ms)
        returned_micro = max(0, count * TOKEN_MICRO - gained_micro)
        self._level_micro = min(self.rate.burst * TOKEN_MICRO, self._level_micro + returned_micro)

    def ready_at_ms(self, now_ms: int, count: int = 1) -> int:
        """When there will be `count` tokens: now, or the first millisecond at which they are there; or NEVER_MS."""
        return self._reaches_ms(count * TOKEN_MICRO, max(now_ms, self._at_ms))

    def full_at_ms(self) -> int:
        """From when on the bucket is full if nobody takes any: then its row can go."""
        return self._reaches_ms(self.rate.burst * TOKEN_MICRO, self._at_ms)

    def level(self, now_ms: int) -> Level:
        """For storing. A bucket made of it goes on exactly as this one."""
        return Level(self._micro(now_ms), max(now_ms, self._at_ms))

    def change_rate(self, rate: Rate, now_ms: int) -> None:
        """From now on another rate. The tokens stay, as far as the new burst holds them; a change never makes any,
        so a rate that goes to and fro, as one that is allocated to shards does, gives no more than one that stays.
        """
        if rate == self.rate:
            self.rate = rate  # the same object: who compares those need not ask again
            return
        self._advance(now_ms)
        self.rate = rate
        self._level_micro = min(self._level_micro, rate.burst * TOKEN_MICRO)
        self._changed_ms = self._at_ms

    def _micro(self, now_ms: int) -> int:
        elapsed_ms = now_ms - self._at_ms
        if elapsed_ms <= 0:
            return self._level_micro
        return min(self.rate.burst * TOKEN_MICRO, self._level_micro + elapsed_ms * self.rate.per_second_milli)

    def _advance(self, now_ms: int) -> None:
        self._level_micro = self._micro(now_ms)
        self._at_ms = max(now_ms, self._at_ms)

    def _reaches_ms(self, wanted_micro: int, from_ms: int) -> int:
        """The first time from `from_ms` on with that level."""
        missing_micro = wanted_micro - self._level_micro
        if missing_micro <= 0:
            return from_ms
        if wanted_micro > self.rate.burst * TOKEN_MICRO or self.rate.per_second_milli <= 0:
            return NEVER_MS
        return min(NEVER_MS, max(from_ms, self._at_ms - (-missing_micro // self.rate.per_second_milli)))
