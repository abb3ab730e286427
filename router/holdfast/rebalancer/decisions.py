"""What a rebalancer does next. Pure: from the map and what it remembers to one action.

The plans themselves are those of `holdfast shard plan`; here is only when one is made, and when a node that is away is
given up. A node that is given up is marked as draining, so that the next plan makes its replicas anew elsewhere; when
it comes back after all, the mark is taken back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import Handover, RebalancingRecord, name_of
from holdfast.cluster.plans.steps import has_majority, view_steps


class ActionKind(StrEnum):
    """The names are those of the log."""

    WAIT = "wait"
    TAKE_BACK = "take_back"  # a node that was given up is here again
    FORGET = "forget"  # that it was given up: somebody else has taken the mark back, or removed the node
    GIVE_UP = "give_up"  # a node that is gone for good
    ADVANCE = "advance"  # the plan under way
    CANCEL = "cancel"  # a plan that can come to no end
    BALANCE = "balance"  # make a plan, if anything has to move


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    node: str = ""
    why: str = ""


def next_action(found: PartitionMap, record: RebalancingRecord, gone_after_s: float) -> Action:
    """The map is that of an initialised cluster."""
    for name in record.given_up:
        if name not in found.drains:
            return Action(ActionKind.FORGET, name)
        if found.is_alive(name):
            return Action(ActionKind.TAKE_BACK, name, "it is back")
    gone = dict(record.gone)
    lost = sorted((name for name in gone if gone[name] >= gone_after_s), key=lambda name: (-gone[name], name))
    if found.plan is not None:
        return _with_plan(found, frozenset(lost))
    return _without_plan(found, gone, [name for name in lost if name not in found.drains])


def _with_plan(found: PartitionMap, lost: frozenset[str]) -> Action:
    """Somebody may have begun it by hand: it is carried on all the same."""
    assert found.plan is not None
    for step, view in zip(found.plan.steps, view_steps(found, found.plan), strict=True):
        if step.destination in lost and not view.is_over:
            return Action(ActionKind.CANCEL, step.destination, "the plan would bring replicas to a node that is gone")
    return Action(ActionKind.ADVANCE)


def _without_plan(found: PartitionMap, gone: Mapping[str, int], lost: list[str]) -> Action:
    being_emptied = holders(found, movable=True) & found.drains.keys()
    if lost and not any(not found.is_alive(name) for name in being_emptied):  # one node at a time
        if why := too_few(found):
            return Action(ActionKind.WAIT, lost[0], why)
        return Action(ActionKind.GIVE_UP, lost[0], f"it has been away for {gone[lost[0]]} s")
    leaving = sorted(name for name, node in found.nodes.items() if node.handover is not Handover.NONE)
    if leaving:
        return Action(ActionKind.WAIT, leaving[0], "it is about to be stopped")
    away = sorted(absent(found) - found.drains.keys())
    if away and not being_emptied:
        # What should move while it is away would have to move back.
        return Action(ActionKind.WAIT, away[0], "it is away, and may come back")
    return Action(ActionKind.BALANCE)


def holders(found: PartitionMap, *, movable: bool = False) -> set[str]:
    """Nodes that have, or should have, a replica; or one that can move, because its shard has a majority."""
    records = [record for record in found.shards.values() if not movable or has_majority(found, record)]
    names = {name for record in records for name in record.replicas}
    return names | {name_of(voter) for record in records for voter in record.voters}


def absent(found: PartitionMap) -> set[str]:
    """Those of them that are away."""
    return {name for name in holders(found) if not found.is_alive(name)}


def too_few(found: PartitionMap) -> str:
    """Why nobody may be given up now; empty if somebody may. If most nodes seem gone it is the network or the power
    that is, and to copy everything onto the rest would only make it worse."""
    replication = found.cluster.replication if found.cluster is not None else 0
    usable = found.nodes.keys() - found.drains.keys()
    if len(usable) < replication:
        return f"{len(usable)} nodes are left for {replication} replicas"
    known = holders(found) | found.nodes.keys()
    if 2 * len(found.nodes) <= len(known):
        return f"only {len(found.nodes)} of {len(known)} nodes are alive"
    return ""
