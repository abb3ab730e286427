"""Single enqueues take the shortest way; whatever goes wrong there, they go on as any other call."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.client import Accepted, ClientClosed, ConnectionFailed, DeadlineExceeded, NewTask, Rejected
from holdfast.client._coalescing import Coalescer
from holdfast.client._enqueues import Enqueues
from holdfast.client._rpc import Connection
from holdfast.client._single_enqueues import SingleEnqueue, SingleEnqueues
from holdfast.machine.ids import format_task_id, make_task_id
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.transport.channels import CallFailedError, Metadata
from holdfast.transport.in_memory import MemoryNetwork

WAIT_S = 20.0


class Server:
    """Takes what comes; its answers are lost as often as it is told."""

    def __init__(self) -> None:
        self.requests: list[pb.EnqueueRequest] = []
        self.lost = 0
        self.answer: Callable[[pb.EnqueueRequest], pb.EnqueueResponse] = self.accept
        self.network = MemoryNetwork(lambda: 0.0, self._loses)
        self.network.add("a:1", self._serve)

    def _loses(self) -> bool:
        self.lost -= 1
        return self.lost >= 0

    def _serve(self, _path: str, data: bytes, _metadata: Metadata) -> bytes:
        self.requests.append(pb.EnqueueRequest.FromString(data))
        return self.answer(self.requests[-1]).SerializeToString()

    def accept(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        response = pb.EnqueueResponse()
        for sequence, _ in enumerate(request.tasks):
            response.outcomes.add().accepted.task_id = format_task_id(make_task_id(1, 3, sequence))
        return response


class Caller:
    def __init__(self, server: Server, *, retry: bool = True) -> None:
        self.connection = Connection("a:1", retry=retry, channels=server.network)
        enqueues = Enqueues(self.connection, None)
        singles = SingleEnqueues(enqueues.singles, enqueues.begin_singles)
        self.coalescer = Coalescer(singles, 100, 1 << 20, singles.begin)

    async def enqueue(self, task: NewTask, timeout_s: float = WAIT_S) -> Accepted | Rejected:
        return await self.coalescer.put(SingleEnqueue(task), 1, timeout_s)


async def test_those_of_one_moment_share_a_request_and_have_ids_of_their_own() -> None:
    server = Server()
    caller = Caller(server)
    tasks = [NewTask("mail", "t", b"1"), NewTask("mail", "t", b"2", request_id="mine"), NewTask("mail", "t", b"3")]
    outcomes = await asyncio.gather(*map(caller.enqueue, tasks))
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    [request] = server.requests
    assert [task.payload for task in request.tasks] == [b"1", b"2", b"3"]
    first, own, third = [task.request_id for task in request.tasks]
    assert (own, first[:3], third[-2:]) == ("mine", "~0.", ".2")
    assert [task.HasField("request_id_ttl_ms") for task in request.tasks] == [True, False, True]


async def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_ids() -> None:
    server = Server()
    server.lost = 1
    caller = Caller(server)
    assert isinstance(await caller.enqueue(NewTask("mail", "t")), Accepted)
    first, second = server.requests
    assert first == second
    assert first.tasks[0].request_id


async def test_without_retries_nothing_is_repeated() -> None:
    server = Server()
    server.lost = 1
    caller = Caller(server, retry=False)
    with pytest.raises(ConnectionFailed) as caught:
        await caller.enqueue(NewTask("mail", "t"))
    assert caught.value.sent
    assert len(server.requests) == 1


async def test_one_that_may_have_been_accepted_is_not_said_to_have_failed() -> None:
    """The first answer is lost, and then nobody is there any more."""
    server = Server()
    server.lost = 1

    def refuse_second(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        if len(server.requests) == 1:
            return server.accept(request)
        raise CallFailedError("UNAVAILABLE", "gone", was_connected=False)

    server.answer = refuse_second
    with pytest.raises(ConnectionFailed) as caught:
        await Caller(server).enqueue(NewTask("mail", "t"), 0.5)
    assert caught.value.sent
    assert len(server.requests) > 1


async def test_refusals_and_duplicates_are_told_to_those_whom_they_concern() -> None:
    server = Server()

    def answer(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        response = server.accept(request)
        response.outcomes[0].accepted.duplicate = response.outcomes[1].accepted.duplicate = True
        response.outcomes[2].rejection.reason = "TOO_LARGE"
        response.outcomes[2].rejection.field = "tasks[2].payload"
        return response

    server.answer = answer
    tasks = [NewTask("mail", "t"), NewTask("mail", "t", request_id="mine"), NewTask("mail", "t"), NewTask("mail", "t")]
    caller = Caller(server)
    automatic, own, refused, new = await asyncio.gather(*map(caller.enqueue, tasks))
    assert isinstance(automatic, Accepted)
    assert isinstance(own, Accepted)
    assert (automatic.duplicate, own.duplicate) == (False, True), "the first one is its own repetition"
    assert isinstance(refused, Rejected)
    assert refused.reason == "TOO_LARGE"
    assert isinstance(new, Accepted)


async def test_an_item_that_is_refused_for_now_is_sent_again_with_its_id() -> None:
    server = Server()

    def refuse_first(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        response = server.accept(request)
        if len(server.requests) == 1:
            response.outcomes[0].rejection.reason = "OUTCOME_UNKNOWN"
        return response

    server.answer = refuse_first
    assert isinstance(await Caller(server).enqueue(NewTask("mail", "t")), Accepted)
    first, second = server.requests
    assert first.tasks[0].request_id == second.tasks[0].request_id


async def test_the_wait_ends_in_time_and_closing_ends_it_at_once() -> None:
    server = Server()
    server.network.silence("a:1")
    caller = Caller(server)
    with pytest.raises(DeadlineExceeded):
        await caller.enqueue(NewTask("mail", "t"), 0.05)
    await caller.connection.close()
    with pytest.raises(ClientClosed):
        await caller.enqueue(NewTask("mail", "t"))
