"""A cluster on paper for the tests of the map: an etcd in memory with nodes in it, and records made short."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from holdfast.cluster.etcd.api import Committed, Delete, Put, Unchanged
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.keys import MapKeys
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import Members, NodeRecord, identity_of
from holdfast.cluster.map.store import MapStore
from holdfast.common.service import end_tasks
from holdfast.serving.refusals import RefusedError

NAME = "test"
KEYS = MapKeys(NAME)
WAIT_S = 5.0  # for what should take no time at all


class Meddling(FakeEtcd):
    """Somebody else is faster: before a commit, `meddle` is called, so many times."""

    meddle: Callable[[], Awaitable[object]] | None = None
    times = 0

    async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
        if self.meddle is not None and self.times > 0:
            meddle, self.meddle = self.meddle, None
            self.times -= 1
            await meddle()
            self.meddle = meddle
        return await super().commit(compares, changes)


async def no_sleep(_seconds: float) -> None:
    await asyncio.sleep(0)


def make_store(etcd: FakeEtcd) -> MapStore:
    return MapStore(etcd, NAME, sleep=no_sleep)


def node_id(name: str, life: int = 1) -> str:
    return f"{int.from_bytes(name.encode(), 'big'):030x}{life:02x}"


def node(name: str, life: int = 1, zone: str = "", capacity: int = 100) -> NodeRecord:
    return NodeRecord(
        name=name, node_id=node_id(name, life), address=f"{name}.test:7401", peer_address=f"{name}.test:7402",
        ops_address=f"{name}.test:7403", zone=zone, capacity=capacity, version="0.1.0", session=f"s{life}",
    )  # fmt: skip


def identity(name: str, life: int = 1) -> str:
    return identity_of(name, node_id(name, life))


def members(version: int, voters: Iterable[str], learners: Iterable[str] = ()) -> Members:
    return Members(version, tuple(sorted(map(identity, voters))), tuple(sorted(map(identity, learners))))


async def refusal_of(call: Awaitable[object]) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        await call
    return refused.value


async def reason_refused(call: Awaitable[object]) -> str:
    return (await refusal_of(call)).reason


async def add_nodes(etcd: FakeEtcd, *names: str) -> dict[str, int]:
    """They are there until their lease, which is told, is revoked."""
    leases = {}
    for name in names:
        leases[name] = await etcd.grant(3600)
        await etcd.commit([], [Put(KEYS.node(name), node(name).encode(), leases[name])])
    return leases


async def desire(etcd: FakeEtcd, number: int, *names: str) -> None:
    """The shard should be on these nodes from now on, whatever they are."""
    record = replace((await read_map(etcd)).shards[number], replicas=names)
    await etcd.commit([], [Put(KEYS.shard(number), record.encode())])


async def read_map(etcd: FakeEtcd) -> PartitionMap:
    return PartitionMap.load(NAME, await etcd.read(KEYS.prefix))


@asynccontextmanager
async def following(follower: MapFollower) -> AsyncIterator[MapFollower]:
    run = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        await end_tasks([run])
