"""Claiming from several shards: where there is something, at one of them, and through the fall of another."""

import asyncio
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from holdfast.client import (
    AsyncClient,
    ConnectionFailed,
    DeadlineExceeded,
    Holdfast,
    InvalidArgument,
    Overloaded,
    ServerError,
    Worker,
    WorkerAtLimit,
    _direct_reserve,
)
from holdfast.common.service import end_tasks
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.patience import HASTY_S_MIN
from holdfast.transport.negotiated import NegotiatedChannels
from tests.stalls import stalls
from tests.unit.client.scripted_server import Answer, Hang, Refusal, ack_all
from tests.unit.client.scripted_shards import SHARDS, Cluster, queue_at, spread, task_id, two_shards

Code = grpc.StatusCode
BROKEN = Refusal(Code.INTERNAL, "INTERNAL")  # it may have claimed, and nobody else is asked in its place
AT_0, AT_1 = queue_at(0), queue_at(1)
NOTHING = pb.AwaitTasksResponse()
READY = pb.AwaitTasksResponse(ready=True)
HELD = pb.AwaitTasksResponse(held=True)
EMPTY = pb.ReserveResponse()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with two_shards() as cluster:
        cluster.routes[AT_0] = spread(AT_0)
        yield cluster


def claims(shard: int, *numbers: int) -> pb.ReserveResponse:
    spec = pb.TaskSpec(queue=AT_0, type="t", payload=b"[]", headers={"content-type": "application/json"})
    return pb.ReserveResponse(
        claims=[
            pb.Claim(task_id=task_id(shard, number), token=number, task=spec, lease_ms=30_000) for number in numbers
        ]
    )


def slowly_held(request: pb.AwaitTasksRequest) -> pb.AwaitTasksResponse:
    time.sleep(0.1)  # so that it is the last to say so
    return HELD


class FakeShard:
    """The tasks of a shard: Reserve takes them, AwaitTasks waits for them."""

    def __init__(self, shard: int, *numbers: int) -> None:
        self._shard = shard
        self._numbers = list(numbers)
        self._filled = threading.Event()
        if numbers:
            self._filled.set()

    def put(self, number: int) -> None:
        self._numbers.append(number)
        self._filled.set()

    def reserve(self, request: pb.ReserveRequest) -> pb.ReserveResponse:
        taken, self._numbers = self._numbers[: request.max_tasks], self._numbers[request.max_tasks :]
        if not self._numbers:
            self._filled.clear()
        return claims(self._shard, *taken)

    def wait(self, request: pb.AwaitTasksRequest) -> pb.AwaitTasksResponse:
        return pb.AwaitTasksResponse(ready=self._filled.wait(request.wait_ms / 1000))


def fake_shards(cluster: Cluster, *numbers: tuple[int, ...]) -> list[FakeShard]:
    made = [FakeShard(shard, *number) for shard, number in enumerate(numbers)]
    for leader, fake_shard in zip(cluster.leaders, made, strict=True):
        leader.on("Reserve", fake_shard.reserve)
        leader.on("AwaitTasks", fake_shard.wait)
    return made


