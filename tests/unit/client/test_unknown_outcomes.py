"""What a client says of a call that was sent twice: a refusal of the second is not the last word about the first."""

import asyncio
from typing import Any

import grpc
import pytest

from holdfast.client import (
    Accepted,
    Acked,
    AsyncClient,
    ClaimRef,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    NewTask,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    _direct,
)
from holdfast.client._unknown_outcomes import PASSING
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import QueueRoute
from tests.unit.client.scripted_server import Refusal, ScriptedServer
from tests.unit.client.scripted_shards import Cluster, accept, queue_at, spread, task_id

Code = grpc.StatusCode
LOST = Refusal(Code.UNAVAILABLE)
UNKNOWN = Refusal(Code.UNAVAILABLE, "OUTCOME_UNKNOWN", retry_after_ms=1)
AT_0, AT_1 = queue_at(0), queue_at(1)
ACCEPTED = pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1", duplicate=True))
CLAIM = ClaimRef("id-1", 1)


def refusal(reason: str, retry_after_ms: int = 200) -> pb.Rejection:
    return pb.Rejection(reason=reason, message="Not now.", retry_after_ms=retry_after_ms)


def half_refused(reason: str, retry_after_ms: int = 200) -> pb.EnqueueResponse:
    """As a router answers when it reaches the leader of one shard and not that of another."""
    return pb.EnqueueResponse(outcomes=[ACCEPTED, pb.EnqueueOutcome(rejection=refusal(reason, retry_after_ms))])


# ------------------------------------------------------------------------------------------ refusals of single items


@pytest.mark.parametrize("first", [LOST, UNKNOWN], ids=["lost", "unknown"])
@pytest.mark.parametrize("request_id", [None, "r-1"], ids=["automatic", "own"])
async def test_an_item_refused_the_second_time_may_have_been_taken_the_first_time(
    server: ScriptedServer, client: AsyncClient, first: Refusal, request_id: str | None
) -> None:
    server.on("Enqueue", first, half_refused("NOT_LEADER"))
    done, refused = await client.enqueue_many([NewTask("a", "t"), NewTask("b", "t", request_id=request_id)])
    assert done == Accepted("id-1")
    assert isinstance(refused, OutcomeUnknown)
    assert refused.retry_after_ms == 200
    assert "NOT_LEADER: Not now." in refused.message


@pytest.mark.parametrize("reason", sorted(PASSING))
async def test_every_refusal_that_may_pass_leaves_the_outcome_unknown(
    server: ScriptedServer, client: AsyncClient, reason: str
) -> None:
    server.on("Enqueue", LOST, half_refused(reason, retry_after_ms=0))
    _, refused = await client.enqueue_many([NewTask("a", "t"), NewTask("b", "t")])
    assert isinstance(refused, OutcomeUnknown)
    assert refused.retry_after_ms > 0, "trying again can help"


async def test_a_refusal_of_the_item_itself_stands(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", LOST, half_refused("OUT_OF_RANGE", retry_after_ms=0))
    _, refused = await client.enqueue_many([NewTask("a", "t"), NewTask("b", "t")])
    assert isinstance(refused, InvalidArgument)


@pytest.mark.parametrize("first", [None, Refusal(Code.UNAVAILABLE, "NOT_LEADER", retry_after_ms=1)])
async def test_without_an_attempt_that_may_have_taken_effect_a_refusal_is_believed(
    server: ScriptedServer, client: AsyncClient, first: Refusal | None
) -> None:
    server.on("Enqueue", *([first] if first else []), half_refused("NOT_LEADER"))
    _, refused = await client.enqueue_many([NewTask("a", "t"), NewTask("b", "t")])
    assert type(refused) is Unavailable
    assert refused.reason == "NOT_LEADER"


async def test_single_enqueues_that_share_a_request_hear_that_the_outcome_is_unknown(server: ScriptedServer) -> None:
    """One queue's leader is away: whoever asked for the other queue must not suffer; this one must not be misled."""
    seen: set[str] = set()
    sizes: list[int] = []

    def answer(request: pb.EnqueueRequest) -> Any:
        ids = {task.request_id for task in request.tasks}
        sizes.append(len(ids))
        if not ids <= seen:
            seen.update(ids)
            return LOST
        response = pb.EnqueueResponse()
        for task in request.tasks:
            if task.queue == "away":
                response.outcomes.add(rejection=refusal("NOT_LEADER"))
            else:
                response.outcomes.add(accepted=pb.Accepted(task_id=task.type))
        return response

    server.on("Enqueue", answer)
    async with AsyncClient(server.address, timeout_s=1.0) as client:
        tasks = [NewTask("away" if n % 2 else "here", f"t{n}") for n in range(10)]
        outcomes = await asyncio.gather(*map(client.enqueue, tasks), return_exceptions=True)
    assert max(sizes) > 1, "some shared a request"
    for task, outcome in zip(tasks, outcomes, strict=True):
        if task.queue == "here":
            assert outcome == Accepted(task.type)
        else:
            assert isinstance(outcome, OutcomeUnknown)


async def test_of_split_calls_to_leaders_only_the_part_that_was_sent_twice_is_unknown(cluster: Cluster) -> None:
    def refuse(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        return pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(rejection=refusal("OVERLOADED")) for _ in request.tasks])

    cluster.leaders[0].on("Enqueue", refuse)
    cluster.leaders[1].on("Enqueue", LOST)
    cluster.router.on("Enqueue", refuse)
    async with AsyncClient(cluster.router.address, direct=True) as client:
        sent_once, sent_twice = await client.enqueue_many([NewTask(AT_0, "a"), NewTask(AT_1, "b", request_id="r-1")])
        assert isinstance(sent_once, Overloaded)
        assert isinstance(sent_twice, OutcomeUnknown)
        assert cluster.sent("Enqueue") == [1, 1, 1]


