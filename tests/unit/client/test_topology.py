"""What a client knows of a cluster: asked for once, renewed in the background, and never in the way of a call."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import pytest
import pytest_asyncio

from holdfast.client import Accepted, AsyncClient, ClientClosed, NewTask, Unavailable, _topology
from holdfast.proto.v1 import cluster_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from tests.unit.client.scripted_server import Hang, Refusal
from tests.unit.client.scripted_shards import SHARDS, Cluster, accept, queue_at, spread, two_shards

AT_0, AT_1 = queue_at(0), queue_at(1)
OTHER_AT_0 = next(name for name in (f"o{number}" for number in range(100)) if home_shard(name, SHARDS) == 0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with two_shards() as cluster:
        cluster.both("Enqueue", accept)
        yield cluster


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.router.address, direct=True) as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_calls_at_the_same_time_ask_once(cluster: Cluster, client: AsyncClient) -> None:
    await asyncio.gather(*(client.enqueue_many([NewTask(AT_1, "t")]) for _ in range(20)))
    assert cluster.sent("GetTopology") == [1, 0, 0]


async def test_what_is_known_is_renewed_in_the_background(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.enqueue(NewTask(AT_0, "t", request_id=""))
    monkeypatch.setattr(_topology, "REFRESH_S", 0.02)
    cluster.routes[AT_0] = spread(AT_0, 2, [1])
    cluster.revision += 1
    await asyncio.sleep(0.03)
    # Not kept by the question: it goes by the old route.
    assert await client.enqueue(NewTask(AT_0, "old", request_id="")) == Accepted("0:old")
    await until(lambda: len(cluster.router.requests["GetTopology"]) >= 2)

    async def goes_by_the_new_route() -> None:
        while (await client.enqueue(NewTask(AT_0, "t", request_id=""))).task_id != "1:t":
            await asyncio.sleep(0.005)

    await asyncio.wait_for(goes_by_the_new_route(), 10)


async def test_a_server_that_does_not_answer_keeps_no_call_that_knows_its_way(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_topology, "REFRESH_S", 0.0)
    hang = Hang()
    cluster.router.instead("GetTopology", cluster.topology, hang)
    await client.enqueue(NewTask(AT_0, "t"))
    began_s = time.monotonic()
    for _ in range(20):
        await client.enqueue(NewTask(AT_0, "t"))
    assert time.monotonic() - began_s < 8
    await asyncio.to_thread(hang.arrived.wait, 10)
    assert len(cluster.router.requests["GetTopology"]) == 2, "one question at a time"
    refresh = client._direct._topology._refresh  # type: ignore[union-attr]
    assert refresh is not None
    assert not refresh.done()
    await client.close()
    assert refresh.cancelled(), "ended, and not left to find out by itself"


async def test_a_queue_that_cannot_be_asked_for_is_taken_to_be_at_home(cluster: Cluster) -> None:
    cluster.router.instead("GetTopology", cluster.topology, Refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"))
    for leader in cluster.leaders:
        leader.instead("GetTopology")
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=10, retry=False) as client:
        await client.enqueue(NewTask(AT_0, "t"))
        assert await client.enqueue(NewTask(AT_1, "t")) == Accepted("1:t")


async def test_a_newer_generation_makes_the_client_ask(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_topology, "_REFRESH_S_MIN", 0.0)
    accepted = pb.EnqueueOutcome(accepted=pb.Accepted(task_id="x"))
    cluster.leaders[0].instead("Enqueue", pb.EnqueueResponse(outcomes=[accepted], generations={AT_0: 2}))
    cluster.routes[AT_0] = spread(AT_0, 1, [0])
    await client.enqueue(NewTask(AT_0, "t"))
    cluster.routes[AT_0] = spread(AT_0, 2, [1])
    await until(lambda: len(cluster.router.requests["GetTopology"]) == 2)


@pytest.mark.parametrize("is_split", [False, True])
async def test_a_shard_that_is_the_wrong_one_makes_the_client_ask(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, *, is_split: bool
) -> None:
    """Its map was of another number of shards, say: the same ids would be refused for ever."""
    monkeypatch.setattr(_topology, "_REFRESH_S_MIN", 0.0)
    monkeypatch.setattr(_topology, "REFRESH_S", 3600.0)  # it asks for no other reason
    cluster.routes[AT_0] = cluster_pb2.QueueRoute(queue=AT_0, home=1)

    def refuse(_request: pb.EnqueueRequest) -> Refusal:
        del cluster.routes[AT_0]
        cluster.revision += 1
        return Refusal(grpc.StatusCode.UNAVAILABLE, "WRONG_SHARD")

    cluster.leaders[1].first("Enqueue", refuse)
    tasks = [NewTask(AT_0, "own", request_id="own"), NewTask(OTHER_AT_0, "t")]
    if is_split:
        refused, taken = await client.enqueue_many(tasks)
        assert taken == Accepted("0:t")
    else:
        with pytest.raises(Unavailable) as raised:
            await client.enqueue(tasks[0])
        refused = raised.value
    assert isinstance(refused, Unavailable)
    assert refused.reason == "WRONG_SHARD"
    refresh = client._direct._topology._refresh  # type: ignore[union-attr]
    assert refresh is not None
    await refresh
    assert await client.enqueue(tasks[0]) == Accepted("0:own")
    assert cluster.sent("GetTopology") == [2, 0, 0]


async def test_an_older_map_of_another_server_changes_nothing(cluster: Cluster, client: AsyncClient) -> None:
    cluster.revision = 9
    cluster.routes[AT_0] = spread(AT_0, 2, [1])
    await client.enqueue(NewTask(AT_0, "t", request_id=""))
    cluster.revision = 3
    cluster.map_leaders[0] = "127.0.0.1:1"
    cluster.routes[AT_0] = spread(AT_0, 1, [0])
    known = client._direct._topology  # type: ignore[union-attr]
    await known._ask([AT_0], 5.0)
    assert await client.enqueue(NewTask(AT_0, "t", request_id="")) == Accepted("1:t")
    assert known._leaders[0][0] == cluster.leaders[0].address


async def test_a_map_that_was_set_back_is_believed_at_last(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restored from a backup, say: what was known of the lost history must not be used for ever."""
    monkeypatch.setattr(_topology, "REFRESH_S", 0.0)
    monkeypatch.setattr(_topology, "_BEHIND_S_MAX", 0.2)
    cluster.revision = 50
    cluster.routes[AT_0] = spread(AT_0, 9, [1])
    assert await client.enqueue(NewTask(AT_0, "t", request_id="")) == Accepted("1:t")
    cluster.revision = 20
    del cluster.routes[AT_0]
    began_s = time.monotonic()

    async def goes_home() -> None:
        while (await client.enqueue(NewTask(AT_0, "t", request_id=""))).task_id != "0:t":
            await asyncio.sleep(0.005)

    await asyncio.wait_for(goes_home(), 10)
    assert time.monotonic() >= began_s + 0.2, "one server that lags behind is not believed"


