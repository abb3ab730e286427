"""Clients of several servers: they find the leader, follow it, and leave one that is dead or silent."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from holdfast.client import (
    Accepted,
    AsyncClient,
    ClaimRef,
    Client,
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    Extended,
    Extension,
    Holdfast,
    NewTask,
    OutcomeUnknown,
    Unavailable,
    Worker,
    _leaders,
)
from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.retries import HOPS_MAX
from holdfast.transport.negotiated import NegotiatedChannels
from tests.unit.client.scripted_server import LOST, Hang, Refusal, ScriptedServer, not_leader

Code = grpc.StatusCode
CLAIM = ClaimRef("id-1", 1)
ACCEPTED = pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1"))])
FOUND = pb.GetTaskResponse(task=pb.TaskInfo(task_id="id-1", state=pb.TASK_STATE_READY))
DONE = pb.WaitTasksResponse(
    outcomes=[pb.WaitOutcome(task=pb.TaskInfo(task_id="id-1", state=pb.TASK_STATE_SUCCEEDED, result=b"42"))]
)
EXTENDED = pb.ExtendResponse(outcomes=[pb.ExtendOutcome(extended=pb.Extended(lease_ms=60_000))])

Three = tuple[ScriptedServer, ScriptedServer, ScriptedServer]


@pytest.fixture
def servers() -> Iterator[Three]:
    with ExitStack() as stack:
        a, b, c = (stack.enter_context(ScriptedServer()) for _ in range(3))
        yield a, b, c


def addresses(*servers: ScriptedServer) -> str:
    return ",".join(server.address for server in servers)


def sent(method: str, *servers: ScriptedServer) -> list[int]:
    """How many calls each server has got."""
    return [len(server.requests[method]) for server in servers]


def leader_is(server: ScriptedServer, epoch: int) -> shards_pb2.FindLeaderResponse:
    return shards_pb2.FindLeaderResponse(epoch=epoch, leader="n", address=server.address)


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# --------------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_is_followed_and_remembered(servers: Three) -> None:
    a, b, c = servers
    a.on("GetTask", not_leader(c.address, 3))
    c.on("GetTask", FOUND)
    async with AsyncClient(addresses(*servers)) as client:
        for _ in range(3):
            assert (await client.get_task("id-1")).task_id == "id-1"
    assert sent("GetTask", a, b, c) == [1, 0, 3]


@pytest.mark.parametrize("retry", [True, False])
async def test_a_redirect_leads_outside_the_list(servers: Three, retry: bool) -> None:
    a, b, _ = servers
    a.on("Enqueue", not_leader(b.address, 3))
    b.on("Enqueue", ACCEPTED)
    async with AsyncClient(a.address, retry=retry) as client:
        # Not even a task that must not be sent twice minds: a server that does not lead does nothing.
        await client.enqueue(NewTask("q", "t", request_id=""))
    assert sent("Enqueue", a, b) == [1, 1]


async def test_hints_of_an_old_epoch_are_ignored(servers: Three) -> None:
    a, b, c = servers
    a.on("GetTask", not_leader(c.address, 7))
    c.on("GetTask", FOUND, not_leader(b.address, 6), FOUND)
    b.on("GetTask", FOUND)
    async with AsyncClient(addresses(a, c)) as client:
        await client.get_task("id-1")
        await client.get_task("id-1")
    assert sent("GetTask", b) == [0], "who leads in an epoch that is over is of no interest"


async def test_redirects_in_a_circle_end(servers: Three) -> None:
    a, b, _ = servers
    a.on("GetTask", not_leader(b.address, 1))
    b.on("GetTask", not_leader(a.address, 1))
    async with AsyncClient(a.address, retry=False) as client:
        with pytest.raises(Unavailable, match="NOT_LEADER"):
            await client.get_task("id-1")
    assert sum(sent("GetTask", a, b)) <= HOPS_MAX + 3
    async with AsyncClient(a.address, timeout_s=1) as client:
        with pytest.raises(
            (Unavailable, DeadlineExceeded), match="not the leader|did not answer"
        ):  # the last attempt may be under way by then
            await client.get_task("id-1")
    assert sum(sent("GetTask", a, b)) < 40, "a circle must not become a storm"


async def test_a_call_waits_for_an_election(servers: Three) -> None:
    a, b, c = servers
    a.on("Enqueue", not_leader(None, 3), not_leader(None, 3), not_leader(c.address, 4))
    b.on("Enqueue", not_leader(None, 3))
    c.on("Enqueue", not_leader(None, 3), not_leader(None, 3), ACCEPTED)
    async with AsyncClient(addresses(*servers)) as client:
        assert await client.enqueue(NewTask("q", "t", request_id="")) == Accepted("id-1")


async def test_a_server_that_shuts_down_sends_no_one_away_for_long(servers: Three) -> None:
    a, b, _ = servers
    a.on("Enqueue", Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN", retry_after_ms=30_000))
    b.on("Enqueue", ACCEPTED)
    async with AsyncClient(addresses(a, b), timeout_s=20) as client:
        await client.enqueue(NewTask("q", "t", request_id=""))
    assert sent("Enqueue", a, b) == [1, 1]


async def test_what_was_in_flight_when_leadership_moved_is_repeated_with_its_id(servers: Three) -> None:
    a, b, _ = servers
    a.on("Enqueue", Refusal(Code.UNAVAILABLE, "OUTCOME_UNKNOWN", retry_after_ms=1_000))
    b.on("Enqueue", ACCEPTED)
    async with AsyncClient(addresses(a, b)) as client:
        await client.enqueue_many([NewTask("q", "t")])
    assert a.requests["Enqueue"] == b.requests["Enqueue"], "under the automatic key, so that it is one task"
    assert a.requests["Enqueue"][0].tasks[0].request_id


@pytest.mark.parametrize("trouble", [LOST, Refusal(Code.UNAVAILABLE, "OUTCOME_UNKNOWN")])
@pytest.mark.parametrize("retry", [True, False])
async def test_what_must_not_be_done_twice_is_not_sent_elsewhere_after_an_unknown_outcome(
    servers: Three, trouble: Refusal, retry: bool
) -> None:
    a, b, c = servers
    for server in servers:
        server.on("Enqueue", trouble)
        server.on("RetryDeadLetters", trouble)
    async with AsyncClient(addresses(*servers), retry=retry) as client:
        with pytest.raises((ConnectionFailed, OutcomeUnknown)):
            await client.enqueue(NewTask("q", "t", request_id=""))
        with pytest.raises((ConnectionFailed, OutcomeUnknown)):
            await client.retry_dead_letter("id-1")
    assert sum(sent("Enqueue", a, b, c)) == 1
    assert sum(sent("RetryDeadLetters", a, b, c)) == 1


# ------------------------------------------------------------------------------------------------ dead servers


@pytest.mark.parametrize("retry", [True, False])
async def test_dead_addresses_are_passed_over(servers: Three, retry: bool) -> None:
    a, _, _ = servers
    a.on("Enqueue", ACCEPTED)
    async with AsyncClient(f"{dead_address()},{dead_address()},{a.address}", retry=retry) as client:
        # Certain not to have been sent, so this holds for every call.
        await client.enqueue(NewTask("q", "t", request_id=""))
    assert sent("Enqueue", a) == [1]


async def test_the_error_tells_what_happened_at_each_address(servers: Three) -> None:
    a, _, _ = servers
    a.on("GetTask", LOST)
    first, last = dead_address(), dead_address()
    async with AsyncClient(f"{first},{a.address},{last}", retry=False) as client:
        with pytest.raises(ConnectionFailed) as failed:
            await client.get_task("id-1")
    text = str(failed.value)
    assert f"{first}: connection refused" in text
    assert f"{a.address}: the connection was lost" in text
    assert f"{last}: connection refused" in text


async def test_a_leader_that_dies_is_followed_by_the_next(servers: Three) -> None:
    a, b, c = servers
    hang = Hang()
    a.on("Enqueue", hang)
    b.on("Enqueue", not_leader(a.address, 1), not_leader(c.address, 2))  # it has not noticed yet, and then it has
    c.on("Enqueue", not_leader(None, 1), ACCEPTED)
    async with AsyncClient(addresses(*servers), timeout_s=30) as client:
        call = asyncio.create_task(client.enqueue(NewTask("q", "t")))
        await asyncio.to_thread(hang.arrived.wait)
        await asyncio.to_thread(a.stop)
        assert await call == Accepted("id-1")


async def test_channels_to_leaders_that_are_long_gone_are_closed(
    channels: list[NegotiatedChannels], servers: Three
) -> None:
    a, _, _ = servers
    hints = [dead_address() for _ in range(2 * _leaders.HINTED_MAX)]
    a.on("GetTask", *(not_leader(hint, epoch) for epoch, hint in enumerate(hints, start=1)))
    async with AsyncClient(a.address, retry=False) as client:
        for _ in hints:
            with pytest.raises((ConnectionFailed, Unavailable)):
                await client.get_task("id-1")
        assert 1 < len(channels[0]) <= 1 + _leaders.HINTED_MAX
    assert not channels[0]


# ---------------------------------------------------------------------------------------------- silent servers


async def test_a_silent_leader_is_left_when_another_server_names_the_next(servers: Three) -> None:
    a, b, c = servers
    a.on("Enqueue", Hang())
    b.on("FindLeader", leader_is(a, 1), leader_is(c, 2))  # the followers need a moment to elect another
    c.on("FindLeader", leader_is(a, 1), leader_is(c, 2))
    c.on("Enqueue", ACCEPTED)
    async with AsyncClient(addresses(*servers), timeout_s=60) as client:
        await client.enqueue(NewTask("q", "t"))
        await client.enqueue(NewTask("q", "t"))
    assert sent("Enqueue", a, b, c) == [1, 0, 2]
    assert a.requests["Enqueue"][0] == c.requests["Enqueue"][0]


async def test_a_slow_leader_is_not_left_while_others_say_that_it_leads(servers: Three) -> None:
    a, b, c = servers
    go_on = threading.Event()

    def slowly(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        go_on.wait()
        return ACCEPTED

    def count(request: shards_pb2.FindLeaderRequest) -> shards_pb2.FindLeaderResponse:
        if len(b.requests["FindLeader"]) + len(c.requests["FindLeader"]) >= 6:  # well past the limit of an attempt
            go_on.set()
        return leader_is(a, 1)

    a.on("Enqueue", slowly)
    for server in (b, c):
        server.on("FindLeader", count)
        server.on("Enqueue", not_leader(a.address, 1))
    async with AsyncClient(addresses(*servers), timeout_s=60) as client:
        assert await client.enqueue(NewTask("q", "t")) == Accepted("id-1")
    assert sent("Enqueue", a, b, c) == [1, 0, 0], "a busy leader must not have to do everything twice"


async def test_a_silent_server_is_left_also_if_nobody_can_say_who_leads(servers: Three) -> None:
    a, b, _ = servers  # which do not even know the question
    a.on("GetTask", Hang())
    b.on("GetTask", FOUND)
    async with AsyncClient(addresses(a, b), timeout_s=60) as client:
        await client.get_task("id-1")
    assert sent("GetTask", a, b) == [1, 1]


async def test_a_silent_call_of_routers_never_goes_past_them_to_a_broker(servers: Three) -> None:
    """Only a router knows which shard a call is for that names none: a broker would take it for any."""
    a, b, broker = servers
    a.on("Enqueue", Hang())
    b.on("FindLeader", leader_is(broker, 5))
    b.on("Enqueue", ACCEPTED)
    broker.on("Enqueue", ACCEPTED)
    async with AsyncClient(addresses(a, b), timeout_s=1.5) as client:
        await client.enqueue_many([NewTask("q", "t")], timeout_s=10)
    assert sent("Enqueue", a, b, broker) == [1, 1, 0]
    assert b.requests["FindLeader"], "b was asked, and what it named is not in the list"


async def test_an_address_that_accepts_but_never_speaks_is_left(servers: Three) -> None:
    a, _, _ = servers
    a.on("GetTask", FOUND)
    a.on("FindLeader", leader_is(a, 1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        async with AsyncClient(f"{silent},{a.address}", timeout_s=60, retry=False) as client:
            await client.get_task("id-1")
    assert sent("GetTask", a) == [1]


async def test_a_call_that_must_not_be_done_twice_waits_but_the_next_one_goes_to_the_new_leader(
    servers: Three,
) -> None:
    a, b, _ = servers
    a.on("Enqueue", Hang())
    b.on("Enqueue", ACCEPTED)
    b.on("FindLeader", leader_is(b, 2))
    async with AsyncClient(addresses(a, b)) as client:
        with pytest.raises(DeadlineExceeded):
            await client.enqueue(NewTask("q", "t", request_id=""), timeout_s=1.5)
        assert sent("Enqueue", a, b) == [1, 0]
        await client.enqueue(NewTask("q", "t", request_id=""))
    assert sent("Enqueue", a, b) == [1, 1]


async def test_a_reserve_that_waits_at_a_silent_leader_moves_with_its_id_and_what_is_left_of_its_wait(
    servers: Three,
) -> None:
    a, b, _ = servers
    a.on("Reserve", Hang())
    b.on("FindLeader", leader_is(b, 2))
    b.on("Reserve", pb.ReserveResponse(claims=[pb.Claim(task_id="id-1", lease_ms=5_000)]))
    async with AsyncClient(addresses(a, b)) as client:
        [task] = await client.reserve(["q"], wait_ms=30_000)
    [first], [second] = a.requests["Reserve"], b.requests["Reserve"]
    assert first.claim_request_id == second.claim_request_id != ""
    assert first.wait_ms == 30_000
    assert 0 < second.wait_ms <= 28_500
    assert task.lease_ends_s - 5 <= time.monotonic()


async def test_a_wait_for_a_task_moves_too(servers: Three) -> None:
    a, b, _ = servers
    a.on("WaitTasks", Hang())
    b.on("FindLeader", leader_is(b, 2))
    b.on("WaitTasks", DONE)
    async with AsyncClient(addresses(a, b)) as client:
        assert (await client.wait_task("id-1", timeout_s=60)).result == b"42"


async def test_a_look_without_a_wait_follows_a_redirect(servers: Three) -> None:
    a, b, _ = servers
    a.on("WaitTasks", not_leader(b.address, 1))
    b.on("WaitTasks", DONE)
    async with AsyncClient(a.address) as client:
        assert (await client.wait_task("id-1", timeout_s=0)).result == b"42"


async def test_a_heartbeat_moves_within_its_own_short_deadline(servers: Three) -> None:
    """As a worker does it: nothing is retried, but a lease must not be lost because a stopped server holds the call."""
    a, b, _ = servers
    a.on("Extend", Hang())
    b.on("FindLeader", leader_is(b, 2))
    b.on("Extend", EXTENDED)
    async with AsyncClient(addresses(a, b), retry=False) as client:
        [answer] = await client.extend_many([Extension(CLAIM, 60_000)], timeout_s=10)
    assert isinstance(answer, Extended)


async def test_a_heartbeat_that_is_too_short_to_move_leaves_the_next_one_elsewhere(servers: Three) -> None:
    a, b, _ = servers
    a.on("GetTask", FOUND)
    a.on("Extend", Hang())
    b.on("Extend", EXTENDED)
    async with AsyncClient(addresses(a, b), retry=False) as client:
        await client.get_task("id-1")  # so that there is a connection, however slow the machine is
        with pytest.raises(DeadlineExceeded):
            await client.extend_many([Extension(CLAIM, 1_000)], timeout_s=0.3)
        await client.extend_many([Extension(CLAIM, 1_000)], timeout_s=10)
    assert sent("Extend", a, b) == [1, 1]


async def test_closing_ends_silent_calls_and_the_watch_over_them(servers: Three) -> None:
    a, b, _ = servers
    hang = Hang()
    a.on("GetTask", hang)
    b.on("FindLeader", Hang())
    client = AsyncClient(addresses(a, b))
    call = asyncio.create_task(client.get_task("id-1"))
    await asyncio.to_thread(hang.arrived.wait)
    while not b.requests["FindLeader"]:
        await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(ClientClosed):
        await call
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_the_caller_of_a_silent_call_is_a_cancellation(servers: Three) -> None:
    a, b, _ = servers
    hang = Hang()
    a.on("GetTask", hang)
    async with AsyncClient(addresses(a, b)) as client:
        call = asyncio.create_task(client.get_task("id-1"))
        await asyncio.to_thread(hang.arrived.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


# ------------------------------------------------------------------------------- blocking clients, apps, workers


def test_the_blocking_client_and_the_app_follow_too(servers: Three) -> None:
    a, b, _ = servers
    a.on("Enqueue", not_leader(b.address, 1))
    b.on("Enqueue", ACCEPTED)
    with Client(addresses(a, b)) as client:
        assert client.enqueue(NewTask("q", "t")) == Accepted("id-1")
    with Holdfast(addresses(a, b)) as app:
        task = app.task(name="measure")(len)
        assert task.enqueue("abc").id == "id-1"
    assert sent("Enqueue", a, b) == [2, 2]


async def test_single_enqueues_that_share_a_request_move_together(servers: Three) -> None:
    a, b, _ = servers

    def accept(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        accepted = [pb.Accepted(task_id=spec.type) for spec in request.tasks]
        return pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=one) for one in accepted])

    a.on("Enqueue", not_leader(None, 1), Hang())
    b.on("Enqueue", not_leader(None, 1), accept)
    b.on("FindLeader", leader_is(b, 2))
    async with AsyncClient(addresses(a, b), timeout_s=60) as client:
        accepted = await asyncio.gather(*(client.enqueue(NewTask("q", f"t{n}")) for n in range(50)))
    assert [outcome.task_id for outcome in accepted] == [f"t{n}" for n in range(50)]


async def test_a_worker_goes_on_at_the_next_leader(servers: Three) -> None:
    """The leader goes silent while a task runs: its lease is extended, and its success reported, at the next one."""
    a, b, _ = servers
    finish = threading.Event()
    claim = pb.Claim(
        task_id="id-1", token=1, lease_ms=3_000, attempt=1, task=pb.TaskSpec(queue="q", type="work", payload=b"[]")
    )
    a.on("Reserve", pb.ReserveResponse(claims=[claim]), Hang())
    a.on("Extend", Hang())
    a.on("Ack", Hang())
    b.on("Reserve", Hang())
    b.on("FindLeader", leader_is(b, 2))

    def extend(request: pb.ExtendRequest) -> pb.ExtendResponse:
        finish.set()
        return EXTENDED

    def ack(request: pb.AckRequest) -> pb.AckResponse:
        worker.stop()
        return pb.AckResponse(outcomes=[pb.AckOutcome(acked=pb.Acked())])

    b.on("Extend", extend)
    b.on("Ack", ack)
    app = Holdfast(addresses(a, b))

    @app.task(queue="q", lease=3)
    def work() -> None:
        finish.wait(30)

    worker = Worker(app, concurrency=1, grace=5)
    report = await worker.serve()
    assert (report.succeeded, report.lost) == (1, 0)
