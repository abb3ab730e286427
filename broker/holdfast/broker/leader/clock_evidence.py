"""What the wall clocks of the other nodes say, and what follows from it for this one.

Every frame of a peer carries the peer's wall clock. Each clock is kept as an offset against the monotonic clock of this
machine (see MedianRange), because the wall clock of this machine may be the one that is wrong.
"""

from collections.abc import Callable, Sequence

from holdfast.broker.leader.clock import MedianRange, TimeSource

BUCKET_MS = 2000  # a clock is judged by the best frame of the last one to two buckets
HEARD_MS = 3000  # a peer that said nothing for so long is not asked
OFF_MS_MAX = 1000  # a node whose clock is further from the median neither campaigns nor leads
BACK_MS_MAX = 500  # nearer than this it may again; between the two it stays as it is
OFF_AFTER_MS = 1000  # so long it must be off: frames that waited somewhere make a right clock seem ahead for a moment
BACK_AFTER_MS = 3000


def median_range(offsets_ms: Sequence[float], voters: int) -> MedianRange | None:
    """Where the median of all `voters` clocks lies if only these were heard; None unless they are a majority.

    The silent ones may show anything. So the low end is the median if all of them are far behind, and the high end if
    all are far ahead; with an even number of voters they are the lower and the upper of the two in the middle. With
    every clock of an odd number heard both ends are the median itself. As long as less than half of the voters have
    a wrong clock, the range reaches into that of the right ones, whoever is silent: if it is narrow, it is right.
    """
    silent = voters - len(offsets_ms)
    if voters < 2 or len(offsets_ms) <= voters // 2:
        return None
    heard = sorted(offsets_ms)
    return MedianRange(heard[(voters - 1) // 2 - silent], heard[voters // 2])


class PeerOffset:
    """The offset of one peer's clock, from frames that took an unknown time.

    A delay only ever makes a clock seem behind, so the largest offset is the truest. Two buckets of maxima take the
    place of a sliding window. A clock that is set back is noticed once its old frames are forgotten.
    """

    __slots__ = ("_best_ms", "_bucket_ms", "_earlier_ms", "heard_ms")

    def __init__(self, offset_ms: float, now_ms: float) -> None:
        self._bucket_ms = now_ms  # when the bucket was begun
        self._best_ms = offset_ms
        self._earlier_ms = offset_ms  # of the bucket before
        self.heard_ms = now_ms

    def note(self, offset_ms: float, now_ms: float) -> None:
        self._turn(now_ms, offset_ms)
        self._best_ms = max(self._best_ms, offset_ms)
        self.heard_ms = now_ms

    def offset_ms(self) -> float:
        return max(self._best_ms, self._earlier_ms)

    def _turn(self, now_ms: float, offset_ms: float) -> None:
        age_ms = now_ms - self._bucket_ms
        if age_ms < BUCKET_MS:
            return
        self._earlier_ms = self._best_ms if age_ms < 2 * BUCKET_MS else offset_ms
        self._best_ms = offset_ms
        self._bucket_ms = now_ms


class ClockEvidence:
    """The clocks of all peers of this node, as far as they were heard lately."""

    def __init__(self, source: TimeSource) -> None:
        self._source = source
        self._peers: dict[str, PeerOffset] = {}  # by identity

    def note(self, identity: str, wall_ms: float) -> None:
        """A frame of a peer arrived that left when the peer's wall clock showed `wall_ms`."""
        now_ms = self._source.monotonic_ms()
        peer = self._peers.get(identity)
        if peer is not None:
            peer.note(wall_ms - now_ms, now_ms)
            return
        self._forget(now_ms)
        self._peers[identity] = PeerOffset(wall_ms - now_ms, now_ms)

    def median_range(self, voters: Sequence[str], me: str) -> MedianRange | None:
        """Where the median of the voters' clocks lies; None in a group of one, or unless a majority was heard."""
        if len(voters) < 2:
            return None
        return median_range(self.offsets_ms(voters, me), len(voters))

    def off_by_ms(self, voters: Sequence[str], me: str) -> float | None:
        """This node's wall clock minus the nearest value that the median can have; None without a majority.

        A clock that was heard is at each end of the range, so there is always a node that is not off.
        """
        found = self.median_range(voters, me)
        if found is None:
            return None
        own_ms = self._source.wall_ms() - self._source.monotonic_ms()
        return own_ms - min(max(own_ms, found.low_ms), found.high_ms)

    def offsets_ms(self, voters: Sequence[str], me: str) -> list[float]:
        now_ms = self._source.monotonic_ms()
        offsets_ms = []
        for voter in voters:
            if voter == me:
                offsets_ms.append(self._source.wall_ms() - now_ms)
                continue
            peer = self._peers.get(voter)
            if peer is not None and now_ms - peer.heard_ms <= HEARD_MS:
                offsets_ms.append(peer.offset_ms())
        return offsets_ms

    def _forget(self, now_ms: float) -> None:
        """Peers come and go under new identities; those that are not heard any more must not pile up."""
        silent = [identity for identity, peer in self._peers.items() if now_ms - peer.heard_ms > HEARD_MS]
        for identity in silent:
            del self._peers[identity]


class GroupEvidence:
    """The evidence as one group sees it: its voters change, and each group has its own. For ShardClock as Witnesses."""

    def __init__(self, evidence: ClockEvidence, voters: Callable[[], Sequence[str]], me: str) -> None:
        self._evidence = evidence
        self._voters = voters
        self._me = me

    @property
    def alone(self) -> bool:
        return len(self._voters()) < 2

    def median_range(self) -> MedianRange | None:
        return self._evidence.median_range(self._voters(), self._me)

    def off_by_ms(self) -> float | None:
        return self._evidence.off_by_ms(self._voters(), self._me)


class ClockFitness:
    """Whether this node's clock is good enough to lead. It changes its mind only about what lasts.

    Without evidence there is nothing against a node: nobody else would be fitter, and without a majority it cannot
    lead anyway.
    """

    def __init__(self, source: TimeSource) -> None:
        self._source = source
        self._fit = True
        self._contradicted_since_ms: float | None = None  # since when the evidence has said the opposite

    def may_lead(self, off_by_ms: float | None) -> bool:
        """To be asked a few times per second, with what the evidence says at that moment."""
        distance_ms = 0.0 if off_by_ms is None else abs(off_by_ms)
        contradicted = distance_ms > OFF_MS_MAX if self._fit else distance_ms <= BACK_MS_MAX
        if not contradicted:
            self._contradicted_since_ms = None
            return self._fit
        now_ms = self._source.monotonic_ms()
        if self._contradicted_since_ms is None:
            self._contradicted_since_ms = now_ms
        if now_ms - self._contradicted_since_ms >= (OFF_AFTER_MS if self._fit else BACK_AFTER_MS):
            self._fit = not self._fit
            self._contradicted_since_ms = None
        return self._fit
