"""One Reserve or AwaitTasks over the shards of its queues: what each has said, and which are left alone for now."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from holdfast.router.failures import Failure
from holdfast.router.shared_waits import AWAY_S, BEATEN_S_FIRST, BEATEN_S_MAX, WAITED_S

# Shards, and which of the request's queues each of them may have tasks of.
Places = Mapping[int, Sequence[int]]


class Round:
    """One call at several shards: how long it waits, what each shard has said, and which are left alone for now."""

    def __init__(self, places: Places, ends_s: float, deadline_s: float = float("inf")) -> None:
        self.places = places
        self.ends_s = ends_s
        self.deadline_s = deadline_s
        self.unheard = set(places)  # shards that have not said anything yet, nor failed
        self.answered_s: float | None = None  # when the last one did
        self.held: set[int] = set()  # shards that have said that they hold claims of this request
        # By shard: why it may have claims of this request that nobody has been given.
        self.doubts: dict[int, Failure] = {}
        self.is_in_doubt = False  # there are doubts, and the shards were not asked who holds claims since
        self.has_asked_holders = False  # because of doubts, at least once
        self.has_looked_again = False  # for claims of an earlier attempt, while it waited
        self._failures: dict[int, Failure] = {}  # of those whose last word was no answer
        self._away: dict[int, float] = {}  # until when
        self._beaten = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def plan(self, places: Places) -> None:
        """The queues are elsewhere by now."""
        if places == self.places:
            return
        self.unheard = {shard for shard in places if shard in self.unheard or shard not in self.places}
        self.places = places

    def answered(self, shard: int, *, settles: bool = True) -> None:
        """`settles`: it holds no claims of this request that it has not given."""
        self.unheard.discard(shard)
        self._failures.pop(shard, None)
        self.answered_s = time.monotonic()
        if settles:
            self.held.discard(shard)
            self.doubts.pop(shard, None)

    def has_answered(self, shard: int) -> bool:
        return shard not in self.unheard and shard not in self._failures

    def failure_of(self, shard: int) -> Failure | None:
        """If that was its last word."""
        return self._failures.get(shard)

    def leave_alone(self, shard: int, failure: Failure) -> None:
        self.unheard.discard(shard)
        self._failures[shard] = failure
        self._away[shard] = time.monotonic() + max(AWAY_S, failure.retry_after_ms / 1000)

    def doubt(self, shard: int, failure: Failure) -> None:
        """It may have claimed, and is asked about it before anything is claimed elsewhere."""
        self.unheard.discard(shard)
        self._failures[shard] = failure
        self.doubts[shard] = failure
        self.is_in_doubt = True

    def asks_holders(self) -> None:
        self.has_asked_holders = self.has_asked_holders or self.is_in_doubt
        self.is_in_doubt = False

    def now(self) -> tuple[list[int], float]:
        """Which shards may be asked, and until when: then the wait is over, or another one may."""
        now_s = time.monotonic()
        back_s = [until_s for shard, until_s in self._away.items() if until_s > now_s and shard in self.places]
        shards = [shard for shard in self.places if self._away.get(shard, 0.0) <= now_s]
        return shards, min([self.ends_s, *back_s])

    def raise_doubt(self) -> None:
        """That there is nothing would not be true."""
        for failure in self.doubts.values():
            raise failure

    def raise_if_nobody_answers(self) -> None:
        failures = [failure for shard, failure in self._failures.items() if shard in self.places]
        if failures and len(failures) == len(self.places):
            raise failures[0]

    async def pause(self, looked_from_s: float) -> None:
        """Between two looks of which the first was, or may have been, in vain."""
        now_s = time.monotonic()
        if now_s - looked_from_s > WAITED_S:
            self._beaten = 0
        pause_s = BEATEN_S_FIRST * (1 << min(self._beaten, 10)) * bool(self._beaten)
        self._beaten += 1
        await asyncio.sleep(max(0.0, min(pause_s, BEATEN_S_MAX, self.ends_s - now_s)))
