"""What is left of a call that was refused: nothing, at once. Whatever waited for the garbage collector would pile up
while a server is overloaded, because the collector counts objects, and a request of a megabyte is only one."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from holdfast.broker.api.server import RpcServer
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.metrics import Metrics
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.metrics import Metrics as RouterMetrics
from holdfast.router.wire import RouterServer
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.refusals import OutcomeUnknownError, overloaded

Answer = Callable[[], Awaitable[Any]]


class Held:
    """Stands for what a call holds while it is under way: the request, and what was made of it."""


LIMITS = ServerLimits(message_bytes_max=1000, bytes_max=100_000, calls_max=10)


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
    """Answers every call with a failure."""

    def __init__(self, fail: Answer) -> None:
        self._fail = fail
        self.held: list[weakref.ref[Held]] = []

    def check_open(self) -> None:
        """It is."""

    async def enqueue(self, _request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        return pb.EnqueueResponse.FromString(await self._hold())

    def check(self, _method: object) -> None:
        """It may come."""

    async def handle(self, *_call: object) -> bytes:
        return await self._hold()

    async def _hold(self) -> bytes:
        held = Held()
        self.held.append(weakref.ref(held))
        answer: bytes = await self._fail()
        return answer


async def refuse() -> None:
    raise overloaded("bytes waiting for the log", 1)


async def refuse_by_name() -> None:
    refused = overloaded("bytes waiting for the log", 1)
    raise refused  # its frame holds it


async def drop_a_write() -> None:
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome.set_exception(OutcomeUnknownError())
    await outcome


async def refuse_because_of_another() -> None:
    try:
        await drop_a_write()
    except OutcomeUnknownError as error:
        first = error
        raise overloaded(str(first), 1) from first


async def break_down() -> None:
    raise ArithmeticError("a bug")


FAILURES = [refuse, refuse_by_name, drop_a_write, refuse_because_of_another, break_down]


def broker_of(callee: Callee) -> RpcServer:
    return RpcServer(Shards(callee), None, None, None, Metrics(), LIMITS, batch_bytes_max=1000, readiness=ready)


def router_of(callee: Callee) -> RouterServer:
    return RouterServer(callee, RouterMetrics(), LIMITS, batch_bytes_max=1000, readiness=ready)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=[broker_of, router_of], ids=["broker", "router"])
def server_of(request: pytest.FixtureRequest) -> Callable[[Callee], RpcServer | RouterServer]:
    made: Callable[[Callee], RpcServer | RouterServer] = request.param
    return made


@pytest.fixture
async def channels() -> AsyncIterator[list[grpc.aio.Channel]]:
    opened: list[grpc.aio.Channel] = []
    yield opened
    for channel in opened:
        await channel.close()


@pytest.mark.parametrize("fail", FAILURES)
async def test_a_refused_call_is_forgotten_at_once(
    fail: Answer,
    server_of: Callable[[Callee], RpcServer | RouterServer],
    channels: list[grpc.aio.Channel],
    no_collector: None,
) -> None:
    callee = Callee(fail)
    server = server_of(callee)
    port = await server.start("127.0.0.1", 0)
    channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    enqueue: Any = channels[0].unary_unary("/holdfast.proto.v1.Tasks/Enqueue")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await enqueue(b"", timeout=30)
    await server.stop(30)  # by then the call has ended on its side too
    assert refused.value.code() is not grpc.StatusCode.UNKNOWN, "that is what gRPC says of what nobody caught"
    assert [held() for held in callee.held] == [None]
