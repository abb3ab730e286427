"""Reserve over several shards: asks, waits without claiming, claims at one, and gives back what nobody waited for."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from holdfast.common.service import end_tasks
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.callers import Caller
from holdfast.router.reserving import Reserving
from holdfast.routing.reserve_calls import shards_in_turn
from holdfast.routing.task_ids import later_task_ids
from holdfast.transport.channels import CallFailedError
from tests.stalls import stalls
from tests.unit.router.router_stage import Call, Refusal, Stage, elapsed_since, never, not_leader, random_bytes, task_id
from tests.unit.router.test_passing import UNKNOWN, refusal_of


class FakeShard:
    """The tasks of one shard, and the worker's side of a broker."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.waiting: list[str] = []
        self.held: dict[str, list[str]] = {}  # by claim_request_id
        self.released: list[str] = []
        self.news = asyncio.Event()

    def put(self, *names: str) -> None:
        self.waiting.extend(names)
        self.news.set()

    def reserve(self, call: Call) -> pb.ReserveResponse:
        request = call.request
        assert request.wait_ms == 0, "it must not wait while it claims"
        names = self.held.get(request.claim_request_id) or self.waiting[: request.max_tasks]
        if names and names[0] in self.waiting:
            del self.waiting[: len(names)]
        if names:
            self.held[request.claim_request_id] = names
        return pb.ReserveResponse(claims=[pb.Claim(task_id=name, token=1) for name in names])

    async def await_tasks(self, call: Call) -> pb.AwaitTasksResponse:
        ends_s = time.monotonic() + call.request.wait_ms / 1000
        while True:
            held = call.request.claim_request_id in self.held
            if held or self.waiting or time.monotonic() >= ends_s:
                return pb.AwaitTasksResponse(ready=held or bool(self.waiting), held=held)
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), ends_s - time.monotonic())
            except TimeoutError:
                pass

    def release(self, call: Call) -> pb.ReleaseResponse:
        names = [claim.task_id for claim in call.request.claims]
        self.released += names
        self.put(*names)
        return pb.ReleaseResponse(outcomes=[pb.ReleaseOutcome(released=pb.Released()) for _ in names])


class Shop(Stage):
    """Queue `q` is on all shards."""

    def __init__(self, shards: int = 3) -> None:
        super().__init__(shards)
        self.fake_shards = [FakeShard(shard) for shard in range(shards)]
        self.table.pin("q", *range(shards))
        for fake_shard, broker in zip(self.fake_shards, self.brokers, strict=True):
            broker.on |= {
                "Reserve": fake_shard.reserve,
                "AwaitTasks": fake_shard.await_tasks,
                "Release": fake_shard.release,
            }

    async def reserve(self, wait_ms: int = 0, request_id: str = "", max_tasks: int = 10, **options: Any) -> list[str]:
        response = await self.answer(wait_ms, request_id, max_tasks, **options)
        return [claim.task_id for claim in response.claims]

    async def answer(
        self, wait_ms: int = 0, request_id: str = "", max_tasks: int = 10, settles_later: bool = False,
        held_only: bool = False, held_at: Sequence[int] = (), **options: Any,
    ) -> pb.ReserveResponse:  # fmt: skip
        request = pb.ReserveRequest(
            queues=["q"], max_tasks=max_tasks, lease_ms=5000, wait_ms=wait_ms, claim_request_id=request_id, worker="w",
            settles_later=settles_later, held_only=held_only, held_at=held_at,
        )  # fmt: skip
        response: pb.ReserveResponse = await self.call("Reserve", request, **options)
        return response

    def count(self, method: str) -> int:
        return sum(len(broker.requests(method)) for broker in self.brokers)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop() as built:
        yield built


async def test_one_shard_is_asked_with_the_callers_own_bytes() -> None:
    async with Stage(2) as stage:
        stage.table.at_home("q", 1)
        stage.brokers[1].on["Reserve"] = answer = random_bytes(500)
        data = pb.ReserveRequest(queues=["q"], max_tasks=1, lease_ms=5000).SerializeToString() + UNKNOWN
        answered = await stage.raw("Reserve", data)
        assert answered[: len(answer)] == answer  # how long the router had the call may follow
        assert [call.data for call in stage.brokers[1].calls] == [data]


