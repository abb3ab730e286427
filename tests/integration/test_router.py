"""A router in front of three real brokers with several shards. Its map is written by the test, into an etcd in memory:
the brokers know nothing of it, as if they had been started from a list."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from holdfast.client import AsyncClient, NewTask, TaskInfo
from holdfast.cluster.etcd.api import Put
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.records import ClusterRecord, LeaderRecord, NodeRecord, QueueRecord, ShardRecord
from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.config import RouterConfig
from holdfast.router.server import Router
from holdfast.routing.groups import mapped_group
from holdfast.routing.homes import home_shard
from tests.integration.cluster import Cluster
from tests.integration.server import DEADLINE_S

SHARDS = 3
NAME = "chaos"
GROUP = mapped_group(1, 5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("brokers"), size=3, shards=SHARDS) as started:
        started.start()
        for shard in range(SHARDS):
            started.wait_for_leader(shard)
        yield started


class Map:
    """What the router reads."""

    def __init__(self, cluster: Cluster) -> None:
        self.etcd = FakeEtcd()
        self._keys = keys_of(NAME)
        self._cluster = cluster

    async def write(self, key: bytes, value: bytes) -> None:
        assert (await self.etcd.commit([], [Put(key, value)])).is_done

    async def init(self) -> None:
        names = self._cluster.names
        for index, name in enumerate(names):
            node = NodeRecord(
                name=name, node_id=f"{index + 1:032x}", address=self._cluster.nodes[name].address, peer_address="h:1"
            )
            await self.write(self._keys.node(name), node.encode())
        founders = tuple(f"{name}/{position + 1:032x}" for position, name in enumerate(names))
        for shard in range(SHARDS):
            record = ShardRecord(group=GROUP, replicas=tuple(names), founders=founders)
            await self.write(self._keys.shard(shard), record.encode())
        await self.write(self._keys.cluster, ClusterRecord("c" * 32, SHARDS, 3).encode())

    async def hint(self, shard: int, node: str, epoch: int) -> None:
        await self.write(self._keys.leader(shard), LeaderRecord(node, GROUP, epoch).encode())

    async def spread(self, queue: str, *shards: int) -> None:
        record = QueueRecord(generation=1, sets=((1, shards),))
        await self.write(self._keys.queue(queue), record.encode())


@pytest.fixture
async def map_(cluster: Cluster) -> Map:
    made = Map(cluster)
    await made.init()
    return made


@pytest.fixture
async def router(map_: Map) -> AsyncIterator[Router]:
    config = RouterConfig(port=0, ops_port=0, cluster_name=NAME, shutdown_grace_seconds=2)
    running = Router(config, etcd=map_.etcd)
    await running.start(with_signals=False)
    while not running.readiness()[0]:
        await asyncio.sleep(0.01)
    yield running
    await running.stop()


@pytest.fixture
async def client(router: Router) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{router.port}", timeout_s=20) as connected:
        yield connected


async def call(router: Router, path: str, request: Any, response: type[Any]) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{router.port}") as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/holdfast.proto.v1.{path}")
        return response.FromString(await ask(request.SerializeToString(), timeout=20))


def queues_of_all_shards(prefix: str) -> list[str]:
    """One at home on each shard."""
    homes = {home_shard(f"{prefix}{n}", SHARDS): f"{prefix}{n}" for n in range(50)}
    return [homes[shard] for shard in range(SHARDS)]


async def test_tasks_of_all_shards_live_and_die_through_one_router(map_: Map, router: Router, cluster: Cluster) -> None:
    """Batches over all shards, a queue spread over all, and every call of a worker."""
    await map_.spread("wide", 0, 1, 2)
    queues = [*queues_of_all_shards("a"), "wide"]
    tasks = [
        pb.TaskSpec(
            queue=queues[n % 4], type="t", payload=b"%d" % n, request_id=f"~1.k{n}.0" if n % 4 == 3 else f"r{n}"
        )
        for n in range(80)
    ]
    request = pb.EnqueueRequest(tasks=tasks)
    first = await call(router, "Tasks/Enqueue", request, pb.EnqueueResponse)
    again = await call(router, "Tasks/Enqueue", request, pb.EnqueueResponse)
    names = [outcome.accepted.task_id for outcome in first.outcomes]
    assert len(set(names)) == 80
    assert [outcome.accepted.task_id for outcome in again.outcomes] == names
    assert all(outcome.accepted.duplicate for outcome in again.outcomes)
    stats = await call(router, "Tasks/QueueStats", pb.QueueStatsRequest(queues=queues), pb.QueueStatsResponse)
    assert [outcome.counts.ready for outcome in stats.outcomes] == [20, 20, 20, 20]
    listed = await call(router, "Tasks/ListQueues", pb.ListQueuesRequest(), pb.ListQueuesResponse)
    assert {(queue.queue, queue.ready) for queue in listed.queues} >= {(queue, 20) for queue in queues}
    payloads = {}
    claims: list[pb.Claim] = []
    for n in range(200):
        reserve = pb.ReserveRequest(queues=queues, max_tasks=30, lease_ms=60_000, claim_request_id=f"c{n}", worker="w")
        reserve.wait_ms = 1000 if len(claims) < 80 else 0
        found = await call(router, "Tasks/Reserve", reserve, pb.ReserveResponse)
        claims += found.claims
        if not found.claims and not reserve.wait_ms:
            break
    payloads = {claim.task_id: claim.task.payload for claim in claims}
    assert payloads == {name: b"%d" % n for n, name in enumerate(names)}
    refs = [pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in claims]
    bad = pb.AckItem(claim=pb.ClaimRef(task_id=names[5], token=1, secret=1))
    acks = pb.AckRequest(items=[*(pb.AckItem(claim=ref) for ref in refs), bad])
    acked = await call(router, "Tasks/Ack", acks, pb.AckResponse)
    assert [outcome.WhichOneof("outcome") for outcome in acked.outcomes] == ["acked"] * 80 + ["rejection"]
    waited = pb.WaitTasksRequest(task_ids=names, wait_ms=0)
    done = await call(router, "Tasks/WaitTasks", waited, pb.WaitTasksResponse)
    assert [outcome.task.state for outcome in done.outcomes] == [pb.TASK_STATE_SUCCEEDED] * 80


async def test_a_worker_waits_at_several_shards(map_: Map, client: AsyncClient) -> None:
    await map_.spread("waited", 0, 1, 2)
    waiting = asyncio.create_task(
        client.reserve(["waited"], max_tasks=5, lease_ms=60_000, wait_ms=20_000, worker="w", claim_request_id="one")
    )
    await asyncio.sleep(0.3)
    assert not waiting.done()
    handle = await client.enqueue(NewTask("waited", "t", b"x", request_id="mine"))
    [claim] = await waiting
    assert claim.task_id == handle.task_id


async def test_operators_see_the_router(router: Router, cluster: Cluster) -> None:
    described = await call(
        router, "Shards/DescribeNode", shards_pb2.DescribeNodeRequest(), shards_pb2.DescribeNodeResponse
    )
    assert {(node.name, node.address) for node in described.nodes} == {
        (name, cluster.nodes[name].address) for name in cluster.names
    }
    found = await call(
        router, "Shards/FindLeader", shards_pb2.FindLeaderRequest(shard=1), shards_pb2.FindLeaderResponse
    )
    assert found.leader == cluster.leader(1)

    def get(path: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{router.ops_port}{path}") as answer:
            return answer.status, answer.read().decode()

    status, body = await asyncio.to_thread(get, "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reason": "serving"})
    _, text = await asyncio.to_thread(get, "/metrics")
    assert "holdfast_router_map_shards 3.0" in text
    assert 'holdfast_router_rpc_calls_total{code="OK",method="FindLeader"} 1.0' in text


async def test_without_a_map_everything_is_refused_with_the_reason() -> None:
    etcd = FakeEtcd()
    etcd.stop()
    router = Router(RouterConfig(port=0, ops_port=0, cluster_name=NAME), etcd=etcd)
    await router.start(with_signals=False)
    try:
        assert router.readiness() == (False, "the partition map could not be read yet: etcd does not answer")
        async with AsyncClient(f"127.0.0.1:{router.port}", timeout_s=20, retry=False) as client:
            with pytest.raises(Exception, match="etcd"):
                await client.enqueue(NewTask("q", "t", b""))
            etcd.resume()
            while "not initialised" not in router.readiness()[1]:
                await asyncio.sleep(0.01)
            with pytest.raises(Exception, match="cluster init"):
                await client.enqueue(NewTask("q", "t", b""))
    finally:
        await router.stop()


async def test_a_result_that_is_gone_is_told_from_none_also_by_the_next_leader(
    client: AsyncClient, cluster: Cluster
) -> None:
    [queue, *_] = queues_of_all_shards("expired")
    ids = [(await client.enqueue(NewTask(queue, "t", result_ttl_ms=1))).task_id for _ in range(2)]
    claims = {claim.task_id: claim for claim in await client.reserve([queue], max_tasks=2, worker="w")}
    for task_id, result in zip(ids, (b"42", None), strict=True):
        await client.ack(claims[task_id], result=result)
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get_task(ids[0])).result_expired_at_ms is None:
            await asyncio.sleep(0.01)  # a millisecond of the shard's time
    before = await client.wait_tasks(ids)
    assert all(isinstance(info, TaskInfo) and info.result is None for info in before)
    victim = await asyncio.to_thread(cluster.wait_for_leader, 0)
    cluster.kill(victim)
    assert await client.wait_tasks(ids) == before
    shown = [(info.changed_at_ms, info.result_expired_at_ms) for info in [await client.get_task(one) for one in ids]]
    assert [expired_at_ms for _, expired_at_ms in shown] == [shown[0][0] + 1, None]
    await asyncio.to_thread(cluster.start_node, victim)
    await asyncio.to_thread(cluster.wait_whole)


async def test_the_client_works_through_a_router_while_leaders_die(
    map_: Map, router: Router, client: AsyncClient, cluster: Cluster
) -> None:
    """Hints of the map are wrong from the start, etcd goes away, and the leader of a shard is killed, then another one
    is paused, under load. Nothing that was accepted is lost."""
    queues = queues_of_all_shards("b")
    for shard in range(SHARDS):
        await map_.hint(shard, cluster.followers(shard)[0], 1)
    accepted: dict[str, int] = {}
    number = 0

    async def produce(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            handles = await asyncio.gather(
                *(client.enqueue(NewTask(queue, "t", b"%d" % number, request_id=f"r{number}")) for queue in queues)
            )
            accepted.update({str(handle.task_id): number for handle in handles})

    await produce(5)
    map_.etcd.stop()
    await produce(5)
    victim = cluster.wait_for_leader(0)
    cluster.kill(victim)
    await produce(10)
    await asyncio.to_thread(cluster.start_node, victim)
    await asyncio.to_thread(cluster.wait_whole)
    silent = await asyncio.to_thread(cluster.wait_for_leader, 1)
    cluster.nodes[silent].pause()
    await produce(3)
    cluster.nodes[silent].resume()
    assert len(accepted) == 3 * 23
    claimed: dict[str, bytes] = {}
    for n in range(100):
        wait_ms = 1000 if len(claimed) < len(accepted) else 0
        found = await client.reserve(
            queues, max_tasks=50, lease_ms=60_000, wait_ms=wait_ms, worker="w", claim_request_id=f"c{n}"
        )
        claimed |= {str(claim.task_id): claim.payload for claim in found}
        if not found and not wait_ms:
            break
    assert {name: int(payload) for name, payload in claimed.items()} == accepted
    is_ready, why = router.readiness()
    assert is_ready
    assert why.startswith("serving with the last known map: etcd did not answer")
