"""What should move, as a plan. Pure: from a map to its steps, in the order in which they are to be begun."""

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b

from holdfast.cluster.map.fields import encode
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import PlanRecord, StepRecord, name_of
from holdfast.cluster.placement.planning import Move, PlanProblem, Transfer, check_moves, rebalance, spread_leaders
from holdfast.cluster.plans.steps import first_problem, move_of, node_specs, replicas_after
from holdfast.serving.refusals import RefusedError, no_such_shard, node_not_found, plan_refused

STEPS_MAX = 2000  # of one plan, which stands in one value in etcd; the next plan does the rest

BALANCE = "balance"
LEADERS = "leaders"
MOVE = "move"


def plan_balance(found: PartitionMap, *, must_empty: bool = True) -> PlanRecord:
    """Replicas even, zones apart, nothing on nodes that drain; then leaders even.

    must_empty: refuse a plan that would leave something on nodes that drain, because a shard has no majority or there
    are too few nodes; otherwise what can move does.
    """
    current = _desired(found)
    specs, alive, draining = node_specs(found), frozenset(found.nodes), frozenset(found.drains)
    moves = rebalance(current, specs, draining, alive)
    verdict = check_moves(moves, current, specs, draining, alive, must_empty=must_empty and bool(draining))
    if verdict.problems:
        raise refused(verdict.problems[0])
    warning = verdict.warnings[0].sentence if verdict.warnings else ""
    return _plan(found, BALANCE, [*moves, *_transfers_after(found, moves)], warning)


def plan_leaders(found: PartitionMap) -> PlanRecord:
    """Only who leads."""
    voters = {number: sorted(map(name_of, record.voters)) for number, record in found.shards.items()}
    return _plan(found, LEADERS, _spread(found, _leaders(found), voters))


def plan_move(found: PartitionMap, shard: int, source: str, destination: str) -> PlanRecord:
    """This one replica."""
    if shard not in found.shards:
        raise no_such_shard(shard, max(1, len(found.shards)), "move.shard")
    for name, field in ((source, "move.source"), (destination, "move.destination")):
        if name not in found.last_nodes and name not in found.shards[shard].replicas:
            raise node_not_found(name, field)
    move = Move(shard, source, destination, "asked for")
    problem = first_problem(found, [move])
    if problem is not None:
        raise refused(problem)
    return _plan(found, MOVE, [move])


def check_plan(found: PartitionMap, steps: Sequence[StepRecord]) -> None:
    """PLAN_REFUSED if these steps do not fit the cluster as it is now."""
    checked = [
        Transfer(step.shard, step.source, step.destination, step.why) if step.is_transfer else move_of(step)
        for step in steps
    ]
    problem = first_problem(found, checked)
    if problem is not None:
        raise refused(problem)


def plan_id(steps: Sequence[StepRecord], revision: int) -> str:
    """The same for the same steps from the same map. How much there is to copy is only for people."""
    named = [{name: value for name, value in asdict(step).items() if name != "state_bytes"} for step in steps]
    return blake2b(encode({"steps": named, "revision": revision}), digest_size=8).hexdigest()


def kind_of(steps: Sequence[StepRecord]) -> str:
    if all(step.is_transfer for step in steps):
        return LEADERS
    return MOVE if len(steps) == 1 else BALANCE


def refused(problem: PlanProblem) -> RefusedError:
    return plan_refused(problem.why, problem.sentence)


def _plan(found: PartitionMap, kind: str, steps: Sequence[Move | Transfer], warning: str = "") -> PlanRecord:
    records = tuple(
        StepRecord(
            shard=step.shard,
            source=step.source,
            destination=step.destination,
            is_transfer=isinstance(step, Transfer),
            why=step.why,
        )
        for step in steps[:STEPS_MAX]
    )
    return PlanRecord(
        plan_id=plan_id(records, found.revision),
        revision=found.revision,
        kind=kind,
        summary=" ".join(filter(None, (_summary(steps), warning))),
        steps=records,
    )


def _summary(steps: Sequence[Move | Transfer]) -> str:
    moves = sum(isinstance(step, Move) for step in steps)
    parts = [
        f"{count} {word if count == 1 else word + 's'}"
        for count, word in ((moves, "replica"), (len(steps) - moves, "leader"))
        if count
    ]
    if not parts:
        return "Nothing to do."
    sentence = f"{' and '.join(parts)} {'move' if len(steps) > 1 else 'moves'}"
    more = f"; these are the first {STEPS_MAX} steps, make another plan after them" if len(steps) > STEPS_MAX else ""
    return f"{sentence}{more}."


def _transfers_after(found: PartitionMap, moves: Sequence[Move]) -> list[Transfer]:
    """Leaders even once the moves are made.

    A leader that gives up its replica hands over first, and it is not known to whom. So each such shard gets a transfer
    of its own, which is done already if it came to the right one.
    """
    leaders, left = _leaders(found), {}
    for move in moves:
        if leaders.get(move.shard) == move.source:
            left[move.shard] = move.source
            leaders[move.shard] = move.destination
    transfers = _spread(found, leaders, replicas_after(_desired(found), moves))
    kept = [step for step in transfers if step.shard not in left]
    wanted = leaders | {step.shard: step.destination for step in transfers}
    return kept + [
        Transfer(shard, source, wanted[shard], f"{source} gives up its replica") for shard, source in left.items()
    ]


def _spread(found: PartitionMap, leaders: dict[int, str], replicas: dict[int, list[str]]) -> list[Transfer]:
    capacities = {name: node.capacity for name, node in found.nodes.items()}
    return spread_leaders(leaders, replicas, frozenset(found.nodes), found.not_to_lead, capacities)


def _desired(found: PartitionMap) -> dict[int, list[str]]:
    return {number: list(record.replicas) for number, record in found.shards.items()}


def _leaders(found: PartitionMap) -> dict[int, str]:
    known = ((number, found.shard_leader(number)) for number in found.shards)
    return {number: leader.node for number, leader in known if leader is not None}