async def test_outcomes_of_reports_and_cancels_may_be_unknown_too(server: ScriptedServer, client: AsyncClient) -> None:
    refused = refusal("SHUTTING_DOWN")
    server.on("Ack", LOST, pb.AckResponse(outcomes=[pb.AckOutcome(rejection=refused)]))
    server.on("Cancel", LOST, pb.CancelResponse(outcomes=[pb.CancelOutcome(rejection=refused)]))
    for call in (client.ack(CLAIM), client.cancel("id-1")):
        with pytest.raises(OutcomeUnknown):
            await call


async def test_what_only_reads_has_no_unknown_outcome(server: ScriptedServer, client: AsyncClient) -> None:
    refused = pb.QueueStatsOutcome(rejection=refusal("NOT_LEADER"))
    server.on("QueueStats", LOST, pb.QueueStatsResponse(outcomes=[refused]))
    with pytest.raises(Unavailable):
        await client.queue_stats("q")


@pytest.mark.parametrize("reason", ["DISK_LOW", "ETCD_UNAVAILABLE", "NO_CLUSTER", "BATCH_TOO_LARGE"])
async def test_no_refusal_of_a_whole_call_hides_that_an_earlier_attempt_may_have_taken_effect(
    server: ScriptedServer, client: AsyncClient, reason: str
) -> None:
    server.on("Enqueue", LOST, Refusal(Code.UNAVAILABLE, reason))
    with pytest.raises(ConnectionFailed) as failed:
        await client.enqueue(NewTask("q", "t"))
    assert failed.value.sent
    assert len(server.requests["Enqueue"]) == 2


