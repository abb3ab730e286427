"""Clients that go straight to the leaders: where each call goes, how answers are joined, and what they fall back to."""

import asyncio
import socket
import time
from typing import Any

import grpc
import pytest

from holdfast.client import (
    Accepted,
    Ack,
    AsyncClient,
    ClaimRef,
    Client,
    ClientClosed,
    ConnectionFailed,
    Extended,
    Extension,
    Failure,
    InvalidArgument,
    NewTask,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    StaleToken,
    TaskState,
    Unavailable,
    _topology,
)
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.transport.negotiated import NegotiatedChannels
from tests.unit.client.scripted_server import LOST, Hang, Refusal, ScriptedServer, not_leader
from tests.unit.client.scripted_shards import (
    SHARDS,
    Cluster,
    MetadataServer,
    accept,
    queue_at,
    spread,
    task_id,
)

Code = grpc.StatusCode
AT_0, AT_1 = queue_at(0), queue_at(1)


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# ------------------------------------------------------------------------------------------------- where calls go


async def test_tasks_go_to_the_homes_of_their_queues_and_come_back_in_order(
    cluster: Cluster, direct: AsyncClient
) -> None:
    cluster.both("Enqueue", accept)
    tasks = [NewTask(queue, f"t{n}") for n, queue in enumerate([AT_1, AT_0, AT_1, AT_0, AT_0])]
    outcomes = await direct.enqueue_many(tasks)
    assert outcomes == [Accepted(item) for item in ("1:t0", "0:t1", "1:t2", "0:t3", "0:t4")]
    assert cluster.sent("Enqueue") == [0, 1, 1]
    assert cluster.shards_named("Enqueue") == [["0"], ["1"]]
    await direct.enqueue(NewTask(AT_1, "t5"))
    assert cluster.sent("GetTopology") == [1, 0, 0], "what is known is not asked for again"


async def test_own_ids_go_home_and_automatic_keys_over_the_set_that_they_name(
    cluster: Cluster, direct: AsyncClient
) -> None:
    cluster.routes[AT_0] = spread(AT_0, 3, [1])
    cluster.both("Enqueue", accept)
    outcomes = await direct.enqueue_many([NewTask(AT_0, "own", request_id="r-1"), NewTask(AT_0, "none", request_id="")])
    assert outcomes == [Accepted("0:own"), Accepted("1:none")]
    assert (await direct.enqueue(NewTask(AT_0, "automatic"))).task_id == "1:automatic"
    assert cluster.leaders[1].requests["Enqueue"][-1].tasks[0].request_id.startswith("~3.")


async def test_the_first_call_of_a_client_names_the_newest_set_and_so_does_its_repetition(cluster: Cluster) -> None:
    cluster.routes[AT_0] = spread(AT_0, 3, [1])
    cluster.both("Enqueue", accept)
    cluster.leaders[1].first("Enqueue", LOST)
    cluster.router.on("Enqueue", accept(7))
    async with AsyncClient(cluster.router.address, direct=True) as client:
        assert (await client.enqueue(NewTask(AT_0, "t"))).task_id == "7:t"
        [lost], [repeated] = cluster.leaders[1].requests["Enqueue"], cluster.router.requests["Enqueue"]
        assert lost == repeated, "also through the router"
        assert lost.tasks[0].request_id.startswith("~3.")


def _stale(items: int) -> list[pb.Rejection]:
    return [
        pb.Rejection(reason="STALE_TOKEN", message=f"Expected items[{index}] to be claimed.", field=f"items[{index}]")
        for index in range(items)
    ]


