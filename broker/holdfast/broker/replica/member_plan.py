"""What has to change for a group to consist of the nodes it should: one step at a time. Pure.

A node that lost its disk comes back as somebody else with the same name. It is added as a learner; once it has caught
up, whoever it was before is removed, and it votes.

A node that should be a member and is not is added in the same way. Only when all that should be members vote, are there
and have caught up are those removed that should not be: so a group never has fewer live replicas than it should because
of a change. If the destination of a move dies right after its promotion, the source stays until it is back, or another
node is desired. One that should go and is away itself goes before that, if those who are there are a majority: it
holds up the others and helps nobody.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.broker.peers.identities import name_of
from holdfast.raft.messages import Configuration


class Step(Enum):
    ADD = "add"  # as a learner
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MemberChange:
    step: Step
    replica: str


def next_change(
    now: Configuration,
    present: Mapping[str, str],
    has_caught_up: Callable[[str], bool],
    desired: Collection[str] | None = None,
    me: str = "",
) -> MemberChange | None:
    """`present` has the identity of each node that is there, by its name; `desired` the names of those that should be
    members, all that are there if not given, and then nobody is removed for not being among them. `me` is removed
    last, because the leader has to hand over first.

    Nodes that are away are left as they are: they may come back with everything they had.
    """
    wanted = present.keys() if desired is None else frozenset(desired)
    for learner in now.learners:
        is_unwanted = desired is not None and name_of(learner) not in wanted
        if is_unwanted or present.get(name_of(learner), learner) != learner:
            return MemberChange(Step.REMOVE, learner)  # or it lost its disk before it ever voted
    for learner in now.learners:
        if has_caught_up(learner) and name_of(learner) in present:
            former = [voter for voter in now.voters if name_of(voter) == name_of(learner)]
            return MemberChange(Step.REMOVE, former[0]) if former else MemberChange(Step.PROMOTE, learner)
    for name, identity in sorted(present.items()):
        if name in wanted and identity not in now.members:
            return MemberChange(Step.ADD, identity)
    if desired is not None and wanted <= {name_of(voter) for voter in now.voters}:
        live = {
            voter
            for voter in now.voters
            if voter == me or (present.get(name_of(voter)) == voter and has_caught_up(voter))
        }
        unwanted = [voter for voter in now.voters if name_of(voter) not in wanted]
        if any(voter not in live for voter in now.voters if name_of(voter) in wanted):
            # Not those who are only slow to answer: a leader that has just begun to lead has heard of few yet.
            is_majority = 2 * len(live) > len(now.voters)
            unwanted = [voter for voter in unwanted if voter != me and name_of(voter) not in present and is_majority]
        if unwanted:
            return MemberChange(Step.REMOVE, min(unwanted, key=lambda voter: (voter in live, voter == me, voter)))
    return None
