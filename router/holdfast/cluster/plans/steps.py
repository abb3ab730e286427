"""How far the steps of a plan are, and which may begin. Pure: it follows from the map alone, so that whoever carries a
plan on needs no memory of its own.

A move began when the desired replicas were written; from then on the shard's leader brings it about. The new replica
learns (COPYING), then votes while the old one goes and is deleted (LEAVING), and then it is done.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import PlanRecord, ShardRecord, StepRecord, name_of
from holdfast.cluster.placement.placement import NodeSpec
from holdfast.cluster.placement.planning import NO_MAJORITY, Move, PlanProblem, Transfer, check_moves, check_transfers


class StepState(Enum):
    WAITING = "waiting"
    COPYING = "copying"
    LEAVING = "leaving"
    DONE = "done"
    OVERTAKEN = "overtaken"


_OVER = frozenset((StepState.DONE, StepState.OVERTAKEN))
_UNDER_WAY = frozenset((StepState.COPYING, StepState.LEAVING))


@dataclass(frozen=True, slots=True)
class StepView:
    """How far a step is, and what it waits for."""

    state: StepState
    detail: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in _OVER


def view_steps(found: PartitionMap, plan: PlanRecord) -> list[StepView]:
    """Of each step. `plan` may be newer than the map, by steps that others have begun just now."""
    views: list[StepView | None] = [None] * len(plan.steps)
    began = frozenset(plan.began)
    seen = frozenset(found.plan.began) if found.plan is not None and found.plan.plan_id == plan.plan_id else frozenset()
    moving: dict[int, bool] = {}  # shards with moves in the plan: whether one of them is not over
    for number, step in enumerate(plan.steps):
        if not step.is_transfer:
            view = views[number] = _view_move(found, step, number in began, number in seen)
            moving[step.shard] = moving.get(step.shard, False) or not view.is_over
    return [
        view or _view_transfer(found, step, number in began, moving.get(step.shard))
        for number, (step, view) in enumerate(zip(plan.steps, views, strict=True))
    ]


def _view_move(found: PartitionMap, step: StepRecord, is_begun: bool, is_seen: bool) -> StepView:
    record = found.shards.get(step.shard)
    if record is None:
        return StepView(StepState.OVERTAKEN, f"there is no shard {step.shard}")
    is_undesired = step.source in record.replicas and step.destination not in record.replicas
    if not is_begun:
        if not is_undesired:
            return StepView(StepState.OVERTAKEN, "the shard's replicas were changed meanwhile")
        return _view_waiting(found, step)
    if not is_seen and is_undesired:
        return StepView(StepState.COPYING, "began just now")
    if step.destination not in record.replicas:
        return StepView(StepState.OVERTAKEN, f"{step.destination} should not have it any more")
    if not _is_among(found, step.destination, record.members.voters):
        return StepView(StepState.COPYING, _copying_detail(found, step, record))
    if step.source in record.replicas:
        return StepView(StepState.DONE)  # a later step brings it back
    if step.source in map(name_of, (*record.members.voters, *record.members.learners)):
        return StepView(StepState.LEAVING, f"{step.source} is being removed")
    if step.source in map(name_of, live_leaving(found, record)):
        return StepView(StepState.LEAVING, f"{step.source} deletes its replica")
    return StepView(StepState.DONE)


def _view_waiting(found: PartitionMap, step: StepRecord) -> StepView:
    if step.destination in found.drains:  # nothing is brought there any more, and nobody is to wait for it
        return StepView(StepState.OVERTAKEN, f"{step.destination} drains")
    return StepView(StepState.WAITING)


def _copying_detail(found: PartitionMap, step: StepRecord, record: ShardRecord) -> str:
    if not found.is_alive(step.destination):
        return f"{step.destination} is down"
    if not record.is_founded:
        return "the shard is yet to be founded"
    if not has_majority(found, record):
        return "the shard has no majority"
    if _is_among(found, step.destination, record.members.learners):
        return f"{step.destination} catches up"
    return f"the leader is to add {step.destination}"


def _view_transfer(found: PartitionMap, step: StepRecord, is_done: bool, is_moving: bool | None) -> StepView:
    """is_moving: whether the shard has moves in the plan that are not over; None if it has none at all."""
    record, leader = found.shards.get(step.shard), found.shard_leader(step.shard)
    if record is None:
        return StepView(StepState.OVERTAKEN, f"there is no shard {step.shard}")
    if is_done:
        return StepView(StepState.DONE)
    if is_moving:
        return StepView(StepState.WAITING, "for the moves of the shard")
    if leader is not None and leader.node == step.destination:
        return StepView(StepState.DONE)
    if not _is_among(found, step.destination, record.voters):
        return StepView(StepState.OVERTAKEN, f"{step.destination} does not vote")
    if step.destination in found.drains:
        return StepView(StepState.OVERTAKEN, f"{step.destination} drains")
    if leader is None:
        return StepView(StepState.WAITING, "nobody is known to lead the shard")
    if is_moving is None and leader.node != step.source:
        return StepView(StepState.OVERTAKEN, f"{leader.node} leads by now")
    if not found.is_alive(step.destination):
        return StepView(StepState.WAITING, f"{step.destination} is down")
    return StepView(StepState.WAITING)


# What may begin


def transfers_due(plan: PlanRecord, views: Sequence[StepView]) -> list[int]:
    """Numbers of the transfers that nothing stands against."""
    return [
        number
        for number, (step, view) in enumerate(zip(plan.steps, views, strict=True))
        if step.is_transfer and view == StepView(StepState.WAITING)
    ]


class BusyNodes:
    """Nodes that give or get a replica at the moment, for this plan or left over from another one: one at a time."""

    def __init__(self, found: PartitionMap, plan: PlanRecord, views: Sequence[StepView]) -> None:
        self._shards: dict[str, set[int]] = {}
        for number, record in found.shards.items():
            self._add(number, nodes_in_flux(found, record))
        for step, view in zip(plan.steps, views, strict=True):
            if view.state in _UNDER_WAY:
                self.add(step)

    def add(self, step: StepRecord) -> None:
        self._add(step.shard, (step.source, step.destination))

    def holds_up(self, step: StepRecord, record: ShardRecord) -> str:
        """Why a step has to wait for its turn; nothing if it need not."""
        own = {step.shard} if is_redirect(step, record) else set()
        for name in sorted((step.source, step.destination)):
            if self._shards.get(name, set()) - own:
                return f"{name} is busy"
        return ""

    def _add(self, shard: int, names: Iterable[str]) -> None:
        for name in names:
            self._shards.setdefault(name, set()).add(shard)


def is_redirect(step: StepRecord, record: ShardRecord) -> bool:
    """Whether it sends a replica elsewhere that has not arrived: its node may never come up, so it must not wait."""
    return step.source in record.replicas and step.source not in map(name_of, record.voters)


def nodes_in_flux(found: PartitionMap, record: ShardRecord) -> set[str]:
    """Those that have a replica of the shard and should not, or the other way round; a dead one deletes nothing."""
    voters, desired = set(map(name_of, record.voters)), set(record.replicas)
    return (voters ^ desired) | set(map(name_of, (*record.members.learners, *live_leaving(found, record))))


def why_not_now(found: PartitionMap, step: StepRecord, record: ShardRecord) -> str:
    """What stands against the beginning of a move, beside busy nodes; `record` is the shard's newest."""
    if not record.is_founded:
        return "the shard is yet to be founded"
    if not is_redirect(step, record) and (in_flux := nodes_in_flux(found, record)):
        return f"the shard is changing: {', '.join(sorted(in_flux))}"
    problem = first_problem(found, [move_of(step)], {step.shard: record})
    return "" if problem is None else problem.sentence