async def test_what_is_there_comes_from_one_shard_without_waiting(shop: Shop) -> None:
    shop.fake_shards[2].put("a", "b")
    assert await shop.reserve(wait_ms=5000) == ["a", "b"]
    assert shop.count("AwaitTasks") == 0


async def test_nothing_anywhere_is_an_empty_answer_at_once(shop: Shop) -> None:
    began_s = time.monotonic()
    assert await shop.reserve() == []
    assert elapsed_since(began_s) < 8
    assert [len(broker.requests("Reserve")) for broker in shop.brokers] == [1, 1, 1]


async def test_it_waits_at_all_shards_and_claims_at_the_first_that_is_ready(shop: Shop) -> None:
    call = asyncio.create_task(shop.reserve(wait_ms=20_000, timeout_s=30))
    for broker in shop.brokers:
        await broker.wait_for("AwaitTasks")
    shop.fake_shards[1].put("late")
    assert await call == ["late"]
    assert [len(broker.requests("Reserve")) for broker in shop.brokers] == [1, 2, 1]
    for broker in (shop.brokers[0], shop.brokers[2]):
        await broker.wait_for_hang_up("AwaitTasks")
    assert shop.brokers[1].hung_up["AwaitTasks"] == 0


async def test_the_wait_ends_in_time(shop: Shop) -> None:
    began_s = time.monotonic()
    assert await shop.reserve(wait_ms=400) == []
    assert 0.35 < elapsed_since(began_s) < 8


async def test_a_wait_goes_on_when_somebody_else_was_faster(shop: Shop) -> None:
    """Ready is not claimed: the first looks find nothing."""
    beaten = 0

    def ready_but_gone(_call: Call) -> pb.AwaitTasksResponse:
        nonlocal beaten
        beaten += 1
        if beaten == 3:
            shop.fake_shards[0].put("mine at last")
        return pb.AwaitTasksResponse(ready=True)

    shop.brokers[0].on["AwaitTasks"] = ready_but_gone
    assert await shop.reserve(wait_ms=5000) == ["mine at last"]
    assert beaten >= 3  # the wait that all callers share begins anew while this one claims


async def test_each_shard_is_first_at_times_and_a_retry_starts_alike(shop: Shop) -> None:
    def first_asked() -> int:
        calls = [(call, index) for index, broker in enumerate(shop.brokers) for call in broker.calls]
        assert len(calls) == 1
        for broker in shop.brokers:
            broker.calls.clear()
        return calls[0][1]

    def full(call: Call) -> pb.ReserveResponse:
        return pb.ReserveResponse(claims=[pb.Claim(task_id="x", token=1)])

    shop.on_all(Reserve=full)
    starts = []
    for _ in range(100):
        await shop.reserve()
        starts.append(first_asked())
    assert min(starts.count(shard) for shard in range(3)) >= 18, "whatever the first turn is, computed over all of them"
    by_name: dict[str, int] = {}
    for name in ("a", "b", "c", "d", "e", "f"):
        for _ in range(2):
            await shop.reserve(request_id=name)
            assert by_name.setdefault(name, first := first_asked()) == first
    assert len(set(by_name.values())) > 1


async def test_each_shard_of_the_first_queue_is_first_equally_often() -> None:
    """The others, which have tasks of the second queue only, do not make one of them come first more often."""
    async with Stage(2, shards=8) as stage:
        stage.table.pin("first", 3, 2)
        stage.table.pin("second", *range(8))
        stage.on_all(Reserve=pb.ReserveResponse(claims=[pb.Claim(task_id="x", token=1)]))
        for number in range(40):
            request = pb.ReserveRequest(
                queues=["first", "second"], max_tasks=1, lease_ms=5000, worker="w", claim_request_id=f"request-{number}"
            )
            await stage.call("Reserve", request)
        asked = [call.shard for broker in stage.brokers for call in broker.calls if call.method == "Reserve"]
        assert set(asked) == {2, 3}
        assert min(asked.count(2), asked.count(3)) >= 12


