"""What should move, and whether it may: plans for replicas and leaders. Pure.

A node that is away keeps what it has, because it may come back with it. Only a node that drains is emptied, away or
not. Nothing is ever moved onto a node that is away or drains.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.cluster.placement.placement import NodeSpec, Pool, Spreader, fair_shares, spread_one_each, zone_limit

# Why a plan is refused. They are part of the wire API and never change their meaning.
UNKNOWN_SHARD = "UNKNOWN_SHARD"
UNKNOWN_NODE = "UNKNOWN_NODE"
NODE_NOT_ALIVE = "NODE_NOT_ALIVE"
NODE_DRAINS = "NODE_DRAINS"
ALREADY_A_REPLICA = "ALREADY_A_REPLICA"
NOT_A_REPLICA = "NOT_A_REPLICA"
NO_MAJORITY = "NO_MAJORITY"
NOT_ENOUGH_NODES = "NOT_ENOUGH_NODES"
ZONE = "ZONE"  # a warning only


@dataclass(frozen=True, slots=True)
class Move:
    """One replica: `destination` gets it, then `source` gives it up."""

    shard: int
    source: str
    destination: str
    why: str  # a few words for a person


@dataclass(frozen=True, slots=True)
class Transfer:
    """Only who leads: `destination` instead of `source`."""

    shard: int
    source: str
    destination: str
    why: str


@dataclass(frozen=True, slots=True)
class PlanProblem:
    why: str  # one of the words above
    sentence: str


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """A plan with problems is refused; warnings are for the person who reads it."""

    problems: list[PlanProblem] = field(default_factory=list)
    warnings: list[PlanProblem] = field(default_factory=list)


Step = TypeVar("Step", Move, Transfer)


def rebalance(
    current: Mapping[int, Sequence[str]], nodes: Sequence[NodeSpec], draining: Set[str], alive: Set[str]
) -> list[Move]:
    """The fewest moves after which replicas are even, zones apart, and nothing is on nodes that drain.

    What has no node to go to, because there are too few, stays where it is: see `check_moves`. So do all replicas of a
    shard without a majority, which could not agree on a move.
    """
    usable = sorted((node for node in nodes if node.name in alive - draining), key=lambda node: node.name)
    zone_of = {node.name: node.zone for node in nodes}
    pools = _pools(current, usable, zone_of, draining, alive)
    zone_room = Counter(dict.fromkeys((node.zone for node in usable), 0))
    node_room: Counter[int] = Counter()
    for pool, room in pools.values():
        zone_room.update(room)
        node_room.update({*pool.candidates, *pool.here})
    total = sum(len(pool.here) + pool.unplaced for pool, _ in pools.values())
    shares = fair_shares(total, usable, [node_room[index] for index in range(len(usable))], zone_room)
    spreader = Spreader({shard: pool for shard, (pool, _) in pools.items()}, [node.zone for node in usable], shares)
    spreader.run()
    names = {node.name for node in usable}
    loads = Counter(name for replicas in current.values() for name in set(replicas))
    moves = []
    for shard, pool in sorted(spreader.pools.items()):
        before, after = set(current[shard]), {usable[index].name for index in pool.here}
        gone = sorted((before & (names | draining)) - after)
        for source, destination in _paired(gone, sorted(after - before), zone_of):
            if source in draining:
                why = f"{source} drains"
            elif (crowd := sum(zone_of.get(name) == zone_of[source] for name in before)) > pool.zone_max:
                why = f"{crowd} replicas in zone {zone_of[source] or 'none'}"
            else:
                why = f"{source} has {loads[source]} replicas, {destination} {loads[destination]}"
            moves.append(Move(shard, source, destination, why))
    return in_turns(moves)


def spread_leaders(
    leaders: Mapping[int, str],
    replicas: Mapping[int, Sequence[str]],
    alive: Set[str],
    draining: Set[str],
    capacities: Mapping[str, int] | None = None,
) -> list[Transfer]:
    """The fewest transfers after which leaders are even, by capacity if given, and none is on a node that drains.

    A shard whose leader is not known or away has nobody who could hand over; it elects one by itself.
    """
    names = sorted(alive - draining)
    numbers = {name: index for index, name in enumerate(names)}
    candidates = {}
    for shard, voters in replicas.items():
        may_lead = sorted({numbers[name] for name in voters if name in numbers})
        if may_lead and leaders.get(shard) in alive and leaders[shard] in voters:
            candidates[shard] = may_lead
    holders = {shard: numbers.get(leaders[shard], -1) for shard in candidates}
    specs = [NodeSpec(name, capacity=100 if capacities is None else capacities.get(name, 100)) for name in names]
    wanted = spread_one_each(holders, candidates, specs)
    leads = Counter(leaders[shard] for shard in candidates)
    transfers = []
    for shard, node in sorted(wanted.items()):
        source, destination = leaders[shard], names[node]
        if source != destination:
            counts = f"{source} leads {leads[source]} shards, {destination} {leads[destination]}"
            why = f"{source} drains" if source in draining else counts
            transfers.append(Transfer(shard, source, destination, why))
    return in_turns(transfers)


def check_moves(
    moves: Sequence[Move],
    current: Mapping[int, Sequence[str]],
    nodes: Iterable[NodeSpec],
    draining: Set[str],
    alive: Set[str],
    *,
    must_empty: bool = False,
) -> PlanVerdict:
    """Whether these moves, one after the other, may be made. `must_empty`: nodes that drain must be empty then."""
    zone_of = {node.name: node.zone for node in nodes}
    zones = len({zone for name, zone in zone_of.items() if name not in draining})
    replicas = {shard: list(names) for shard, names in current.items()}
    verdict = PlanVerdict()
    for move in moves:
        problem = _problem_of_move(move, replicas, zone_of, draining, alive)
        if problem is not None:
            verdict.problems.append(problem)
            continue
        replicas[move.shard] = [name for name in replicas[move.shard] if name != move.source] + [move.destination]
        crowd = [name for name in replicas[move.shard] if zone_of.get(name) == zone_of[move.destination]]
        limit = zone_limit(len(replicas[move.shard]), zones, {}, {}, 0)
        if len(crowd) > limit and zone_of[move.destination] != zone_of.get(move.source):
            verdict.warnings.append(
                PlanProblem(
                    ZONE,
                    f"Shard {move.shard} would have {len(crowd)} of its replicas in zone "
                    f"{zone_of[move.destination] or 'none'} ({', '.join(sorted(crowd))}); {limit} would be possible.",
                )
            )
    if must_empty:
        verdict.problems.extend(_left_behind(replicas, zone_of, draining, alive))
    return verdict


def check_transfers(
    transfers: Sequence[Transfer],
    current: Mapping[int, Sequence[str]],
    nodes: Iterable[NodeSpec],
    draining: Set[str],
    alive: Set[str],
) -> PlanVerdict:
    zone_of = {node.name: node.zone for node in nodes}
    verdict = PlanVerdict()
    for transfer in transfers:
        shard, destination = transfer.shard, transfer.destination
        if shard not in current:
            verdict.problems.append(_unknown_shard(shard))
        elif destination not in current[shard]:
            verdict.problems.append(
                PlanProblem(
                    NOT_A_REPLICA, f"Expected {destination} to have a replica of shard {shard}, but it has none."
                )
            )
        else:
            problem = _problem_of_destination(destination, zone_of, draining, alive)
            problem = problem or _lacks_majority(shard, current[shard], alive)
            verdict.problems.extend([problem] if problem else [])
    return verdict


def in_turns(steps: Sequence[Step]) -> list[Step]:
    """In an order in which many can be made side by side, with no node, and no shard, in two of them at a time."""
    ordered: list[Step] = []
    left = list(steps)
    while left:
        busy_nodes: set[str] = set()
        busy_shards: set[int] = set()
        later = []
        for step in left:
            if step.shard in busy_shards or step.source in busy_nodes or step.destination in busy_nodes:
                later.append(step)
            else:
                ordered.append(step)
                busy_nodes.update((step.source, step.destination))
            busy_shards.add(step.shard)  # also if it waits: the steps of a shard keep their order
        left = later
    return ordered


def _pools(
    current: Mapping[int, Sequence[str]],
    usable: Sequence[NodeSpec],
    zone_of: Mapping[str, str],
    draining: Set[str],
    alive: Set[str],
) -> dict[int, tuple[Pool, dict[str, int]]]:
    """The replicas of each shard that can move, and the room that it has for them in each zone."""
    numbers = {node.name: index for index, node in enumerate(usable)}
    zone_sizes = Counter(node.zone for node in usable)
    zones = len({zone for name, zone in zone_of.items() if name not in draining})
    loads = Counter(name for replicas in current.values() for name in set(replicas))
    pools = {}
    for shard, replicas in current.items():
        names = set(replicas)
        origin = frozenset(numbers[name] for name in names if name in numbers)
        if _lacks_majority(shard, replicas, alive):
            room = dict(Counter(usable[index].zone for index in origin))
            pools[shard] = (Pool(origin, set(origin), 0, (), dict(room), 0), room)
            continue
        stays = {name for name in names if name not in numbers and name not in draining}
        fixed = Counter(zone_of[name] for name in stays if name in zone_of)
        movable = len(names) - len(stays)
        zone_max = zone_limit(len(names), zones, zone_sizes, fixed, movable)
        room = {zone: max(0, min(size, zone_max - fixed[zone])) for zone, size in zone_sizes.items()}
        zone_counts = Counter(fixed)
        here = set()
        # Too many in a zone: of those, the ones on the fullest nodes have to leave.
        for member in sorted(origin, key=lambda member: (loads[usable[member].name], member)):
            if zone_counts[usable[member].zone] < zone_max:
                zone_counts[usable[member].zone] += 1
                here.add(member)
        pools[shard] = (
            Pool(origin, here, movable - len(here), tuple(range(len(usable))), dict(zone_counts), zone_max), room
        )  # fmt: skip
    return pools


def _paired(gone: Sequence[str], came: Sequence[str], zone_of: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each that came takes over from one that goes, if possible from one of its own zone."""
    left = list(gone)
    pairs: list[tuple[str, str]] = []
    for strict in (True, False):
        for name in came:
            if any(name == taken for _, taken in pairs):
                continue
            source = next((other for other in left if not strict or zone_of.get(other) == zone_of[name]), None)
            if source is not None:
                left.remove(source)
                pairs.append((source, name))
    return pairs