def first_problem(
    found: PartitionMap, steps: Sequence[Move | Transfer], shards: dict[int, ShardRecord] | None = None
) -> PlanProblem | None:
    """Why these steps, in this order, must not be; None if they may. `shards`: newer than those of the map."""
    records = {**found.shards, **(shards or {})}
    current = {number: list(record.replicas) for number, record in records.items()}
    alive, draining, specs = frozenset(found.nodes), frozenset(found.drains), node_specs(found)
    moves = [step for step in steps if isinstance(step, Move)]
    problems = check_moves(moves, current, specs, draining, alive).problems
    if not problems:
        after = replicas_after(current, moves)
        transfers = [step for step in steps if isinstance(step, Transfer)]
        problems = check_transfers(transfers, after, specs, draining, alive).problems
    if problems:
        return problems[0]
    for step in steps:
        if not has_majority(found, records[step.shard]):
            return PlanProblem(
                NO_MAJORITY,
                f"Expected a majority of the voters of shard {step.shard} to be there, with their data, but they are "
                "not; bring them back first.",
            )
    return None


def replicas_after(current: dict[int, list[str]], moves: Iterable[Move]) -> dict[int, list[str]]:
    after = dict(current)
    for move in moves:
        after[move.shard] = [move.destination if name == move.source else name for name in after[move.shard]]
    return after


def node_specs(found: PartitionMap) -> list[NodeSpec]:
    """Also of nodes that are away: what they have counts, and they may come back."""
    return [NodeSpec(node.name, node.zone, node.capacity) for _, node in sorted(found.last_nodes.items())]


def move_of(step: StepRecord) -> Move:
    return Move(step.shard, step.source, step.destination, step.why)


def has_majority(found: PartitionMap, record: ShardRecord) -> bool:
    there = sum(found.is_there(voter) for voter in record.voters)
    return 2 * there > len(record.voters)


def live_leaving(found: PartitionMap, record: ShardRecord) -> list[str]:
    """Of those who have to delete their replica the ones that can."""
    return [identity for identity in record.leaving if found.is_there(identity)]


def _is_among(found: PartitionMap, name: str, identities: Collection[str]) -> bool:
    """A node that came back with new data is not the one that had the replica."""
    node = found.nodes.get(name)
    return node.identity in identities if node is not None else name in map(name_of, identities)
