"""Shards on paper that do what their records desire, one small change at a time, as real leaders would; and the watch
over what must hold all the while."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from holdfast.cluster.admin.cluster_service import ClusterAdmin
from holdfast.cluster.admin.plans import Nodes
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import LeaderRecord, Members, ShardRecord, name_of
from holdfast.cluster.map.store import MapStore
from holdfast.cluster.plans.steps import nodes_in_flux
from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.cluster.cluster_stage import identity, make_store, read_map

Transfer = Callable[[int, str], Awaitable[None]]


async def no_transfer(_shard: int, _to: str) -> None:
    raise AssertionError("nobody should lead instead of another")


async def no_hand_over(_request: pb.HandOverNodeRequest) -> pb.HandOverNodeResponse:
    raise AssertionError("no node should hand over")


class UnknownNodes:
    """Nobody knows how large a replica is, nor how far it is behind."""

    def __init__(self, transfer: Transfer = no_transfer) -> None:
        self._transfer = transfer

    async def state_bytes(self, shard: int) -> int:
        return -1

    async def lag(self, shard: int, node: str) -> int:
        return -1

    async def transfer(self, shard: int, to: str) -> None:
        await self._transfer(shard, to)


def admin_of(store: MapStore, follower: MapFollower, nodes: Nodes | None = None) -> ClusterAdmin:
    return ClusterAdmin(store, follower, nodes or UnknownNodes(), no_hand_over)


@dataclass
class WishfulShards:
    """Every call of `step` lets each shard make at most one change."""

    etcd: FakeEtcd
    stuck: set[int] = field(default_factory=set)  # shards whose leaders do nothing
    transfers: list[tuple[int, str]] = field(default_factory=list)
    most_per_node: int = 0  # moves that one node was part of at a time

    async def step(self) -> bool:
        """Whether something changed."""
        found = await read_map(self.etcd)
        self._watch(found)
        changed = False
        for number, record in found.shards.items():
            if number not in self.stuck:
                changed = await self._step_one(found, number, record) or changed
        return changed

    async def settle(self) -> None:
        while await self.step():
            pass

    async def transfer(self, shard: int, to: str) -> None:
        self.transfers.append((shard, to))
        await self.lead(shard, to)

    async def lead(self, shard: int, node: str) -> None:
        found = await read_map(self.etcd)
        leader = found.shard_leader(shard)
        epoch = 1 if leader is None else leader.epoch + 1
        await make_store(self.etcd).hint_leader(shard, LeaderRecord(node, found.shards[shard].group, epoch))

    async def _step_one(self, found: PartitionMap, number: int, record: ShardRecord) -> bool:
        store = make_store(self.etcd)
        if not record.is_founded:
            await store.publish_members(number, record.group, Members(1, tuple(sorted(record.founders))))
            await self.lead(number, record.replicas[0])
            return True
        changed = self._changed(found, record)
        if changed is not None:
            leader = found.shard_leader(number)
            if leader is not None and leader.node not in map(name_of, changed.voters):
                await self.lead(number, next(name for name in record.replicas if found.is_alive(name)))
            await store.publish_members(number, record.group, changed)
            return True
        for replica in record.leaving:
            if found.is_there(replica):
                await store.forget_leaving(number, replica)
                return True
        return False

    def _changed(self, found: PartitionMap, record: ShardRecord) -> Members | None:
        voters, learners = set(record.members.voters), set(record.members.learners)
        if sum(map(found.is_there, voters)) * 2 <= len(voters):
            return None
        desired = {found.nodes[name].identity if name in found.nodes else identity(name) for name in record.replicas}
        if learners - desired:
            learners &= desired
        elif learners:
            there = set(filter(found.is_there, learners))
            if not there:
                return None
            voters, learners = voters | there, learners - there
        elif desired - voters:
            learners = set(sorted(desired - voters)[:1])
        elif voters - desired:
            voters -= set(sorted(voters - desired)[:1])
        else:
            return None
        return Members(record.members.version + 1, tuple(sorted(voters)), tuple(sorted(learners)))

    def _watch(self, found: PartitionMap) -> None:
        assert found.cluster is not None
        moving: Counter[str] = Counter()
        for record in found.shards.values():
            assert len(record.replicas) == found.cluster.replication
            assert len(set(record.replicas)) == found.cluster.replication
            assert not record.is_founded or len(record.members.voters) >= found.cluster.replication
            moving.update(nodes_in_flux(found, record))
        self.most_per_node = max(self.most_per_node, *moving.values(), 0)
