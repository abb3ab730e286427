"""A server of frames answers and refuses as gRPC's does, and nobody can fill or silence it."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from holdfast.frames import codec
from holdfast.frames.codec import Refusal
from holdfast.frames.hello import WINDOW_BYTES, hello
from holdfast.router.wire import RouterServer
from holdfast.serving import frame_server as module
from holdfast.serving.grpc_server import HANDSHAKE_SECONDS, IDLE_SECONDS
from holdfast.serving.ports import PortError
from tests.unit.serving.frame_stage import (
    ACK,
    ENQUEUE,
    GET_TASK,
    MIB,
    NAME,
    Owner,
    RawCaller,
    frames_of,
    until,
)

DEADLINE_EXCEEDED, CANCELLED, EXHAUSTED, UNAVAILABLE = 4, 1, 8, 14


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def server(owner: Owner) -> AsyncIterator[RouterServer]:
    served = owner.serve()
    await served.start("127.0.0.1", 0)
    yield served
    await served.stop(0)
    assert served.intake.bytes == 0


@pytest.fixture
async def caller(server: RouterServer) -> AsyncIterator[RawCaller]:
    caller = await RawCaller.connect(server.frames_port)
    yield caller
    await caller.close()


def refusal_of(answer: bytes | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


async def test_calls_are_answered_each_under_its_number(caller: RawCaller, owner: Owner) -> None:
    caller.send(caller.call(7, ENQUEUE, b"") + caller.call(4_294_967_295, ENQUEUE, b""))
    assert [await caller.answer(7), await caller.answer(4_294_967_295)] == [b"answer", b"answer"]
    assert owner.requests == [b"", b""]


@pytest.mark.parametrize(
    ("path", "data", "shard"),
    [
        (ENQUEUE, b"\x0a\x00" * 2000, ""),  # too many tasks
        (ENQUEUE, b"\xff", ""),  # no message
        (GET_TASK, bytes(MIB), ""),  # too large for its method
        (ENQUEUE, b"", "no number"),
    ],
)
async def test_refusals_are_those_of_grpc(caller: RawCaller, owner: Owner, path: str, data: bytes, shard: str) -> None:
    caller.send(caller.call(1, path, data, shard=shard))
    code, message, details = refusal_of(await caller.answer(1))
    plain = owner.serve(frames_port=None)
    port = await plain.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = (("holdfast-shard", shard),) if shard else None
        call: Any = channel.unary_unary(path)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(data, timeout=20, metadata=metadata)
    await plain.stop(0)
    expected = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    assert (code, message) == (caught.value.code().value[0], caught.value.details())
    assert details == expected
    assert not owner.requests


async def test_what_is_larger_than_any_message_is_refused_by_name_and_the_next_call_is_intact(
    caller: RawCaller, owner: Owner
) -> None:
    caller.send(caller.call(1, ENQUEUE, bytes(5 * MIB)) + caller.call(2, ENQUEUE))
    refused = refusal_of(await caller.answer(1))
    assert b"BATCH_TOO_LARGE" in refused.details
    assert await caller.answer(2) == b"answer"
    owner.is_open = False
    caller.send(caller.call(3, ENQUEUE, bytes(5 * MIB)))
    assert "fewer than 0 calls" in refusal_of(await caller.answer(3)).message


async def test_a_method_that_is_not_in_the_welcome(caller: RawCaller) -> None:
    caller.send(codec.encode_call(1, 999, 0, b"", 0))
    assert refusal_of(await caller.answer(1)).code == 12


async def test_a_cancelled_call_ends_and_is_not_answered(caller: RawCaller, owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    caller.send(caller.call(1, ENQUEUE))
    await owner.arrived.wait()
    caller.send(codec.encode(codec.CANCEL, 1) + codec.encode(codec.CANCEL, 99))
    await until(lambda: owner.ended == 1)
    owner.go_on.set()
    caller.send(caller.call(2, ENQUEUE))
    assert await caller.answer(2) == b"answer"


async def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing_behind(
    server: RouterServer, caller: RawCaller, owner: Owner
) -> None:
    """Its task would never run, not even its end."""
    caller.send(caller.call(1, ENQUEUE, bytes(2)) + codec.encode(codec.CANCEL, 1) + caller.call(2, ENQUEUE))
    assert await caller.answer(2) == b"answer"
    assert not frames_of(server).calls
    assert server.intake.bytes == 0
    assert owner.requests == [b""]


async def test_what_is_cancelled_leaves_the_window_at_once(owner: Owner) -> None:
    """As the caller counts it, however long the call takes to end."""
    owner.go_on, owner.may_end = asyncio.Event(), asyncio.Event()
    server = owner.serve(bytes_max=64 * MIB)
    await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    body = bytes([0x62, 0xF0, 0xFF, 0xBF, 0x01]) + bytes(0x2FFFF0)  # an unknown field
    fits = WINDOW_BYTES // len(body)
    for number in range(fits):
        caller.send(caller.call(number, ENQUEUE, body))
    await until(lambda: len(owner.requests) == fits)
    for number in range(fits):
        caller.send(codec.encode(codec.CANCEL, number))
    for number in range(fits):
        caller.send(caller.call(100 + number, ENQUEUE, body))
    await until(lambda: len(owner.requests) == 2 * fits)
    assert len(frames_of(server).calls) == 2 * fits
    owner.go_on.set()
    owner.may_end.set()
    for number in range(fits):
        assert await caller.answer(100 + number) == b"answer"
    assert server.intake.bytes == 0
    await caller.close()
    await server.stop(0)


async def test_more_than_the_window_ends_the_connection(owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    server = owner.serve(bytes_max=64 * MIB)
    await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    body = bytes([0x62, 0xF0, 0xFF, 0xBF, 0x01]) + bytes(0x2FFFF0)
    for number in range(WINDOW_BYTES // len(body) + 1):
        caller.send(caller.call(number, ENQUEUE, body))
    assert "more calls, or bytes of them" in await caller.is_ended()
    await until(lambda: not frames_of(server).calls)
    assert server.intake.bytes == 0
    await server.stop(0)


async def test_calls_end_with_their_connection(server: RouterServer, caller: RawCaller, owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    caller.send(caller.call(1, ENQUEUE) + caller.call(2, ENQUEUE, bytes(1000))[:-1])
    await owner.arrived.wait()
    await caller.close()
    await until(lambda: not frames_of(server).connections and owner.ended == 1)
    assert server.intake.bytes == 0


async def test_a_call_that_its_handler_ends_is_answered(caller: RawCaller, owner: Owner) -> None:
    """Something that the handler waits for may have been cancelled; its caller would wait until its deadline."""
    owner.go_on = asyncio.Event()
    caller.send(caller.call(1, ENQUEUE))
    await owner.arrived.wait()
    [task] = [task for task in asyncio.all_tasks() if "Owner.handle" in repr(task.get_coro())]
    task.cancel()
    assert refusal_of(await caller.answer(1)).code == CANCELLED


async def test_a_full_intake_refuses_with_a_retry_after(owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    server = owner.serve(bytes_max=1000, message_bytes_max=MIB)
    await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    filler = bytes([0x62, 0xE0, 0x09]) + bytes(1248)  # of 1,251 bytes, beyond the room of both kinds
    caller.send(caller.call(1, ENQUEUE, filler) + caller.call(2, ENQUEUE, b"") + caller.call(3, ACK, b""))
    for number in (2, 3):
        refused = refusal_of(await caller.answer(number))
        assert (refused.code, b"OVERLOADED" in refused.details) == (EXHAUSTED, True)
        assert b"RetryInfo" in refused.details
    # What comes in pieces is refused too, once all of it has been passed over.
    caller.send(caller.call(4, ACK, bytes(MIB))[:-1])
    await caller.writer.drain()
    await until(lambda: frames_of(server).connections)
    caller.send(b"\0" + caller.call(5, ACK))
    assert b"OVERLOADED" in refusal_of(await caller.answer(4)).details
    await caller.answer(5)
    owner.go_on.set()
    assert await caller.answer(1) == b"answer"
    assert server.intake.bytes == 0
    await caller.close()
    await server.stop(0)


async def test_bodies_that_come_slowly_leave_room_for_those_that_come_at_once(owner: Owner) -> None:
    server = owner.serve(bytes_max=4 * MIB, message_bytes_max=MIB)
    await server.start("127.0.0.1", 0)
    slow = [await RawCaller.connect(server.frames_port) for _ in range(8)]
    for caller in slow:
        caller.send(caller.call(1, ENQUEUE, bytes(MIB))[:-1])
        await caller.writer.drain()
    await until(lambda: server.intake.is_crowded)
    caller = await RawCaller.connect(server.frames_port)
    caller.send(caller.call(1, ENQUEUE))
    assert await caller.answer(1) == b"answer"
    # They have a moment instead of a minute.
    connections = list(frames_of(server).connections)
    for connection in connections:
        connection.poll(time.monotonic() + module.SLOW_SECONDS + 1)
    await until(lambda: len(frames_of(server).connections) == 1)
    assert server.intake.bytes == 0
    for peer in (*slow, caller):
        await peer.close()
    await server.stop(0)


async def test_too_many_calls_at_once_are_refused(owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    server = owner.serve(calls_max=3)
    await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    caller.send(b"".join(caller.call(number, ENQUEUE) for number in range(1, 6)))
    for number in (4, 5):
        assert "calls under way" in refusal_of(await caller.answer(number)).message
    owner.go_on.set()
    for number in (1, 2, 3):
        assert await caller.answer(number) == b"answer"
    await caller.close()
    await server.stop(0)


async def test_too_many_connections_are_closed(owner: Owner) -> None:
    server = owner.serve(connections_max=1)
    await server.start("127.0.0.1", 0)
    first = await RawCaller.connect(server.frames_port)
    second = await RawCaller.connect(server.frames_port, greets=False)
    assert not await second.is_ended()
    first.send(first.call(1, ENQUEUE))
    assert await first.answer(1) == b"answer"
    await first.close()
    await server.stop(0)


async def test_very_many_calls_at_once_do_not_hold_up_the_others(
    caller: RawCaller, server: RouterServer, owner: Owner
) -> None:
    """They are taken in several iterations of the loop."""
    other = await RawCaller.connect(server.frames_port)
    caller.send(b"".join(caller.call(number, ENQUEUE) for number in range(5000)))
    other.send(other.call(1, ENQUEUE))
    assert await other.answer(1) == b"answer"
    assert len(owner.requests) < 5000
    for number in range(5000):
        assert await caller.answer(number) == b"answer"
    await other.close()


# --- those who say nothing, or nonsense ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "kind"),
        (codec.encode_call(1, 0, 0, b"", 0), "at this moment"),
        (codec.encode(codec.HELLO, 0, b"\xff"), "cannot be read"),
        (codec.encode(codec.HELLO, 0, bytes(codec.HELLO_BYTES_MAX + 1)), "too long"),
        (hello("somebody else", "test"), "looks for somebody else"),
        (hello(NAME, "test") + hello(NAME, "test"), "at this moment"),
        (hello(NAME, "test") + codec.encode(codec.PING, 0, bytes(9)), "at this moment"),
        (hello(NAME, "test") + codec.encode(codec.ANSWER, 0), "at this moment"),
        (hello(NAME, "test") + codec.encode_call(1, 0, 0, b"no pairs", 0), "metadata"),
        (hello(NAME, "test") + 2 * codec.encode_call(1, 0, 0, b"", 0), "under way already"),
    ],
)
async def test_nonsense_ends_the_connection_with_a_sentence(
    server: RouterServer, owner: Owner, data: bytes, said: str
) -> None:
    owner.go_on = asyncio.Event()
    caller = await RawCaller.connect(server.frames_port, greets=False)
    caller.send(data)
    frame = await caller.next()
    if frame.kind == codec.WELCOME:
        frame = await caller.next()
    assert frame.kind == codec.END
    assert said in codec.decode_refusal(frame.body or b"").message
    assert not await caller.is_ended()
    await until(lambda: not frames_of(server).connections and not frames_of(server).calls)


async def later(server: RouterServer, seconds: float) -> None:
    """As if so much time had passed."""
    for connection in list(frames_of(server).connections):
        connection.poll(time.monotonic() + seconds)


async def test_who_never_says_hello_is_ended(server: RouterServer) -> None:
    caller = await RawCaller.connect(server.frames_port, greets=False)
    await until(lambda: frames_of(server).connections)
    await later(server, HANDSHAKE_SECONDS + 1)
    assert not await caller.is_ended()


async def test_who_says_nothing_for_long_is_told_to_go_and_may_still_call(
    server: RouterServer, caller: RawCaller
) -> None:
    """The call may have been on its way already."""
    await later(server, IDLE_SECONDS + 1)
    assert (await caller.next()).kind == codec.GOODBYE
    caller.send(caller.call(1, ENQUEUE))
    assert await caller.answer(1) == b"answer"
    await later(server, module.GONE_SECONDS + 1)
    assert not await caller.is_ended()


async def test_who_waits_is_asked_whether_it_is_there(server: RouterServer, caller: RawCaller, owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    caller.send(caller.call(1, ENQUEUE))
    await owner.arrived.wait()
    await later(server, module.SILENT_SECONDS + 1)
    assert (await caller.next()).kind == codec.PING
    caller.send(codec.encode(codec.PONG, 0) + codec.encode(codec.PING, 0, b"here?"))
    pong = await caller.next()
    assert (pong.kind, pong.body) == (codec.PONG, b"here?")
    await later(server, module.SILENT_SECONDS + 1)
    assert (await caller.next()).kind == codec.PING
    await later(server, module.GONE_SECONDS + 1)  # nothing was said to that
    assert not await caller.is_ended()
    await until(lambda: owner.ended == 1)


async def test_a_frame_that_never_ends(server: RouterServer, caller: RawCaller) -> None:
    caller.send(caller.call(1, ENQUEUE, bytes(1000))[:-1])
    await until(lambda: server.intake.bytes)
    await later(server, module.RECEIVING_SECONDS_MAX + 1)
    assert not await caller.is_ended()
    assert server.intake.bytes == 0


async def test_frames_without_a_pause_are_not_one_that_never_ends(server: RouterServer, caller: RawCaller) -> None:
    """What comes fast enough is cut somewhere each time it is read."""
    call = caller.call(1, ENQUEUE, bytes([0x62, 0x02, 0, 0]))
    caller.send(call[:-1])
    [connection] = frames_of(server).connections
    await until(lambda: connection.receiving_since_s is not None)
    connection.receiving_since_s -= 2 * module.RECEIVING_SECONDS_MAX
    caller.send(call[-1:] + caller.call(2, ENQUEUE)[:-1])
    assert await caller.answer(1) == b"answer"
    connection.poll(time.monotonic())
    caller.send(caller.call(2, ENQUEUE)[-1:])
    assert await caller.answer(2) == b"answer"


async def test_a_call_whose_caller_should_have_ended_it(server: RouterServer, caller: RawCaller, owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    caller.send(caller.call(1, ENQUEUE, timeout_ms=1000))
    await owner.arrived.wait()
    await later(server, 2)
    assert refusal_of(await caller.answer(1)).code == DEADLINE_EXCEEDED
    await until(lambda: owner.ended == 1)


async def test_a_caller_that_does_not_read_is_not_read_and_then_ended(
    server: RouterServer, caller: RawCaller, owner: Owner
) -> None:
    owner.answer = bytes(MIB)
    [connection] = frames_of(server).connections
    caller.send(b"".join(caller.call(number, ENQUEUE) for number in range(12)))
    await until(lambda: connection.unread_since_s is not None)
    begun = len(owner.requests)
    caller.send(caller.call(50, ENQUEUE))
    await asyncio.sleep(0.05)
    assert len(owner.requests) == begun
    await later(server, module.UNREAD_SECONDS_MAX + 1)
    await until(lambda: not frames_of(server).connections)


async def test_a_caller_that_reads_late_gets_everything(caller: RawCaller, owner: Owner, server: RouterServer) -> None:
    owner.answer = bytes(MIB)
    [connection] = frames_of(server).connections
    caller.send(b"".join(caller.call(number, ENQUEUE) for number in range(12)))
    await until(lambda: connection.unread_since_s is not None)
    caller.send(caller.call(12, ENQUEUE))
    for number in range(13):
        assert await caller.answer(number) == owner.answer


async def test_there_is_an_end_to_what_is_kept_for_a_caller_that_does_not_read(
    server: RouterServer, caller: RawCaller, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNREAD_BYTES_MAX", 4 * MIB)
    owner.answer = bytes(MIB)
    caller.send(b"".join(caller.call(number, ENQUEUE) for number in range(100)))
    await until(lambda: not frames_of(server).connections)


async def test_who_does_not_even_read_why_it_was_ended(server: RouterServer, caller: RawCaller, owner: Owner) -> None:
    owner.answer = bytes(16 * MIB)  # more than the system takes for somebody who does not read
    [connection] = frames_of(server).connections
    caller.send(caller.call(1, ENQUEUE))
    await until(lambda: connection.unread_since_s is not None)
    connection.end("no reason")
    await later(server, module.GONE_SECONDS - 1)
    assert frames_of(server).connections
    await later(server, module.GONE_SECONDS + 1)
    await until(lambda: not frames_of(server).connections)


# --- stopping -------------------------------------------------------------------------------------------------


async def test_a_stop_answers_what_is_under_way_and_refuses_what_comes(owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    server = owner.serve()
    await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    caller.send(caller.call(1, ENQUEUE))
    await owner.arrived.wait()
    stopping = asyncio.create_task(server.stop(20))
    assert (await caller.next()).kind == codec.GOODBYE
    caller.send(caller.call(2, ENQUEUE))
    refused = refusal_of(await caller.answer(2))
    assert (refused.code, b"SHUTTING_DOWN" in refused.details) == (UNAVAILABLE, True)
    with pytest.raises(ConnectionError):
        await RawCaller.connect(server.frames_port)
    owner.go_on.set()
    assert await caller.answer(1) == b"answer"
    await caller.close()
    await stopping


async def test_a_stop_ends_what_takes_longer_than_the_grace(owner: Owner) -> None:
    owner.go_on = asyncio.Event()
    server = owner.serve()
    await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    caller.send(caller.call(1, ENQUEUE))
    await owner.arrived.wait()
    began_s = time.monotonic()
    await server.stop(0.05)
    assert time.monotonic() - began_s < 10
    assert (await caller.next()).kind == codec.GOODBYE
    assert not await caller.is_ended()
    await until(lambda: owner.ended == 1)
    assert server.intake.bytes == 0


async def test_the_grace_is_that_of_all_calls(owner: Owner) -> None:
    """Not first that of frames and then that of gRPC."""
    owner.go_on = asyncio.Event()
    server = owner.serve()
    port = await server.start("127.0.0.1", 0)
    caller = await RawCaller.connect(server.frames_port)
    caller.send(caller.call(1, ENQUEUE))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(ENQUEUE)
        waiting = call(b"", timeout=20)
        await until(lambda: len(owner.requests) == 2)
        began_s = time.monotonic()
        await server.stop(1.0)
        assert time.monotonic() - began_s < 1.9
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await waiting
    await caller.close()


async def test_a_port_that_is_taken_is_named(owner: Owner, server: RouterServer) -> None:
    second = owner.serve(frames_port=server.frames_port)
    with pytest.raises(PortError, match="frames_port"):
        await second.start("127.0.0.1", 0)


def test_a_frame_has_the_layout_that_the_page_says() -> None:
    data = codec.encode_call(5, 2, 1000, b"m\0v\0", 3) + b"abc"
    assert data == struct.pack("<IBIHIH", 20, 3, 5, 2, 1000, 4) + b"m\0v\0abc"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_a_host_in_brackets_is_one_of_ipv6(owner: Owner) -> None:
    """As gRPC wants it."""
    server = owner.serve()
    await server.start("[::1]", 0)
    _, writer = await asyncio.open_connection("::1", server.frames_port)
    writer.close()
    await server.stop(0)