async def test_another_cluster_at_the_same_address_is_noticed(cluster: Cluster, client: AsyncClient) -> None:
    cluster.revision = 9
    await client.enqueue(NewTask(AT_0, "t"))
    response = cluster.topology(cluster_pb2.GetTopologyRequest(queues=[AT_0]))
    response.cluster_id, response.revision, response.shards = "another", 1, 1
    cluster.router.instead("GetTopology", response)
    known = client._direct._topology  # type: ignore[union-attr]
    await known._ask([AT_0], 5.0)
    assert known.shards == 1


async def test_routes_are_asked_for_in_parts_and_not_kept_for_ever(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_topology, "_QUEUES_PER_CALL", 3)
    monkeypatch.setattr(_topology, "QUEUES_MAX", 4)
    await client.enqueue_many([NewTask(f"m{number}", "t") for number in range(8)])
    assert [len(request.queues) for request in cluster.router.requests["GetTopology"]][:3] == [3, 3, 2]
    assert len(client._direct._topology._routes) == 4  # type: ignore[union-attr]


async def test_a_route_that_was_told_long_ago_is_asked_for_before_it_is_used(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that was pinned elsewhere meanwhile: nobody tells a client that has nothing to do with it."""
    cluster.both("Enqueue", accept)
    assert (await client.enqueue(NewTask(AT_0, "t"))).task_id == "0:t"
    cluster.routes[AT_0] = spread(AT_0, 3, [1])
    assert (await client.enqueue(NewTask(AT_0, "t"))).task_id == "0:t", "it was asked for a moment ago"
    monkeypatch.setattr(_topology, "ROUTE_S_MAX", -1.0)
    assert (await client.enqueue(NewTask(AT_0, "t"))).task_id == "1:t"
    cluster.router.instead("GetTopology", Refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"))
    monkeypatch.setattr(_topology, "_RENEW_TIMEOUT_S", 0.1)
    assert (await client.enqueue(NewTask(AT_0, "t"))).task_id == "1:t", "better than nothing"


async def test_closing_while_asking_for_the_first_time(cluster: Cluster) -> None:
    hang = Hang()
    cluster.router.instead("GetTopology", hang)
    client = AsyncClient(cluster.router.address, direct=True)
    call = asyncio.create_task(client.enqueue_many([NewTask(AT_0, "t")]))
    await asyncio.to_thread(hang.arrived.wait, 10)
    await client.close()
    with pytest.raises(ClientClosed):
        await call
