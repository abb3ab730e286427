"""Calls go in frames where a server has them, and over gRPC everywhere else, and whoever calls does not notice."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from holdfast.common import loop
from holdfast.common.backoff import Backoff
from holdfast.router.wire import RouterServer
from holdfast.transport import negotiated as module
from holdfast.transport.channels import CallFailedError
from holdfast.transport.grpc_channels import UNUSED_S
from holdfast.transport.negotiated import NegotiatedChannels, Transport
from tests.unit.serving.frame_stage import ENQUEUE, Owner, frames_of, until


def make_channels(transport: Transport = "auto") -> NegotiatedChannels:
    return NegotiatedChannels(message_bytes_max=1 << 20, keepalive_s=30, connects_first=True, transport=transport)


@pytest.fixture
async def channels() -> AsyncIterator[NegotiatedChannels]:
    made = make_channels()
    yield made
    await made.close()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def server(owner: Owner) -> AsyncIterator[RouterServer]:
    served = owner.serve()
    yield served
    await served.stop(0)


@pytest.fixture
async def address(server: RouterServer) -> str:
    return f"127.0.0.1:{await server.start('127.0.0.1', 0)}"


async def call(channels: NegotiatedChannels, address: str, timeout_s: float = 20.0) -> bytes:
    return await channels.call(address, ENQUEUE, b"", None, timeout_s).answer()


async def connecting_ends(channels: NegotiatedChannels, address: str) -> None:
    await until(lambda: address in channels.frames and not channels.frames[address].is_connecting)


async def test_the_first_call_asks_and_the_next_goes_in_frames(
    channels: NegotiatedChannels, server: RouterServer, address: str
) -> None:
    assert await call(channels, address) == b"answer"
    assert server.frame_calls == 0
    await connecting_ends(channels, address)
    assert await call(channels, address) == b"answer"
    assert (server.frame_calls, server.frame_connections) == (1, 1)
    assert channels.is_connected(address)
    assert address in channels
    assert len(channels) == 1


def test_on_the_loop_of_servers_calls_go_in_frames_too() -> None:
    """The transports of uvloop are not of asyncio's type."""

    async def calls_in_frames() -> int:
        server, channels = Owner().serve(), make_channels()
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        await call(channels, address)
        await connecting_ends(channels, address)
        await call(channels, address)
        await channels.close()
        await server.stop(0)
        return server.frame_calls

    assert loop.run(calls_in_frames()) == 1


async def test_grpc_alone_never_asks(server: RouterServer, address: str) -> None:
    channels = make_channels("grpc")
    for _ in range(2):
        await call(channels, address)
    assert not channels.frames
    assert server.frame_connections == 0
    await channels.close()


async def test_a_server_without_frames_is_called_over_grpc_and_not_asked_each_time(
    channels: NegotiatedChannels, owner: Owner
) -> None:
    plain = owner.serve(frames_port=None)
    address = f"127.0.0.1:{await plain.start('127.0.0.1', 0)}"
    await call(channels, address)
    assert not channels.asks(address)
    await call(channels, address)
    assert len(owner.requests) == 2
    await plain.stop(0)


async def test_another_server_behind_the_port_is_left_and_said_once(
    channels: NegotiatedChannels, server: RouterServer, address: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "BACKOFF", Backoff(first_s=0.0, max_s=0.0))
    announced = server.grpc
    port, announces = server.frames_port, announced.where_frames_are
    monkeypatch.setattr(announced, "where_frames_are", lambda: f"{port} another")
    with caplog.at_level(logging.INFO, logger="holdfast.transport"):
        for _ in range(4):
            await call(channels, address)
            await connecting_ends(channels, address)
    assert channels.frames[address].failures >= 2
    assert len([record for record in caplog.records if "No frames at" in record.message]) == 1
    assert server.frame_calls == 0
    monkeypatch.setattr(announced, "where_frames_are", announces)
    await call(channels, address)
    await connecting_ends(channels, address)
    await call(channels, address)
    assert server.frame_calls == 1


async def test_a_port_that_cannot_be_reached_is_tried_again_later(
    channels: NegotiatedChannels, server: RouterServer, address: str
) -> None:
    frames_of(server).listener.close()
    await call(channels, address)
    await connecting_ends(channels, address)
    frames = channels.frames[address]
    assert frames.failures == 1
    assert frames.not_before_s > time.monotonic()
    assert not channels.asks(address)
    await call(channels, address)