async def test_a_queue_on_one_shard_waits_at_its_leader(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.leaders[1].on("Reserve", claims(1, 5))
    [task] = await direct.reserve([AT_1], wait_ms=4_000)
    assert task.task_id == task_id(1, 5)
    assert cluster.leaders[1].requests["Reserve"][0].wait_ms == 4_000
    assert cluster.sent("Reserve") == [0, 0, 1]
    assert cluster.sent("AwaitTasks") == [0, 0, 0]
    assert cluster.shards_named("Reserve") == [[], ["1"]]


async def test_a_long_wait_looks_at_the_routes_again(
    cluster: Cluster, direct: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is spread while its worker waits at its home."""
    monkeypatch.setattr(_direct_reserve, "POLL_S", 0.05)
    monkeypatch.setattr("holdfast.client._topology.REFRESH_S", 0.0)
    fake_shards(cluster, (), (7,))
    asked = 0

    def wait(request: pb.ReserveRequest) -> pb.ReserveResponse:
        nonlocal asked
        asked += 1
        if asked == 2:
            cluster.routes[other] = spread(other)
            cluster.revision += 1
        return EMPTY

    other = next(name for name in (f"o{n}" for n in range(100)) if home_shard(name, SHARDS) == 0)
    cluster.leaders[0].instead("Reserve", wait)
    [task] = await direct.reserve([other], wait_ms=10_000)
    assert task.task_id == task_id(1, 7)
    assert {request.wait_ms for request in cluster.leaders[0].requests["Reserve"]} <= {0, 50}


@pytest.mark.parametrize("full", [0, 1])
async def test_tasks_are_found_wherever_they_are_without_a_wait(
    cluster: Cluster, direct: AsyncClient, full: int
) -> None:
    fake_shards(cluster, *((1, 2, 3) if shard == full else () for shard in (0, 1)))
    for _ in range(3):  # whichever shard is the first to be tried
        [task] = await direct.reserve([AT_0])
        assert task.task_id.startswith(task_id(full)[:18])
    assert await direct.reserve([AT_0]) == []


async def test_a_lease_is_counted_from_the_claim_after_the_wait(cluster: Cluster, direct: AsyncClient) -> None:
    _, second = fake_shards(cluster, (), ())
    call = asyncio.create_task(direct.reserve([AT_0], wait_ms=20_000))
    async with asyncio.timeout(5):
        while cluster.sent("AwaitTasks") != [0, 1, 1]:
            await asyncio.sleep(0.005)
    ready_s = time.monotonic()
    second.put(9)
    [task] = await call
    assert ready_s <= task.lease_ends_s - 30 <= time.monotonic()


async def test_a_wait_ends_when_any_shard_has_a_task(cluster: Cluster, direct: AsyncClient) -> None:
    _, second = fake_shards(cluster, (), ())
    call = asyncio.create_task(direct.reserve([AT_0], wait_ms=20_000, claim_request_id="mine", worker="w"))
    async with asyncio.timeout(5):
        while cluster.sent("AwaitTasks") != [0, 1, 1]:
            await asyncio.sleep(0.005)
    second.put(9)
    [task] = await call
    assert task.task_id == task_id(1, 9)
    for leader in cluster.leaders:
        for request in leader.requests["AwaitTasks"]:
            assert (request.worker, request.claim_request_id, list(request.queues)) == ("w", "mine", [AT_0])
    assert cluster.leaders[1].requests["Reserve"][-1].wait_ms == 0


async def test_somebody_faster_does_not_end_the_wait(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.on_leaders(Reserve=EMPTY, AwaitTasks=NOTHING)
    cluster.leaders[1].instead("AwaitTasks", READY)
    cluster.leaders[1].instead("Reserve", EMPTY, EMPTY, EMPTY, claims(1, 4))
    [task] = await direct.reserve([AT_0], wait_ms=5_000)
    assert task.task_id == task_id(1, 4)


async def test_each_shard_is_asked_for_its_own_queues_with_their_limits(cluster: Cluster, direct: AsyncClient) -> None:
    fake_shards(cluster, (), ())
    calls = 8  # each with another id, which decides where shards begin that are equal
    for _ in range(calls):
        limits, leases = {AT_0: 2}, {"slow": 60_000}
        assert await direct.reserve([AT_1, AT_0], max_tasks=5, max_tasks_by_queue=limits, lease_ms_by_type=leases) == []
    asked = [[list(request.queues) for request in leader.requests["AwaitTasks"]] for leader in cluster.leaders]
    assert asked == [[[AT_0]] * calls, []], "a shard that was tried has said that there is nothing"
    assert cluster.sent("Reserve") == [0, 0, calls], "where the first queue is, is tried first"
    for tried in cluster.leaders[1].requests["Reserve"]:
        assert list(tried.queues) == [AT_1, AT_0]
        assert list(tried.queue_tasks_max) == [0, 2]
        assert dict(tried.type_lease_ms) == {"slow": 60_000}


async def test_a_repeated_reserve_takes_what_its_first_attempt_claimed(cluster: Cluster, direct: AsyncClient) -> None:
    """Whatever else there is: the shard that holds claims of the request is the one, also if it is the last to say."""
    hangs = [Hang(), Hang()]
    for leader, hang in zip(cluster.leaders, hangs, strict=True):
        leader.on("Reserve", EMPTY)
        leader.on("AwaitTasks", hang)
    first = asyncio.create_task(direct.reserve([AT_0], claim_request_id="mine", wait_ms=20_000))
    for hang in hangs:
        await asyncio.to_thread(hang.arrived.wait, 10)
    await end_tasks([first])

    answers: list[Answer] = [READY, slowly_held]
    for shard, (leader, answer) in enumerate(zip(cluster.leaders, answers, strict=True)):
        leader.instead("Reserve", claims(shard, 2))
        leader.instead("AwaitTasks", answer)
    [task] = await direct.reserve([AT_0], claim_request_id="mine")
    assert task.task_id == task_id(1, 2)
    assert cluster.leaders[1].metadata["Reserve"][-1] == {"holdfast-shard": "1", "holdfast-attempt": "2"}


def claim_id(first: int) -> str:
    """With which this shard is the first to be tried."""
    return next(text for text in map(str, range(100)) if zlib.crc32(text.encode()) % SHARDS == first)


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_claims_whose_answer_was_lost_are_asked_for_before_others_are_made(
    cluster: Cluster, wait_ms: int
) -> None:
    """Otherwise nobody would have them until their leases end."""
    cluster.leaders[1].on("Reserve", BROKEN, claims(1, 2))
    cluster.leaders[1].on("AwaitTasks", slowly_held)
    cluster.leaders[0].on("Reserve", claims(0, 1))
    cluster.leaders[0].on("AwaitTasks", READY)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        [task] = await client.reserve([AT_0], wait_ms=wait_ms, claim_request_id=claim_id(1))
    assert task.task_id == task_id(1, 2)
    assert cluster.sent("Reserve") == [0, 0, 2]
    assert cluster.leaders[1].metadata["Reserve"][-1]["holdfast-attempt"] == "2"


async def test_an_answer_that_is_lost_where_there_was_something_ends_the_round(cluster: Cluster) -> None:
    """The other shard has something too, but what the first may have claimed comes before it."""
    cluster.leaders[0].on("Reserve", BROKEN, BROKEN, claims(0, 3))
    cluster.leaders[0].on("AwaitTasks", BROKEN, READY, HELD)
    cluster.leaders[1].on("Reserve", claims(1, 4))
    cluster.leaders[1].on("AwaitTasks", BROKEN, READY)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        with pytest.raises(ServerError):
            await client.reserve([AT_0], claim_request_id=claim_id(0))
        # Repeated, so that it hears from both before it claims.
        [task] = await client.reserve([AT_0], wait_ms=5_000, claim_request_id=claim_id(0))
    assert task.task_id == task_id(0, 3)
    assert cluster.sent("Reserve") == [0, 3, 0]


@pytest.mark.parametrize("request_id", [claim_id(1), ""])
async def test_nothing_is_not_the_answer_while_a_shard_may_hold_claims(cluster: Cluster, request_id: str) -> None:
    for server in (cluster.router, cluster.leaders[1]):
        server.on("Reserve", BROKEN)
        server.on("AwaitTasks", BROKEN)
    cluster.leaders[0].on("Reserve", EMPTY if request_id else BROKEN)
    cluster.leaders[0].on("AwaitTasks", FakeShard(0).wait)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        with pytest.raises(ServerError):
            await client.reserve([AT_0], wait_ms=300, claim_request_id=request_id)
    if request_id:
        assert sum(cluster.sent("AwaitTasks")) < 20, "it must not become a storm"
    else:
        assert cluster.sent("AwaitTasks") == [0, 0, 0], "no request id would find its claims"


async def test_a_shard_that_may_have_claimed_and_is_gone_does_not_hold_up_the_other_for_ever(cluster: Cluster) -> None:
    for server in (cluster.router, cluster.leaders[1]):
        server.on("Reserve", BROKEN)
        server.on("AwaitTasks", BROKEN)
    cluster.leaders[0].on("Reserve", claims(0, 1))
    cluster.leaders[0].on("AwaitTasks", READY)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client, asyncio.timeout(10):
        [task] = await client.reserve([AT_0], claim_request_id=claim_id(1))
    assert task.task_id == task_id(0, 1)


@pytest.mark.parametrize("retry", [True, False])
async def test_a_shard_without_a_leader_does_not_hold_up_the_other(cluster: Cluster, retry: bool) -> None:
    fake_shards(cluster, (1, 2, 3), ())
    cluster.leaders[1].stop()
    for method in ("Reserve", "AwaitTasks"):
        cluster.router.on(method, Refusal(Code.UNAVAILABLE, "NOT_LEADER", retry_after_ms=50))
    async with AsyncClient(cluster.router.address, direct=True, retry=retry, timeout_s=20) as client:
        async with asyncio.timeout(10):
            for number in (1, 2, 3):
                [task] = await client.reserve([AT_0], wait_ms=1_000)
                assert task.task_id == task_id(0, number)
            assert await client.reserve([AT_0]) == []


async def test_a_shard_that_says_nothing_does_not_keep_the_answer(cluster: Cluster) -> None:
    fake_shards(cluster, (), ())
    for server in (cluster.leaders[1], cluster.router):
        server.instead("AwaitTasks", Hang())
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=20) as client, asyncio.timeout(10):
        assert await client.reserve([AT_0]) == []


# --- callers that settle later ----------------------------------------------------------------------------------------


async def test_who_settles_later_does_not_wait_for_a_silent_shard(cluster: Cluster) -> None:
    fake_shards(cluster, (1, 2), ())
    for server in (cluster.leaders[1], cluster.router):
        server.instead("Reserve", Hang())
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=60) as client, asyncio.timeout(10):
        unsettled = await client.reserve([AT_0], wait_ms=5_000, claim_request_id=claim_id(1), settles_later=True)
        assert unsettled.unsettled_shards == (1,)
        assert unsettled == []
        for number in (1, 2):
            [task] = await client.reserve(
                [AT_0], wait_ms=5_000, claim_request_id=f"{claim_id(1)}{number}", settles_later=True
            )
            assert task.task_id == task_id(0, number)
    assert len(cluster.leaders[1].requests["Reserve"]) == 1, "it is known not to answer"


async def test_a_claim_that_may_have_been_made_is_left_unsettled_if_the_caller_says_so(cluster: Cluster) -> None:
    """After a look at all shards as well as at the first that is tried."""
    cluster.leaders[1].on("Reserve", EMPTY, BROKEN)
    cluster.leaders[1].on("AwaitTasks", READY)
    cluster.leaders[0].on("Reserve", EMPTY)
    cluster.leaders[0].on("AwaitTasks", NOTHING)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client, asyncio.timeout(10):
        claims = await client.reserve([AT_0], wait_ms=5_000, claim_request_id=claim_id(1), settles_later=True)
    assert claims.unsettled_shards == (1,)


async def test_what_was_claimed_is_asked_for_by_its_id(cluster: Cluster) -> None:
    cluster.leaders[1].on("Reserve", BROKEN, claims(1, 2), EMPTY)
    cluster.leaders[0].on("Reserve", EMPTY)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        with pytest.raises(ServerError):  # "nothing" might not be true
            await client.reserve([AT_0], claim_request_id="mine", held_only=True)
        [task] = await client.reserve([AT_0], claim_request_id="mine", held_only=True)
        assert task.task_id == task_id(1, 2)
        assert await client.reserve([AT_0], claim_request_id="mine", held_only=True, held_at=[1]) == []
    assert cluster.sent("Reserve") == [0, 2, 3], "and only where it may have been claimed"
    assert all(request.held_only for leader in cluster.leaders for request in leader.requests["Reserve"])


async def test_a_silent_shard_does_not_say_what_it_has_claimed(cluster: Cluster) -> None:
    for server in (*cluster.leaders, cluster.router):
        server.on("Reserve", Hang())
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=20) as client, asyncio.timeout(10):
        # Which of the two depends on whether there is time for another attempt when the last one is given up.
        with pytest.raises((DeadlineExceeded, ConnectionFailed)):
            await client.reserve([AT_0], claim_request_id="mine", held_only=True)


async def test_a_claim_that_is_settled_later_goes_on_and_is_not_made_in_vain(cluster: Cluster) -> None:
    """The shard is only slow: what it claims is kept, and had by its id."""
    answered = threading.Event()

    def slowly(request: pb.ReserveRequest) -> pb.ReserveResponse:
        if not request.held_only:
            time.sleep(2 * HASTY_S_MIN)
            answered.set()
        return claims(1, 7)

    cluster.leaders[1].on("Reserve", slowly)
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=20) as client, asyncio.timeout(10):
        unsettled = await client.reserve([AT_0], wait_ms=5_000, claim_request_id=claim_id(1), settles_later=True)
        assert unsettled.unsettled_shards == (1,)
        [task] = await client.reserve([AT_0], claim_request_id=claim_id(1), held_only=True, held_at=(1,))
        assert task.task_id == task_id(1, 7)
        assert await asyncio.to_thread(answered.wait, 10), "it was not cancelled"


async def test_a_leader_out_of_reach_is_reached_through_the_router(cluster: Cluster, direct: AsyncClient) -> None:
    fake_shards(cluster, (), ())
    cluster.leaders[1].stop()
    behind = FakeShard(1, 8)
    cluster.router.on("Reserve", behind.reserve)
    cluster.router.on("AwaitTasks", behind.wait)
    [task] = await direct.reserve([AT_0], wait_ms=20_000)
    assert task.task_id == task_id(1, 8)
    assert {request["holdfast-shard"] for request in cluster.router.metadata["Reserve"]} == {"1"}


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Refusal(Code.RESOURCE_EXHAUSTED, "WORKER_AT_LIMIT"), WorkerAtLimit),
        (Refusal(Code.INVALID_ARGUMENT, "OUT_OF_RANGE"), InvalidArgument),
    ],
)
async def test_what_all_shards_refuse_is_raised_at_once(
    cluster: Cluster, direct: AsyncClient, refusal: Refusal, error: type[Exception]
) -> None:
    cluster.on_leaders(Reserve=refusal, AwaitTasks=refusal)
    async with asyncio.timeout(15):
        with pytest.raises(error):
            await direct.reserve([AT_0], wait_ms=20_000)


async def test_tasks_that_nobody_lets_us_have_are_an_error(cluster: Cluster) -> None:
    cluster.on_leaders(Reserve=Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED"), AwaitTasks=READY)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        with pytest.raises(Overloaded):
            await client.reserve([AT_0])


async def test_no_queue_at_all_is_for_the_server_to_refuse(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.leaders[0].on("Reserve", Refusal(Code.INVALID_ARGUMENT, "MISSING_FIELD"))
    with pytest.raises(InvalidArgument):
        await direct.reserve([])


async def test_a_cancelled_reserve_leaves_no_call_behind(
    channels: list[NegotiatedChannels], cluster: Cluster, direct: AsyncClient
) -> None:
    hangs = [Hang(), Hang()]
    for leader, hang in zip(cluster.leaders, hangs, strict=True):
        leader.on("Reserve", EMPTY)
        leader.on("AwaitTasks", hang)
    call = asyncio.create_task(direct.reserve([AT_0], wait_ms=20_000))
    for hang in hangs:
        await asyncio.to_thread(hang.arrived.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not channels[0].calls_under_way


def test_a_worker_serves_the_shards_of_a_cluster(cluster: Cluster) -> None:
    """Claims of both, settled by their ids: each at the leader that gave it out."""
    fake_shards(cluster, (1, 2), (1, 2))
    acked: list[list[int]] = [[], []]
    app = Holdfast(cluster.router.address, direct=True)
    worker: Worker

    def ack(shard: int) -> Callable[[pb.AckRequest], Any]:
        def answer(request: pb.AckRequest) -> pb.AckResponse:
            acked[shard] += [item.claim.token for item in request.items]
            acked[shard] += [
                claim_range.token + index for claim_range in request.ranges for index in range(claim_range.count)
            ]
            if sum(map(len, acked)) == 4:
                worker.stop()
            return ack_all(request)

        return answer

    cluster.both("Ack", ack)

    @app.task(queue=AT_0, name="t")
    def handler() -> None: ...

    worker = Worker(app, concurrency=2, grace=5.0)
    report = worker.run()
    app.close()
    assert report.succeeded == 4
    assert [sorted(item) for item in acked] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("answer", [READY, NOTHING], ids=["ready", "not-waiting"])
async def test_tasks_that_nobody_can_have_are_not_asked_for_without_end(
    cluster: Cluster, direct: AsyncClient, answer: pb.AwaitTasksResponse
) -> None:
    """A queue at its limit, or paused: its tasks are there, but cannot be claimed. Or servers that do not wait."""
    cluster.on_leaders(Reserve=EMPTY, AwaitTasks=answer)
    with stalls() as stalled:
        assert await direct.reserve([AT_0], wait_ms=600) == []
    # However fast they answer: the pauses double, and even at three quarters of their length ten of them are
    # longer than the wait.
    polls = max(cluster.sent("AwaitTasks"))
    assert polls >= 2 or stalled.seconds
    assert polls <= 12
    assert sum(cluster.sent("Reserve")) <= 2 * polls + 1
