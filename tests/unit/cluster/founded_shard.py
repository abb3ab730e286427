"""A map with three nodes and a shard that is founded on them."""

import pytest

from holdfast.cluster.etcd.api import Put
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.records import ClusterRecord, ShardRecord
from holdfast.routing.groups import mapped_group
from holdfast.serving.refusals import RefusedError
from tests.unit.cluster.cluster_stage import KEYS, Meddling, add_nodes, identity, read_map

GROUP = mapped_group(1, 7)
ABC = ("a", "b", "c")


def reason_of(error: pytest.ExceptionInfo[RefusedError]) -> str:
    return error.value.reason


@pytest.fixture
async def etcd() -> Meddling:
    """Three nodes, and the record of shard 0, as it is founded on them."""
    etcd = Meddling()
    await add_nodes(etcd, *ABC)
    record = ShardRecord(group=GROUP, replicas=ABC, founders=tuple(map(identity, ABC)))
    await etcd.commit([], [Put(KEYS.shard(0), record.encode())])
    await etcd.commit([], [Put(KEYS.cluster, ClusterRecord("ab" * 16, 8, 3).encode())])
    return etcd


async def shard(etcd: FakeEtcd) -> ShardRecord:
    return (await read_map(etcd)).shards[0]