async def test_a_retry_meets_the_claims_of_the_first_attempt(shop: Shop) -> None:
    for fake_shard in shop.fake_shards:
        fake_shard.put(f"of {fake_shard.shard}")
    shop.fake_shards[1].held["mine"] = ["claimed before"]
    assert await shop.reserve(request_id="mine", attempt=2) == ["claimed before"]
    assert shop.count("Reserve") == 1
    asked = [request for broker in shop.brokers for request in broker.requests("AwaitTasks")]
    assert {request.wait_ms for request in asked} == {0}


async def test_a_retry_whose_first_attempt_claimed_nothing(shop: Shop) -> None:
    shop.fake_shards[2].put("new")
    assert await shop.reserve(request_id="mine", attempt=3) == ["new"]


async def test_a_lost_answer_is_asked_for_again_at_the_same_shard(shop: Shop) -> None:
    """The leader of the shard claimed, and died before it answered: its successor knows."""

    async def claim_and_die(call: Call) -> Any:
        shop.fake_shards[1].held[call.request.claim_request_id] = ["claimed by the dead"]
        return await never(call)

    request_id = next(name for name in "abcdefgh" if _first_shard(name) == 1)
    shop.brokers[1].on["Reserve"] = claim_and_die
    shop.brokers[2].on["Reserve"] = lambda call: shop.fake_shards[call.shard].reserve(call)
    shop.brokers[0].on["Reserve"] = lambda call: (
        not_leader(shop.brokers[2].address, 3) if call.shard else pb.ReserveResponse()
    )
    call = asyncio.create_task(shop.reserve(request_id=request_id))
    await shop.brokers[1].wait_for("Reserve")
    await shop.brokers[1].stop()
    assert await call == ["claimed by the dead"]
    assert {call.shard for call in shop.brokers[2].calls} == {1}


def _first_shard(request_id: str) -> int:
    return shards_in_turn({shard: [0] for shard in range(3)}, request_id)[0]


async def test_a_lost_answer_without_a_request_id_is_an_unknown_outcome(shop: Shop) -> None:
    shop.on_all(Reserve=Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", "Who knows."))
    _, reason, _ = await refusal_of(shop.reserve())
    assert reason == "OUTCOME_UNKNOWN"
    assert shop.count("Reserve") == 1  # what may have been claimed at one is not claimed again at another


async def test_a_shard_that_refuses_does_not_keep_the_others_from_answering(shop: Shop) -> None:
    full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "WORKER_AT_LIMIT", "Enough.", retry_after_ms=50)
    shop.brokers[0].on["Reserve"] = full
    shop.fake_shards[0].put("too many")
    call = asyncio.create_task(shop.reserve(wait_ms=10_000, timeout_s=20))
    await shop.brokers[1].wait_for("AwaitTasks")
    shop.fake_shards[1].put("fine")
    assert await call == ["fine"]
    shop.on_all(Reserve=full)
    code, reason, _ = await refusal_of(shop.reserve(wait_ms=300))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WORKER_AT_LIMIT")


async def test_bad_requests_are_refused_by_the_first_shard(shop: Shop) -> None:
    bad = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE", "Bad lease.")
    shop.on_all(Reserve=bad)
    _, reason, _ = await refusal_of(shop.reserve())
    assert (reason, shop.count("Reserve")) == ("OUT_OF_RANGE", 1)
    _, reason, _ = await refusal_of(shop.reserve(wait_ms=60_001))
    assert (reason, shop.count("Reserve")) == ("OUT_OF_RANGE", 1)  # this one is not passed on


async def test_each_shard_is_asked_for_its_own_queues_the_first_ones_first(shop: Shop) -> None:
    shop.table.at_home("only2", 2)
    shop.table.at_home("only0", 0)
    request = pb.ReserveRequest(
        queues=["only2", "q", "only0"], queue_tasks_max=[7, 0, 9], max_tasks=5, lease_ms=5000,
        type_lease_ms={"slow": 60_000},
    )  # fmt: skip
    await shop.call("Reserve", request)
    asked = {call.shard: call.request for broker in shop.brokers for call in broker.calls}
    assert {shard: list(one.queues) for shard, one in asked.items()} == {
        0: ["q", "only0"],
        1: ["q"],
        2: ["only2", "q"],
    }
    assert {shard: list(one.queue_tasks_max) for shard, one in asked.items()} == {0: [0, 9], 1: [0], 2: [7, 0]}
    assert all(dict(one.type_lease_ms) == {"slow": 60_000} for one in asked.values())
    shop.fake_shards[0].put("later")
    shop.fake_shards[2].put("first")
    for _ in range(3):
        response = await shop.call("Reserve", request)
        assert [claim.task_id for claim in response.claims] == ["first"]
        shop.fake_shards[2].held.clear()
        shop.fake_shards[2].put("first")


