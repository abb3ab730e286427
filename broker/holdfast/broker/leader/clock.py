"""Shard time: never goes back, and follows a wall clock only as far as that clock can be believed."""

import time
from typing import NamedTuple, Protocol

STEP_MS = 1000  # a clock that is off by more than this has jumped: such a distance is not made up for silently
# How much slower than real time shard time may run while it is ahead: what is late keeps every promise.
SLOW_PERCENT = 10
# How much faster while it is behind. No more than clocks drift: every lease, delay and rate is shorter by as much.
FAST_PPM = 500
STEP_PATIENCE_MS = 5000  # how long a majority must be that far ahead before a leader moves shard time to it
AGREEMENT_MS = 500  # the median counts as known if it is known to within this
SAME_MS = 1.0  # moments that are closer to each other have the same shard time, which is told in milliseconds
POLL_MS = 50  # how often the clocks of the group are looked at; in between they move with the monotonic clock


class TimeSource(Protocol):
    """Where time comes from; simulated in tests."""

    def wall_ms(self) -> float:
        """Milliseconds since the Unix epoch, as the machine believes; may jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment; never jumps."""
        ...


class SystemTime:
    """The clocks of this machine. CLOCK_BOOTTIME counts time spent in suspend, which CLOCK_MONOTONIC leaves out."""

    def wall_ms(self) -> float:
        return time.time_ns() / 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1_000_000


class MedianRange(NamedTuple):
    """Between which values the median of a group's wall clocks lies; both are clocks that were heard.

    Each is given as an *offset*: that wall clock minus this machine's monotonic clock. An offset stays true while time
    passes, and while the wall clock of this machine jumps.
    """

    low_ms: float
    high_ms: float

    @property
    def agreed(self) -> bool:
        """Whether that is as good as one value."""
        return self.high_ms - self.low_ms <= AGREEMENT_MS


class Witnesses(Protocol):
    """What the wall clocks of a group say; see clock_evidence.py."""

    @property
    def alone(self) -> bool:
        """Whether this node is the whole group: then there is nobody to ask."""
        ...

    def median_range(self) -> MedianRange | None:
        """None unless a majority was heard lately."""
        ...


def slewed_ms(elapsed_ms: float, gap_ms: float) -> float:
    """How far shard time moves in `elapsed_ms`, if moving along with real time would leave it `gap_ms` behind."""
    return elapsed_ms + min(max(gap_ms, -elapsed_ms * SLOW_PERCENT / 100), elapsed_ms * FAST_PPM / 1_000_000)


class Continued(NamedTuple):
    """What a leader's clock can show now that was heard some time ago."""

    least_ms: int
    most_ms: int  # without being early: it may have been drawn forwards, but nobody has to go on with that

    def at(self, believed_ms: float | None) -> float:
        """Where to go on, so that nothing that was counted by that clock comes early. A leader slows its clock down
        only while that is ahead of the wall clock that it believes: what is not ahead went on with real time."""
        if believed_ms is None:
            return self.least_ms
        return min(max(self.least_ms, believed_ms), self.most_ms)


NEVER_HEARD = Continued(0, 0)


def carried_on(heard_ms: int, elapsed_ms: float) -> Continued:
    """A leader's clock showed `heard_ms` some time ago; 0 if it was never heard."""
    if not heard_ms:
        return NEVER_HEARD
    return Continued(heard_ms + int(elapsed_ms * (100 - SLOW_PERCENT) / 100), heard_ms + int(elapsed_ms))


class BelievedWall:
    """The wall clock that shard time is drawn to, kept as an offset (see MedianRange).

    Carrying a belief on means leaving the offset as it is: the clock then moves with the monotonic clock.
    """

    def __init__(self, offset_ms: float, *, founded: bool = True) -> None:
        self.offset_ms = offset_ms
        self.founded = founded  # on some wall clock; otherwise shard time itself was taken for want of one
        self.proven = False  # by a majority, this moment

    def follow_own(self, own_offset_ms: float) -> None:
        """A node alone believes its own clock as long as it moves with the monotonic clock."""
        self.proven = False
        if abs(own_offset_ms - self.offset_ms) <= STEP_MS:
            self.offset_ms = own_offset_ms
            self.founded = True

    def follow_majority(self, majority: MedianRange | None) -> None:
        """In a group only the median is believed, and carried on while it cannot be told.

        Not even then is the own clock asked: it may be the wrong one, and a monotonic clock is good enough for the
        moments that a leader keeps its office without hearing from a majority.
        """
        self.proven = majority is not None and majority.agreed
        if majority is not None and majority.agreed:
            # The low end: shard time that is late keeps every promise, shard time that is early breaks some.
            self.offset_ms = majority.low_ms
            self.founded = True