async def test_how_often_a_port_could_not_be_reached_is_not_forgotten_before_the_next_try(
    channels: NegotiatedChannels, server: RouterServer, address: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Routers close what they do not need, every second."""
    monkeypatch.setattr(module, "BACKOFF", Backoff(first_s=0.0, max_s=0.0))
    frames_of(server).listener.close()
    with caplog.at_level(logging.INFO, logger="holdfast.transport"):
        for failures in (1, 2, 3):
            await call(channels, address)
            await connecting_ends(channels, address)
            assert channels.frames[address].failures == failures
            await channels.close_unused(time.monotonic() + 1.0)
    assert len([record for record in caplog.records if "No frames at" in record.message]) == 1
    await channels.close_unused(time.monotonic() + UNUSED_S + 1)
    assert not channels.frames


@pytest.mark.parametrize("announced", ["", "no number", "0 name", "65536 name", "99999999999999999999 name", "-1 name"])
async def test_nonsense_about_frames_is_no_port(channels: NegotiatedChannels, address: str, announced: str) -> None:
    channels.learn(address, announced)
    assert not channels.frames[address].is_connecting
    assert await call(channels, address) == b"answer"


async def test_frames_come_back_after_the_server_has_restarted(
    channels: NegotiatedChannels, server: RouterServer, address: str, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY_S", 0.0)
    await call(channels, address)
    await connecting_ends(channels, address)
    assert await call(channels, address) == b"answer"
    await server.stop(0)
    again = owner.serve()
    port = int(address.rpartition(":")[2])
    await again.start("127.0.0.1", port)
    async with asyncio.timeout(20):
        while not again.frame_calls:
            try:
                await call(channels, address, 1.0)
            except CallFailedError:
                await asyncio.sleep(0.01)
    await channels.close()
    await again.stop(0)


async def test_a_connection_that_is_lost_at_once_again_and_again_is_made_ever_later(
    channels: NegotiatedChannels, server: RouterServer, address: str
) -> None:
    await call(channels, address)
    await connecting_ends(channels, address)
    [connection] = frames_of(server).connections
    connection.close()
    await until(lambda: not channels.frames[address].is_open)
    assert await call(channels, address) == b"answer"
    assert channels.frames[address].failures == 1
    assert not channels.asks(address)


async def test_a_link_that_takes_no_more_calls_ends_with_its_last(
    channels: NegotiatedChannels, server: RouterServer, address: str, owner: Owner
) -> None:
    await call(channels, address)
    await connecting_ends(channels, address)
    owner.arrived.clear()
    owner.go_on = asyncio.Event()
    slow = asyncio.create_task(call(channels, address))
    await owner.arrived.wait()
    [connection] = frames_of(server).connections
    connection.say_goodbye()
    await until(lambda: not channels.frames[address].is_open)
    others = [asyncio.create_task(call(channels, address)) for _ in range(2)]
    await until(lambda: len(owner.requests) == 4)
    assert channels.calls_under_way == 3
    owner.go_on.set()
    assert await slow == b"answer"
    await asyncio.gather(*others)
    await connecting_ends(channels, address)
    await until(lambda: server.frame_connections == 1)
    await call(channels, address)
    assert channels.frames[address].is_open


async def test_what_is_closed_ends_its_calls_everywhere(server: RouterServer, address: str, owner: Owner) -> None:
    channels = make_channels()
    await call(channels, address)
    await connecting_ends(channels, address)
    owner.go_on = asyncio.Event()
    waiting = asyncio.create_task(call(channels, address))
    await until(lambda: len(owner.requests) == 2)
    await channels.close()
    with pytest.raises(CallFailedError) as caught:
        await waiting
    assert caught.value.was_given_up
    await until(lambda: server.frame_connections == 0)


async def test_what_is_closed_ends_the_calls_of_links_that_take_no_more(
    server: RouterServer, address: str, owner: Owner
) -> None:
    channels = make_channels()
    await call(channels, address)
    await connecting_ends(channels, address)
    owner.arrived.clear()
    owner.go_on = asyncio.Event()
    slow = asyncio.create_task(call(channels, address))
    await owner.arrived.wait()
    [connection] = frames_of(server).connections
    connection.say_goodbye()
    await until(lambda: not channels.frames[address].is_open)
    channels.frames[address].not_before_s = 0.0
    channels.learn(address, f"{server.frames_port} {owner.name}")
    await connecting_ends(channels, address)
    assert channels.frames[address].is_open
    assert channels.calls_under_way == 1
    await channels.close()
    with pytest.raises(CallFailedError) as caught:
        await slow
    assert caught.value.was_given_up


async def test_what_is_closed_while_it_connects_leaves_nothing(server: RouterServer, address: str) -> None:
    channels = make_channels()
    await call(channels, address)
    await channels.close()
    await until(lambda: server.frame_connections == 0)
    channels.learn(address, f"{server.frames_port} {frames_of(server).name()}")
    assert not channels.frames


async def test_connections_that_are_not_needed_are_closed(
    channels: NegotiatedChannels, server: RouterServer, address: str, owner: Owner
) -> None:
    await call(channels, address)
    await connecting_ends(channels, address)
    owner.arrived.clear()
    owner.go_on = asyncio.Event()
    waiting = asyncio.create_task(call(channels, address))
    await owner.arrived.wait()
    await channels.keep(())
    assert channels.frames[address].is_open  # it has a call under way
    owner.go_on.set()
    await waiting
    await channels.keep((address,))
    assert len(channels) == 1
    await channels.keep(())
    assert len(channels) == 0
    await until(lambda: server.frame_connections == 0)


async def test_connections_that_carry_nothing_are_closed(
    channels: NegotiatedChannels, server: RouterServer, address: str
) -> None:
    await call(channels, address)
    await connecting_ends(channels, address)
    await channels.close_unused(time.monotonic())
    assert channels.frames[address].is_open
    await channels.close_unused(time.monotonic() + UNUSED_S + 1)
    assert len(channels) == 0
    await until(lambda: server.frame_connections == 0)


async def test_a_process_that_may_not_call_does_not_call_in_frames_either(server: RouterServer, address: str) -> None:
    forked = False

    def check() -> None:
        if forked:
            raise RuntimeError

    channels = NegotiatedChannels(message_bytes_max=1 << 20, keepalive_s=30, connects_first=False, check=check)
    await call(channels, address)
    await connecting_ends(channels, address)
    forked = True
    with pytest.raises(RuntimeError):
        await call(channels, address)
    await channels.close()