async def test_a_refusal_to_read_stands_whatever_happened_before(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("GetTask", LOST, Refusal(Code.NOT_FOUND, "TASK_NOT_FOUND"))
    with pytest.raises(NotFound):
        await client.get_task("id-1")


# -------------------------------------------------------------------------------------- sets that a map does not know


def stale(newest: int, why: str, queue: str = "q") -> Refusal:
    metadata = {"queue": queue, "generation": str(newest), "why": why}
    return Refusal(Code.UNAVAILABLE, "STALE_MAP", "The map is behind.", 1, metadata)


def generations(server: ScriptedServer) -> list[str]:
    return [request.tasks[0].request_id.partition(".")[0] for request in server.requests["Enqueue"]]


def reported(queue: str, generation: int) -> pb.EnqueueResponse:
    return pb.EnqueueResponse(outcomes=[ACCEPTED], generations={queue: generation})


async def test_a_call_waits_for_a_router_that_is_behind_and_keeps_its_ids(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", reported("q", 3), stale(2, "newer"), reported("q", 3))
    for _ in range(2):
        await client.enqueue(NewTask("q", "t"))
    assert generations(server) == ["~0", "~3", "~3"]
    _, first, second = server.requests["Enqueue"]
    assert first == second


async def test_a_call_goes_to_the_router_that_is_not_behind(server: ScriptedServer) -> None:
    server.on("Enqueue", reported("q", 3), stale(2, "newer"))
    with ScriptedServer() as other:
        other.on("Enqueue", reported("q", 3))
        async with AsyncClient(f"{server.address},{other.address}") as client:
            for _ in range(2):
                await client.enqueue(NewTask("q", "t"))
    assert server.requests["Enqueue"][1] == other.requests["Enqueue"][0]


async def test_after_a_map_that_was_set_back_the_next_call_names_a_set_that_there_is(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", reported("q", 7), stale(2, "newer"))
    await client.enqueue(NewTask("q", "t"))
    with pytest.raises(
        (Unavailable, DeadlineExceeded), match="STALE_MAP|did not answer"
    ):  # the last attempt may be under way by then
        await client.enqueue_many([NewTask("q", "t")], timeout_s=0.5)
    assert set(generations(server)[1:]) == {"~7"}, "never other ids while attempts are under way"
    server.instead("Enqueue", reported("q", 2))
    await client.enqueue(NewTask("q", "t"))
    assert generations(server)[-1] == "~2"


async def test_ids_of_sets_that_nobody_remembers_are_made_anew_if_nothing_was_done(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", reported("q", 3), stale(40, "forgotten"), reported("q", 40))
    for _ in range(2):
        await client.enqueue(NewTask("q", "t"))
    assert generations(server) == ["~0", "~3", "~40"]


async def test_the_first_attempt_names_the_newest_set_of_every_queue(cluster: Cluster) -> None:
    """Otherwise the tasks of short-lived clients, which know of no set, would all go to the home."""
    older = Refusal(
        Code.UNAVAILABLE, "STALE_MAP", "Make up others.", 1,
        {"queue": "q", "generation": "4", "why": "older", "others": "r=7,s=2"},
    )  # fmt: skip
    server = cluster.router
    server.on("Enqueue", older, lambda request: pb.EnqueueResponse(outcomes=[ACCEPTED] * len(request.tasks)))
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([NewTask(queue, "t") for queue in "qrst"])
    first, second = (
        [task.request_id.partition(".")[0] for task in request.tasks] for request in server.requests["Enqueue"]
    )
    assert (first, second) == (["~0"] * 4, ["~4", "~7", "~2", "~0"])
    assert server.metadata["Enqueue"] == [{"holdfast-first": "1"}] * 2


async def test_a_repetition_does_not_call_itself_the_first(cluster: Cluster) -> None:
    server = cluster.router
    server.on("Enqueue", LOST, reported("q", 3))
    async with AsyncClient(server.address) as client:
        await client.enqueue(NewTask("q", "t"))
    assert server.metadata["Enqueue"] == [{"holdfast-first": "1"}, {}]
    assert generations(server) == ["~0", "~0"]


async def test_ids_are_not_made_anew_if_an_attempt_may_have_taken_effect(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", reported("q", 3), LOST, stale(40, "forgotten"))
    await client.enqueue(NewTask("q", "t"))
    with pytest.raises(ConnectionFailed):
        await client.enqueue(NewTask("q", "t"))
    assert generations(server) == ["~0", "~3", "~3"]


async def test_an_own_id_that_looks_automatic_is_refused_and_no_neighbour_with_it(
    server: ScriptedServer, client: AsyncClient
) -> None:
    """It would go where automatic keys go, which need not be where its first attempt went."""
    server.on("Enqueue", accept(0))
    tasks = [NewTask("q", f"t{n}", request_id="~9.mine.0" if n == 4 else None) for n in range(8)]
    outcomes = await asyncio.gather(*map(client.enqueue, tasks), return_exceptions=True)
    assert [isinstance(outcome, InvalidArgument) for outcome in outcomes] == [n == 4 for n in range(8)]
    with pytest.raises(InvalidArgument, match="follow_ups"):
        await client.ack(CLAIM, follow_ups=[NewTask("q", "t", request_id="~9.mine.0")])
    await client.enqueue(NewTask("q", "t", request_id="~mine"))


async def test_straight_to_the_leaders_ids_are_of_sets_that_the_map_knows(cluster: Cluster) -> None:
    """A leader has told of a newer set than the map that this client has."""
    cluster.routes[AT_0] = spread(AT_0, 3, [1])
    cluster.leaders[1].on("Enqueue", lambda request: reported(AT_0, 4), accept(1))
    async with AsyncClient(cluster.router.address, direct=True) as client:
        await client.enqueue(NewTask(AT_0, "first"))
        assert (await client.enqueue(NewTask(AT_0, "t"))).task_id == "1:t"
    assert generations(cluster.leaders[1]) == ["~3", "~3"]


@pytest.mark.parametrize(("known", "why"), [((), "newer"), ((3,), "newer"), ((40,), "forgotten")])
def test_straight_to_the_leaders_an_id_of_an_unknown_set_is_sent_nowhere(known: tuple[int, ...], why: str) -> None:
    """Between making up its ids and sending it the map has changed under a call."""
    sets = tuple((generation, (1,)) for generation in known)
    route = QueueRoute("q", 0, max(known, default=0), sets)
    request = pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="q", request_id="~9.key.0")])
    with pytest.raises(Unavailable, match="STALE_MAP") as refused:
        _direct._enqueue_keys(request, {"q": route}, 0)
    assert refused.value.metadata == {"queue": "q", "generation": str(route.generation), "why": why}


# ---------------------------------------------------------------------------------- follow-ups that go to other shards


async def test_a_follow_up_on_its_way_to_another_shard_has_no_id_yet(
    server: ScriptedServer, client: AsyncClient
) -> None:
    follow_ups = [pb.Accepted(task_id=task_id(0)), pb.Accepted()]
    server.on("Ack", pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked(follow_ups=follow_ups))]))
    acked = await client.ack(CLAIM, follow_ups=[NewTask("here", "t"), NewTask("away", "t")])
    assert acked == Acked((Accepted(task_id(0)), Accepted("")))


async def test_too_many_follow_ups_on_their_way_are_something_that_passes(
    server: ScriptedServer, client: AsyncClient
) -> None:
    """As an overload, so that a worker acks again instead of losing what was done."""
    refused = pb.AckOutcome(rejection=refusal("OUTBOX_FULL", retry_after_ms=500))
    server.on("Ack", pb.AckResponse(outcomes=[refused]))
    with pytest.raises(Overloaded) as full:
        await client.ack(CLAIM, follow_ups=[NewTask("away", "t")])
    assert (full.value.reason, full.value.retry_after_ms) == ("OUTBOX_FULL", 500)