# --- callers that went away -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["q", "single"])
async def test_claims_for_a_caller_that_has_gone_are_given_back(
    shop: Shop, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has claimed already and does not notice that nobody listens."""
    shop.table.at_home("single", 1)
    deliver = asyncio.Event()

    async def claim_late(call: Call) -> pb.ReserveResponse:
        await asyncio.shield(asyncio.ensure_future(deliver.wait()))
        return pb.ReserveResponse(claims=[pb.Claim(task_id=task_id(1, 5), token=77)])

    released = asyncio.Event()

    def release(call: Call) -> pb.ReleaseResponse:
        released.set()
        return shop.fake_shards[1].release(call)

    shop.on_all(Reserve=claim_late, Release=release)
    # The answer is on its way already when the call is cancelled.
    monkeypatch.setattr("holdfast.transport.grpc_channels.GrpcCall.cancel", lambda _call: False)
    request = pb.ReserveRequest(queues=[queue], max_tasks=1, lease_ms=5000)
    waiting = asyncio.create_task(shop.call("Reserve", request))
    while not shop.count("Reserve"):
        await asyncio.sleep(0.01)
    await end_tasks([waiting])
    while shop.admission.calls:  # until the router has noticed
        await asyncio.sleep(0.01)
    deliver.set()
    await asyncio.wait_for(released.wait(), 5)
    [call] = [call for broker in shop.brokers for call in broker.calls if call.method == "Release"]
    assert [(claim.task_id, claim.token) for claim in call.request.claims] == [(task_id(1, 5), 77)]
    await shop.releases.close(5)
    assert shop.releases.released == 1


@pytest.mark.parametrize(("request_id", "released"), [("", 1), ("mine", 0)])
async def test_claims_that_may_be_asked_for_again_are_not_given_back(
    shop: Shop, request_id: str, released: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another router may just have handed them to the worker, which has left this one."""
    shop.table.at_home("single", 1)
    answered = asyncio.Event()

    async def claim(_call: Call) -> pb.ReserveResponse:
        await asyncio.shield(asyncio.ensure_future(answered.wait()))
        return pb.ReserveResponse(runs=[pb.ClaimRun(task_id=task_id(1, 5), token=77, payloads=[b"a"])])

    shop.brokers[1].on["Reserve"] = claim
    # The answer is on its way already when the call is cancelled.
    monkeypatch.setattr("holdfast.transport.grpc_channels.GrpcCall.cancel", lambda _call: False)
    request = pb.ReserveRequest(queues=["single"], max_tasks=1, lease_ms=5000, claim_request_id=request_id)
    waiting = asyncio.create_task(shop.call("Reserve", request))
    await shop.brokers[1].wait_for("Reserve")
    await end_tasks([waiting])
    while shop.admission.calls:
        await asyncio.sleep(0.01)
    answered.set()
    # The same where the router is not told that its caller has hung up, but sees it.
    reserving = Reserving(
        shop.forwarder, shop.releases, wait_ms_max=60_000, find_places=lambda _: {1: [0]},
        leader_of=shop.table.leader_hint,
    )  # fmt: skip
    gone = Caller(None, 1, time.monotonic() + 5, lambda: True)
    with pytest.raises(CallFailedError, match="gone"):
        await reserving.claim(1, request.SerializeToString(), gone, time.monotonic() + 5)
    await shop.releases.close(5)
    assert shop.releases.released == shop.count("Release") == 2 * released


async def test_a_caller_that_hangs_up_ends_the_wait_at_the_broker(shop: Shop) -> None:
    shop.table.at_home("single", 1)
    request = pb.ReserveRequest(queues=["single"], max_tasks=1, lease_ms=5000, wait_ms=30_000)
    waiting = asyncio.create_task(shop.call("Reserve", request))
    await shop.brokers[1].wait_for("AwaitTasks")
    await end_tasks([waiting])
    await shop.brokers[1].wait_for_hang_up("AwaitTasks")
    assert shop.count("Release") == 0


# --- AwaitTasks -----------------------------------------------------------------------------------------------------


async def test_await_tasks_answers_for_all_shards(shop: Shop) -> None:
    request = pb.AwaitTasksRequest(queues=["q"], wait_ms=20_000)
    call = asyncio.create_task(shop.call("AwaitTasks", request, timeout_s=30))
    for broker in shop.brokers:
        await broker.wait_for("AwaitTasks")
    shop.fake_shards[2].put("there")
    answer = await call
    assert (answer.ready, answer.held) == (True, False)
    shop.fake_shards[2].waiting.clear()
    answer = await shop.call("AwaitTasks", pb.AwaitTasksRequest(queues=["q"], wait_ms=50))
    assert (answer.ready, answer.held) == (False, False)
    shop.fake_shards[0].held["mine"] = ["x"]
    asked = pb.AwaitTasksRequest(queues=["q"], wait_ms=5000, claim_request_id="mine")
    assert (await shop.call("AwaitTasks", asked)).held


@pytest.mark.parametrize(
    "answer", [pb.AwaitTasksResponse(ready=True), pb.AwaitTasksResponse()], ids=["ready", "not-waiting"]
)
async def test_tasks_that_nobody_can_have_are_not_asked_for_without_end(shop: Shop, answer: Any) -> None:
    """A queue at its limit, or paused: its tasks are there, but cannot be claimed. Or shards that do not wait."""
    shop.on_all(AwaitTasks=answer, Reserve=pb.ReserveResponse())
    began_s = time.monotonic()
    with stalls() as stalled:
        assert await shop.reserve(wait_ms=600) == []
    assert elapsed_since(began_s) >= 0.55
    # However fast the shards answer: after a while the pauses are as long as all those before together.
    polls = len(shop.brokers[0].requests("AwaitTasks"))
    assert polls >= 2 or stalled.seconds
    assert polls <= 14
    assert shop.count("Reserve") <= 3 * 14


async def test_a_wait_for_tasks_does_not_ask_without_end_either(shop: Shop) -> None:
    shop.on_all(AwaitTasks=pb.AwaitTasksResponse())
    with stalls() as stalled:
        answer = await shop.call("AwaitTasks", pb.AwaitTasksRequest(queues=["q"], wait_ms=600, worker="w"))
    assert not answer.ready
    polls = len(shop.brokers[0].requests("AwaitTasks"))
    assert polls >= 2 or stalled.seconds
    assert polls <= 14


async def test_claims_in_runs_are_claims(shop: Shop) -> None:
    """At the first of several shards that has some; and each goes back by itself."""
    run = pb.ClaimRun(task_id=task_id(1, 5), token=77, secret=9, payloads=[b"a", b"b"])
    alone = pb.ClaimRun(task_id=task_id(1, 9), token=79, secret=9, payloads=[b"c"])
    released = asyncio.Event()

    def release(_call: Call) -> pb.ReleaseResponse:
        released.set()
        return pb.ReleaseResponse()

    shop.on_all(Reserve=pb.ReserveResponse(), Release=release)
    shop.brokers[1].on["Reserve"] = pb.ReserveResponse(runs=[run, alone])
    shop.table.pin("wide", 0, 1)
    request = pb.ReserveRequest(queues=["wide"], max_tasks=9, lease_ms=5000, takes_runs=True)
    response = await shop.call("Reserve", request)
    assert list(response.runs) == [run, alone]
    assert shop.brokers[1].requests("Reserve")[0].takes_runs
    shop.releases.release(1, response.SerializeToString())
    await asyncio.wait_for(released.wait(), 5)
    assert list(shop.brokers[1].requests("Release")[0].claims) == [
        pb.ClaimRef(task_id=name, token=token, secret=9)
        for name, token in zip([*later_task_ids(task_id(1, 5), 2), task_id(1, 9)], (77, 78, 79), strict=True)
    ]