async def test_claims_of_different_shards_settle_in_one_batch(cluster: Cluster, direct: AsyncClient) -> None:
    def ack(shard: int) -> Any:
        def answer(request: pb.AckRequest) -> pb.AckResponse:
            if shard == 0:
                accepted = pb.Accepted(task_id=request.items[0].claim.task_id)
                return pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked(follow_ups=[accepted]))])
            return pb.AckResponse(outcomes=[pb.AckOutcome(rejection=item) for item in _stale(len(request.items))])

        return answer

    cluster.both("Ack", ack)
    refs = [ClaimRef(task_id(1, 1), 11 << 64), ClaimRef(task_id(0, 2), 12 << 64), ClaimRef(task_id(1, 3), 13 << 64)]
    first, second, third = await direct.ack_many([refs[0], Ack(refs[1], b"result"), refs[2]])
    assert isinstance(first, StaleToken)
    assert isinstance(third, StaleToken)
    assert not isinstance(second, Rejected)
    assert second.follow_ups == (Accepted(refs[1].task_id),)
    # As the caller numbers them, not as the leader of the shard does.
    assert [(item.field, item.message) for item in (first, third)] == [
        ("items[0]", "Expected items[0] to be claimed."),
        ("items[2]", "Expected items[2] to be claimed."),
    ]
    [at_1] = cluster.leaders[1].requests["Ack"]
    assert [item.claim.token for item in at_1.items] == [11, 13]
    [at_0] = cluster.leaders[0].requests["Ack"]
    assert at_0.items[0].result == b"result"


async def test_each_part_of_an_extension_is_counted_from_its_own_sending(cluster: Cluster, direct: AsyncClient) -> None:
    """One leader takes long to say that another one leads: what the shard gives then is counted from there."""
    pause_s = 0.3
    moved_s = 0.0

    def late(_request: pb.ExtendRequest) -> Refusal:
        nonlocal moved_s
        time.sleep(pause_s)
        moved_s = time.monotonic()
        return Refusal(Code.UNAVAILABLE, "OVERLOADED", retry_after_ms=1)

    answer = pb.ExtendResponse(outcomes=[pb.ExtendOutcome(extended=pb.Extended(lease_ms=5_000, waited_ms=100))])
    cluster.leaders[0].on("Extend", answer)
    cluster.leaders[1].on("Extend", late, answer)
    began_s = time.monotonic()
    first, second = await direct.extend_many([Extension(ClaimRef(task_id(shard), 1), 5_000) for shard in (0, 1)])
    assert isinstance(first, Extended)
    assert isinstance(second, Extended)
    assert began_s <= first.lease_ends_s - 5.1 <= moved_s
    assert moved_s - 0.001 <= second.lease_ends_s - 5.1 <= time.monotonic()


async def test_every_call_on_tasks_goes_by_their_ids(cluster: Cluster, direct: AsyncClient) -> None:
    states = (pb.TASK_STATE_READY, pb.TASK_STATE_DEAD)

    def script(leader: ScriptedServer, state: pb.TaskState) -> None:
        leader.on("Fail", pb.FailResponse(outcomes=[pb.FailOutcome(failed=pb.Failed(state=state))]))
        leader.on("Extend", pb.ExtendResponse(outcomes=[pb.ExtendOutcome(extended=pb.Extended(lease_ms=state))]))
        leader.on("Release", pb.ReleaseResponse(outcomes=[pb.ReleaseOutcome(released=pb.Released(state=state))]))
        leader.on("Cancel", pb.CancelResponse(outcomes=[pb.CancelOutcome(cancelled=pb.Cancelled(state=state))]))
        leader.on("GetTask", lambda request: pb.GetTaskResponse(task=pb.TaskInfo(task_id=request.task_id, state=state)))
        leader.on("GetDeadLetter", pb.GetDeadLetterResponse(task=pb.TaskInfo(task_id="x", state=state)))
        done = pb.DeadLetterOutcome(done=pb.DeadLetterDone())
        leader.on("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=[done]))
        leader.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[done]))

    for leader, state in zip(cluster.leaders, states, strict=True):
        script(leader, state)
    ids = [task_id(1), task_id(0)]
    refs = [ClaimRef(item, 1) for item in ids]
    wanted = [TaskState.DEAD, TaskState.READY]
    assert [getattr(item, "state", None) for item in await direct.fail_many(list(map(Failure, refs)))] == wanted
    assert [getattr(item, "state", None) for item in await direct.release_many(refs)] == wanted
    assert [getattr(item, "state", None) for item in await direct.cancel_many(ids)] == wanted
    extended = await direct.extend_many([Extension(ref, 1_000) for ref in refs])
    assert [getattr(item, "lease_ms", None) for item in extended] == [states[1], states[0]]
    assert [(await direct.get_task(item)).state for item in ids] == wanted
    assert (await direct.get_dead_letter(ids[0])).state is TaskState.DEAD
    assert len(await direct.retry_dead_letters(ids)) == 2
    assert len(await direct.discard_dead_letters(ids)) == 2
    for method in ("Fail", "Extend", "Release", "Cancel", "RetryDeadLetters", "DiscardDeadLetters"):
        assert cluster.sent(method) == [0, 1, 1], method


