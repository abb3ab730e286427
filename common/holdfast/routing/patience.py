"""How long a call that may be served by several shards waits for each of them. Pure: routers and clients do it alike.

A shard that has lost its majority, or whose leader is silent, must not keep tasks of the others from their workers.
"""

from collections.abc import Mapping

from holdfast.common.backoff import Backoff

TRY_S_MAX = 2.0  # for one shard, so that one without a leader does not hold up the others
# The same for callers that come back for what was claimed: many times what answers usually take, so that a shard which
# is merely busy is rarely given up.
HASTY_S_MIN = 0.3
HASTY_TIMES = 15
_USUAL_WEIGHT = 0.1  # of the newest answer
# The part of that in which refused attempts are repeated. In the rest the last one must be answered: if it is cut off,
# nobody knows any more whether it claimed, and that costs much more time.
REPEATS_SHARE = 0.75
GRACE_S = 1.0  # for the answers of the last shards when the others have said that there is nothing
UNSETTLED_S = (
    3.0  # the same for a shard that may have claimed for this call: about as long as to elect a leader may take
)
# Of a batch over several shards: for the answers of the last shards, counted from the first answer. Then their items
# are refused one by one: whoever asked must not wait for a shard that may never answer.
PART_S = 6.0  # longer than to elect a leader takes, also where machines are busy
UNHEALTHY_PART_S = 0.5  # the same for a shard that did not answer the last time
UNHEALTHY_PART_MEMORY_S = 30.0  # how long that is remembered
UNHEALTHY_S = 5.0  # how long a shard that did not answer is not the one that is tried first
UNHEALTHY_S_MAX = 40.0  # the same if it did not answer again and again: each time a caller pays for finding out

Leader = tuple[str, int] | None  # address and epoch of a leader, if it is known


class UsualTimes:
    """How long each shard usually takes to answer a claim, and how long a hasty caller waits for it."""

    def __init__(self) -> None:
        self._usual_s: dict[int, float] = {}

    def took(self, shard: int, seconds: float) -> None:
        """An answer; or how long there was none, so that a shard that is merely slow is given more time."""
        usual_s = self._usual_s.get(shard, 0.0)
        self._usual_s[shard] = usual_s + _USUAL_WEIGHT * (seconds - usual_s)

    def hasty_s(self, shard: int) -> float:
        return min(TRY_S_MAX, max(HASTY_S_MIN, HASTY_TIMES * self._usual_s.get(shard, 0.0)))


class UnhealthyShards:
    """Shards that did not answer: not for long, and not any more when another leader is known.

    A leader that said nothing at all is avoided by all the shards that it leads. One that is elected later is not: that
    it was elected shows that it answers. When the time is over one caller tries it (`begin_try`), and the others not
    before that one has got an answer. Only an answer of the kind that failed counts: a leader whose disk stands still
    answers what needs no write.
    """

    def __init__(self, unhealthy_s: float = UNHEALTHY_S, unhealthy_s_max: float | None = None) -> None:
        self._backoff = Backoff(unhealthy_s, unhealthy_s if unhealthy_s_max is None else unhealthy_s_max)
        self._until: dict[int, tuple[float, Leader, int]] = {}  # with who led the shard, and how often it failed so far

    def failed(self, shard: int, now_s: float, leader: Leader = None) -> None:
        """`leader`: who is known to lead it."""
        self._until = {shard: known for shard, known in self._until.items() if known[0] + self._backoff.max_s > now_s}
        until_s, led_by, failures = self._until.get(shard, (0.0, leader, 0))
        if led_by != leader or not failures:
            failures = 1
        elif until_s <= now_s + TRY_S_MAX:  # not by callers that tried it at the same time
            failures += 1
        self._until[shard] = (now_s + self._backoff.longest_s(failures), leader, failures)

    def silent(self, shard: int, now_s: float, leaders: Mapping[int, Leader]) -> None:
        """It did not even refuse. `leaders`: of this shard and of others."""
        silent = leaders.get(shard)
        self.failed(shard, now_s, silent)
        for other, leader in leaders.items():
            if other != shard and silent is not None and leader is not None and leader[0] == silent[0]:
                self.failed(other, now_s, leader)

    def answered(self, shard: int, leader: Leader = None) -> None:
        for marked in (shard, *self._marked_of(leader)):
            self._until.pop(marked, None)

    def has(self, shard: int, now_s: float, leader: Leader = None) -> bool:
        until_s, led_by, _ = self._until.get(shard, (0.0, leader, 0))
        return until_s > now_s and led_by == leader

    def begin_try(self, shard: int, now_s: float, leader: Leader = None) -> bool:
        """Whether this caller may try it. If that failed the last time, it is the only one for now."""
        if self.has(shard, now_s, leader):
            return False
        if shard in self._until:
            for marked in {shard, *self._marked_of(leader)}:
                _, led_by, failures = self._until[marked]
                self._until[marked] = (now_s + TRY_S_MAX, led_by, failures)
        return True

    def _marked_of(self, leader: Leader) -> list[int]:
        """Shards that did not answer, and that this node leads."""
        if leader is None:
            return []
        return [shard for shard, (_, led_by, _) in self._until.items() if led_by is not None and led_by[0] == leader[0]]
