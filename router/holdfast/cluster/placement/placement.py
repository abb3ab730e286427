"""Which nodes should have the replicas of which shards. Pure.

    balance    each node has its fair share by capacity, rounded down or up
    distinct   never two replicas of a shard on one node
    zones      of the R replicas of a shard, at most ⌈R ÷ zones⌉ are in one zone, or as few as the nodes allow
    still      of all the ways to get there, one that moves the fewest replicas

What is moved is found as a flow of least cost. The nodes are the vertices; a shard that may give up its replica on one
node for one on another makes an edge, which costs what it adds to the number of moves: 1 to leave a node that had the
replica at the beginning, 0 to send one on that had left anyway, -1 to send it back. One path after the other, each the
cheapest between its ends, leads from nodes that have too much to nodes that have too little, until none helps any more.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    zone: str = ""  # nodes without a zone are in one zone together
    capacity: int = 100  # against that of the others; 0: it should have nothing


@dataclass(slots=True)
class Pool:
    """The replicas of one shard that can move (or its one leader), on nodes by number."""

    origin: frozenset[int]  # where they were at the beginning
    here: set[int]  # where they are now
    unplaced: int  # replicas that had to leave and are nowhere yet
    candidates: tuple[int, ...]  # nodes that may have one
    zone_counts: dict[str, int]  # of all replicas, also of those that cannot move
    zone_max: int


def place(shards: int, replication: int, nodes: Sequence[NodeSpec]) -> dict[int, list[str]]:
    """The first replicas of shards 0 to `shards` - 1. The first name of each is the one that should lead."""
    if shards < 1:
        raise ValueError(f"Expected at least one shard, but got {shards}.")
    if not 1 <= replication <= len(nodes):
        raise ValueError(
            f"Expected a replication factor of 1 to {len(nodes)}, as many as nodes, but got {replication}."
        )
    ordered = sorted(nodes, key=lambda node: (node.zone, node.name))
    zone_sizes = Counter(node.zone for node in ordered)
    zone_max = zone_limit(replication, len(zone_sizes), zone_sizes, {}, replication)
    zone_room = {zone: shards * min(size, zone_max) for zone, size in zone_sizes.items()}
    shares = fair_shares(shards * replication, ordered, [shards] * len(ordered), zone_room)
    replicas = _in_turn(shards, ordered, shares)
    _mix(replicas, ordered, replication, zone_max)
    leaders = _first_leaders(replicas, ordered)
    return {
        shard: [
            ordered[leaders[shard]].name,
            *sorted(ordered[replica].name for replica in replicas[shard] - {leaders[shard]}),
        ]
        for shard in range(shards)
    }


def zone_limit(
    replication: int, zones: int, zone_sizes: Mapping[str, int], fixed: Mapping[str, int], movable: int
) -> int:
    """How many replicas of a shard may be in one zone: ⌈R ÷ zones⌉, or more if its replicas fit in no other way.

    `zone_sizes` counts the nodes that may have replicas, `fixed` the replicas of the shard that cannot move.
    """
    for limit in range(ceil(replication / max(zones, 1)), replication):
        if sum(max(0, min(size, limit - fixed.get(zone, 0))) for zone, size in zone_sizes.items()) >= movable:
            return limit
    return replication


def fair_shares(
    total: int, nodes: Sequence[NodeSpec], node_room: Sequence[int], zone_room: Mapping[str, int]
) -> list[Fraction]:
    """How much of `total` each node should have: by capacity, within the room of nodes and zones.

    All fill up at the same speed for their capacity; whatever is full stops, and the others go on. Only what none of
    them has room for goes to nodes of no capacity.
    """
    shares = [Fraction(0)] * len(nodes)
    zone_left = {zone: Fraction(room) for zone, room in zone_room.items()}
    left = Fraction(total)
    for weights in ([max(0, node.capacity) for node in nodes], [int(node.capacity <= 0) for node in nodes]):
        open_nodes = {index for index, weight in enumerate(weights) if weight}
        while open_nodes and left > 0:
            level = left / sum(weights[index] for index in open_nodes)
            full = set(open_nodes)
            for position in open_nodes:
                if Fraction(node_room[position], weights[position]) < level:
                    level, full = Fraction(node_room[position], weights[position]), {position}
            for zone, room in sorted(zone_left.items()):
                members = {index for index in open_nodes if nodes[index].zone == zone}
                if members and room / sum(weights[index] for index in members) < level:
                    level, full = room / sum(weights[index] for index in members), members
            for position in full:
                shares[position] = level * weights[position]
                left -= shares[position]
                if nodes[position].zone in zone_left:
                    zone_left[nodes[position].zone] -= shares[position]
            open_nodes -= full
    return shares


class Spreader:
    """Moves as few replicas as it takes for each node to have its share, rounded down or up.

    Where zones or replicas that cannot move stand against that, it comes as near as it can: it makes the sum of the
    squares of what nodes have too much or too little as small as possible.
    """

    def __init__(self, pools: Mapping[int, Pool], zones: Sequence[str], shares: Sequence[Fraction]) -> None:
        self.pools = pools
        self._zones = zones
        self._nowhere = len(zones)  # a vertex for the replicas that are unplaced
        self._weight = 2 * len(zones) + 4  # of one move: more than a path can have edges
        self._floors = [floor(share) for share in shares]
        self._ceilings = [ceil(share) for share in shares]
        self._loads = [0] * len(zones)
        self._unplaced = 0
        # From node to node: (cost, shard), the cheapest first. What no longer holds is dropped when it comes up.
        self._edges: list[list[list[tuple[int, int]]]] = [[[] for _ in zones] for _ in range(len(zones) + 1)]
        self._rows: dict[int, list[tuple[int, int, int]]] = {}  # what `_row` found, until a shard of the node changes
        for shard, pool in sorted(pools.items()):
            self._unplaced += pool.unplaced
            for node in pool.here:
                self._loads[node] += 1
            self._offer(shard)

    def run(self) -> None:
        is_better = True
        while is_better:
            is_better = False
            for source in sorted(range(len(self._zones) + 1), key=lambda node: (-self._relief(node), node)):
                while self._improve(source):
                    is_better = True

    def _improve(self, source: int) -> bool:
        """Along the cheapest path to the node that lacks most, if that helps. Equal balance with fewer moves helps."""
        if self._relief(source) == -inf:
            return False
        lengths, came_by = self._paths(source)
        targets = [(self._burden(node), length, node) for node, length in lengths.items() if node != source]
        if not targets:
            return False
        burden, length, target = min(targets)
        if burden > self._relief(source) or (burden == self._relief(source) and length >= 0):
            return False
        steps = []
        node = target
        while node != source:
            before, shard = came_by[node]
            steps.append((shard, before, node))
            node = before
        for shard, before, after in steps:
            self._move(shard, before, after)
        return True

    def _burden(self, node: int) -> int:
        """What one more would add to the sum of squares."""
        return self._slope(node, self._loads[node])

    def _relief(self, node: int) -> float:
        """What one less would take from it."""
        if node == self._nowhere:
            return inf if self._unplaced else -inf
        return self._slope(node, self._loads[node] - 1) if self._loads[node] else -inf

    def _slope(self, node: int, load: int) -> int:
        if load < self._floors[node]:
            return 2 * (load - self._floors[node]) + 1
        return 2 * (load - self._ceilings[node]) + 1 if load >= self._ceilings[node] else 0

    def _paths(self, source: int) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        """The cheapest path from `source` to each node that it reaches, with the fewest edges among the cheapest.

        No circle has a length below zero: none has at the beginning, and going by the cheapest paths makes none.
        """
        lengths = {source: 0}
        came_by: dict[int, tuple[int, int]] = {}
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            length = lengths[node]
            for after, edge, shard in self._row(node):
                if length + edge < lengths.get(after, inf):
                    lengths[after] = length + edge
                    came_by[after] = (node, shard)
                    if after not in waiting:
                        waiting.append(after)
        return lengths, came_by

    def _row(self, node: int) -> list[tuple[int, int, int]]:
        """For each node that `node` has an edge to: that node, the edge's length and its shard."""
        known = self._rows.get(node)
        if known is not None:
            return known
        row = self._rows[node] = []
        for after, heap in enumerate(self._edges[node]):
            while heap and self._cost(heap[0][1], node, after) != heap[0][0]:
                heapq.heappop(heap)
            if heap:
                row.append((after, heap[0][0] * self._weight + 1, heap[0][1]))
        return row

    def _cost(self, shard: int, before: int, after: int) -> int | None:
        """Of giving up the replica on `before` for one on `after`, in moves; None: it may not be."""
        pool = self.pools[shard]
        is_nowhere = before == self._nowhere
        if after in pool.here or (not pool.unplaced if is_nowhere else before not in pool.here):
            return None
        zone = self._zones[after]
        if (is_nowhere or self._zones[before] != zone) and pool.zone_counts.get(zone, 0) >= pool.zone_max:
            return None
        return (after not in pool.origin) - (before not in pool.origin)

    def _offer(self, shard: int) -> None:
        pool = self.pools[shard]
        for before in (*sorted(pool.here), self._nowhere) if pool.unplaced else sorted(pool.here):
            for after in pool.candidates:
                cost = self._cost(shard, before, after)
                if cost is not None:
                    heapq.heappush(self._edges[before][after], (cost, shard))

    def _move(self, shard: int, before: int, after: int) -> None:
        pool = self.pools[shard]
        if before == self._nowhere:
            pool.unplaced -= 1
            self._unplaced -= 1
        else:
            pool.here.remove(before)
            pool.zone_counts[self._zones[before]] -= 1
            self._loads[before] -= 1
        pool.here.add(after)
        pool.zone_counts[self._zones[after]] = pool.zone_counts.get(self._zones[after], 0) + 1
        self._loads[after] += 1
        for node in (*pool.here, before, self._nowhere):
            self._rows.pop(node, None)
        self._offer(shard)


