"""The calls about queues, workers and dead letters: what they put on the wire, and what they make of the answer."""

import re
from dataclasses import fields
from typing import Any

import grpc
import pytest

from holdfast.client import (
    AsyncClient,
    ConnectionFailed,
    DeadLetterDone,
    DeadLetterFilter,
    DeadLetterProgress,
    Discard,
    DiscardPage,
    HeartbeatAnswer,
    Histogram,
    InvalidArgument,
    NotDead,
    NotFound,
    QueueStats,
    TaskFilter,
    TaskPage,
    TaskState,
    UnexpectedAnswer,
    WorkerInfo,
    WorkerPage,
    WorkerState,
)
from holdfast.client.queue_models import HISTOGRAM_BOUNDS_MS
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import Refusal, ScriptedServer

LOST = Refusal(grpc.StatusCode.UNAVAILABLE)
DONE = pb.DeadLetterOutcome(done=pb.DeadLetterDone())


# -------------------------------------------------------------------------------------------------- histograms


def test_the_bounds_are_those_of_the_wire() -> None:
    assert HISTOGRAM_BOUNDS_MS[:7] == (1, 2, 5, 10, 20, 50, 100)
    assert HISTOGRAM_BOUNDS_MS[-3:] == (2 * 10**7, 5 * 10**7, 10**8)
    assert len(HISTOGRAM_BOUNDS_MS) == 25


@pytest.mark.parametrize(
    ("counts", "share", "expected_ms"),
    [
        ((4,), 0.5, 0.5),  # half of the first bucket, 0-1 ms
        ((4,), 0, 0.0),
        ((4,), 1, 1.0),
        ((0, 0, 10), 0.1, 2.3),
        ((1, 0, 1), 0.5, 1.0),
        ((1, 0, 1), 0.75, 3.5),  # not in the empty bucket between
        ((1, 0, 1, 0, 0), 1, 5.0),
        ((0,) * 24 + (2,), 0.5, 7.5e7),
        ((0,) * 25 + (2,), 0.5, 1e8),  # longer than the last bound: nobody knows how much
    ],
)
def test_quantiles(counts: tuple[int, ...], share: float, expected_ms: float) -> None:
    assert Histogram(counts, 1).quantile_ms(share) == pytest.approx(expected_ms)


def test_an_empty_histogram_knows_nothing() -> None:
    for empty in (Histogram(), Histogram((0, 0, 0))):
        assert (empty.count, empty.mean_ms, empty.quantile_ms(0.5)) == (0, None, None)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Histogram((1,), 1).quantile_ms(share)
    assert caught.value.field == "share"


def test_no_number_is_forgotten_between_values_and_messages() -> None:
    assert {field.name for field in fields(QueueStats)} == {field.name for field in pb.QueueCounts.DESCRIPTOR.fields}


# --------------------------------------------------------------------------------------------- workers and purging


async def test_list_tasks(server: ScriptedServer, client: AsyncClient) -> None:
    pages = {
        "": queues_pb2.ListTasksResponse(next_page_token="p1"),  # looked at many, and none of them fits
        "p1": queues_pb2.ListTasksResponse(tasks=[pb.TaskInfo(task_id="t", state=pb.TASK_STATE_CLAIMED, worker="w")]),
    }
    server.on("ListTasks", lambda request: pages[request.page_token])
    where = TaskFilter(states=[TaskState.CLAIMED, TaskState.DEAD], type="send", tenant="acme", worker="w", min_age_ms=7)
    assert (await client.list_tasks("mail", where=where, page_size=5)) == TaskPage((), "p1")
    states = [pb.TASK_STATE_CLAIMED, pb.TASK_STATE_DEAD]
    wanted = queues_pb2.TaskFilter(states=states, type="send", tenant="acme", worker="w", min_age_ms=7)
    assert server.requests["ListTasks"] == [queues_pb2.ListTasksRequest(queue="mail", filter=wanted, page_size=5)]
    (found,) = [task async for task in client.iter_tasks()]
    assert (found.task_id, found.state, found.worker) == ("t", TaskState.CLAIMED, "w")
    with pytest.raises(InvalidArgument, match="filter.states"):
        await client.list_tasks(where=TaskFilter(states=[TaskState.UNKNOWN]))