def _problem_of_move(
    move: Move,
    replicas: Mapping[int, Sequence[str]],
    zone_of: Mapping[str, str],
    draining: Set[str],
    alive: Set[str],
) -> PlanProblem | None:
    shard, source, destination = move.shard, move.source, move.destination
    if shard not in replicas:
        return _unknown_shard(shard)
    if source not in replicas[shard]:
        return PlanProblem(NOT_A_REPLICA, f"Expected {source} to have a replica of shard {shard}, but it has none.")
    if destination in replicas[shard]:
        return PlanProblem(
            ALREADY_A_REPLICA, f"Expected a node without a replica of shard {shard}, but {destination} has one."
        )
    return _problem_of_destination(destination, zone_of, draining, alive) or _lacks_majority(
        shard, replicas[shard], alive, source, destination
    )


def _unknown_shard(shard: int) -> PlanProblem:
    return PlanProblem(UNKNOWN_SHARD, f"Expected a shard of this cluster, but there is no shard {shard}.")


def _problem_of_destination(
    name: str, zone_of: Mapping[str, str], draining: Set[str], alive: Set[str]
) -> PlanProblem | None:
    if name not in zone_of:
        return PlanProblem(UNKNOWN_NODE, f"Expected a node of this cluster, but none is called {name}.")
    if name not in alive:
        return PlanProblem(NODE_NOT_ALIVE, f"Expected {name} to be alive, but it is away: start it, or choose another.")
    if name in draining:
        return PlanProblem(
            NODE_DRAINS, f"Expected a node that does not drain, but {name} does: undrain it, or choose another."
        )
    return None


