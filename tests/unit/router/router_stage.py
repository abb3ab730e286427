"""A router in the test's own event loop, between a real channel and fake brokers that answer as a test says."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio

from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.admission import Admission
from holdfast.router.forwarding import Forwarder
from holdfast.router.gateway import Gateway
from holdfast.router.leaders import Leaders
from holdfast.router.methods import ALL, Method
from holdfast.router.metrics import Metrics
from holdfast.router.own import OwnCalls
from holdfast.router.releases import Releases
from holdfast.router.wire import RouterServer
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute
from holdfast.serving.grpc_server import ServerLimits
from holdfast.transport.negotiated import NegotiatedChannels
from tests.unit.client.scripted_server import Refusal, not_leader

METHODS = {method.name: method for method in ALL}
DEADLINE_S = 10.0
BATCH_BYTES_MAX = 1 << 21
__all__ = ["Refusal", "not_leader"]


def task_id(shard: int, number: int) -> str:
    """As that shard would make it."""
    digits = f"{number:012x}8{shard >> 4:03x}{0x8000 | (shard & 0xF) << 10:04x}{number:012x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@dataclass
class Call:
    """What arrived at a broker."""

    method: str
    request: Any
    data: bytes
    shard: int
    timeout_s: float | None


# Answers a call: with a message, raw bytes, or a refusal.
Answer = Any
Handler = Callable[[Call], Awaitable[Answer] | Answer]


class FakeBroker:
    """Records what it is asked and answers with `on[method]`, a value or a function of the call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.on: dict[str, Answer | Handler] = {}
        self.hung_up: dict[str, int] = defaultdict(int)  # calls whose caller went away, by method
        self.arrived = asyncio.Condition()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> Self:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        services: dict[str, dict[str, Any]] = {}
        for method in ALL:
            handlers = services.setdefault(method.path.split("/")[1], {})
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(self._handler(method))
        for service, handlers in services.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.port = server.add_insecure_port(self.address)
        await server.start()
        self._server = server
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def requests(self, method: str) -> list[Any]:
        return [call.request for call in self.calls if call.method == method]

    async def wait_for(self, method: str, count: int = 1) -> None:
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(lambda: len(self.requests(method)) >= count), DEADLINE_S)

    async def wait_for_hang_up(self, method: str, count: int = 1) -> None:
        """Until so many callers have gone away: that shows a moment after they did."""
        async with asyncio.timeout(DEADLINE_S):
            while self.hung_up[method] < count:
                await asyncio.sleep(0.001)

    def _handler(self, method: Method) -> Any:
        async def handle(data: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata() or ())
            call = Call(
                method.name, method.request.FromString(data), data, int(metadata["holdfast-shard"]),
                context.time_remaining(),
            )  # fmt: skip
            self.calls.append(call)
            async with self.arrived:
                self.arrived.notify_all()
            try:
                answer: Any = self.on[method.name]
                if callable(answer):
                    answer = answer(call)
                if asyncio.iscoroutine(answer):
                    answer = await answer
            except asyncio.CancelledError:
                self.hung_up[method.name] += 1
                raise
            if isinstance(answer, Refusal):
                await context.abort(answer.code, answer.message, answer.trailing_metadata())
            result: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
            return result

        return handle


async def never(_call: Call) -> Answer:
    """Says nothing until the caller goes."""
    await asyncio.Event().wait()


@dataclass
class Table:
    """A map that a test writes."""

    shard_count: int = 4
    leaders: dict[int, tuple[str, int]] = field(default_factory=dict)
    replicas: dict[int, list[str]] = field(default_factory=dict)
    routes: dict[str, QueueRoute] = field(default_factory=dict)

    def route(self, queue: str) -> QueueRoute:
        return self.routes.get(queue) or QueueRoute(queue, home_shard(queue, self.shard_count))

    def leader_hint(self, shard: int) -> tuple[str, int] | None:
        return self.leaders.get(shard)

    def replica_addresses(self, shard: int) -> list[str]:
        return self.replicas.get(shard, [])

    def pin(self, queue: str, *shards: int, generation: int = 1, draining: tuple[int, ...] = ()) -> None:
        """The first one is also the home."""
        self.routes[queue] = QueueRoute(queue, shards[0], generation, ((generation, shards),), draining)

    def at_home(self, queue: str, shard: int) -> None:
        self.routes[queue] = QueueRoute(queue, shard)


