"""Many callers that wait at a router: they share one wait per shard and queue, and keep nobody else from their turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.admission import Admission
from holdfast.serving.refusals import RefusedError
from tests.unit.router.router_stage import Call, Refusal, Stage, never, task_id
from tests.unit.router.test_passing import refusal_of
from tests.unit.router.test_reserving import Shop

WAIT_MS = 60_000
LONG_S = 90.0  # more than a test has
pytestmark = pytest.mark.timeout(40)


class Counter:
    """One shard, as a broker does it: each task is told of once, to as many as it was asked for."""

    def __init__(self) -> None:
        self.tasks = 0
        self.reported = 0
        self.claims: list[str] = []  # who claimed, in order
        self.news = asyncio.Event()

    def put(self, count: int) -> None:
        self.tasks += count
        self.news.set()

    def reserve(self, call: Call) -> pb.ReserveResponse:
        taken = min(self.tasks, call.request.max_tasks)
        self.tasks -= taken
        self.reported = max(0, self.reported - taken)
        self.claims += [call.request.worker] * taken
        return pb.ReserveResponse(claims=[pb.Claim(task_id="t", token=1)] * taken)

    async def await_tasks(self, call: Call) -> pb.AwaitTasksResponse:
        while (left := self.tasks - self.reported) <= 0 and call.request.wait_ms:
            self.news.clear()
            await self.news.wait()
        tasks = max(0, min(left, max(1, call.request.max_tasks)))
        self.reported += tasks
        return pb.AwaitTasksResponse(ready=tasks > 0, tasks=tasks)


class Hall(Shop):
    """Queue `q` is on all shards."""

    def __init__(self, shards: int = 2, **limits: Any) -> None:
        super().__init__(shards)
        self._limits = limits
        self.shards = [Counter() for _ in range(shards)]
        for shard, broker in zip(self.shards, self.brokers, strict=True):
            broker.on |= {"Reserve": shard.reserve, "AwaitTasks": shard.await_tasks}
        self.calls: list[asyncio.Task[Any]] = []

    def worker(self, name: str, **fields: Any) -> "asyncio.Task[Any]":
        wanted: dict[str, Any] = {"queues": ["q"], "max_tasks": 1, "lease_ms": 5000, "wait_ms": WAIT_MS, "worker": name}
        attempt = fields.pop("attempt", 1)
        request = pb.ReserveRequest(**wanted | fields)
        self.calls.append(asyncio.create_task(self.call("Reserve", request, timeout_s=LONG_S, attempt=attempt)))
        return self.calls[-1]

    async def workers(self, count: int) -> "list[asyncio.Task[Any]]":
        """One after the other, each before the next one comes."""
        calls = []
        for number in range(count):
            calls.append(self.worker(f"w{number}"))
            await self.until_waiting(number + 1)
        return calls

    async def until_waiting(self, count: int) -> None:
        while self.gateway.reserving.waits.callers != count:
            await asyncio.sleep(0.001)

    async def __aexit__(self, *reported: object) -> None:
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        await super().__aexit__(*reported)


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with Hall() as built:
        yield built


async def test_all_who_wait_share_one_wait_per_shard(hall: Hall) -> None:
    await hall.workers(20)
    assert hall.gateway.broker_waits == 2
    assert hall.count("AwaitTasks") == 2
    # The first one looked at every shard; each of the others showed its request to one.
    assert hall.count("Reserve") == 2 + 19


async def test_very_many_who_come_at_once_do_not_all_ask_the_brokers(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.router.reserving.POLLS_MAX", 3)
    for number in range(60):
        hall.worker(f"w{number}")
    await hall.until_waiting(60)
    asked = hall.count("Reserve")
    assert asked < 60, "without that bound each asks one shard at least, and most ask all"
    hall.shards[0].put(20)
    hall.shards[1].put(40)
    await asyncio.gather(*hall.calls)
    assert len(hall.shards[0].claims + hall.shards[1].claims) == 60


async def test_brokers_are_told_how_many_wait_here_and_what_they_could_take(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.router.shared_waits.REFRESH_S", 0.05)
    await hall.workers(5)
    for broker in hall.brokers:
        async with broker.arrived:
            await broker.arrived.wait_for(lambda: broker.requests("AwaitTasks")[-1].callers == 5)  # noqa: B023
        assert broker.requests("AwaitTasks")[-1].max_tasks == 5


async def test_tasks_wake_as_many_as_there_are_first_come_first_served(hall: Hall) -> None:
    calls = await hall.workers(30)
    before = hall.count("Reserve")
    hall.shards[0].put(3)
    await asyncio.wait(calls[:3])
    hall.shards[1].put(2)
    await asyncio.wait(calls[3:5])
    assert (hall.shards[0].claims, hall.shards[1].claims) == (["w0", "w1", "w2"], ["w3", "w4"])
    assert hall.count("Reserve") - before == 5, "nobody else was woken"
    assert not any(call.done() for call in calls[5:])


async def test_who_was_beaten_keeps_its_place(hall: Hall) -> None:
    calls = await hall.workers(3)
    beaten = hall.shards[0].reserve
    hall.brokers[0].on["Reserve"] = lambda call: pb.ReserveResponse()
    before = len(hall.brokers[0].requests("Reserve"))
    hall.shards[0].put(1)
    while len(hall.brokers[0].requests("Reserve")) == before:
        await asyncio.sleep(0.001)
    hall.brokers[0].on["Reserve"] = beaten
    hall.shards[0].tasks = hall.shards[0].reported = 0
    while hall.gateway.reserving.waits.waiters.lines["q"].free != 3:
        await asyncio.sleep(0.001)
    hall.shards[1].put(1)
    await calls[0]
    assert hall.shards[1].claims == ["w0"]
    assert not calls[1].done()


async def test_who_polls_again_asks_no_broker_while_others_wait(hall: Hall) -> None:
    await hall.workers(2)
    again = hall.worker("w9", claim_request_id="a1")
    await hall.until_waiting(3)
    again.cancel()
    await hall.until_waiting(2)
    before = [len(broker.calls) for broker in hall.brokers]
    hall.worker("w9", claim_request_id="a2")
    await hall.until_waiting(3)
    assert [len(broker.calls) for broker in hall.brokers] == before
    # What nobody has seen is shown to a broker first, so that it says what is wrong.
    hall.on_all(Reserve=Refusal(grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE", "Bad lease."))
    _, reason, _ = await refusal_of(hall.worker("w9", lease_ms=1))
    assert reason == "OUT_OF_RANGE"
    _, reason, _ = await refusal_of(hall.worker("w9", claim_request_id="a\n3"))
    assert reason == "OUT_OF_RANGE"


async def test_a_poll_that_ends_asks_no_broker_either(hall: Hall) -> None:
    await hall.workers(1)
    first = hall.worker("w9", wait_ms=50)
    assert not (await first).claims
    before = [len(broker.calls) for broker in hall.brokers]
    for number in range(3):
        assert not (await hall.worker("w9", wait_ms=50, claim_request_id=f"a{number}")).claims
    assert [len(broker.calls) for broker in hall.brokers] == before


async def test_who_has_gone_is_not_woken(hall: Hall) -> None:
    calls = await hall.workers(3)
    calls[0].cancel()
    await hall.until_waiting(2)
    hall.shards[1].put(1)
    await calls[1]
    assert hall.shards[1].claims == ["w1"]
    calls[2].cancel()
    await hall.until_waiting(0)
    assert hall.gateway.broker_waits == 0
    for broker in hall.brokers:
        await broker.wait_for_hang_up("AwaitTasks")


async def test_a_worker_that_may_have_no_more_is_not_in_the_way(hall: Hall) -> None:
    calls = await hall.workers(2)
    full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "WORKER_AT_LIMIT", "Enough.", retry_after_ms=60_000)

    def reserve(call: Call) -> Any:
        return full if call.request.worker == "w0" else hall.shards[0].reserve(call)

    hall.brokers[0].on["Reserve"] = reserve
    hall.shards[0].put(1)
    await calls[1]
    assert hall.shards[0].claims == ["w1"]
    assert not calls[0].done()


async def test_claims_of_an_earlier_attempt_that_come_late_are_found(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent through another router, which has died since."""
    monkeypatch.setattr("holdfast.router.reserving.UNSETTLED_S", 0.2)
    held = False

    def await_tasks(call: Call) -> Any:
        if call.request.claim_request_id and held:
            return pb.AwaitTasksResponse(ready=True, held=True)
        return hall.shards[1].await_tasks(call)

    hall.brokers[1].on["AwaitTasks"] = await_tasks
    call = hall.worker("w", claim_request_id="mine", attempt=2)
    await hall.until_waiting(1)
    held = True
    hall.brokers[1].on["Reserve"] = pb.ReserveResponse(claims=[pb.Claim(task_id="late", token=1)])
    assert [claim.task_id for claim in (await call).claims] == ["late"]