def _lacks_majority(
    shard: int, voters: Sequence[str], alive: Set[str], source: str = "", destination: str = ""
) -> PlanProblem | None:
    """Of the voters now, with the one more, and without the one that goes: each group has to decide on the next."""
    groups = [set(voters)]
    if destination:
        groups += [groups[0] | {destination}, (groups[0] | {destination}) - {source}]
    for group in groups:
        live = sorted(group & alive)
        if len(live) < len(group) // 2 + 1:
            away = sorted(group - alive)
            return PlanProblem(
                NO_MAJORITY,
                f"Expected a majority of the replicas of shard {shard} to be alive, but of {len(group)} only "
                f"{len(live)} would be: bring back {' or '.join(away)} first.",
            )
    return None


def _left_behind(
    replicas: Mapping[int, Sequence[str]], zone_of: Mapping[str, str], draining: Set[str], alive: Set[str]
) -> list[PlanProblem]:
    left = {shard: names for shard, names in sorted(replicas.items()) if draining & set(names)}
    headless = [problem for shard, names in left.items() if (problem := _lacks_majority(shard, names, alive))]
    if headless or not left:
        return headless
    usable = sorted((zone_of.keys() & alive) - draining)
    holders = sorted(draining & {name for names in left.values() for name in names})
    shard, names = next(iter(left.items()))
    return [
        PlanProblem(
            NOT_ENOUGH_NODES,
            f"Expected nodes to take over from {' and '.join(holders)}, but {_listed(usable)}, and shard {shard} "
            f"has {len(names)} replicas: start another node, or undrain one.",
        )
    ]


def _listed(usable: Sequence[str]) -> str:
    if not usable:
        return "no node is alive without draining"
    return f"only {len(usable)} {'is' if len(usable) == 1 else 'are'} alive and not draining ({', '.join(usable)})"
