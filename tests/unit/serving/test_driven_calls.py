"""Calls whose coroutines the connection drives itself, without a task: whatever they wait for, they end as tasks do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from holdfast.frames import codec
from holdfast.frames.codec import Refusal
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.frame_server import FrameServer
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.intake import Intake
from holdfast.serving.metrics import MethodMetrics
from holdfast.serving.request_limits import request_limit
from holdfast.serving.served import CallContext, Served
from tests.unit.serving.frame_stage import MIB, NAME, RawCaller, until

PATH = "/test/Enqueue"
CANCELLED = 1
INTERNAL = 13


class Stage:
    """What the one method does is up to the test."""

    def __init__(self) -> None:
        self.handle: Callable[[bytes], Awaitable[bytes]] = self.echo
        self.contexts: list[tuple[CallContext, Any]] = []  # of all calls, with the metadata that they came with
        self.observed = MethodMetrics()
        limits = ServerLimits(message_bytes_max=4 * MIB, bytes_max=8 * MIB, calls_max=100)
        self.intake = Intake(bytes_max=8 * MIB, message_bytes_max=4 * MIB, waiting_max=10)
        self.server = FrameServer(
            limits, self.intake, lambda _method, error: ("INTERNAL", str(error), None), lambda: NAME
        )
        limit = request_limit("Enqueue", pb.EnqueueRequest, large_bytes_max=4 * MIB)
        self.server.add("test", {"Enqueue": Served("Enqueue", limit, self.observed, self._begin, is_driven=True)})

    def _begin(self, context: CallContext) -> Callable[[bytes], Coroutine[Any, Any, bytes]]:
        self.contexts.append((context, context.invocation_metadata()))

        async def answer(data: bytes) -> bytes:
            return await self.handle(data)

        return answer

    async def echo(self, data: bytes) -> bytes:
        return data

    async def ended(self) -> dict[str, int]:
        """How many calls ended in which way, once none is under way."""
        await until(lambda: self.observed.calls and not self.server.calls)
        assert self.intake.bytes == 0
        return self.observed.calls


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    await stage.server.start("127.0.0.1", 0)
    yield stage
    await stage.server.stop(0)


@pytest.fixture
async def caller(stage: Stage) -> AsyncIterator[RawCaller]:
    caller = await RawCaller.connect(stage.server.port)
    yield caller
    await caller.close()


async def test_what_waits_for_nothing_is_answered_without_a_task(stage: Stage, caller: RawCaller) -> None:
    tasks: list[object] = []

    async def note(_data: bytes) -> bytes:
        tasks.append(asyncio.current_task())
        return b"answer"

    stage.handle = note
    caller.send(caller.call(1, PATH))
    assert await caller.answer(1) == b"answer"
    assert tasks == [None]
    assert await stage.ended() == {"OK": 1}


async def test_a_call_that_waits_does_not_keep_its_metadata(stage: Stage, caller: RawCaller) -> None:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def wait(_data: bytes) -> bytes:
        return await answer

    stage.handle = wait
    caller.send(caller.call(1, PATH, shard="3"))
    await until(lambda: stage.contexts)
    [(context, metadata)] = stage.contexts
    assert metadata == (("holdfast-shard", "3"),)
    assert context.invocation_metadata() == ()
    answer.set_result(b"answer")
    assert await caller.answer(1) == b"answer"


async def test_several_wait_for_the_same_and_for_one_thing_after_the_other(stage: Stage, caller: RawCaller) -> None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[bytes] = loop.create_future()
    second: asyncio.Future[bytes] = loop.create_future()

    async def wait(_data: bytes) -> bytes:
        await asyncio.sleep(0)
        found = await first
        await asyncio.sleep(0)
        return found + await second

    stage.handle = wait
    for number in range(3):
        caller.send(caller.call(number, PATH))
    other = asyncio.create_task(wait(b""))
    await until(lambda: len(stage.server.calls) == 3)
    await asyncio.sleep(0.01)
    first.set_result(b"a")
    await asyncio.sleep(0.01)
    assert len(stage.server.calls) == 3
    second.set_result(b"b")
    for number in range(3):
        assert await caller.answer(number) == b"ab"
    assert await other == b"ab"
    assert await stage.ended() == {"OK": 3}


async def test_what_fails_before_and_after_it_has_waited_is_refused(stage: Stage, caller: RawCaller) -> None:
    failing: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def fail(data: bytes) -> bytes:
        if not data:
            raise ValueError("at once")
        return await failing

    stage.handle = fail
    caller.send(caller.call(1, PATH) + caller.call(2, PATH, b"\x08\x01"))
    assert await caller.answer(1) == Refusal(INTERNAL, "at once", b"")
    failing.set_exception(ValueError("later"))
    assert await caller.answer(2) == Refusal(INTERNAL, "later", b"")
    assert await stage.ended() == {"INTERNAL": 2}


async def test_what_cannot_be_encoded_is_refused(stage: Stage, caller: RawCaller) -> None:
    async def wrong(_data: bytes) -> Any:
        return "no bytes"

    stage.handle = wrong
    caller.send(caller.call(1, PATH))
    refused = await caller.answer(1)
    assert isinstance(refused, Refusal)
    assert refused.code == INTERNAL
    assert await stage.ended() == {"INTERNAL": 1}


async def test_a_cancelled_call_hears_of_it_and_may_take_its_time(stage: Stage, caller: RawCaller) -> None:
    loop = asyncio.get_running_loop()
    waits: asyncio.Future[bytes] = loop.create_future()
    may_end: asyncio.Future[None] = loop.create_future()

    async def wait(_data: bytes) -> bytes:
        try:
            return await waits
        except asyncio.CancelledError:
            await may_end
            raise

    stage.handle = wait
    caller.send(caller.call(1, PATH))
    await until(lambda: stage.server.calls)
    caller.send(codec.encode(codec.CANCEL, 1))
    await until(waits.cancelled)
    assert len(stage.server.calls) == 1
    may_end.set_result(None)
    assert await stage.ended() == {"CANCELLED": 1}
    stage.handle = stage.echo
    caller.send(caller.call(2, PATH))
    assert await caller.answer(2) == b""  # and nothing about the first one before


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_call_that_is_cancelled_when_it_is_about_to_go_on(stage: Stage, caller: RawCaller, turns: int) -> None:
    """What it waited for is there, and its turn has not come: then it hears of it in its turn."""
    waits: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    ends: list[str] = []

    async def wait(_data: bytes) -> bytes:
        try:
            await (asyncio.sleep(0) if turns else waits)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return b"answer"

    stage.handle = wait
    if turns:
        caller.send(caller.call(1, PATH) + codec.encode(codec.CANCEL, 1))
    else:
        caller.send(caller.call(1, PATH))
        await until(lambda: stage.server.calls)
        [call] = stage.server.calls
        waits.set_result(b"")
        call.cancel()
    assert await stage.ended() == {"CANCELLED": 1}
    assert ends == ["cancelled"]


async def test_a_call_whose_wait_somebody_else_cancels_is_answered(stage: Stage, caller: RawCaller) -> None:
    waits: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def wait(_data: bytes) -> bytes:
        return await waits

    stage.handle = wait
    caller.send(caller.call(1, PATH))
    await until(lambda: stage.server.calls)
    waits.cancel()
    refused = await caller.answer(1)
    assert isinstance(refused, Refusal)
    assert refused.code == CANCELLED
    assert await stage.ended() == {"CANCELLED": 1}


async def test_calls_end_with_their_connection(stage: Stage, caller: RawCaller) -> None:
    async def wait(_data: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    stage.handle = wait
    caller.send(caller.call(1, PATH) + caller.call(2, PATH))
    await until(lambda: len(stage.server.calls) == 2)
    await caller.close()
    assert await stage.ended() == {"CANCELLED": 2}