async def test_a_list_of_workers_says_who_waits_here(hall: Hall) -> None:
    """Brokers do not know: they have seen a worker at its first poll."""
    reported = queues_pb2.ListWorkersResponse(workers=[queues_pb2.WorkerInfo(worker=name) for name in ("other", "w1")])
    hall.on_all(ListWorkers=reported)
    calls = await hall.workers(2)
    page = await hall.call("ListWorkers", queues_pb2.ListWorkersRequest())
    assert {worker.worker: worker.is_waiting for worker in page.workers} == {"other": False, "w1": True}
    calls[1].cancel()
    await hall.until_waiting(1)
    page = await hall.call("ListWorkers", queues_pb2.ListWorkersRequest())
    assert not any(worker.is_waiting for worker in page.workers)


async def test_waits_have_a_budget_of_their_own() -> None:
    async with Hall(1, calls_max=2, calls_per_shard_max=2, waits_max=5) as hall:
        hall.table.pin("q", 0)
        await hall.workers(5)
        code, reason, error = await refusal_of(hall.worker("one too many"))
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert "calls that wait" in (error.details() or "")
        assert b"RetryInfo" in b"".join(v for _, v in error.trailing_metadata() or () if isinstance(v, bytes))
        hall.brokers[0].on["WaitTasks"] = never
        _, reason, _ = await refusal_of(
            hall.call("WaitTasks", pb.WaitTasksRequest(task_ids=[task_id(0, 1)], wait_ms=9))
        )
        assert reason == "OVERLOADED"
        # Whoever does not wait is served.
        hall.brokers[0].on["Ack"] = pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked())])
        items = [pb.AckItem(claim=pb.ClaimRef(task_id=task_id(0, 1), token=1))]
        assert (await hall.call("Ack", pb.AckRequest(items=items))).outcomes[0].HasField("acked")
        hall.shards[0].put(1)
        assert (await hall.worker("does not wait", wait_ms=0)).claims or hall.shards[0].claims
    assert hall.admission.calls == hall.admission.waiting.bytes == 0