def spread_one_each(
    holders: Mapping[int, int], candidates: Mapping[int, Sequence[int]], nodes: Sequence[NodeSpec]
) -> dict[int, int]:
    """Of each shard, the one candidate that should lead. `holders` do now; who is no candidate has to give it up."""
    pools = {}
    for shard, may_lead in sorted(candidates.items()):
        here = {holders[shard]} & set(may_lead)
        pools[shard] = Pool(frozenset(here), here, 1 - len(here), tuple(may_lead), {"": len(here)}, 1)
    room = Counter(node for may_lead in candidates.values() for node in may_lead)
    shares = fair_shares(len(pools), nodes, [room[index] for index in range(len(nodes))], {})
    Spreader(pools, [""] * len(nodes), shares).run()  # zones do not matter for who leads
    return {shard: next(iter(pool.here)) for shard, pool in pools.items()}


def _in_turn(shards: int, nodes: Sequence[NodeSpec], shares: Sequence[Fraction]) -> list[set[int]]:
    """Node after node, zone after zone, as cards are dealt: then no shard gets a node twice, or a zone too often."""
    replicas: list[set[int]] = [set() for _ in range(shards)]
    placed, due = 0, Fraction(0)
    for index in range(len(nodes)):
        due += shares[index]
        while placed < floor(due):
            replicas[placed % shards].add(index)
            placed += 1
    return replicas


