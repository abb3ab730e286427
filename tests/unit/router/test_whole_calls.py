"""Calls in frames that one shard gets as they came: what comes back, and what becomes of those that need more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import pytest

from holdfast.frames import codec
from holdfast.frames.codec import Refusal
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.admission import Admission
from holdfast.router.forwarding import Forwarder
from holdfast.router.gateway import Gateway
from holdfast.router.leaders import Leaders
from holdfast.router.metrics import Metrics
from holdfast.router.releases import Releases
from holdfast.router.wire import RouterServer
from holdfast.serving.call_server import FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.refusals import not_leader, outcome_unknown
from holdfast.transport.negotiated import NegotiatedChannels
from tests.unit.router.router_stage import Table, task_id
from tests.unit.serving.frame_stage import ACK, DEADLINE_S, ENQUEUE, MIB, NAME, Owner, RawCaller, frames_of, until

RESERVE = "/holdfast.proto.v1.Tasks/Reserve"
Handle = Callable[[str, bytes], Awaitable[bytes]]


class Broker(Owner):
    """Answers as the test says; it has frames."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"broker {id(self)}"
        self.calls: list[tuple[str, bytes]] = []
        self.on: Handle = self.echo
        self.hung_up = 0
        self.server = self.serve()
        self.address = ""

    async def echo(self, _method: str, data: bytes) -> bytes:
        return b"\x1a\x00" + data  # not what such a call is answered with: nobody reads it on its way

    async def handle(self, method: Any, data: bytes, _caller: object) -> bytes:
        self.calls.append((method.name, data))
        try:
            return await self.on(method.name, data)
        except asyncio.CancelledError:
            self.hung_up += 1
            raise


class Stage:
    """A router between a caller and brokers, in frames on both sides. Broker n leads shard n."""

    def __init__(self) -> None:
        self.brokers = [Broker(), Broker()]
        self.table = Table(2)
        self.table.at_home("q0", 0)
        self.table.at_home("q1", 1)
        self.admission = Admission(calls_max=5, calls_per_shard_max=3)

    async def __aenter__(self) -> Self:
        for number, broker in enumerate(self.brokers):
            broker.address = f"127.0.0.1:{await broker.server.start('127.0.0.1', 0)}"
            self.table.leaders[number] = broker.address, 1
        for shard in range(2):
            self.table.replicas[shard] = [broker.address for broker in self.brokers]
        self.channels = NegotiatedChannels(message_bytes_max=MIB, keepalive_s=20, connects_first=True)
        self.forwarder = Forwarder(Leaders(self.table), self.channels, self.admission)
        self.releases = Releases(self.forwarder)
        self.gateway = Gateway(
            self.table, self.forwarder, self.releases, self.admission, check_map=lambda: None, own=_NoneOfItsOwn(),
            wait_ms_max=60_000, call_s_default=5.0, message_bytes_max=MIB,
        )  # fmt: skip
        self.metrics = Metrics()
        limits = ServerLimits(message_bytes_max=4 * MIB, bytes_max=8 * MIB, calls_max=10_000)
        self.server = RouterServer(
            self.gateway, self.metrics, limits, batch_bytes_max=4 * MIB, readiness=lambda: (True, ""),
            frames_at=FramesAt(0, lambda: NAME), whole_calls=self.gateway.whole_calls,
        )  # fmt: skip
        await self.server.start("127.0.0.1", 0)
        self.caller = await RawCaller.connect(self.server.frames_port)
        for queue, broker in zip(("q0", "q1"), self.brokers, strict=True):
            async with asyncio.timeout(DEADLINE_S):
                while self.channels.link(broker.address) is None:
                    await self.ask(1, ENQUEUE, enqueue(queue))
            broker.calls.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.caller.close()
        await self.server.stop(0)
        await self.gateway.close()
        await self.releases.close(1.0)
        await self.forwarder.close()
        await self.channels.close()
        for broker in self.brokers:
            await broker.server.stop(0)

    async def ask(self, number: int, path: str, data: bytes, **options: Any) -> bytes | Refusal:
        self.caller.send(self.caller.call(number, path, data, **options))
        return await self.caller.answer(number)

    async def nothing_is_left(self) -> None:
        await until(lambda: not frames_of(self.server).calls)
        assert (self.admission.calls, self.admission.working.bytes, self.server.intake.bytes) == (0, 0, 0)
        for shard in range(2):
            for _ in range(3):  # there is room for as many as ever
                self.admission.enter_shard(shard)
            for _ in range(3):
                self.admission.leave_shard(shard)


