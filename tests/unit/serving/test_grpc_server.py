"""Calls that come in while a server is busy wait for it. None is cancelled unseen: its outcome would be open."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from holdfast.broker.api.server import RpcServer
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.metrics import Metrics
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.metrics import Metrics as RouterMetrics
from holdfast.router.wire import RouterServer
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.refusals import overloaded

CALLS = 2000  # of those beyond 1,000 gRPC left to itself cancels some, by lot
ARRIVE_S = 1.0  # as long as it may take them; a machine that needs longer sees less


LIMITS = ServerLimits(message_bytes_max=1000, bytes_max=100_000, calls_max=2 * CALLS)


def ready() -> tuple[bool, str]:
    return True, "serving"


class Shards:
    """All of them are served by one callee."""

    def __init__(self, callee: "Callee") -> None:
        self._service: Any = callee

    def find(self, _number: int) -> TaskService:
        service: TaskService = self._service
        return service

    def default_shard(self) -> int:
        return 0

    def note_damage(self, error: Exception) -> None:
        raise error


class Callee:
    def check_open(self) -> None:
        """It is."""

    async def enqueue(self, _request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        return pb.EnqueueResponse()

    def check(self, _method: object) -> None:
        """It may come."""

    async def handle(self, *_call: object) -> bytes:
        return b""


def broker() -> RpcServer:
    return RpcServer(Shards(Callee()), None, None, None, Metrics(), LIMITS, batch_bytes_max=1000, readiness=ready)


def router() -> RouterServer:
    return RouterServer(Callee(), RouterMetrics(), LIMITS, batch_bytes_max=1000, readiness=ready)


@pytest.fixture(params=[broker, router])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    server: RpcServer | RouterServer = request.param()
    yield await server.start("127.0.0.1", 0)
    await server.stop(0)


def code_of(call: Any) -> str:
    name: str = call.code().name
    return name


async def test_calls_wait_for_a_busy_server(port: int) -> None:
    ended = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        enqueue: Any = channel.unary_unary("/holdfast.proto.v1.Tasks/Enqueue")
        # All of this blocks the loop, and with it the server, as a long computation would.
        calls = [enqueue.future(b"", timeout=120) for _ in range(CALLS)]
        for call in calls:
            call.add_done_callback(lambda _call: ended.set())
        assert not ended.wait(ARRIVE_S), "somebody else than the server ended a call"
        codes = await asyncio.to_thread(lambda: Counter(map(code_of, calls)))
    assert codes == {"OK": CALLS}


# --- unknown callers --------------------------------------------------------------------------------------------

ENQUEUE = "/holdfast.proto.v1.Tasks/Enqueue"
ACK = "/holdfast.proto.v1.Tasks/Ack"
CHECK = "/grpc.health.v1.Health/Check"
GET_TASK = "/holdfast.proto.v1.Tasks/GetTask"
MIB = 1024 * 1024


class Owner:
    """Of a server of its own, with a switch for readiness."""

    def __init__(self) -> None:
        self.is_ready = True
        self.is_open = True
        self.requests: list[bytes] = []

    def readiness(self) -> tuple[bool, str]:
        return self.is_ready, "as the test says"

    def check(self, _method: object = None) -> None:
        if not self.is_open:
            raise overloaded("calls", 0)

    async def handle(self, _method: object, data: bytes, _caller: object) -> bytes:
        self.requests.append(data)
        return b""

    def serve(self, **limits: int) -> RouterServer:
        bounds: dict[str, Any] = {"message_bytes_max": 4 * MIB, "bytes_max": 8 * MIB, "calls_max": 1000} | limits
        return RouterServer(
            self, RouterMetrics(), ServerLimits(**bounds), batch_bytes_max=4 * MIB, readiness=self.readiness,
        )  # fmt: skip


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def server(owner: Owner) -> AsyncIterator[RouterServer]:
    served = owner.serve()
    yield served
    await served.stop(0)


async def connect(server: RouterServer) -> Any:
    port = await server.start("127.0.0.1", 0)
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


async def test_a_compressed_request_is_not_unpacked(server: RouterServer, owner: Owner) -> None:
    async with await connect(server) as channel:
        enqueue = channel.unary_unary(ENQUEUE)
        for method in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            code, details = await refused(enqueue(b"\x0a\x00" * MIB, compression=method, timeout=30))
            assert (code, "not compressed" in details) == ("INVALID_ARGUMENT", True)
    assert not owner.requests


async def test_a_bomb_is_refused_before_it_is_parsed(server: RouterServer, owner: Owner) -> None:
    async with await connect(server) as channel:
        code, details = await refused(channel.unary_unary(ENQUEUE)(b"\x0a\x00" * MIB, timeout=30))
        assert (code, "at most 1000 items in tasks" in details) == ("INVALID_ARGUMENT", True)
        code, details = await refused(channel.unary_unary(GET_TASK)(bytes(MIB), timeout=30))
        assert (code, "at most 65536 bytes" in details) == ("INVALID_ARGUMENT", True)
    assert not owner.requests


async def test_what_is_refused_by_name_is_never_received(server: RouterServer, owner: Owner) -> None:
    """Of a body that is received gRPC would say that it is too large."""
    owner.is_open = False
    async with await connect(server) as channel:
        enqueue = channel.unary_unary(ENQUEUE)
        code, details = await refused(enqueue(bytes(32 * MIB), timeout=30))
        assert (code, "fewer than 0 calls" in details) == ("RESOURCE_EXHAUSTED", True)
        owner.is_open = True
        code, details = await refused(enqueue(bytes(32 * MIB), timeout=30))
        assert (code, "larger than max" in details) == ("RESOURCE_EXHAUSTED", True)
        await enqueue(b"", timeout=30)
    assert owner.requests == [b""]
    assert server.intake.bytes == 0


async def test_a_request_that_never_ends_is_forgotten_with_its_connection(server: RouterServer, owner: Owner) -> None:
    async with await connect(server) as channel:
        enqueue = channel.stream_unary(ENQUEUE)
        nothing = asyncio.Event()

        async def silence() -> AsyncIterator[bytes]:
            await nothing.wait()
            yield b""

        calls = [enqueue(silence(), timeout=30) for _ in range(40)]  # more than are read at a time
        late = channel.unary_unary(ENQUEUE)(b"", timeout=30)
        for call in calls:
            call.cancel()
        await late
    assert owner.requests == [b""]


@contextlib.asynccontextmanager
async def calls_without_bodies(port: int, method: str, *, connections: int, calls: int) -> AsyncIterator[None]:
    """As soon as one of them is ended there is another one."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(connections)]

    async def call_again_and_again(channel: Any) -> None:
        while True:
            call = channel.stream_unary(method)(timeout=60)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call

    begun = [asyncio.create_task(call_again_and_again(channels[index % connections])) for index in range(calls)]
    for channel in channels:
        await channel.channel_ready()
    await asyncio.sleep(0.2)  # until they are at the server
    yield
    for task in begun:
        task.cancel()
    await asyncio.wait(begun)
    for channel in channels:
        await channel.close()