def _mix(replicas: list[set[int]], nodes: Sequence[NodeSpec], replication: int, zone_max: int) -> None:
    """Exchanges nodes between shards, so that when a node dies, many others share what it led.

    Dealing alone puts the same few nodes together again and again. An exchange leaves every node with what it had.
    """
    shards = len(replicas)
    zones = [node.zone for node in nodes]
    for turn in range(1, 2 * replication + 1):
        for one in range(shards):
            other = (one * 7 + turn * 31 + 1) % shards
            mine = sorted(replicas[one])[turn % replication]
            theirs = sorted(replicas[other])[(turn + one) % replication]
            if mine in replicas[other] or theirs in replicas[one]:
                continue
            swapped = (replicas[one] - {mine} | {theirs}, replicas[other] - {theirs} | {mine})
            if all(_most_in_a_zone(group, zones) <= zone_max for group in swapped):
                replicas[one], replicas[other] = swapped


def _most_in_a_zone(group: Iterable[int], zones: Sequence[str]) -> int:
    counts: defaultdict[str, int] = defaultdict(int)
    for node in group:
        counts[zones[node]] += 1
    return max(counts.values())


def _first_leaders(replicas: Sequence[set[int]], nodes: Sequence[NodeSpec]) -> dict[int, int]:
    candidates = {shard: sorted(group) for shard, group in enumerate(replicas)}
    holders = {shard: may_lead[shard % len(may_lead)] for shard, may_lead in candidates.items()}
    return spread_one_each(holders, candidates, nodes)
