"""Calls of the blocking client that the thread which wants the answer makes itself, and those that need the loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pytest

from holdfast.client import Accepted, Client, ClientClosed, Codec, Holdfast, InvalidArgument, NewTask
from holdfast.client._loop_thread import LoopThread
from holdfast.client.codec import of_payload
from holdfast.client.errors import Overloaded
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.wire import RouterServer
from holdfast.serving.refusals import RefusedError, overloaded
from tests.unit.serving.frame_stage import DEADLINE_S, Owner, frames_of, until

T = TypeVar("T")
TASK_ID = "01984f6e-0000-8000-8000-000000000001"
ACCEPTED = pb.EnqueueOutcome(accepted=pb.Accepted(task_id=TASK_ID, state=pb.TASK_STATE_READY))
WAIT = pb.EnqueueOutcome(rejection=pb.Rejection(reason="OVERLOADED", message="wait", retry_after_ms=1))
TASK = NewTask("mail", "welcome", b"hello")


class Scripted(Owner):
    """Answers every enqueue, but refuses some first."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = ACCEPTED
        self.refusals: list[RefusedError] = []

    async def handle(self, method: object, data: bytes, caller: object) -> bytes:
        await super().handle(method, data, caller)
        if self.refusals:
            raise self.refusals.pop()
        tasks = pb.EnqueueRequest.FromString(data).tasks
        return pb.EnqueueResponse(outcomes=[self.outcome] * len(tasks)).SerializeToString()

    @property
    def request_ids(self) -> list[str]:
        return [pb.EnqueueRequest.FromString(data).tasks[0].request_id for data in self.requests]


class Running:
    """A server, and a client that has found its frames."""

    def __init__(self, owner: Scripted, server: RouterServer, client: Client) -> None:
        self.owner = owner
        self.server = server
        self.client = client

    async def in_thread(self, call: Callable[[], T]) -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.to_thread(call)

    async def enqueue(self) -> Accepted:
        return await self.in_thread(lambda: self.client.enqueue(TASK))


@contextmanager
def handed_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What goes to the loop."""
    calls: list[object] = []
    run = LoopThread.run

    def noted(self: LoopThread[Any], call: Any) -> Any:
        calls.append(call)
        return run(self, call)

    with monkeypatch.context() as patched:
        patched.setattr(LoopThread, "run", noted)
        yield calls


async def finds_frames(call: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until such calls are made by the thread that wants them."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with handed_over(monkeypatch) as calls:
                await call()
            if not calls:
                return


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    owner = Scripted()
    server = owner.serve()
    port = await server.start("127.0.0.1", 0)
    found = Running(owner, server, Client(f"127.0.0.1:{port}", timeout_s=DEADLINE_S))
    try:
        await finds_frames(found.enqueue, monkeypatch)
        yield found
    finally:
        await asyncio.to_thread(found.client.close)
        await server.stop(0)


async def test_a_call_is_made_by_the_thread_that_wants_it(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(running.owner.requests)
    with handed_over(monkeypatch) as calls:
        for _ in range(3):
            assert await running.enqueue() == Accepted(TASK_ID)
    assert not calls
    assert len(set(running.owner.request_ids[before:])) == 3


async def test_what_such_a_thread_sends_is_encrypted_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a codec: one task and many, and also what the loop has to send after all."""
    codec, owner = Codec(keys={"k": bytes(32)}), running.owner
    client = Client(running.client.address, timeout_s=DEADLINE_S, codec=codec)
    plain = Client(running.client.address, timeout_s=DEADLINE_S)
    calls: list[Callable[[], object]] = [
        lambda: client.enqueue(TASK),
        lambda: client.enqueue(NewTask("mail", "welcome", b"hello", request_id="")),
        lambda: client.enqueue(TASK, timeout_s=DEADLINE_S),
        lambda: client.enqueue_many([TASK]),
    ]
    try:
        await finds_frames(lambda: running.in_thread(calls[0]), monkeypatch)
        for call in calls:
            for refusals in ([], [overloaded("calls", 1)]):
                owner.requests.clear()
                owner.refusals = refusals
                with suppress(Overloaded):  # without a request id
                    await running.in_thread(call)
                for data in owner.requests:
                    [task] = pb.EnqueueRequest.FromString(data).tasks
                    assert b"hello" not in task.payload
                    assert codec.decode(task.payload, of_payload("welcome")) == b"hello"
        owner.requests.clear()
        await running.in_thread(lambda: plain.enqueue(TASK))
        assert b"hello" in owner.requests[0]
    finally:
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(plain.close)


