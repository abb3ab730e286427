"""A connection of frames: calls, what becomes of them when it ends, and its window."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.frames import codec
from holdfast.proto.v1.frames_pb2 import Welcome
from holdfast.transport import frame_channels as module
from holdfast.transport.channels import CallFailedError
from holdfast.transport.frame_channels import FrameCall, FrameLink, NoFramesError, connect
from tests.unit.serving.frame_stage import until
from tests.unit.transport.frame_twin import NAME, PATH, Twin, twin

LONG_S = 30.0


@pytest.fixture
async def server() -> AsyncIterator[Twin]:
    async with twin() as served:
        yield served


@pytest.fixture
async def link(server: Twin) -> AsyncIterator[FrameLink]:
    made = await server.link()
    yield made
    made.close()


def begin(link: FrameLink, data: bytes = b"", timeout_s: float = LONG_S) -> FrameCall:
    return link.call(PATH, data, None, timeout_s)


async def failure_of(call: FrameCall) -> CallFailedError:
    async with asyncio.timeout(20):
        with pytest.raises(CallFailedError) as caught:
            await call.answer()
    return caught.value


async def test_answers_find_their_calls_in_any_order(server: Twin, link: FrameLink) -> None:
    calls = [begin(link, b"one"), link.call(PATH, b"two", (("a", "b"),), 7.0)]
    first, second = await server.call(), await server.call()
    assert (first.body, second.body, second.metadata) == (b"one", b"two", b"a\0b\0")
    assert 6000 < second.timeout_ms <= 7000
    server.say(codec.encode(codec.ANSWER, second.call, b"2") + codec.encode(codec.ANSWER, first.call, b"1"))
    assert [await call.answer() for call in calls] == [b"1", b"2"]
    assert link.calls_under_way == 0


async def test_a_refusal_comes_as_over_grpc(server: Twin, link: FrameLink) -> None:
    call = begin(link)
    server.say(codec.encode_refusal((await server.call()).call, 14, "No.", b"details"))
    failure = await failure_of(call)
    assert (failure.code, failure.message, failure.details) == ("UNAVAILABLE", "No.", b"details")


async def test_a_lost_connection_leaves_unknown_what_was_sent_and_nothing_else(server: Twin, link: FrameLink) -> None:
    sent, queued = begin(link, bytes(1000)), begin(link, b"more than the window")
    await server.call()
    assert (sent.is_unsent, queued.is_unsent) == (False, True)
    assert server.writer is not None
    server.writer.close()
    lost, never_sent = await failure_of(sent), await failure_of(queued)
    assert (lost.code, lost.is_lost, lost.is_unknown) == ("UNAVAILABLE", True, True)
    assert (never_sent.code, never_sent.never_sent, never_sent.is_unknown) == ("UNAVAILABLE", True, False)
    assert not link.takes(PATH)


async def test_a_link_that_is_closed_gives_up_its_calls(server: Twin, link: FrameLink) -> None:
    """As gRPC's channels do: whoever closed it must not hear that the server is gone."""
    call = begin(link)
    await server.call()
    link.close()
    failure = await failure_of(call)
    assert (failure.code, failure.was_given_up, failure.was_connected) == ("CANCELLED", True, True)
    assert await server.next() is None


async def test_a_deadline_ends_a_call_and_tells_the_server(server: Twin, link: FrameLink) -> None:
    call = begin(link, timeout_s=0.01)
    sent = await server.call()
    failure = await failure_of(call)
    assert (failure.code, failure.is_unknown) == ("DEADLINE_EXCEEDED", True)
    cancel = await server.next()
    assert cancel is not None
    assert (cancel.kind, cancel.call) == (codec.CANCEL, sent.call)
    server.say(codec.encode(codec.ANSWER, sent.call, b"late"))  # which nobody waits for any more
    again = begin(link)
    server.say(codec.encode(codec.ANSWER, (await server.call()).call, b"in time"))
    assert await again.answer() == b"in time"


async def test_a_deadline_in_the_queue_says_that_nothing_was_sent(server: Twin, link: FrameLink) -> None:
    first = begin(link, bytes(1000))
    queued = begin(link, b"x", timeout_s=0.01)
    assert (await failure_of(queued)).never_sent
    server.say(codec.encode(codec.ANSWER, (await server.call()).call))
    await first.answer()
    assert link.calls_under_way == 0


async def test_a_call_that_was_cancelled_by_its_waiting_task(server: Twin, link: FrameLink) -> None:
    waiting = asyncio.create_task(begin(link).answer())
    await server.call()
    waiting.cancel()
    cancel = await server.next()
    assert cancel is not None
    assert cancel.kind == codec.CANCEL
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert link.calls_under_way == 0


