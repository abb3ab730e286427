"""A connection of frames whose thread waits for each answer itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest

from holdfast.frames import codec
from holdfast.frames.codec import Frame
from holdfast.proto.v1.frames_pb2 import Welcome
from holdfast.transport.blocking_link import BlockingCall, BlockingLink
from holdfast.transport.channels import CallFailedError
from holdfast.transport.frame_channels import FramesAddress, NoFramesError
from tests.unit.transport.frame_twin import NAME, PATH, Twin, twin

T = TypeVar("T")
FOREVER = float("inf")


class Caller:
    """The thread at the other end."""

    def __init__(self, server: Twin) -> None:
        self.server = server
        self.link: BlockingLink | None = None

    async def connect(self, *, server: str = NAME, keepalive_s: float = 30.0) -> BlockingLink:
        at = FramesAddress("127.0.0.1", self.server.port, server)
        connecting = asyncio.create_task(asyncio.to_thread(BlockingLink, at, "test", 1_000_000, keepalive_s))
        greeting = await self.server.next()
        assert greeting is not None
        assert greeting.kind == codec.HELLO
        answer = Welcome(
            version=1, server=NAME, methods=[PATH], frame_bytes_max=1 << 26, window_bytes=1000, calls_max=9
        )
        self.server.say(codec.encode(codec.WELCOME, 0, answer.SerializeToString()))
        self.link = await connecting
        return self.link

    def begin(self, *, timeout_s: float = 20.0, patience_s: float = FOREVER) -> "asyncio.Task[bytes | BlockingCall]":
        assert self.link is not None
        return on_thread(self.link.call, PATH, b"request", None, timeout_s, patience_s)


def on_thread(function: Callable[..., T], *arguments: Any) -> "asyncio.Task[T]":
    return asyncio.create_task(asyncio.to_thread(function, *arguments))


def answer_to(call: Frame, body: bytes = b"answer") -> bytes:
    return codec.encode_answer(call.call, len(body)) + body


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with twin() as server:
        found = Caller(server)
        yield found
        if found.link is not None:
            found.link.close()


async def test_calls_are_answered_one_after_the_other(caller: Caller) -> None:
    link = await caller.connect()
    assert link.takes(PATH, 10)
    assert not link.takes("/a/Other", 10)
    assert not link.takes(PATH, 1001)  # more than the window
    for body in (b"one", b"", bytes(100_000)):
        calling = caller.begin()
        call = await caller.server.call()
        assert (call.body, call.method) == (b"request", 0)
        assert 19_000 < call.timeout_ms <= 20_000
        caller.server.say(answer_to(call, body))
        assert await calling == body


async def test_a_refusal_is_raised_with_its_details(caller: Caller) -> None:
    link = await caller.connect()
    calling = caller.begin()
    call = await caller.server.call()
    caller.server.say(codec.encode_refusal(call.call, 8, "too much", b"details"))
    with pytest.raises(CallFailedError) as refused:
        await calling
    assert (refused.value.code, refused.value.message, refused.value.details) == (
        "RESOURCE_EXHAUSTED",
        "too much",
        b"details",
    )
    assert link.is_open


@pytest.mark.parametrize("comes_first", [True, False])
async def test_what_else_comes_with_an_answer_is_heard(caller: Caller, *, comes_first: bool) -> None:
    link = await caller.connect()
    calling = caller.begin()
    call = await caller.server.call()
    caller.server.say(codec.encode(codec.PING, 0, b"there?"))
    pong = await caller.server.next()
    assert pong is not None
    assert (pong.kind, pong.body) == (codec.PONG, b"there?")
    said = [codec.encode(codec.GOODBYE, 0), answer_to(call)]
    caller.server.say(b"".join(said if comes_first else reversed(said)))
    assert await calling == b"answer"
    assert not link.takes(PATH, 1)


async def test_a_call_without_an_answer_for_a_while_is_waited_for_later(caller: Caller) -> None:
    link = await caller.connect()
    calling = caller.begin(patience_s=0.01)
    call = await caller.server.call()
    silent = await calling
    assert isinstance(silent, BlockingCall)
    waiting = on_thread(link.answer, silent)
    caller.server.say(answer_to(call))
    assert await waiting == b"answer"


async def test_after_its_deadline_a_call_is_cancelled_and_the_next_one_has_its_own_answer(caller: Caller) -> None:
    await caller.connect()
    calling = caller.begin(timeout_s=0.02)
    late = await caller.server.call()
    with pytest.raises(CallFailedError) as failed:
        await calling
    assert (failed.value.code, failed.value.never_sent) == ("DEADLINE_EXCEEDED", False)
    cancel = await caller.server.next()
    assert cancel is not None
    assert (cancel.kind, cancel.call) == (codec.CANCEL, late.call)
    calling = caller.begin()
    call = await caller.server.call()
    caller.server.say(answer_to(late, b"too late") + answer_to(call))
    assert await calling == b"answer"


async def test_a_lost_connection_leaves_the_outcome_unknown(caller: Caller) -> None:
    link = await caller.connect()
    calling = caller.begin()
    await caller.server.call()
    assert caller.server.writer is not None
    caller.server.writer.close()
    with pytest.raises(CallFailedError) as failed:
        await calling
    assert failed.value.is_lost
    assert not link.is_open


async def test_a_server_that_ends_the_connection_says_why(caller: Caller) -> None:
    await caller.connect()
    calling = caller.begin()
    await caller.server.call()
    caller.server.say(codec.encode_refusal(0, 3, "enough of you", kind=codec.END))
    with pytest.raises(CallFailedError) as failed:
        await calling
    assert failed.value.message == "enough of you"


async def test_what_was_answered_before_the_end_counts(caller: Caller) -> None:
    link = await caller.connect()
    calling = caller.begin()
    call = await caller.server.call()
    caller.server.say(answer_to(call) + codec.encode_refusal(0, 3, "enough of you", kind=codec.END))
    assert await calling == b"answer"
    assert not link.is_open


async def test_another_thread_can_end_a_call(caller: Caller) -> None:
    link = await caller.connect()
    calling = caller.begin()
    await caller.server.call()
    link.shut_down()
    with pytest.raises(CallFailedError) as failed:
        await calling
    assert failed.value.is_lost


async def test_a_goodbye_between_two_calls_is_heard_before_the_next(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await caller.connect()
    caller.server.say(codec.encode(codec.GOODBYE, 0))
    monkeypatch.setattr("holdfast.transport.blocking_link.QUIET_S", -1.0)
    async with asyncio.timeout(10):
        while await asyncio.to_thread(link.takes, PATH, 1):
            await asyncio.sleep(0.001)


async def test_a_server_that_is_silent_for_long_is_asked_whether_it_is_there(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.transport.blocking_link.TICK_S", 0.01)
    monkeypatch.setattr("holdfast.transport.blocking_link.ANSWER_SECONDS", 0.2)
    await caller.connect(keepalive_s=0.05)
    calling = caller.begin()
    await caller.server.call()
    ping = await caller.server.next()
    assert ping is not None
    assert ping.kind == codec.PING
    with pytest.raises(CallFailedError) as failed:
        await calling
    assert failed.value.is_lost


async def test_who_is_not_the_server_that_is_looked_for_gets_no_calls(caller: Caller) -> None:
    with pytest.raises(NoFramesError, match="not of 'another'"):
        await caller.connect(server="another")


async def test_nobody_at_the_port() -> None:
    async with twin() as server:
        at = FramesAddress("127.0.0.1", server.port, NAME)
    with pytest.raises(NoFramesError):
        await asyncio.to_thread(BlockingLink, at, "test", 1000, 30.0)