class _NoAdmin:
    """Stands in for the service Cluster."""

    def __getattr__(self, name: str) -> Any:
        async def refuse(_request: Any) -> Any:
            raise AssertionError(f"{name} was called")

        return refuse


class Stage:
    """Brokers b0, b1, …: shard n is led by broker n, unless a test says otherwise; all have replicas of all."""

    def __init__(self, brokers: int = 2, *, shards: int | None = None, **limits: Any) -> None:
        self.brokers = [FakeBroker() for _ in range(brokers)]
        self.table = Table(shards or brokers)
        self._limits = limits

    async def __aenter__(self) -> Self:
        for broker in self.brokers:
            await broker.start()
        addresses = [broker.address for broker in self.brokers]
        for shard in range(self.table.shard_count):
            self.table.leaders.setdefault(shard, (addresses[shard % len(addresses)], 1))
            self.table.replicas.setdefault(shard, addresses)
        limits = {"calls_max": 100, "calls_per_shard_max": 50, "bytes_max": 1 << 24} | self._limits
        bytes_max = limits.pop("bytes_max")
        self.admission = Admission(**limits)
        self.channels = NegotiatedChannels(
            message_bytes_max=1 << 22, keepalive_s=20, connects_first=True, transport="grpc"
        )  # fmt: skip
        self.leaders = Leaders(self.table)
        self.forwarder = Forwarder(self.leaders, self.channels, self.admission)
        self.releases = Releases(self.forwarder)
        self.gateway = Gateway(
            self.table, self.forwarder, self.releases, self.admission, check_map=lambda: None,
            own=OwnCalls(_NoAdmin(), _NoAdmin(), lambda: [("n1", addresses[0])]), wait_ms_max=60_000,
            call_s_default=5.0, message_bytes_max=1 << 22,
        )  # fmt: skip
        self.metrics = Metrics()
        self.server = RouterServer(
            self.gateway,
            self.metrics,
            ServerLimits(message_bytes_max=1 << 22, bytes_max=bytes_max, calls_max=1000),
            batch_bytes_max=BATCH_BYTES_MAX,
            readiness=lambda: (True, "serving"),
        )
        self.port = await self.server.start("127.0.0.1", 0)
        self.channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0.0)
        await self.gateway.close()
        await self.releases.close(1.0)
        await self.forwarder.close()
        await self.channels.close()
        for broker in self.brokers:
            await broker.stop()

    def on_all(self, **answers: Any) -> None:
        """All brokers answer these methods so."""
        for broker in self.brokers:
            broker.on |= answers

    def raw(
        self, method: str, data: bytes, *, shard: int | None = None, attempt: int = 1, timeout_s: float = DEADLINE_S
    ) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        metadata = [("holdfast-shard", str(shard))] if shard is not None else []
        metadata += [("holdfast-attempt", str(attempt))] if attempt > 1 else []
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(METHODS[method].path)
        return call(data, timeout=timeout_s, metadata=tuple(metadata))

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        answer = await self.raw(method, request.SerializeToString(), **options)
        return METHODS[method].response.FromString(answer)


def accept_all(prefix: str = "") -> Handler:
    """An Enqueue answered with an id for each task: the prefix, the shard, and what the task's payload says. For each
    run with what its first payload says."""

    def accept(call: Call) -> pb.EnqueueResponse:
        response = pb.EnqueueResponse()
        for task in call.request.tasks:
            response.outcomes.add().accepted.task_id = f"{prefix}{call.shard}:{task.payload.decode()}"
        for run in call.request.runs:
            response.runs.add(first_task_id=f"{prefix}{call.shard}:{run.payloads[0].decode()}")
        return response

    return accept


def leads(address: str, epoch: int, name: str = "n") -> shards_pb2.FindLeaderResponse:
    return shards_pb2.FindLeaderResponse(epoch=epoch, leader=name, address=address)


def elapsed_since(began_s: float) -> float:
    return time.monotonic() - began_s


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)