async def test_a_call_that_is_given_up(server: Twin, link: FrameLink) -> None:
    call = begin(link)
    await server.call()
    assert call.cancel()
    failure = await failure_of(call)
    assert (failure.code, failure.was_given_up, failure.was_connected) == ("CANCELLED", True, True)
    assert not call.cancel()


async def test_the_window_is_kept_and_the_queue_leaves_in_its_order(server: Twin, link: FrameLink) -> None:
    calls = [begin(link, bytes([nth]) * 400) for nth in range(5)]
    given_up = begin(link, b"x")
    assert [call.is_unsent for call in calls] == [False, False, True, True, True]
    given_up.cancel()
    await failure_of(given_up)
    for nth in range(5):
        frame = await server.call()
        assert frame.body == bytes([nth]) * 400
        server.say(codec.encode(codec.ANSWER, frame.call, bytes([nth])))
    assert [await call.answer() for call in calls] == [bytes([nth]) for nth in range(5)]


async def test_small_calls_do_not_wait_behind_large_ones_nor_keep_them_waiting(server: Twin) -> None:
    """Large ones bring tasks. Claims and acks wait for none of them, also where a shard does not answer."""
    link = await server.link(window_bytes=400_000, calls_max=100)
    large = [begin(link, bytes(150_000)) for _ in range(3)]
    small = [begin(link, bytes(60_000)) for _ in range(2)]
    assert [call.is_unsent for call in (*large, *small)] == [False, False, True, False, True]
    first, _, claim = [await server.call() for _ in range(3)]
    server.say(codec.encode(codec.ANSWER, claim.call))
    assert await small[0].answer() == b""
    assert [large[2].is_unsent, small[1].is_unsent] == [True, False]
    server.say(codec.encode(codec.ANSWER, first.call))
    assert await large[0].answer() == b""
    assert not large[2].is_unsent
    link.close()


async def test_a_call_that_takes_most_of_the_window_has_its_turn(server: Twin) -> None:
    link = await server.link(window_bytes=400_000, calls_max=100)
    before, large, behind = begin(link, bytes(20_000)), begin(link, bytes(390_000)), begin(link, b"small")
    assert [call.is_unsent for call in (before, large, behind)] == [False, True, True]
    server.say(codec.encode(codec.ANSWER, (await server.call()).call))
    assert await before.answer() == b""
    assert [call.is_unsent for call in (large, behind)] == [False, False]
    other, last = begin(link, bytes(390_000)), begin(link, b"small")
    assert [call.is_unsent for call in (other, last)] == [True, True]
    other.cancel()
    assert not last.is_unsent
    link.close()


async def test_what_is_larger_than_the_window_goes_alone(server: Twin, link: FrameLink) -> None:
    small, large = begin(link, b"x"), begin(link, bytes(5000))
    assert large.is_unsent
    server.say(codec.encode(codec.ANSWER, (await server.call()).call))
    await small.answer()
    assert len((await server.call()).body or b"") == 5000


async def test_calls_are_counted_too(server: Twin) -> None:
    link = await server.link(calls_max=2)
    calls = [begin(link) for _ in range(3)]
    assert [call.is_unsent for call in calls] == [False, False, True]
    link.close()