async def test_a_refusal_that_may_pass_is_repeated_on_the_loop_with_the_same_id(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(running.owner.requests)
    running.owner.refusals = [overloaded("calls", 1)]
    with handed_over(monkeypatch) as calls:
        assert await running.enqueue() == Accepted(TASK_ID)
    assert len(calls) == 1
    first, second = running.owner.request_ids[before:]
    assert first == second


async def test_an_item_that_was_refused_for_the_moment_is_sent_again_with_its_id(running: Running) -> None:
    before = len(running.owner.requests)
    running.owner.outcome = WAIT
    calling = asyncio.create_task(running.enqueue())
    await until(lambda: len(running.owner.requests) >= before + 2)
    running.owner.outcome = ACCEPTED
    assert await calling == Accepted(TASK_ID)
    assert len(set(running.owner.request_ids[before:])) == 1


async def test_what_can_never_be_accepted_is_raised(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.owner.refusals = [RefusedError("INVALID_FIELD", "Expected {field} to be better.", "tasks[0].queue")]
    with handed_over(monkeypatch) as calls, pytest.raises(InvalidArgument) as refused:
        await running.enqueue()
    assert refused.value.field == "tasks[0].queue"
    assert len(calls) == 1  # whether it is worth another attempt is decided there


async def test_a_lost_connection_is_replaced_and_the_call_repeated(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client._short_calls.STEADY_S", 0.0)
    before = len(running.owner.requests)
    running.owner.go_on = asyncio.Event()
    calling = asyncio.create_task(running.enqueue())
    await until(lambda: len(running.owner.requests) == before + 1)
    for connection in list(frames_of(running.server).connections):
        connection.close()
    running.owner.go_on.set()
    assert await calling == Accepted(TASK_ID)
    assert len(set(running.owner.request_ids[before:])) == 1
    await finds_frames(running.enqueue, monkeypatch)


async def test_other_threads_do_not_wait_for_a_call_that_does(running: Running) -> None:
    running.owner.go_on = asyncio.Event()
    before = len(running.owner.requests)
    first = asyncio.create_task(running.enqueue())
    await until(lambda: len(running.owner.requests) == before + 1)
    others = [asyncio.create_task(running.enqueue()) for _ in range(3)]
    await until(lambda: len(running.owner.requests) > before + 1)
    running.owner.go_on.set()
    assert await asyncio.gather(first, *others) == [Accepted(TASK_ID)] * 4


async def test_closing_ends_a_call_under_way(running: Running) -> None:
    running.owner.go_on = asyncio.Event()
    before = len(running.owner.requests)
    calling = asyncio.create_task(running.enqueue())
    await until(lambda: len(running.owner.requests) == before + 1)
    await running.in_thread(running.client.close)
    with pytest.raises(ClientClosed):
        await calling
    with pytest.raises(ClientClosed):
        await running.enqueue()


async def test_while_a_server_is_silent_the_loop_looks_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because it has others to ask. It is answered in the end, and was sent once."""
    owner, other = Scripted(), Scripted()
    servers = [owner.serve(), other.serve()]
    ports = [await server.start("127.0.0.1", 0) for server in servers]
    client = Client(",".join(f"127.0.0.1:{port}" for port in ports), timeout_s=DEADLINE_S)
    found = Running(owner, servers[0], client)
    await finds_frames(found.enqueue, monkeypatch)
    before = len(owner.requests)
    owner.go_on = asyncio.Event()
    monkeypatch.setattr("holdfast.client._short_calls.QUIET_S", 0.01)
    with handed_over(monkeypatch) as calls:
        calling = asyncio.create_task(found.enqueue())
        await until(lambda: len(calls) == 1)
        owner.go_on.set()
        assert await calling == Accepted(TASK_ID)
    assert len(owner.requests) == before + 1
    await asyncio.to_thread(client.close)
    for server in servers:
        await server.stop(0)


async def test_an_app_goes_the_same_way(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast(running.client.address)

    @app.task
    def greet(name: str) -> None: ...

    await finds_frames(lambda: running.in_thread(lambda: greet.enqueue("Ada")), monkeypatch)
    with handed_over(monkeypatch) as calls:
        await running.in_thread(lambda: greet.enqueue("Ada"))
        assert not calls
    await running.in_thread(app.close)


async def test_over_grpc_every_call_goes_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Scripted()
    server = owner.serve()
    port = await server.start("127.0.0.1", 0)
    client = Client(f"127.0.0.1:{port}", transport="grpc")
    with handed_over(monkeypatch) as calls:
        for _ in range(3):
            await asyncio.to_thread(client.enqueue, TASK)
    assert len(calls) == 3
    assert not frames_of(server).connections
    await asyncio.to_thread(client.close)
    await server.stop(0)


async def test_a_client_that_is_dropped_closes_its_connections(running: Running) -> None:
    before = len(frames_of(running.server).connections)

    def use_one() -> None:
        dropped = Client(running.client.address)
        while len(frames_of(running.server).connections) < before + 2:
            dropped.enqueue(TASK)

    await running.in_thread(use_one)
    await until(lambda: len(frames_of(running.server).connections) == before)
