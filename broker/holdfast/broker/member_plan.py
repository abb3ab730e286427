"""What has to change for a group to consist of the nodes it should: one step at a time. Pure.

A node that lost its disk comes back as somebody else with the same name. It is added as a learner; once it has caught
up, whoever it was before is removed, and it votes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.broker.peers.identities import name_of
from holdfast.broker.raft.messages import Configuration


class Step(Enum):
    ADD = "add"  # as a learner
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    step: Step
    replica: str


def next_change(now: Configuration, present: Mapping[str, str], has_caught_up: Callable[[str], bool]) -> Change | None:
    """`present` has the identity of each node that should be a member and is there, by its name.

    Nodes that are away are left as they are: they may come back with everything they had.
    """
    for learner in now.learners:
        if present.get(name_of(learner), learner) != learner:
            return Change(Step.REMOVE, learner)  # it lost its disk before it ever voted
    for learner in now.learners:
        if has_caught_up(learner) and name_of(learner) in present:
            former = [voter for voter in now.voters if name_of(voter) == name_of(learner)]
            return Change(Step.REMOVE, former[0]) if former else Change(Step.PROMOTE, learner)
    for _, identity in sorted(present.items()):
        if identity not in now.members:
            return Change(Step.ADD, identity)
    return None