class _NoneOfItsOwn:
    def find(self, _name: str) -> None:
        return None


def enqueue(*queues: str, request_id: str = "r1") -> bytes:
    return pb.EnqueueRequest(
        tasks=[pb.TaskSpec(queue=queue, type="t", payload=b"x" * 100, request_id=request_id) for queue in queues]
    ).SerializeToString()


def ack(*shards: int) -> bytes:
    claims = [pb.ClaimRef(task_id=task_id(shard, number), token=1) for number, shard in enumerate(shards)]
    return pb.AckRequest(items=[pb.AckItem(claim=claim) for claim in claims]).SerializeToString()


def never() -> "asyncio.Future[bytes]":
    return asyncio.get_running_loop().create_future()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as stage:
        yield stage


@pytest.mark.parametrize(
    ("path", "data", "shard"),
    [
        (ENQUEUE, enqueue("q0", "q0"), 0),
        (ENQUEUE, enqueue("q1"), 1),
        (ACK, ack(1, 1, 1), 1),
        (RESERVE, pb.ReserveRequest(queues=["q1"], max_tasks=1).SerializeToString(), 1),
    ],
)
async def test_bytes_pass_in_both_directions_as_they_are(stage: Stage, path: str, data: bytes, shard: int) -> None:
    assert await stage.ask(1, path, data) == b"\x1a\x00" + data
    assert stage.brokers[shard].calls == [(path.rpartition("/")[2], data)]
    assert not stage.brokers[1 - shard].calls
    await stage.nothing_is_left()


async def test_they_have_no_task_each(stage: Stage) -> None:
    broker = stage.brokers[0]
    gate = asyncio.Event()

    async def wait(_method: str, data: bytes) -> bytes:
        await gate.wait()
        return data

    broker.on = wait
    for number in range(3):
        stage.caller.send(stage.caller.call(number + 1, ENQUEUE, enqueue("q0", request_id=f"r{number}")))
    await until(lambda: len(broker.calls) == 3)
    of_router = [task for task in asyncio.all_tasks() if "Gateway" in repr(task.get_coro())]
    assert not of_router
    gate.set()
    assert {(await stage.caller.next()).call for _ in range(3)} == {1, 2, 3}
    await stage.nothing_is_left()


async def test_a_redirect_is_followed_with_the_same_bytes(stage: Stage) -> None:
    first, second = stage.brokers

    async def refuse(_method: str, _data: bytes) -> bytes:
        raise not_leader(0, 7, second.address)

    first.on = refuse
    assert await stage.ask(1, ENQUEUE, enqueue("q0")) == b"\x1a\x00" + enqueue("q0")
    assert first.calls == second.calls == [("Enqueue", enqueue("q0"))]
    await stage.ask(2, ENQUEUE, enqueue("q0"))
    assert (len(first.calls), len(second.calls)) == (1, 2)  # it is known by now who leads
    await stage.nothing_is_left()


@pytest.mark.parametrize("request_id", ["r1", ""])
async def test_what_may_have_been_carried_out_is_repeated_if_that_does_no_harm(stage: Stage, request_id: str) -> None:
    async def fail_once(_method: str, data: bytes) -> bytes:
        stage.brokers[0].on = stage.brokers[0].echo
        raise outcome_unknown()

    stage.brokers[0].on = fail_once
    data = enqueue("q0", request_id=request_id)
    answer = await stage.ask(1, ENQUEUE, data)
    if request_id:
        assert answer == b"\x1a\x00" + data
        assert sum(len(broker.calls) for broker in stage.brokers) == 2
    else:
        assert isinstance(answer, Refusal)
        assert "may or may not have happened" in answer.message
        assert sum(len(broker.calls) for broker in stage.brokers) == 1
    await stage.nothing_is_left()