async def test_waiting_for_tasks_of_several_shards(cluster: Cluster, direct: AsyncClient) -> None:
    def finished(shard: int) -> Any:
        def answer(request: pb.WaitTasksRequest) -> pb.WaitTasksResponse:
            tasks = [pb.TaskInfo(task_id=item, state=pb.TASK_STATE_SUCCEEDED) for item in request.task_ids]
            return pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=task) for task in tasks])

        return answer

    cluster.both("WaitTasks", finished)
    ids = [task_id(1, 1), task_id(0, 2), task_id(1, 3)]
    tasks = await direct.wait_tasks(ids, timeout_s=5)
    assert [task.task_id for task in tasks if not isinstance(task, Rejected)] == ids
    assert cluster.sent("WaitTasks") == [0, 1, 1]


async def test_an_id_that_no_shard_made_is_answered_by_some_broker(cluster: Cluster, direct: AsyncClient) -> None:
    missing = Refusal(Code.NOT_FOUND, "TASK_NOT_FOUND")
    cluster.leaders[0].on("GetTask", missing)
    for wrong in ("not-an-id", "", task_id(SHARDS + 5)):
        with pytest.raises(NotFound):
            await direct.get_task(wrong)
    assert cluster.sent("GetTask") == [0, 3, 0]


async def test_a_queue_with_a_bad_name_spoils_no_other(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.both("Enqueue", accept)
    await direct.enqueue_many([NewTask("no such name!", "t"), NewTask(AT_0, "t")])
    [asked] = cluster.router.requests["GetTopology"]
    assert list(asked.queues) == [AT_0], "a server would refuse the whole question"


# ------------------------------------------------------------------------------------------- queues on many shards


async def test_numbers_of_a_queue_are_added_up(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.routes[AT_0] = spread(AT_0)

    def stats(shard: int) -> Any:
        def answer(request: pb.QueueStatsRequest) -> pb.QueueStatsResponse:
            response = pb.QueueStatsResponse()
            for queue in request.queues:
                if queue == "nowhere" or (queue == AT_0 and shard == 1 and len(request.queues) == 1):
                    response.outcomes.add(rejection=pb.Rejection(reason="QUEUE_NOT_FOUND"))
                else:
                    age = 100 - shard
                    response.outcomes.add(counts=pb.QueueCounts(queue=queue, ready=1 + shard, oldest_ready_age_ms=age))
            return response

        return answer

    cluster.both("QueueStats", stats)
    both, one, nowhere = await direct.queue_stats_many([AT_0, AT_1, "nowhere"])
    assert not isinstance(both, Rejected)
    assert (both.ready, both.oldest_ready_age_ms) == (3, 100)
    assert not isinstance(one, Rejected)
    assert one.ready == 2
    assert isinstance(nowhere, NotFound)
    assert (await direct.queue_stats(AT_0)).ready == 1, "a queue need not have been used on each of its shards"


ONE_WORKER = queues_pb2.ListWorkersResponse(workers=[queues_pb2.WorkerInfo(worker="a", claims=1)])
ONE_QUEUE = pb.ListQueuesResponse(queues=[pb.QueueCounts(queue="a", ready=1)])


async def pages_of(direct: AsyncClient, method: str, *, partial: bool) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """What is told, and which shards are missing in it."""
    if method == "ListQueues":
        queues = await direct.list_queues(partial=partial)
        return [(queue.queue, queue.ready) for queue in queues.queues], queues.missing_shards
    workers = await direct.list_workers(partial=partial)
    return [(worker.worker, worker.claims) for worker in workers.workers], workers.missing_shards


@pytest.mark.parametrize(("method", "reported"), [("ListQueues", ONE_QUEUE), ("ListWorkers", ONE_WORKER)])
async def test_a_list_with_a_shard_missing_is_an_error_unless_that_is_wanted(
    cluster: Cluster, method: str, reported: Any
) -> None:
    busy = Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED")
    bad = Refusal(Code.INVALID_ARGUMENT, "INVALID_FIELD", metadata={"field": "page_token"})
    cluster.leaders[0].on(method, reported, reported, reported, busy)
    cluster.leaders[1].on(method, busy, busy, bad, busy)
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        with pytest.raises(Overloaded):
            await pages_of(client, method, partial=False)
        assert await pages_of(client, method, partial=True) == ([("a", 1)], (1,))
        with pytest.raises(InvalidArgument):  # the question is wrong, and no shard is missing
            await pages_of(client, method, partial=True)
        with pytest.raises(Overloaded):  # nobody has told anything
            await pages_of(client, method, partial=True)


async def test_a_list_of_tasks_passes_over_a_shard_if_that_is_wanted(cluster: Cluster) -> None:
    busy = Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED")
    bad = Refusal(Code.INVALID_ARGUMENT, "INVALID_FIELD", metadata={"field": "filter"})
    cluster.leaders[0].on("ListTasks", busy, busy, bad)
    cluster.leaders[1].on("ListTasks", queues_pb2.ListTasksResponse(tasks=[pb.TaskInfo(task_id="b")]))
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        with pytest.raises(Overloaded):
            await client.list_tasks()
        first = await client.list_tasks(partial=True)
        assert (first.tasks, first.missing_shards) == ((), (0,))
        second = await client.list_tasks(partial=True, page_token=first.next_page_token)
        assert ([task.task_id for task in second.tasks], second.missing_shards) == (["b"], ())
        with pytest.raises(InvalidArgument):
            await client.list_tasks(partial=True)


# ------------------------------------------------------------------------------------------------- parts that fail


async def test_what_one_shard_refuses_does_not_hide_what_another_did(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.leaders[0].on("Enqueue", accept(0))
    cluster.leaders[1].on("Enqueue", Refusal(Code.UNAVAILABLE, "DISK_LOW", "The disk is full.", 500))
    first, second, third = await direct.enqueue_many([NewTask(AT_1, "a"), NewTask(AT_0, "b"), NewTask(AT_1, "c")])
    assert second == Accepted("0:b")
    for refused in (first, third):
        assert isinstance(refused, Unavailable)
        assert (refused.reason, refused.retry_after_ms) == ("DISK_LOW", 500)


async def test_what_all_shards_refuse_alike_is_raised(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.both("Enqueue", lambda shard: lambda request: Refusal(Code.UNAVAILABLE, "DISK_LOW"))
    with pytest.raises(Unavailable, match="DISK_LOW"):
        await direct.enqueue_many([NewTask(AT_1, "a"), NewTask(AT_0, "b")])


async def test_an_unknown_outcome_of_one_part_is_not_hidden_by_the_refusal_of_another(cluster: Cluster) -> None:
    for server in (cluster.router, cluster.leaders[0]):
        server.on("DiscardDeadLetters", LOST)
    cluster.leaders[1].on("DiscardDeadLetters", Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED"))
    async with AsyncClient(cluster.router.address, direct=True, retry=False) as client:
        unknown, refused = await client.discard_dead_letters([task_id(0), task_id(1)])
    assert isinstance(unknown, OutcomeUnknown)
    assert isinstance(refused, Overloaded)
    assert cluster.sent("DiscardDeadLetters") == [0, 1, 1], "not sent to the router: it may have taken effect"


async def test_a_bad_request_is_raised_with_the_place_that_the_caller_knows(
    cluster: Cluster, direct: AsyncClient
) -> None:
    cluster.leaders[1].on("Enqueue", accept(1))
    bad = Refusal(
        Code.INVALID_ARGUMENT, "INVALID_FIELD", "Expected tasks[1].type.", metadata={"field": "tasks[1].type"}
    )
    cluster.leaders[0].on("Enqueue", bad)
    outcomes = await direct.enqueue_many([NewTask(AT_0, "a"), NewTask(AT_1, "b"), NewTask(AT_0, "c")])
    assert outcomes[1] == Accepted("1:b")
    assert isinstance(outcomes[0], InvalidArgument)
    assert outcomes[0].field == "tasks[2].type"


async def test_answers_with_too_few_outcomes_are_named(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.both("Cancel", lambda shard: lambda request: pb.CancelResponse())
    with pytest.raises(Exception, match="0 outcomes for 1 items"):
        await direct.cancel_many([task_id(0), task_id(1)])


# -------------------------------------------------------------------------------------------- leaders that moved


async def test_a_redirect_is_followed_and_remembered(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.map_leaders[1] = cluster.leaders[0].address
    cluster.leaders[0].on("Enqueue", not_leader(cluster.leaders[1].address, 5))
    cluster.leaders[1].on("Enqueue", accept(1))
    for _ in range(3):
        assert (await direct.enqueue(NewTask(AT_1, "t", request_id=""))).task_id == "1:t"
    assert cluster.sent("Enqueue") == [0, 1, 3]
    first, *_ = cluster.leaders[1].metadata["Enqueue"]
    assert first == {"holdfast-shard": "1"}


async def test_a_leader_that_lost_its_replica_sends_the_call_elsewhere(cluster: Cluster, direct: AsyncClient) -> None:
    cluster.leaders[1].on("Enqueue", Refusal(Code.NOT_FOUND, "SHARD_NOT_FOUND"))
    cluster.router.on("Enqueue", accept(7))
    assert (await direct.enqueue(NewTask(AT_1, "t", request_id=""))).task_id == "7:t"


@pytest.mark.parametrize("retry", [True, False])
async def test_a_leader_that_is_gone_leaves_its_calls_to_the_router(cluster: Cluster, retry: bool) -> None:
    cluster.leaders[1].stop()
    cluster.router.on("Enqueue", accept(7))
    cluster.leaders[0].on("Enqueue", accept(0))
    async with AsyncClient(cluster.router.address, direct=True, retry=retry) as client:
        # Never sent to the dead one, so this holds for what must not be sent twice as well.
        tasks = [NewTask(AT_1, "a", request_id=""), NewTask(AT_0, "b", request_id="")]
        assert await client.enqueue_many(tasks) == [Accepted("7:a"), Accepted("0:b")]
        assert (await client.enqueue_many(tasks))[0] == Accepted("7:a")
    assert cluster.router.metadata["Enqueue"] == [{"holdfast-shard": "1"}] * 2, "a router need not look into it"


async def test_direct_is_tried_again_after_a_while(
    cluster: Cluster, direct: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client._leaders.DIRECT_SUSPECT_S", 0.0)
    monkeypatch.setattr(_topology, "REFRESH_S", 0.0)
    cluster.map_leaders[1] = dead_address()
    cluster.router.on("Enqueue", accept(7))
    cluster.leaders[1].on("Enqueue", accept(1))
    assert (await direct.enqueue(NewTask(AT_1, "t"))).task_id == "7:t"
    del cluster.map_leaders[1]
    cluster.revision += 1
    async with asyncio.timeout(10):
        while (await direct.enqueue(NewTask(AT_1, "t"))).task_id != "1:t":
            await asyncio.sleep(0.01)


async def test_a_leader_behind_a_wall_costs_little_time(cluster: Cluster, direct: AsyncClient) -> None:
    """Its connection is not refused, but nobody speaks there either."""
    cluster.router.on("Enqueue", accept(7))
    with socket.socket() as wall:
        wall.bind(("127.0.0.1", 0))
        wall.listen(0)
        cluster.map_leaders[1] = f"127.0.0.1:{wall.getsockname()[1]}"
        async with asyncio.timeout(5):
            assert (await direct.enqueue(NewTask(AT_1, "t", request_id=""))).task_id == "7:t"


async def test_brokers_alone_are_enough(cluster: Cluster) -> None:
    cluster.both("Enqueue", accept)
    async with AsyncClient(cluster.leaders[0].address, direct=True) as client:
        assert (await client.enqueue(NewTask(AT_1, "t"))).task_id == "1:t"
    assert cluster.router.requests == {}


async def test_other_brokers_are_asked_when_all_that_were_named_are_gone(cluster: Cluster) -> None:
    cluster.both("Enqueue", accept)
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=5) as client:
        await client.enqueue(NewTask(AT_0, "t"))
        cluster.router.stop()
        assert (await client.enqueue(NewTask(AT_1, "t"))).task_id == "1:t"
        assert (await client.topology()).shards == SHARDS


# ---------------------------------------------------------------------------------------------- without a cluster


@pytest.mark.parametrize(
    "answer", [Refusal(Code.FAILED_PRECONDITION, "NO_CLUSTER"), Refusal(Code.UNIMPLEMENTED, "")], ids=["none", "older"]
)
async def test_a_server_without_a_map_gets_the_calls_itself(answer: Refusal) -> None:
    with MetadataServer() as server:
        server.on("GetTopology", answer)
        server.on("Enqueue", accept(0))
        server.on("Reserve", pb.ReserveResponse())
        server.on(
            "WaitTasks",
            pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=pb.TaskInfo(state=pb.TASK_STATE_SUCCEEDED))]),
        )
        async with AsyncClient(server.address, direct=True) as client:
            await client.enqueue(NewTask("q", "t"))
            await client.enqueue(NewTask("q", "t"))
            assert await client.reserve(["q"]) == []
            await client.wait_task("id-1")
        assert len(server.requests["GetTopology"]) == 1
        assert server.metadata["Enqueue"] == [{"holdfast-first": "1"}] * 2, "and no shard is named"


async def test_no_server_at_all_is_told_as_always() -> None:
    async with AsyncClient(dead_address(), direct=True, retry=False) as client:
        with pytest.raises(ConnectionFailed):
            await client.enqueue(NewTask("q", "t"))


async def test_without_direct_nothing_is_asked_and_no_shard_is_named(cluster: Cluster) -> None:
    cluster.router.on("Enqueue", accept(0))
    cluster.router.on("Cancel", pb.CancelResponse(outcomes=[pb.CancelOutcome(cancelled=pb.Cancelled())]))
    async with AsyncClient(cluster.router.address) as client:
        await client.enqueue(NewTask(AT_1, "t"))
        await client.cancel(task_id(1))
    assert cluster.sent("GetTopology") == [0, 0, 0]
    assert cluster.router.metadata["Enqueue"] == [{"holdfast-first": "1"}]
    assert cluster.router.metadata["Cancel"] == [{}]


# ------------------------------------------------------------------------------------------------------- closing


async def test_closing_ends_calls_to_leaders(cluster: Cluster) -> None:
    hang = Hang()
    cluster.leaders[0].on("Enqueue", accept(0))
    cluster.leaders[1].on("Enqueue", hang)
    client = AsyncClient(cluster.router.address, direct=True)
    call = asyncio.create_task(client.enqueue_many([NewTask(AT_1, "t"), NewTask(AT_0, "t")]))
    await asyncio.to_thread(hang.arrived.wait, 10)
    async with asyncio.timeout(10):
        while cluster.sent("Enqueue") != [0, 1, 1]:
            await asyncio.sleep(0.005)
    await client.close()
    with pytest.raises(ClientClosed):
        await call


async def test_closing_while_a_connection_is_being_made(channels: list[NegotiatedChannels], cluster: Cluster) -> None:
    with socket.socket() as wall:
        wall.bind(("127.0.0.1", 0))
        wall.listen(0)
        cluster.map_leaders[1] = f"127.0.0.1:{wall.getsockname()[1]}"
        client = AsyncClient(cluster.router.address, direct=True)
        call = asyncio.create_task(client.enqueue_many([NewTask(AT_1, "t")]))
        async with asyncio.timeout(5):
            while not channels[0].calls_under_way or cluster.map_leaders[1] not in channels[0]:
                await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(call, 5)


def test_the_blocking_client_goes_direct_too(cluster: Cluster) -> None:
    cluster.both("Enqueue", accept)
    with Client(cluster.router.address, direct=True) as client:
        assert client.enqueue(NewTask(AT_1, "t")).task_id == "1:t"