class ShardClock:
    """Shard time on the leader; each leadership has one of its own.

    It starts at the newest time that is known of the shard: the last applied time, or `continued`, what the former
    leader said last, carried on to this moment. From then on it counts monotonic time and is drawn towards the believed
    wall clock: back by at most SLOW_PERCENT, but forwards by no more than FAST_PPM, because leases and delays must not
    be short by a worker's own clock. It moves faster only by a step, which is an entry of the log. At a start that is
    the first entry of the term: `started_by_step` says so. Later it takes a majority that is ahead for a while:
    `step_wanted_ms` says where to, and the leader calls `stepped` once its entry is applied.

    A node alone in its group can only ask its own wall clock. It believes it at a start, and then while it moves with
    the monotonic clock; after a jump the clock as it was before is carried on instead, so that a jump of a day fires,
    expires and purges nothing. A jump that turns out to be right is adopted at the next start.
    """

    def __init__(
        self,
        source: TimeSource,
        last_applied_ms: int,
        *,
        continued: Continued = NEVER_HEARD,
        witnesses: Witnesses | None = None,
    ) -> None:
        self._source = source
        self._witnesses = witnesses
        self._monotonic_ms = source.monotonic_ms()
        self._majority: MedianRange | None = None
        self._alone = True
        self._polled_ms = self._monotonic_ms - POLL_MS
        self._poll()
        reported_ms = self._reported_ms()
        known_ms = float(max(last_applied_ms, continued.at(reported_ms)))
        own_offset_ms = source.wall_ms() - self._monotonic_ms
        self._believed = self._first_belief(known_ms, own_offset_ms)
        believed_ms = self._believed.offset_ms + self._monotonic_ms
        self.started_by_step = 0 < known_ms < believed_ms - STEP_MS
        # In a group the work went on a moment ago under another leader: a little is made up for slowly. But who heard
        # of none does not know what time it was: its last entry is older than that.
        is_old = reported_ms is not None and not continued.least_ms
        at_once = self._alone or known_ms == 0 or self.started_by_step or is_old
        self._now_ms = max(known_ms, believed_ms) if at_once else known_ms
        self._ahead_since_ms: float | None = None  # since when a majority has been ahead by more than a step
        self.wall_offset_ms = own_offset_ms - self._believed.offset_ms  # this node's clock minus the believed one

    def now_ms(self) -> int:
        """The shard time of this moment."""
        monotonic_ms = self._source.monotonic_ms()
        if 0 < monotonic_ms - self._monotonic_ms < SAME_MS:
            return int(self._now_ms)
        monotonic_ms = max(self._monotonic_ms, monotonic_ms)
        elapsed_ms = monotonic_ms - self._monotonic_ms
        self._monotonic_ms = monotonic_ms
        if self._witnesses is not None:
            self._poll()
        own_offset_ms = self._source.wall_ms() - monotonic_ms
        if self._alone:
            self._believed.follow_own(own_offset_ms)
        else:
            self._believed.follow_majority(self._majority)
        self.wall_offset_ms = own_offset_ms - self._believed.offset_ms
        believed_ms = self._believed.offset_ms + monotonic_ms
        self._now_ms += slewed_ms(elapsed_ms, believed_ms - (self._now_ms + elapsed_ms))
        self._watch_gap(believed_ms - self._now_ms)
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        """For how long something takes: shard time may be stepped meanwhile."""
        return self._source.monotonic_ms()

    def step_wanted_ms(self) -> int | None:
        """Where shard time should be moved by an entry of its own, if it should."""
        self.now_ms()
        if self._ahead_since_ms is None or self._monotonic_ms - self._ahead_since_ms < STEP_PATIENCE_MS:
            return None
        return int(self._believed.offset_ms + self._monotonic_ms)

    def stepped(self, to_ms: int) -> None:
        """The entry that moves shard time was applied."""
        self.not_before(to_ms)
        self._ahead_since_ms = None

    def not_before(self, applied_ms: int) -> None:
        """An entry was applied, perhaps an earlier leader's with a time that this one had not heard of."""
        raise_ms = max(0.0, applied_ms - self._now_ms)
        self._now_ms += raise_ms
        if not self._believed.founded:
            self._believed.offset_ms += raise_ms

    @property
    def jumped(self) -> bool:
        """Whether the wall clock disagrees with the time that shard time follows."""
        return abs(self.wall_offset_ms) > STEP_MS

    def _first_belief(self, known_ms: float, own_offset_ms: float) -> BelievedWall:
        if self._alone:
            return BelievedWall(own_offset_ms)
        if self._majority is not None and (self._majority.agreed or known_ms == 0):
            return BelievedWall(self._majority.low_ms)
        if known_ms == 0:
            return BelievedWall(own_offset_ms)
        # Nobody can tell the time: it goes on from where it was known last.
        return BelievedWall(known_ms - self._monotonic_ms, founded=False)

    def _reported_ms(self) -> float | None:
        """What a majority says, if it agrees."""
        majority = self._majority
        return majority.low_ms + self._monotonic_ms if majority is not None and majority.agreed else None

    def _poll(self) -> None:
        if self._witnesses is not None and self._monotonic_ms - self._polled_ms >= POLL_MS:
            self._polled_ms = self._monotonic_ms
            self._alone = self._witnesses.alone
            self._majority = self._witnesses.median_range()

    def _watch_gap(self, ahead_ms: float) -> None:
        if not self._believed.proven or ahead_ms <= STEP_MS:
            self._ahead_since_ms = None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = self._monotonic_ms
