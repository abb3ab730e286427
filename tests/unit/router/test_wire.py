"""When a call to a broker counts as never sent: only before there was a connection."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from holdfast.router.methods import TASKS
from holdfast.transport.channels import CallFailedError
from holdfast.transport.grpc_channels import GrpcChannels
from tests.unit.router.router_stage import Stage, accept_all, elapsed_since, leads
from tests.unit.router.test_passing import enqueue

State = grpc.ChannelConnectivity
ENQUEUE = TASKS["Enqueue"]


class ScriptedChannel:
    """Cold at first. It connects as soon as it is asked to, and loses the connection with the first call it carries:
    by the time that is heard of, it is in `state_after`."""

    def __init__(self, state_after: State) -> None:
        self.state = State.IDLE
        self._state_after = state_after
        self.sent: list[bytes] = []

    def get_state(self, try_to_connect: bool = False) -> State:
        if try_to_connect and self.state is State.IDLE:
            self.state = State.CONNECTING
        return self.state

    async def wait_for_state_change(self, last: State) -> None:
        assert last is self.state is State.CONNECTING
        self.state = State.READY

    def unary_unary(self, _path: str) -> Callable[..., Awaitable[bytes]]:
        async def lose(data: bytes) -> bytes:
            self.sent.append(data)
            self.state = self._state_after
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "Socket closed")

        return lambda data, **_options: lose(data)

    async def close(self) -> None:
        self.state = State.SHUTDOWN


@pytest.mark.parametrize("state_after", [State.IDLE, State.CONNECTING, State.TRANSIENT_FAILURE, State.READY])
async def test_what_a_broker_took_was_sent_whatever_became_of_the_connection(
    state_after: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel was cold when the call began, and is cold again when its failure is heard."""
    channel = ScriptedChannel(state_after)
    monkeypatch.setattr(
        "holdfast.transport.grpc_channels.grpc.aio.insecure_channel", lambda *_args, **_options: channel
    )
    channels = GrpcChannels(message_bytes_max=1000, keepalive_s=20, connects_first=True)
    with pytest.raises(CallFailedError) as failed:
        await channels.call("b:1", ENQUEUE.path, b"data", None, 5.0).answer()
    assert channel.sent == [b"data"]
    assert (failed.value.never_sent, failed.value.is_unknown) == (False, True)
    await channels.close()


# --- brokers that take connections, and say nothing -------------------------------------------------------------


class Mute:
    """Something that listens, but is no gRPC server: a connection to it never comes about."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.read()
        finally:
            writer.close()


@pytest.fixture
async def mute() -> AsyncIterator[Any]:
    mute = Mute()
    server = await asyncio.start_server(mute.serve, "127.0.0.1", 0)
    mute.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    yield mute
    server.close()


@pytest.fixture
async def channels() -> AsyncIterator[GrpcChannels]:
    opened = GrpcChannels(message_bytes_max=1 << 20, keepalive_s=20, connects_first=True)
    yield opened
    await opened.close()


async def failure_of(answer: Awaitable[bytes]) -> CallFailedError:
    with pytest.raises(CallFailedError) as failed:
        await answer
    return failed.value


async def test_what_waits_for_a_connection_was_never_sent(mute: Any, channels: GrpcChannels) -> None:
    """Neither at its deadline nor when it is given up; and it does not take the others with it that wait."""
    began_s = time.monotonic()
    long, short, stopped = (channels.call(mute.address, ENQUEUE.path, b"", None, s) for s in (1.0, 0.2, 30.0))
    answers = [asyncio.create_task(failure_of(call.answer())) for call in (long, short, stopped)]
    dropped = asyncio.create_task(channels.call(mute.address, ENQUEUE.path, b"", None, 30.0).answer())
    await asyncio.sleep(0)
    assert all(call.is_unsent for call in (long, short, stopped))
    stopped.cancel()
    dropped.cancel()
    failures = await asyncio.gather(*answers)
    assert [failure.code for failure in failures] == ["DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", "CANCELLED"]
    assert all(failure.never_sent and not failure.is_unknown for failure in failures)
    assert 0.9 < elapsed_since(began_s) < 5
    assert (await asyncio.gather(dropped, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert mute.connections == 1


async def test_a_call_that_is_given_up_before_it_begins_is_not_sent(channels: GrpcChannels) -> None:
    async with Stage(1) as stage:
        stage.brokers[0].on["Enqueue"] = accept_all()
        call = channels.call(stage.brokers[0].address, ENQUEUE.path, b"", None, 5.0)
        call.cancel()
        assert (await failure_of(call.answer())).never_sent
        assert not stage.brokers[0].calls
        # The connection was made all the same, and is used at once.
        while channels.call(stage.brokers[0].address, ENQUEUE.path, b"", None, 5.0).is_unsent:
            await asyncio.sleep(0.01)


async def test_nobody_listens(channels: GrpcChannels) -> None:
    began_s = time.monotonic()
    failure = await failure_of(channels.call("127.0.0.1:1", ENQUEUE.path, b"", None, 30.0).answer())
    assert (failure.code, failure.never_sent) == ("UNAVAILABLE", True)
    assert elapsed_since(began_s) < 15


async def test_a_call_leaves_a_leader_that_it_gets_no_connection_to(mute: Any) -> None:
    """Even one that must not be repeated: the others are asked who leads, as with any silent leader."""
    async with Stage(3) as stage:
        stage.table.at_home("q", 0)
        stage.table.leaders[0] = (mute.address, 1)
        stage.on_all(FindLeader=leads(stage.brokers[2].address, 9), Enqueue=accept_all())
        began_s = time.monotonic()
        answer = await stage.call("Enqueue", enqueue(request_id=""))
        assert answer.outcomes[0].accepted.task_id == "0:p"
        assert elapsed_since(began_s) < 8
        assert len(stage.brokers[2].requests("Enqueue")) == 1
