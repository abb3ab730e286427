"""Calls over gRPC and in frames: the same refusals, the same limits, of a broker and of a router. The answers of every
method are compared in `test_conformance`."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from google.protobuf.message import Message

from holdfast.client import AsyncClient, ClaimedTask, NewTask
from holdfast.proto.v1 import cluster_pb2, schedules_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.map_cluster import MapCluster
from tests.integration.server import ServerProcess, wait_until
from tests.integration.transports import MIB, PATHS, Way

UNKNOWN_TASK = "01984f6e-0000-8000-8000-000000000001"  # well formed, but nobody has it


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("transports"), waiters_max=3).start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    with MapCluster(tmp_path_factory.mktemp("transports-cluster"), size=1, shards=2, replication=1) as running:
        yield running.start()


@pytest.fixture(params=["broker", "router"])
def address(request: pytest.FixtureRequest) -> str:
    served: ServerProcess | MapCluster = request.getfixturevalue("broker" if request.param == "broker" else "cluster")
    return served.address


@pytest.fixture
async def ways(address: str) -> AsyncIterator[tuple[Way, Way]]:
    made = Way(address, "grpc"), Way(address, "frames")
    for way in made:
        await way.open()
    yield made
    for way in made:
        await way.close()


def enqueue(**fields: object) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="q", type="t", **fields)])  # type: ignore[arg-type]  # passed on


LARGE = pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="q", type="t", payload=bytes(50_000))] * 100)
REFUSED: list[tuple[str, Message | bytes, str | None]] = [
    ("Enqueue", enqueue(priority=99), None),
    ("Enqueue", pb.EnqueueRequest(), None),
    ("Enqueue", b"\xff", None),
    ("Enqueue", b"\x0a\x00" * 2000, None),
    ("Enqueue", LARGE, None),
    ("GetTask", pb.GetTaskRequest(task_id="no id"), None),
    ("GetTask", pb.GetTaskRequest(task_id=UNKNOWN_TASK), None),
    ("GetTask", bytes(MIB), None),
    ("GetTask", pb.GetTaskRequest(task_id=UNKNOWN_TASK), "many"),
    ("GetTask", pb.GetTaskRequest(task_id=UNKNOWN_TASK), "77"),
    ("Reserve", pb.ReserveRequest(queues=["q"], max_tasks=0), None),
    ("Reserve", pb.ReserveRequest(queues=["q"] * 99, max_tasks=1), None),
    ("SetQueue", cluster_pb2.SetQueueRequest(), None),
    ("QueueStats", pb.QueueStatsRequest(queues=["q"] * 1000), None),
    ("GetSchedule", schedules_pb2.GetScheduleRequest(name="nobody has it"), None),
    ("PutSchedule", schedules_pb2.PutScheduleRequest(), None),
    ("ProbeShard", shards_pb2.ProbeShardRequest(shard=77), None),
    ("ProbeShard", shards_pb2.ProbeShardRequest(shard=0), "1"),
    ("DescribeCluster", b"\xff", None),
]


@pytest.mark.parametrize("index", range(len(REFUSED)))
async def test_refusals_are_the_same(ways: tuple[Way, Way], index: int) -> None:
    method, request, shard = REFUSED[index]
    over_grpc, in_frames = [await way.call(method, request, shard) for way in ways]
    assert in_frames == over_grpc


@pytest.mark.parametrize(
    "body", [b"\xff", bytes(8 * MIB), b"\x0a\x00" * 20_000], ids=["broken", "large", "many fields"]
)
async def test_every_method_refuses_in_the_same_words(ways: tuple[Way, Way], body: bytes) -> None:
    for method in PATHS:
        over_grpc, in_frames = [await way.call(method, body) for way in ways]
        assert in_frames == over_grpc, method
        assert not isinstance(in_frames, bytes), method


async def test_an_overloaded_broker_says_so_in_both(broker: ServerProcess) -> None:
    wait = pb.ReserveRequest(queues=["none"], max_tasks=1, wait_ms=20_000, lease_ms=5000)
    said = []
    for transport in ("grpc", "frames"):
        way = Way(broker.address, transport)
        await way.open()
        waiting = [asyncio.create_task(way.call("Reserve", wait)) for _ in range(3)]
        await asyncio.to_thread(wait_until, lambda: broker.metric("holdfast_waiters") == 3, "three to wait")
        said.append(await way.call("Reserve", wait))
        await way.close()
        await asyncio.gather(*waiting)
        await asyncio.to_thread(wait_until, lambda: broker.metric("holdfast_waiters") == 0, "nobody to wait")
    assert said[0] == said[1]
    assert said[0][1] == "OVERLOADED"


# --- the client ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["auto", "grpc"])
async def test_the_whole_life_of_tasks(address: str, transport: str, queue: str) -> None:
    async with AsyncClient(address, transport=transport) as client:
        assert not await client.reserve([queue])
        for _ in range(3):  # the first calls ask for frames, and later ones use them
            accepted = await client.enqueue_many([NewTask(queue, "t", b"%d" % n) for n in range(5)])
            claimed: list[ClaimedTask] = []
            while len(claimed) < 5:
                claimed += await client.reserve([queue], max_tasks=5, wait_ms=5000)
            assert {task.payload for task in claimed} == {b"%d" % n for n in range(5)}
            await client.ack(claimed[0])
            await client.extend(claimed[1], lease_ms=60_000)
            await client.release(claimed[1])
            await client.ack(claimed[2])
            assert len(accepted) == 5
            for task in claimed[3:]:
                await client.ack(task)
            [again] = await client.reserve([queue], wait_ms=5000)
            await client.ack(again)
        stats = await client.queue_stats(queue)
        assert stats.ready == 0


@pytest.mark.parametrize("direct", [False, True], ids=["through the router", "straight to the leaders"])
async def test_all_hops_are_in_frames_once_they_are_known(cluster: MapCluster, queue: str, *, direct: bool) -> None:
    [node], [router] = cluster.nodes.values(), cluster.routers
    calls = 50

    def counted() -> tuple[float, float]:
        """By the broker and the router; they show it a moment later."""
        return node.metric("holdfast_frame_calls"), router.metric("holdfast_router_frame_calls")

    async with AsyncClient(cluster.address, direct=direct) as client:

        async def grew(by_broker: int, by_router: int, before: tuple[float, float]) -> None:
            async with asyncio.timeout(30):
                while counted()[0] < before[0] + by_broker or counted()[1] < before[1] + by_router:
                    await asyncio.sleep(0.1)

        before = counted()
        for _ in range(calls):  # the first ones find the frames
            await client.enqueue(NewTask(queue, "t"))
            await asyncio.sleep(0.01)
        await grew(1, 0 if direct else 1, before)
        before = counted()
        for _ in range(calls):
            await client.enqueue(NewTask(queue, "t"))
        await grew(calls, 0 if direct else calls, before)
