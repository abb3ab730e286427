"""What the client repeats by itself, and what it must not."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
import pytest

from holdfast.client import (
    Accepted,
    AsyncClient,
    ClaimRef,
    ConnectionFailed,
    DeadlineExceeded,
    Extension,
    Failure,
    NewTask,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    _memory,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import parse_automatic_key
from tests.unit.client.scripted_server import Answer, Hang, Refusal, ScriptedServer
from tests.unit.client.scripted_shards import MetadataServer

Code = grpc.StatusCode
LOST = Refusal(Code.UNAVAILABLE)
CLAIM = ClaimRef("id-1", 1)
TASK = NewTask("q", "t", request_id="")
TASK_WITH_ID = NewTask("q", "t", request_id="r-1")
ACCEPTED = pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1"))])
FOUND = pb.GetTaskResponse(task=pb.TaskInfo(task_id="id-1", state=pb.TASK_STATE_READY))

SAFE: dict[str, tuple[Callable[[AsyncClient], Awaitable[object]], Answer]] = {
    "Enqueue": (lambda client: client.enqueue(TASK_WITH_ID), ACCEPTED),
    "Reserve": (lambda client: client.reserve(["q"]), pb.ReserveResponse()),
    "Ack": (
        lambda client: client.ack_many([CLAIM]),
        pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked())]),
    ),
    "Fail": (
        lambda client: client.fail_many([Failure(CLAIM)]),
        pb.FailResponse(outcomes=[pb.FailOutcome(failed=pb.Failed())]),
    ),
    "Extend": (
        lambda client: client.extend_many([Extension(CLAIM, 1_000)]),
        pb.ExtendResponse(outcomes=[pb.ExtendOutcome(extended=pb.Extended())]),
    ),
    "Release": (
        lambda client: client.release_many([CLAIM]),
        pb.ReleaseResponse(outcomes=[pb.ReleaseOutcome(released=pb.Released())]),
    ),
    "Cancel": (
        lambda client: client.cancel("id-1"),
        pb.CancelResponse(outcomes=[pb.CancelOutcome(cancelled=pb.Cancelled())]),
    ),
    "GetTask": (lambda client: client.get_task("id-1"), FOUND),
    "QueueStats": (
        lambda client: client.queue_stats("q"),
        pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(counts=pb.QueueCounts())]),
    ),
    "ListQueues": (lambda client: client.list_queues(), pb.ListQueuesResponse()),
    "ListDeadLetters": (lambda client: client.list_dead_letters("q"), pb.ListDeadLettersResponse()),
    "GetDeadLetter": (lambda client: client.get_dead_letter("id-1"), pb.GetDeadLetterResponse(task=pb.TaskInfo())),
}

UNSAFE: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "Enqueue": lambda client: client.enqueue_many([TASK_WITH_ID, TASK]),
    "Reserve": lambda client: client.reserve(["q"], claim_request_id=""),
    "RetryDeadLetters": lambda client: client.retry_dead_letter("id-1"),
    "DiscardDeadLetters": lambda client: client.discard_dead_letter("id-1"),
}


@pytest.mark.parametrize("method", SAFE)
async def test_a_safe_call_is_repeated_unchanged_after_a_lost_connection(
    server: ScriptedServer, client: AsyncClient, method: str
) -> None:
    call, answer = SAFE[method]
    server.on(method, LOST, LOST, answer)
    await call(client)
    first, second, third = server.requests[method]
    assert first == second == third


@pytest.mark.parametrize("method", UNSAFE)
async def test_an_unsafe_call_is_not_repeated(server: ScriptedServer, client: AsyncClient, method: str) -> None:
    server.on(method, LOST)
    with pytest.raises(ConnectionFailed):
        await UNSAFE[method](client)
    assert len(server.requests[method]) == 1


async def test_an_enqueue_without_a_request_id_is_repeated_under_an_automatic_key(server: ScriptedServer) -> None:
    """The server applied the first sending, so it calls the repeated one a duplicate; the caller sent it once."""

    def answer(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        accepted = [pb.Accepted(task_id=spec.request_id, duplicate=True) for spec in request.tasks]
        return pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=one) for one in accepted])

    server.on("Enqueue", LOST, answer)
    async with AsyncClient(server.address, timeout_s=5) as client:
        outcomes = await client.enqueue_many([NewTask("q", "t"), TASK_WITH_ID, NewTask("q", "t")])
    first, second = server.requests["Enqueue"]
    assert first == second
    ids = [spec.request_id for spec in first.tasks]
    assert len(set(ids)) == 3
    automatic = [parse_automatic_key(ids[0]), parse_automatic_key(ids[2])]
    assert [None if item is None else (item.generation, item.n) for item in automatic] == [(0, 0), (0, 2)]
    assert len({item.call_key for item in automatic if item is not None}) == 1, "all of a call go to one shard"
    assert [spec.request_id_ttl_ms for spec in first.tasks] == [65_000, 0, 65_000]
    assert outcomes == [Accepted(ids[0]), Accepted("r-1", duplicate=True), Accepted(ids[2])]


async def test_each_call_makes_up_other_ids(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", ACCEPTED)
    for _ in range(2):
        await client.enqueue(NewTask("q", "t"))
    first, second = (request.tasks[0].request_id for request in server.requests["Enqueue"])
    assert first != second


async def test_automatic_keys_name_the_generation_that_servers_told(
    server: ScriptedServer, client: AsyncClient
) -> None:
    """Under the id of the first sending all repetitions, whatever is learned meanwhile; under the new one all later."""
    reported = pb.EnqueueResponse(outcomes=ACCEPTED.outcomes, generations={"q": 3, "other": 9})
    server.on("Enqueue", LOST, reported, LOST, ACCEPTED)
    for queue in ("q", "q", "other", "third"):
        await client.enqueue(NewTask(queue, "t"))
    ids = [request.tasks[0].request_id for request in server.requests["Enqueue"]]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert [request_id.partition(".")[0] for request_id in ids] == ["~0", "~0", "~3", "~3", "~9", "~0"]


async def test_a_generation_is_not_unlearned_from_a_server_that_lags_behind(
    server: ScriptedServer, client: AsyncClient
) -> None:
    newer = pb.EnqueueResponse(outcomes=ACCEPTED.outcomes, generations={"q": 3})
    older = pb.EnqueueResponse(outcomes=ACCEPTED.outcomes, generations={"q": 2, "r": -1})
    server.on("Enqueue", newer, older, ACCEPTED)
    for queue in ("q", "q", "q", "r"):
        await client.enqueue(NewTask(queue, "t"))
    ids = [request.tasks[0].request_id for request in server.requests["Enqueue"]]
    assert [request_id.partition(".")[0] for request_id in ids] == ["~0", "~3", "~3", "~0"]


def test_generations_are_forgotten_at_last() -> None:
    generations = _memory.Generations()
    for number in range(_memory.QUEUES_MAX + 1):
        generations.learn({f"q{number}": 1})
    assert (generations.of("q0"), generations.of("q1"), generations.of(f"q{_memory.QUEUES_MAX}")) == (0, 1, 1)


async def test_a_repeated_reserve_says_so() -> None:
    """Another attempt may have claimed at another shard: a router then looks for these claims first."""
    with MetadataServer() as server:
        server.on("Reserve", LOST, LOST, pb.ReserveResponse())
        async with AsyncClient(server.address) as client:
            await client.reserve(["q"])
            await client.reserve(["q"])
        assert server.metadata["Reserve"] == [{}, {"holdfast-attempt": "2"}, {"holdfast-attempt": "3"}, {}]


async def test_a_reserve_that_its_caller_repeats_says_so_too() -> None:
    with MetadataServer() as server:
        server.on("Reserve", LOST, pb.ReserveResponse())
        async with AsyncClient(server.address, retry=False) as client:
            with pytest.raises(ConnectionFailed):
                await client.reserve(["q"], claim_request_id="mine")
            for _ in range(2):
                await client.reserve(["q"], claim_request_id="mine")
        assert server.metadata["Reserve"] == [{}, {"holdfast-attempt": "2"}, {}]


async def test_an_automatic_key_is_kept_for_a_time_that_servers_allow(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", ACCEPTED)
    await client.enqueue(NewTask("q", "t"), timeout_s=1e9)
    assert server.requests["Enqueue"][0].tasks[0].request_id_ttl_ms == 24 * 3600 * 1000


async def test_no_key_is_added_where_it_was_not_asked_for(server: ScriptedServer) -> None:
    server.on("Enqueue", ACCEPTED)
    server.on("Ack", pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked())]))
    async with AsyncClient(server.address) as client:
        await client.enqueue(NewTask("q", "t", request_id=""))
        await client.enqueue(NewTask("q", "t", request_id_ttl_ms=5_000))  # refused by the server, and not covered up
        await client.ack(CLAIM, follow_ups=[NewTask("q", "t")])  # safe by its token
    async with AsyncClient(server.address, retry=False) as client:
        await client.enqueue(NewTask("q", "t"))
    specs = [request.tasks[0] for request in server.requests["Enqueue"]]
    assert [spec.request_id for spec in specs] == ["", "", ""]
    assert [spec.HasField("request_id_ttl_ms") for spec in specs] == [False, True, False]
    assert server.requests["Ack"][0].items[0].follow_ups == [pb.TaskSpec(queue="q", type="t")]


async def test_a_repeated_reserve_keeps_its_claim_request_id(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Reserve", LOST, pb.ReserveResponse())
    await client.reserve(["q"])
    first, second = (request.claim_request_id for request in server.requests["Reserve"])
    assert first == second != ""


async def test_a_lease_is_counted_from_the_sending_that_was_answered(
    server: ScriptedServer, client: AsyncClient
) -> None:
    arrivals_s: list[float] = []

    def lose(request: pb.ReserveRequest) -> Refusal:
        arrivals_s.append(time.monotonic())
        return LOST

    def answer(request: pb.ReserveRequest) -> pb.ReserveResponse:
        arrivals_s.append(time.monotonic())
        return pb.ReserveResponse(claims=[pb.Claim(task_id="id-1", lease_ms=5_000)])

    server.on("Reserve", lose, answer)
    [task] = await client.reserve(["q"])
    assert arrivals_s[0] < task.lease_ends_s - 5 <= arrivals_s[1]


async def test_an_unknown_outcome_is_repeated_only_where_that_is_safe(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", Refusal(Code.UNAVAILABLE, "OUTCOME_UNKNOWN"), ACCEPTED)
    with pytest.raises(OutcomeUnknown):
        await client.enqueue(TASK)
    await client.enqueue(TASK_WITH_ID)
    assert len(server.requests["Enqueue"]) == 2


async def test_a_refusal_that_did_nothing_is_repeated_after_the_time_it_asks_for(
    server: ScriptedServer, client: AsyncClient
) -> None:
    busy = Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_ms=120)
    server.on("Enqueue", busy, Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN"), ACCEPTED)
    began_s = time.monotonic()
    await client.enqueue(TASK)
    assert time.monotonic() - began_s >= 0.12
    assert len(server.requests["Enqueue"]) == 3


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        # Waiting that long is the caller's decision: the deadline comes first.
        (Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_ms=60_000), Overloaded),
        (Refusal(Code.RESOURCE_EXHAUSTED, "DISK_LOW", retry_after_ms=10), Unavailable),
    ],
)
async def test_other_refusals_come_back_at_once(
    server: ScriptedServer, client: AsyncClient, refusal: Refusal, kind: type[Exception]
) -> None:
    server.on("GetTask", refusal)
    with pytest.raises(kind):
        await client.get_task("id-1")
    assert len(server.requests["GetTask"]) == 1


async def test_repeating_ends_with_the_deadline(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("GetTask", LOST)
    began_s = time.monotonic()
    with pytest.raises((ConnectionFailed, DeadlineExceeded)):  # the last attempt may be under way by then
        await client.get_task("id-1", timeout_s=1)
    assert time.monotonic() - began_s < 5
    assert len(server.requests["GetTask"]) > 1


async def test_retry_can_be_switched_off(server: ScriptedServer) -> None:
    server.on("GetTask", LOST)
    async with AsyncClient(server.address, retry=False) as client:
        with pytest.raises(ConnectionFailed):
            await client.get_task("id-1")
    assert len(server.requests["GetTask"]) == 1


async def test_a_call_survives_the_restart_of_the_server(server: ScriptedServer) -> None:
    hang = Hang()
    server.on("GetTask", hang, FOUND)
    async with AsyncClient(server.address, timeout_s=30) as client:
        call = asyncio.create_task(client.get_task("id-1"))
        await asyncio.to_thread(hang.arrived.wait)
        await asyncio.to_thread(server.stop)
        server.start()
        assert (await call).task_id == "id-1"
    assert len(server.requests["GetTask"]) == 2


async def test_every_call_has_a_deadline_and_reserve_allows_for_its_wait(server: ScriptedServer) -> None:
    server.on("GetTask", FOUND)
    server.on("Reserve", pb.ReserveResponse())
    async with AsyncClient(server.address, timeout_s=20) as client:
        await client.get_task("id-1")
        await client.get_task("id-1", timeout_s=100)
        await client.reserve(["q"], wait_ms=60_000)
        await client.reserve(["q"], wait_ms=60_000, timeout_s=100)
    by_default, given = (remaining_s or 0 for remaining_s in server.deadlines_s["GetTask"])
    assert by_default <= 21 < given <= 101
    by_default, given = (remaining_s or 0 for remaining_s in server.deadlines_s["Reserve"])
    assert 60 < by_default <= 81 < 101 < given <= 161