async def test_workers_that_are_gone_are_listed_only_while_they_hold_something(
    server: ScriptedServer, client: AsyncClient
) -> None:
    gone = queues_pb2.WORKER_STATE_GONE
    found = [
        queues_pb2.WorkerInfo(worker="w1", state=gone),
        queues_pb2.WorkerInfo(worker="w2", state=gone, claims=1),
        queues_pb2.WorkerInfo(worker="w3", state=queues_pb2.WORKER_STATE_QUIET, desired=gone, slots=4, version="1.2"),
    ]
    found[2].desired = queues_pb2.WORKER_STATE_RUNNING
    server.on("ListWorkers", queues_pb2.ListWorkersResponse(workers=found, next_page_token="w3"))
    page = await client.list_workers()
    assert page.workers == (
        WorkerInfo(worker="w2", claims=1, state=WorkerState.GONE),
        WorkerInfo(worker="w3", state=WorkerState.QUIET, desired=WorkerState.RUNNING, slots=4, version="1.2"),
    )
    assert page.next_page_token == "w3"


async def test_heartbeats_and_signals(server: ScriptedServer, client: AsyncClient) -> None:
    quiet, running = queues_pb2.WORKER_STATE_QUIET, queues_pb2.WORKER_STATE_RUNNING
    server.on("Heartbeat", queues_pb2.HeartbeatResponse(desired=quiet, next_ms=2_500), queues_pb2.HeartbeatResponse())
    answer = await client.heartbeat("w", slots=4, version="1.2", queues=["mail"])
    assert answer == HeartbeatAnswer(WorkerState.QUIET, 2.5)
    assert await client.heartbeat("w", state=WorkerState.STOPPING) == HeartbeatAnswer(None, 0.0)
    first, second = server.requests["Heartbeat"]
    assert first == queues_pb2.HeartbeatRequest(worker="w", state=running, slots=4, version="1.2", queues=["mail"])
    assert second.state == queues_pb2.WORKER_STATE_STOPPING
    server.on("SignalWorker", queues_pb2.SignalWorkerResponse(state=running))
    assert await client.signal_worker("w", WorkerState.QUIET) is WorkerState.RUNNING
    assert server.requests["SignalWorker"] == [queues_pb2.SignalWorkerRequest(worker="w", desired=quiet)]
    with pytest.raises(InvalidArgument, match="desired"):
        await client.signal_worker("w", WorkerState.UNKNOWN)


async def test_list_workers(server: ScriptedServer, client: AsyncClient) -> None:
    busy = queues_pb2.WorkerInfo(worker="w1", claims=3, last_seen_ms=9, queues=["a", "b"], is_waiting=True)
    unheard = queues_pb2.WorkerInfo(worker="w2", claims=1)
    server.on("ListWorkers", queues_pb2.ListWorkersResponse(workers=[busy, unheard], next_page_token="w2"))
    assert await client.list_workers(page_size=2, page_token="w0") == WorkerPage(
        (
            WorkerInfo(worker="w1", claims=3, last_seen_ms=9, queues=("a", "b"), is_waiting=True),
            WorkerInfo(worker="w2", claims=1, last_seen_ms=None),
        ),
        "w2",
    )
    assert server.requests["ListWorkers"] == [queues_pb2.ListWorkersRequest(page_size=2, page_token="w0")]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_purge_goes_on_until_there_is_no_next_page(
    server: ScriptedServer, client: AsyncClient, dry_run: bool
) -> None:
    server.on(
        "PurgeQueue",
        queues_pb2.PurgeQueueResponse(purged=1000, next_page_token="1"),
        queues_pb2.PurgeQueueResponse(purged=500, next_page_token="1"),  # the same end, and less before it
        LOST,
        queues_pb2.PurgeQueueResponse(next_page_token="2"),  # tasks that somebody else took
        queues_pb2.PurgeQueueResponse(purged=7),
    )
    seen: list[int] = []
    assert await client.purge_queue("mail", dry_run=dry_run, progress=seen.append) == 1507
    assert seen == [1000, 1500, 1500, 1507]
    assert server.requests["PurgeQueue"] == [
        queues_pb2.PurgeQueueRequest(queue="mail", page_token=token, dry_run=dry_run)
        for token in ("", "1", "1", "1", "2")
    ]


