"""Calls that come in while a server is busy wait for it. None is cancelled unseen: its outcome would be open."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.broker.metrics import Metrics
from holdfast.broker.rpc import RpcServer
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.metrics import Metrics as RouterMetrics
from holdfast.router.wire import RouterServer

CALLS = 2000  # of those beyond 1,000 gRPC left to itself cancels some, by lot
ARRIVE_S = 1.0  # as long as it may take them; a machine that needs longer sees less


class Callee:
    async def enqueue(self, _request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        return pb.EnqueueResponse()

    async def handle(self, *_call: object) -> bytes:
        return b""


def broker() -> RpcServer:
    find: Any = lambda _shard: Callee()  # noqa: E731
    return RpcServer(find, None, None, Metrics(), batch_bytes_max=1000, calls_max=2 * CALLS)


def router() -> RouterServer:
    return RouterServer(Callee().handle, RouterMetrics(), message_bytes_max=1000, calls_max=2 * CALLS)


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