async def test_a_lost_connection_to_the_broker_does_not_lose_the_call(stage: Stage) -> None:
    broker = stage.brokers[0]

    async def lose(_method: str, data: bytes) -> bytes:
        broker.on = broker.echo
        for connection in list(frames_of(broker.server).connections):
            connection.close()
        return data

    broker.on = lose
    assert await stage.ask(1, ENQUEUE, enqueue("q0")) == b"\x1a\x00" + enqueue("q0")
    assert broker.calls[0] == broker.calls[-1]
    await stage.nothing_is_left()


async def test_a_caller_that_goes_ends_its_calls_at_the_broker(stage: Stage) -> None:
    broker = stage.brokers[0]
    broker.on = lambda _method, _data: never()
    stage.caller.send(stage.caller.call(1, ENQUEUE, enqueue("q0")))
    await until(lambda: len(broker.calls) == 1)
    stage.caller.send(codec.encode(codec.CANCEL, 1))
    await until(lambda: broker.hung_up == 1)
    await stage.nothing_is_left()
    stage.caller.send(stage.caller.call(2, ACK, ack(0)))
    await until(lambda: len(broker.calls) == 2)
    await stage.caller.close()
    await until(lambda: broker.hung_up == 2)
    await stage.nothing_is_left()
    assert stage.metrics.rpc("Enqueue").calls["CANCELLED"] == stage.metrics.rpc("Ack").calls["CANCELLED"] == 1


@pytest.mark.parametrize("claim_request_id", ["", "c1"])
async def test_claims_whose_caller_has_gone_go_back(stage: Stage, claim_request_id: str) -> None:
    """But for those that can be asked for again."""
    broker = stage.brokers[0]
    gate = asyncio.Event()

    async def claim(method: str, _data: bytes) -> bytes:
        if method == "Release":
            return pb.ReleaseResponse(outcomes=[pb.ReleaseOutcome(released=pb.Released())]).SerializeToString()
        await gate.wait()
        return pb.ReserveResponse(claims=[pb.Claim(task_id=task_id(0, 1), token=7, secret=8)]).SerializeToString()

    broker.on = claim
    request = pb.ReserveRequest(queues=["q0"], max_tasks=1, claim_request_id=claim_request_id)
    stage.caller.send(stage.caller.call(1, RESERVE, request.SerializeToString()))
    await until(lambda: len(broker.calls) == 1)
    stage.caller.send(codec.encode(codec.CANCEL, 1))
    await stage.ask(2, ENQUEUE, enqueue("q1"))  # what was sent before it has been read
    gate.set()
    await stage.nothing_is_left()
    if claim_request_id:
        assert [method for method, _ in broker.calls] == ["Reserve"]
    else:
        await until(lambda: stage.releases.released == 1)
        claims = pb.ReleaseRequest.FromString(broker.calls[-1][1]).claims
        assert [(claim.task_id, claim.token, claim.secret) for claim in claims] == [(task_id(0, 1), 7, 8)]


async def test_too_many_at_once_are_refused(stage: Stage) -> None:
    broker = stage.brokers[0]
    broker.on = lambda _method, _data: never()
    for number in range(3):
        stage.caller.send(stage.caller.call(number + 1, ENQUEUE, enqueue("q0")))
    await until(lambda: len(broker.calls) == 3)
    refused = await stage.ask(4, ENQUEUE, enqueue("q0"))
    assert isinstance(refused, Refusal)
    assert "calls to shard 0" in refused.message
    assert await stage.ask(5, ENQUEUE, enqueue("q1")) == b"\x1a\x00" + enqueue("q1")
    await stage.caller.close()
    await stage.nothing_is_left()


async def test_what_cannot_be_read_is_refused(stage: Stage) -> None:
    for path in (ENQUEUE, ACK, RESERVE):
        assert isinstance(await stage.ask(1, path, b"\xff"), Refusal)
    assert not stage.brokers[0].calls
    await stage.nothing_is_left()


async def test_a_batch_over_shards_is_split_as_ever(stage: Stage) -> None:
    async def answer(_method: str, data: bytes) -> bytes:
        count = len(pb.AckRequest.FromString(data).items)
        return pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked())] * count).SerializeToString()

    for broker in stage.brokers:
        broker.on = answer
    answered = await stage.ask(1, ACK, ack(0, 1, 0))
    assert isinstance(answered, bytes)
    assert len(pb.AckResponse.FromString(answered).outcomes) == 3
    assert [len(broker.calls) for broker in stage.brokers] == [1, 1]
    await stage.nothing_is_left()
