"""Whether a node may be stopped now: what every shard keeps without it. Pure.

A voter counts only if its node is registered, answers at this moment with the data that the shard knows, is not being
stopped and was not let go itself, and if the shard's leader says that it answers and has caught up.

**Two nodes that want to stop at the same moment.** Each is let go by a commit that changes one key, `turn`, and holds
only if nobody has changed it since; it is read before anything else is looked at. So of two nodes the second one finds
the first in the map as let go, and does not count on it. That it was let go stands in the record of the node itself,
which is there for as long as its process holds its lease: at no moment is it registered and seems to stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.cluster.map.records import Handover, NodeRecord, name_of


@dataclass(frozen=True, slots=True)
class ShardSight:
    """A shard as its leader sees it. Voters are identities."""

    shard: int
    leader: str = ""  # an identity; empty if nobody says that it leads
    voters: Sequence[str] = ()
    caught_up: Sequence[str] = ()  # voters that answer the leader and have nearly all that it has, itself included


@dataclass(frozen=True, slots=True)
class NodeSight:
    """A node as it answered just now."""

    identity: str
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class HandoverView:
    """What stands against stopping a node."""

    leads: int = 0
    held_back: Mapping[int, str] = field(default_factory=dict)  # shards that would lose their majority, and why
    single: Sequence[int] = ()  # shards of which it has the only replica: nothing can keep them, so nothing waits
    may_stop: bool = False
    led: Sequence[int] = ()  # of those that hold it back the ones that could do without it, but that it leads still


def view_handover(
    me: str, sights: Sequence[ShardSight], nodes: Mapping[str, NodeRecord], answers: Mapping[str, NodeSight]
) -> HandoverView:
    """`me`: the replicas' identity on the node; `nodes` and `answers` by name."""
    missing = _Missing(nodes, answers)
    held_back, single, led = {}, [], []
    for sight in sights:
        if tuple(sight.voters) == (me,):
            single.append(sight.shard)
        elif why := _why_held_back(me, sight, missing):
            held_back[sight.shard] = why
        elif sight.leader == me:
            held_back[sight.shard] = f"{name_of(me)} leads it still"
            led.append(sight.shard)
    leads = sum(sight.leader == me for sight in sights)
    return HandoverView(leads, held_back, single, may_stop=not held_back, led=led)


def _why_held_back(me: str, sight: ShardSight, missing: "_Missing") -> str:
    if not sight.leader:
        return "nobody leads it"
    if me not in sight.voters:
        return ""  # it has left, and has not heard of it
    others = [voter for voter in sight.voters if voter != me]
    absent = {voter: why for voter in others if (why := missing.why(voter, sight.caught_up))}
    needed = len(sight.voters) // 2 + 1
    if len(others) - len(absent) < needed:
        reasons = ", ".join(f"{name_of(voter)} {why}" for voter, why in absent.items())
        return (
            f"{len(others) - len(absent)} of {len(sight.voters)} voters would be left, {needed} are needed: {reasons}"
        )
    return ""


@dataclass(frozen=True, slots=True)
class _Missing:
    nodes: Mapping[str, NodeRecord]
    answers: Mapping[str, NodeSight]

    def why(self, voter: str, caught_up: Sequence[str]) -> str:
        """Why a voter does not count, in a few words; empty if it does."""
        record, answer = self.nodes.get(name_of(voter)), self.answers.get(name_of(voter))
        if record is None:
            return "is gone"
        if record.handover is Handover.GRANTED:
            return "is about to be stopped"
        if answer is None:
            return "does not answer"
        if answer.is_stopping:
            return "is being stopped"
        if voter not in (record.identity, answer.identity) or record.identity != answer.identity:
            return "has lost its data"
        return "" if voter in caught_up else "has not caught up"