async def test_a_server_that_does_not_read_gets_no_more(server: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that were given up leave the window; their bytes would fill the memory."""
    monkeypatch.setattr(module, "WRITE_BYTES_MAX", 1 << 20)
    link = await server.link(window_bytes=1 << 26, calls_max=1000)
    server.reads.clear()
    call = begin(link)
    for _ in range(64):
        if call.is_unsent:
            break
        call.cancel()
        call = begin(link, bytes(1 << 20))
        await asyncio.sleep(0)
    else:
        pytest.fail("everything was sent")
    server.reads.set()
    await until(lambda: not call.is_unsent)
    link.close()


async def test_numbers_begin_anew_and_pass_over_those_in_use(server: Twin, link: FrameLink) -> None:
    begin(link)
    first = await server.call()
    link.number = 0xFFFFFFFF
    second = begin(link)
    assert (first.call, second.number) == (1, 2)


# --- servers that say too little, or nonsense ------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        codec.encode(codec.REFUSAL, 1, b"\1"),  # of the call under way
        codec.encode(codec.CALL, 1, bytes(8)),
        codec.encode(codec.HELLO, 0),
        codec.encode(codec.PING, 0, bytes(100)),
        codec.encode(codec.END, 0),
    ],
)
async def test_nonsense_ends_the_connection_and_its_calls(server: Twin, link: FrameLink, data: bytes) -> None:
    call = begin(link)
    assert (await server.call()).call == 1
    server.say(data)
    failure = await failure_of(call)
    assert (failure.code, failure.is_unknown) == ("UNAVAILABLE", True)


async def test_the_end_has_a_reason(server: Twin, link: FrameLink) -> None:
    call = begin(link)
    await server.call()
    server.say(codec.encode_refusal(0, 3, "Expected a frame.", kind=codec.END))
    assert (await failure_of(call)).message == "Expected a frame."


async def test_an_answer_that_is_too_large_is_passed_over(server: Twin) -> None:
    making = asyncio.create_task(
        connect("127.0.0.1", server.port, lambda: FrameLink(NAME, "test", 1000, LONG_S))
    )  # fmt: skip
    await server.next()
    welcome = Welcome(version=1, server=NAME, methods=[PATH], frame_bytes_max=9, window_bytes=9, calls_max=9)
    server.say(codec.encode(codec.WELCOME, 0, welcome.SerializeToString()))
    link = await making
    assert (await failure_of(begin(link, bytes(1001)))).message.startswith("Sent message larger than max")
    call = begin(link)
    server.say(codec.encode(codec.ANSWER, (await server.call()).call, bytes(100_000)))
    failure = await failure_of(call)
    assert (failure.code, "larger than max" in failure.message) == ("RESOURCE_EXHAUSTED", True)
    call = begin(link)
    server.say(codec.encode(codec.ANSWER, (await server.call()).call, b"ok"))
    assert await call.answer() == b"ok"
    link.close()


async def test_a_silent_server_is_asked_and_then_left(server: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.02)
    link = await server.link(keepalive_s=0.02)
    call = begin(link)
    await server.call()
    ping = await server.next()
    assert ping is not None
    assert ping.kind == codec.PING
    failure = await failure_of(call)
    assert (failure.code, failure.is_unknown) == ("UNAVAILABLE", True)
    assert await server.next() is None


async def test_calls_with_short_deadlines_notice_a_silent_server_too(
    server: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.02)
    link = await server.link(keepalive_s=0.5)
    async with asyncio.timeout(20):
        while link.is_open:
            await failure_of(begin(link, timeout_s=0.005))


async def test_a_server_that_answers_pings_may_take_its_time(server: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    link = await server.link(keepalive_s=0.01)
    call = begin(link)
    sent = await server.call()
    for _ in range(3):
        ping = await server.next()
        assert ping is not None
        assert ping.kind == codec.PING
        server.say(codec.encode(codec.PONG, ping.call, ping.body or b""))
    server.say(codec.encode(codec.ANSWER, sent.call, b"at last"))
    assert await call.answer() == b"at last"
    link.close()


async def test_a_ping_of_the_server_is_answered(server: Twin, link: FrameLink) -> None:
    server.say(codec.encode(codec.PING, 3, b"here?"))
    pong = await server.next()
    assert pong is not None
    assert (pong.kind, pong.call, pong.body) == (codec.PONG, 3, b"here?")
    assert link.is_open


async def test_a_goodbye_lets_calls_end_and_then_the_connection(server: Twin, link: FrameLink) -> None:
    sent, queued = begin(link, bytes(1000)), begin(link, b"x")
    frame = await server.call()
    server.say(codec.encode(codec.GOODBYE, 0))
    assert (await failure_of(queued)).never_sent
    assert not link.takes(PATH)
    assert link.ended_s is None
    server.say(codec.encode(codec.ANSWER, frame.call, b"the last"))
    assert await sent.answer() == b"the last"
    assert await server.next() is None
    assert link.ended_s is not None


# --- connecting ------------------------------------------------------------------------------------------------


def make() -> FrameLink:
    return FrameLink(NAME, "test", 1000, LONG_S)


async def test_nobody_listens() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(NoFramesError):
            await connect("127.0.0.1", unheard.getsockname()[1], make)


async def test_somebody_who_says_nothing(server: Twin) -> None:
    with pytest.raises(NoFramesError, match="does not answer a hello"):
        await connect("127.0.0.1", server.port, make, timeout_s=0.05)
    assert await server.next() is not None
    assert await server.next() is None


@pytest.mark.parametrize(
    "wrong",
    [
        Welcome(version=1, server="another", methods=[PATH], frame_bytes_max=9, window_bytes=9, calls_max=9),
        Welcome(version=9, server=NAME, methods=[PATH], frame_bytes_max=9, window_bytes=9, calls_max=9),
        Welcome(version=1, server=NAME, methods=[PATH]),
    ],
)
async def test_somebody_else(server: Twin, wrong: Welcome) -> None:
    with pytest.raises(NoFramesError, match="a welcome"):
        await server.link(welcome=wrong)


async def test_whoever_is_ended_while_connecting_leaves_no_connection(server: Twin) -> None:
    connecting = asyncio.create_task(connect("127.0.0.1", server.port, make))
    await server.next()
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert await server.next() is None


async def test_a_name_that_is_none() -> None:
    with pytest.raises(NoFramesError):
        await connect("x" * 70 + ".invalid", 1, make)
