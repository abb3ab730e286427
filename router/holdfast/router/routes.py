"""The partition map as a router asks it."""

from collections.abc import Callable

from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import name_of
from holdfast.routing.sets import QueueRoute, visible


class Routes:
    """Where things are in the newest map, whichever that is."""

    def __init__(self, find_map: Callable[[], PartitionMap]) -> None:
        self._find_map = find_map
        # What it says of leaders, looked up once for each map: every call asks.
        self._hints_of: PartitionMap | None = None
        self._hints: dict[int, tuple[str, int] | None] = {}

    @property
    def shard_count(self) -> int:
        cluster = self._find_map().cluster
        return 0 if cluster is None else cluster.shards

    def route(self, queue: str) -> QueueRoute:
        return self._find_map().route(queue)

    def leader_hint(self, shard: int) -> tuple[str, int] | None:
        table = self._find_map()
        if table is not self._hints_of:
            self._hints_of, self._hints = table, {}
        if shard not in self._hints:
            leader = table.shard_leader(shard)
            address = None if leader is None else table.address_of(leader.node)
            self._hints[shard] = None if leader is None or address is None else (address, leader.epoch)
        return self._hints[shard]

    def replica_addresses(self, shard: int) -> list[str]:
        """Those that vote, those that should have it, those that learn: whoever was told last may know most."""
        table = self._find_map()
        record = table.shards.get(shard)
        if record is None:
            return []
        identities = (*record.members.voters, *record.members.learners, *record.leaving)
        names = dict.fromkeys((*record.replicas, *map(name_of, identities)))
        return [address for name in names if (address := table.address_of(name)) is not None]

    def nodes(self) -> list[tuple[str, str]]:
        """Name and address of every broker, by name."""
        return [(name, node.address) for name, node in sorted(self._find_map().last_nodes.items())]


def moved_queues(before: PartitionMap, after: PartitionMap) -> list[str]:
    """The queues whose tasks are on other shards than they were."""
    if before.queues is after.queues or before.cluster is None or after.cluster is None:
        return []
    changed = [
        name for name in before.queues.keys() | after.queues.keys() if before.queues.get(name) != after.queues.get(name)
    ]
    return [name for name in changed if set(visible(before.route(name))) != set(visible(after.route(name)))]
