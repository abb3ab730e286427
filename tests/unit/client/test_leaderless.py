"""Clients that go straight to the leaders, while a shard has none: its calls wait at a router, which looks for one."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.client import AsyncClient, NewTask, Unavailable, _direct_reserve
from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.transport import reserving, sending
from tests.unit.client.scripted_server import Hang, not_leader
from tests.unit.client.scripted_shards import Cluster, MetadataServer, accept, queue_at, task_id, two_shards

AT_0, AT_1 = queue_at(0), queue_at(1)
NOBODY = shards_pb2.FindLeaderResponse(epoch=1)
REFUSED = not_leader(None, 1)
LONG_S = 60.0  # a test that waits for so long has failed


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Shard 1 has lost its leader, and no other broker knows of one."""
    monkeypatch.setattr(sending, "ASK_S_MAX", LONG_S)  # so that a slow machine does not make a server a silent one
    with two_shards() as cluster:
        cluster.leaders[1].stop()
        cluster.leaders[0].on("FindLeader", NOBODY)
        yield cluster


class Router:
    """Keeps calls to itself until it has been asked who leads, as often as is told, and could not say."""

    def __init__(self, cluster: Cluster, *, questions: int) -> None:
        self._cluster = cluster
        self._questions = questions
        self._is_over = threading.Event()
        cluster.router.on("FindLeader", self._find_leader)

    def _find_leader(self, _request: shards_pb2.FindLeaderRequest) -> shards_pb2.FindLeaderResponse:
        if len(self._cluster.router.requests["FindLeader"]) >= self._questions:
            self._is_over.set()
        return NOBODY

    def then(self, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wait(request: Any) -> Any:
            self._is_over.wait(LONG_S)
            return answer(request)

        return wait


def broker_of_shard_0(cluster: Cluster) -> MetadataServer:
    """It has a task. It is also asked for those of shard 1, which it does not lead."""

    def answer(of_shard_0: Any) -> Callable[[Any], Any]:
        return lambda request: of_shard_0 if AT_0 in request.queues else REFUSED

    claim = pb.Claim(task_id=task_id(0), token=1, task=pb.TaskSpec(queue=AT_0, type="t"), lease_ms=5_000)
    broker = cluster.leaders[0]
    broker.on("Reserve", answer(pb.ReserveResponse(claims=[claim])))
    broker.on("AwaitTasks", answer(pb.AwaitTasksResponse(ready=True)))
    return broker


async def test_a_call_waits_at_a_router_until_there_is_a_leader(cluster: Cluster) -> None:
    router = Router(cluster, questions=2)  # it is asked again and again, from the limit of an attempt on
    cluster.router.on("Enqueue", router.then(accept(1)))
    cluster.leaders[0].on("Enqueue", REFUSED)
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=LONG_S / 2) as client:
        assert (await client.enqueue(NewTask(AT_1, "t"))).task_id == "1:t"
    assert cluster.sent("Enqueue") == [1, 0, 0], "its outcome was never unknown, and so never repeated"


async def test_a_router_that_does_not_answer_the_question_either_is_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ASK_S_MAX", 0.1)
    cluster.router.on("Enqueue", Hang())
    cluster.router.on("FindLeader", Hang())
    cluster.leaders[0].on("Enqueue", accept(1))
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=LONG_S / 2) as client:
        assert (await client.enqueue(NewTask(AT_1, "t"))).task_id == "1:t"
    assert cluster.sent("Enqueue") == [1, 1, 0]


async def test_what_must_not_be_sent_twice_is_refused_once_the_router_gives_up(cluster: Cluster) -> None:
    router = Router(cluster, questions=1)
    cluster.router.on("Enqueue", router.then(lambda _request: REFUSED))
    cluster.leaders[0].on("Enqueue", REFUSED)
    async with AsyncClient(cluster.router.address, direct=True, retry=False, timeout_s=LONG_S / 2) as client:
        with pytest.raises(Unavailable, match="not the leader"):  # and not that its outcome is unknown
            await client.enqueue(NewTask(AT_1, "t", request_id=""))
    assert cluster.sent("Enqueue") == [1, 1, 0]


async def test_a_reserve_that_found_no_leader_has_no_unknown_outcome(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would ask all shards for claims that it may have made, and wait for the one without a leader."""
    monkeypatch.setattr(_direct_reserve, "TRY_S_MAX", LONG_S / 2)
    router = Router(cluster, questions=1)
    cluster.router.on("Reserve", router.then(lambda _request: REFUSED))
    cluster.router.on("AwaitTasks", REFUSED)
    broker = broker_of_shard_0(cluster)
    async with AsyncClient(cluster.router.address, direct=True, retry=False, timeout_s=LONG_S) as client:
        [task] = await client.reserve([AT_1, AT_0])
    assert task.task_id == task_id(0)
    assert cluster.sent("Reserve") == [1, 2, 0], "at shard 1 through the router and the broker, then at shard 0"
    assert "holdfast-attempt" not in broker.metadata["Reserve"][-1], "it is no repetition"


async def test_the_last_attempt_at_a_shard_has_time_to_be_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off, it would leave an unknown outcome."""
    monkeypatch.setattr(_direct_reserve, "TRY_S_MAX", LONG_S)
    monkeypatch.setattr(reserving, "REPEATS_SHARE", 0.0)
    broker_of_shard_0(cluster)
    for method in ("Reserve", "AwaitTasks"):
        cluster.router.on(method, REFUSED)
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=LONG_S / 2) as client:
        [task] = await client.reserve([AT_1, AT_0])
    assert task.task_id == task_id(0)
    assert cluster.sent("Reserve") == [0, 1, 0], "shard 1 was tried once, and nobody was there"