async def test_a_purge_that_gets_nowhere_ends(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PurgeQueue", queues_pb2.PurgeQueueResponse(next_page_token="1"))
    with pytest.raises(UnexpectedAnswer, match="its own next one"):
        await client.purge_queue("mail")
    assert len(server.requests["PurgeQueue"]) == 2


async def test_a_refused_purge_is_raised(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PurgeQueue", Refusal(grpc.StatusCode.NOT_FOUND, "QUEUE_NOT_FOUND"))
    with pytest.raises(NotFound):
        await client.purge_queue("mail")


# ------------------------------------------------------------------------------------------------- dead letters


def letters(*task_ids: str, then: str = "") -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(
        tasks=[pb.TaskInfo(task_id=task_id) for task_id in task_ids], next_page_token=then
    )


def done(request: Any) -> pb.RetryDeadLettersResponse:
    return pb.RetryDeadLettersResponse(outcomes=[DONE for _ in request.task_ids])


async def test_a_filter_is_sent_whole(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("ListDeadLetters", letters())
    where = DeadLetterFilter(
        type="t", tenant="acme", error="refused", died_from_ms=1, died_before_ms=2, reason="TTL_PASSED"
    )
    await client.list_dead_letters("mail", where=where)
    await client.list_dead_letters("mail", where=DeadLetterFilter())
    await client.list_dead_letters("mail")
    full, empty, none = server.requests["ListDeadLetters"]
    assert full.filter == pb.DeadLetterFilter(
        type="t", tenant="acme", error="refused", died_from_ms=1, died_before_ms=2, reason="TTL_PASSED"
    )
    assert {field.name for field in fields(DeadLetterFilter)} == set(pb.DeadLetterFilter.DESCRIPTOR.fields_by_name)
    assert empty.filter == pb.DeadLetterFilter()
    assert not none.HasField("filter")


async def test_iteration_goes_past_pages_without_a_letter(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("ListDeadLetters", letters(then="1"), letters("a", then="2"), letters(then="3"), letters("b", "c"))
    found = [letter.task_id async for letter in client.iter_dead_letters("mail", page_size=9)]
    assert found == ["a", "b", "c"]
    asked = [(request.page_token, request.page_size) for request in server.requests["ListDeadLetters"]]
    assert asked == [("", 9), ("1", 9), ("2", 9), ("3", 9)]


async def test_retry_of_all_that_fit(server: ScriptedServer, client: AsyncClient) -> None:
    alive = pb.DeadLetterOutcome(rejection=pb.Rejection(reason="NOT_DEAD", message="It is READY."))
    server.on("ListDeadLetters", letters("a", "b", then="1"), letters(then="2"), letters("c"))
    server.on("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=[DONE, alive]), done)
    seen: list[DeadLetterProgress] = []
    reported = await client.retry_dead_letters_where(
        "mail", DeadLetterFilter(tenant="acme"), batch_size=2, progress=seen.append
    )
    assert (reported.found, reported.done, reported.refused) == (3, 2, 1)
    assert isinstance(reported.last_refusal, NotDead)
    assert [(item.found, item.done, item.refused) for item in seen] == [(2, 1, 1), (3, 2, 1)]
    assert [list(request.task_ids) for request in server.requests["RetryDeadLetters"]] == [["a", "b"], ["c"]]
    listed = server.requests["ListDeadLetters"]
    assert [(item.queue, item.page_size, item.page_token) for item in listed] == [
        ("mail", 2, ""), ("mail", 2, "1"), ("mail", 2, "2"),
    ]  # fmt: skip
    # What dies again while this goes on is the server's to leave out: our clock may be wrong.
    assert {(item.filter.tenant, item.filter.died_before_ms) for item in listed} == {("acme", 0)}


async def test_a_limit_ends_it_to_the_letter(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("ListDeadLetters", letters("a", "b", then="1"), letters("c", then="2"))
    server.on("RetryDeadLetters", done)
    reported = await client.retry_dead_letters_where("mail", limit=3, batch_size=2)
    assert (reported.found, reported.done) == (3, 3)
    assert [request.page_size for request in server.requests["ListDeadLetters"]] == [2, 1]


async def test_a_dry_run_counts_and_touches_nothing(server: ScriptedServer, client: AsyncClient) -> None:
    """The server knows no other call, so that anything else would fail."""
    server.on("ListDeadLetters", letters("a", "b", then="1"), letters("c"))
    seen: list[DeadLetterProgress] = []
    for call in (client.retry_dead_letters_where, client.discard_dead_letters_where):
        reported = await call("mail", dry_run=True, progress=seen.append)
        assert reported.done == 0
    assert [item.found for item in seen] == [2, 3, 1]


async def test_discard_of_all_that_fit_says_by_whom(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("ListDeadLetters", letters("a", then="1"), letters("b"))
    server.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[DONE]))
    reported = await client.discard_dead_letters_where("mail", DeadLetterFilter(type="t"), by="ada", note="ticket 7")
    assert reported == DeadLetterProgress(2, 2)
    assert server.requests["DiscardDeadLetters"] == [
        pb.DiscardDeadLettersRequest(task_ids=[item], by="ada", note="ticket 7") for item in ("a", "b")
    ]
    assert {request.filter.type for request in server.requests["ListDeadLetters"]} == {"t"}


async def test_a_failure_on_the_way_is_raised_and_not_repeated(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("ListDeadLetters", letters("a", then="1"), letters("b"))
    server.on("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=[DONE]), LOST)
    seen: list[DeadLetterProgress] = []
    with pytest.raises(ConnectionFailed):
        await client.retry_dead_letters_where("mail", progress=seen.append)
    assert seen == [DeadLetterProgress(1, 1)]
    assert len(server.requests["RetryDeadLetters"]) == 2


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1001}, "batch_size"),
        ({"batch_size": 2**63}, "batch_size"),
        ({"where": DeadLetterFilter(died_from_ms=2**63)}, "filter.died_from_ms"),
        ({"where": DeadLetterFilter(type=5)}, "filter.type"),  # type: ignore[arg-type]  # on purpose
    ],
)
async def test_wrong_requests_are_refused_by_name_and_not_sent(
    server: ScriptedServer, client: AsyncClient, given: dict[str, Any], field: str
) -> None:
    for call in (client.retry_dead_letters_where, client.discard_dead_letters_where):
        with pytest.raises(InvalidArgument) as caught:
            await call("mail", **given)
        assert caught.value.field == field
    assert not server.requests


async def test_a_discard_says_who_it_was_unless_it_is_told_not_to(
    server: ScriptedServer, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("ListDeadLetters", letters("a"))
    server.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[DONE]))
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    await client.discard_dead_letter("a")
    await client.discard_dead_letters(["a"])
    await client.discard_dead_letters_where("mail")
    await client.discard_dead_letter("a", by="")

    def nameless() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("socket.gethostname", lambda: "ö" * 300)
    await client.discard_dead_letter("a")
    *named, left_out, long = (request.by for request in server.requests["DiscardDeadLetters"])
    assert named == ["ada@desk"] * 3
    assert left_out == ""
    assert re.fullmatch(r"uid-\d+@ö+", long)
    assert 250 < len(long.encode()) <= 256


async def test_discards(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[DONE]), LOST)
    record = {
        "task_id": "a", "queue": "mail", "type": "t", "tenant": "acme", "dead_reason": "NON_RETRYABLE",
        "died_at_ms": 1, "discarded_at_ms": 2, "by": "ada", "note": "ticket 7",
    }  # fmt: skip
    wire: Any = pb.Discard
    server.on("ListDiscards", pb.ListDiscardsResponse(discards=[wire(**record)], next_page_token="more"))
    assert await client.discard_dead_letter("a", by="ada", note="ticket 7") == DeadLetterDone()
    assert server.requests["DiscardDeadLetters"] == [
        pb.DiscardDeadLettersRequest(task_ids=["a"], by="ada", note="ticket 7")
    ]
    model: Any = Discard
    assert await client.list_discards("mail", page_size=1, page_token="x") == DiscardPage((model(**record),), "more")
    await client.list_discards()
    assert server.requests["ListDiscards"] == [
        pb.ListDiscardsRequest(queue="mail", page_size=1, page_token="x"),
        pb.ListDiscardsRequest(page_size=100),
    ]
    for call, field in (
        (client.discard_dead_letter("a", by="\ud800"), "by"),
        (client.discard_dead_letter("a", note=7), "note"),  # type: ignore[arg-type]  # on purpose
        (client.discard_dead_letters("a"), "task_ids"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call
        assert caught.value.field == field
    with pytest.raises(ConnectionFailed):
        await client.discard_dead_letters(["a"])
    assert len(server.requests["DiscardDeadLetters"]) == 2, "a second one would be told that there is none"
