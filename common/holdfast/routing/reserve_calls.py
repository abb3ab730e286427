"""One Reserve or AwaitTasks over the shards of its queues: what each has said, and which are left alone for now. Pure:
times are on one clock, which is handed in. Failures are the errors of routers or clients, which say what they mean.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.common.backoff import Backoff

# A shard that refused is left alone for as long, or longer if it asked for that.
AWAY_S = 0.5
# There was something, and nobody could have it: somebody else was faster, or the queue is at a limit. It may happen
# again and again, so the next look is a little later, and ever later; after one that took its time it begins anew: that
# was a new task.
BEATEN = Backoff(first_s=0.004, max_s=0.5)
WAITED_S = 0.1

# Shards, and which of the request's queues each of them may have tasks of.
Places = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class FailureMeaning:
    """What a failure means for a call that other shards may serve as well."""

    is_final: bool = False  # the call is refused: no other shard would say anything else
    may_have_claimed: bool = False
    is_silent: bool = False  # nobody said anything
    is_cut_off: bool = False  # it might have been answered later
    goes_back: bool = False  # what it may have claimed is given back
    is_of_shard: bool = True  # nobody leads it, or it does not answer; otherwise this is for the caller, or for now
    retry_after_ms: int = 0


class ReserveCall:
    """How long the call waits, what each shard has said, and which are left alone for now."""

    def __init__(
        self, places: Places, ends_s: float, deadline_s: float = float("inf"), *, is_repeated: bool = False,
        has_id: bool = False, settles_later: bool = False,
    ) -> None:  # fmt: skip
        """`ends_s`: of its wait. `is_repeated`: an earlier attempt may have claimed. `has_id`: claims that nobody has
        heard of can be asked for; `settles_later`: the caller does that itself."""
        self.places = places
        self.ends_s = ends_s
        self.deadline_s = deadline_s
        self.is_repeated = is_repeated and has_id
        self.has_id = has_id
        self._settles_later = settles_later and has_id
        self.unheard = set(places)  # shards that have not said anything yet, nor failed
        self.answered_s: float | None = None  # when the last one did
        self.is_notified = False  # shards are tried because they have said that they have something
        self.held: set[int] = set()  # shards that have said that they hold claims of this request
        # By shard: why it may have claims of this request that nobody has been given.
        self.unknown_outcomes: dict[int, Exception] = {}
        # Shards that have not said since this call began whether they hold claims of an earlier attempt.
        self._unasked = set(places) if self.is_repeated else set()
        self.must_ask_holders = False  # there are unknown outcomes, and the shards were not asked since
        self.has_asked_holders = False  # because of unknown outcomes, at least once
        self._failures: dict[int, Exception] = {}  # of those whose last word was no answer
        self._away: dict[int, float] = {}  # until when
        self._beaten = 0

    @property
    def is_hasty(self) -> bool:
        """Its caller comes back for what is claimed meanwhile, and there are other shards that it can have tasks of."""
        return self._settles_later and len(self.places) > 1

    @property
    def unsettled_shards(self) -> list[int]:
        """Those that may have claims of this request that nobody has been given."""
        return sorted(self._unasked.union(self.unknown_outcomes, self.held))

    def is_over(self, now_s: float) -> bool:
        return now_s >= self.ends_s

    def plan(self, places: Places) -> None:
        """The queues are elsewhere by now."""
        if places == self.places:
            return
        new = {shard for shard in places if shard not in self.places}
        self.unheard = new.union(shard for shard in places if shard in self.unheard)
        if self.is_repeated:
            self._unasked |= new
        self.places = places

    def answered(self, shard: int, now_s: float, *, settles: bool = True) -> None:
        """`settles`: it holds no claims of this request that it has not given."""
        self.unheard.discard(shard)
        self._failures.pop(shard, None)
        self.answered_s = now_s
        if settles:
            self.held.discard(shard)
            self.unknown_outcomes.pop(shard, None)
            self._unasked.discard(shard)

    def has_answered(self, shard: int) -> bool:
        return shard not in self.unheard and shard not in self._failures

    def failure_of(self, shard: int) -> Exception | None:
        """If that was its last word."""
        return self._failures.get(shard)

    def leave_alone(self, shard: int, failure: Exception, now_s: float, retry_after_ms: int) -> None:
        self.unheard.discard(shard)
        self._failures[shard] = failure
        self._away[shard] = now_s + max(AWAY_S, retry_after_ms / 1000)

    def note_unknown_outcome(self, shard: int, failure: Exception) -> None:
        """It may have claimed, and is asked about it before anything is claimed elsewhere."""
        self.unheard.discard(shard)
        self._failures[shard] = failure
        self.unknown_outcomes[shard] = failure
        self.must_ask_holders = True

    def asks_holders(self) -> None:
        self.has_asked_holders = self.has_asked_holders or self.must_ask_holders
        self.must_ask_holders = False

    def to_be_asked(self, now_s: float) -> list[int]:
        """The shards that are not left alone."""
        return [shard for shard in self.places if self._away.get(shard, 0.0) <= now_s]

    def raise_if_unsettled(self) -> None:
        """That there is nothing would not be true."""
        for shard in self.unsettled_shards:
            failure = self.unknown_outcomes.get(shard) or self._failures.get(shard)
            if failure is not None:
                raise failure

    def raise_if_nobody_answers(self) -> None:
        failures = [failure for shard, failure in self._failures.items() if shard in self.places]
        if failures and len(failures) == len(self.places):
            raise failures[0]

    def pause_s(self, polled_s: float, now_s: float) -> float:
        """Before another look, after one that took so long and was, or may have been, in vain."""
        if polled_s > WAITED_S:
            self._beaten = 0
        pause_s = BEATEN.longest_s(self._beaten)
        self._beaten += 1
        return max(0.0, min(pause_s, self.ends_s - now_s))


def shards_in_turn(places: Places, key: str) -> list[int]:
    """All these shards, in an order that is the same for the same `key`.

    The shards of the first queue come first, and each of them is as likely as the others to be the very first. While
    there is much to do, the first one answers with whatever it has: the tasks of a shard that is hardly ever the first
    for its queue would be left until all the others have none of any queue.
    """
    start = zlib.crc32(key.encode())
    by_queue: dict[int, list[int]] = {}
    for shard in sorted(places):
        by_queue.setdefault(min(places[shard]), []).append(shard)
    order: list[int] = []
    for _, shards in sorted(by_queue.items()):
        first = start % len(shards)
        order += shards[first:] + shards[:first]
    return order