@pytest.mark.parametrize("method", [ACK, ENQUEUE, CHECK])
async def test_calls_without_bodies_do_not_keep_others_out(owner: Owner, method: str) -> None:
    server = owner.serve(message_bytes_max=16 * MIB)
    port = await server.start("127.0.0.1", 0)
    async with (
        calls_without_bodies(port, method, connections=4, calls=200),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
        asyncio.timeout(20),  # each of them had no answer within 25 s
    ):
        for name in (ACK, CHECK, ENQUEUE) * 4:
            call: Any = channel.unary_unary(name)
            await call(b"", timeout=20)
    await server.stop(0)
    assert len(owner.requests) == 8
    assert server.intake.bytes == 0


async def test_health_is_readiness(server: RouterServer, owner: Owner) -> None:
    async with await connect(server) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def status(service: str = "") -> str:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

        names = ("", "holdfast.proto.v1.Tasks")
        for is_ready in (True, False, True):
            owner.is_ready = is_ready
            assert [await status(name) for name in names] == ["SERVING" if is_ready else "NOT_SERVING"] * 2
        code, _ = await refused(stub.Check(health_pb2.HealthCheckRequest(service="else"), timeout=30))
        assert code == "NOT_FOUND"
        code, _ = await refused(channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\xff", timeout=30))
        assert code == "INVALID_ARGUMENT"


async def test_who_watches_health_hears_of_changes_and_of_the_end(server: RouterServer, owner: Owner) -> None:
    async with await connect(server) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        seen: list[int] = []
        async for answer in watch:
            seen.append(answer.status)
            if len(seen) == 1:
                owner.is_ready = False
            if len(seen) == 2:
                owner.is_ready = True
            if len(seen) == 3:
                server.drain()
        status = health_pb2.HealthCheckResponse
        assert seen == [status.SERVING, status.NOT_SERVING, status.SERVING, status.NOT_SERVING]


async def test_connections_are_bounded(owner: Owner) -> None:
    server = owner.serve(connections_max=10)
    port = await server.start("127.0.0.1", 0)
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
    closed = 0
    for reader, _ in connections:
        try:
            async with asyncio.timeout(0.1):
                while await reader.read(1024):
                    pass
                closed += 1
        except TimeoutError:
            pass
        except ConnectionError:
            closed += 1
    for _, writer in connections:
        writer.close()
    await server.stop(0)
    assert closed >= 20