def test_a_call_that_may_wait_is_let_in_while_there_is_room_for_either_kind() -> None:
    admission = Admission(calls_max=1, calls_per_shard_max=1, waits_max=1)
    admission.working.enter(0)
    admission.check(may_wait=True)
    with pytest.raises(RefusedError, match="calls under way"):
        admission.check(may_wait=False)
    admission.waiting.enter(0)
    with pytest.raises(RefusedError):
        admission.check(may_wait=True)
    admission.working.leave(0)
    admission.check(may_wait=True)
    admission.check(may_wait=False)


async def test_bytes_of_waiting_calls_are_bounded() -> None:
    async with Hall(1, wait_bytes_max=1000) as hall:
        hall.table.pin("q", 0)
        hall.worker("w" * 200)
        await hall.until_waiting(1)
        _, reason, error = await refusal_of(hall.worker("w" * 900))
        assert (reason, "bytes" in (error.details() or "")) == ("OVERLOADED", True)


async def test_waits_at_brokers_are_bounded(hall: Hall) -> None:
    hall.gateway.reserving.waits.waits_max = 3
    await hall.workers(1)
    hall.table.pin("other", 0, 1)
    _, reason, error = await refusal_of(hall.worker("w", queues=["other"]))
    assert reason == "OVERLOADED"
    assert "waits at brokers" in (error.details() or "")
    hall.worker("another")  # of a queue that is waited for
    await hall.until_waiting(2)


async def test_a_queue_that_brokers_refuse_is_refused_to_all_who_wait_for_it() -> None:
    async with Stage(1) as stage:
        stage.brokers[0].on |= {
            "Reserve": pb.ReserveResponse(),
            "AwaitTasks": Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "No such name."),
        }
        request = pb.ReserveRequest(queues=["q!"], max_tasks=1, lease_ms=5000, wait_ms=WAIT_MS)
        _, reason, _ = await refusal_of(stage.call("Reserve", request))
        assert reason == "INVALID_FIELD"
