"""What happens while a write is on its way to the disk, made visible by a disk that takes its time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import (
    AsyncClient,
    Claims,
    HoldfastError,
    NewTask,
    Overloaded,
    WorkerAtLimit,
)
from tests.integration.faults import Faults
from tests.integration.server import ServerProcess

LONG_LEASE_MS = 600_000
HELD_UP_S = 60.0  # each test ends the delay itself
PROPOSALS_MAX = 4
WAITERS_MAX = 3
CLAIMS_PER_WORKER_MAX = 3
FRAME_CALLS = "holdfast_frame_calls"
CONNECT_S = 20.0


@pytest.fixture(scope="module")
def disk(faults_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    faults = Faults(faults_library, tmp_path_factory.mktemp("slow-faults"))
    yield faults
    faults.close()


@pytest.fixture(scope="module")
def server(disk: Faults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with small limits."""
    directory = tmp_path_factory.mktemp("slow")
    limits: dict[str, Any] = {"proposals_max": PROPOSALS_MAX, "waiters_max": WAITERS_MAX}
    with ServerProcess(directory, env=disk.env, claims_per_worker_max=CLAIMS_PER_WORKER_MAX, **limits) as server:
        yield server.start()


@pytest.fixture
async def client(server: ServerProcess, disk: Faults) -> AsyncIterator[AsyncClient]:
    """Does not repeat calls, so that refusals are seen. All of them go in frames: what the server hears of one
    connection comes in its order, also that a caller has left."""
    async with AsyncClient(server.address, retry=False, timeout_s=30) as client:
        before = server.metric(FRAME_CALLS)
        async with asyncio.timeout(CONNECT_S):
            while server.metric(FRAME_CALLS) == before:
                await client.queue_stats_many(["nothing"])
        yield client
    disk.slow_disk(0)


async def hold_up(disk: Faults, client: AsyncClient, queue: str) -> "asyncio.Task[object]":
    """Begins a write and returns once its sync is under way; everything that follows waits behind it."""
    disk.slow_disk(HELD_UP_S)
    write: asyncio.Task[object] = asyncio.create_task(client.enqueue(NewTask(f"{queue}.plug", "plug")))
    await asyncio.to_thread(disk.wait_for_slow_sync)
    return write


async def leave(server: ServerProcess, client: AsyncClient, disk: Faults, leaving: "asyncio.Task[Claims]") -> None:
    """Once its claim is on its way to the disk; then another caller gets what it leaves."""
    await asyncio.to_thread(disk.wait_for_slow_sync)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await arrived(server, client, [])


async def arrived(server: ServerProcess, client: AsyncClient, calls: list["asyncio.Task[Claims]"]) -> None:
    """Returns once the server has begun to work on these calls: a call sent after them was answered."""
    await asyncio.sleep(0)
    for _ in range(3):
        await client.queue_stats_many(["nothing"])
    assert not any(call.done() for call in calls)
    assert server.exit_code is None


async def test_nothing_is_acknowledged_before_it_is_synced(
    disk: Faults, server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    write = await hold_up(disk, client, queue)
    # Reads go on meanwhile, and do not see what is not durable.
    [outcome] = await client.queue_stats_many([f"{queue}.plug"])
    assert isinstance(outcome, HoldfastError)
    assert not write.done()
    disk.slow_disk(0)
    await write
    assert (await client.queue_stats(f"{queue}.plug")).ready == 1


async def test_a_slow_disk_is_not_waited_for_in_line(
    disk: Faults, server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    disk.slow_disk(0.01)
    in_line, syncs = server.metric("holdfast_fsyncs_in_line_total"), server.metric("holdfast_fsync_seconds_count")
    for _ in range(20):
        await client.enqueue(NewTask(queue, "t"))
    assert server.metric("holdfast_fsync_seconds_count") >= syncs + 20
    assert server.metric("holdfast_fsyncs_in_line_total") <= in_line + 3, "the first, if the disk was fast until now"


async def test_a_caller_that_leaves_while_its_claim_is_written_gives_it_back(
    disk: Faults, server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    disk.slow_disk(HELD_UP_S)
    leaving = asyncio.create_task(client.reserve([queue], lease_ms=LONG_LEASE_MS))
    await leave(server, client, disk, leaving)
    staying = asyncio.create_task(client.reserve([queue], lease_ms=LONG_LEASE_MS, wait_ms=20_000))
    disk.slow_disk(0)
    [claim] = await staying
    assert claim.task_id == accepted.task_id
    assert claim.claims == 1, "a claim that reached nobody is not counted"
    await client.ack(claim)


async def test_a_waiting_caller_that_leaves_while_its_claim_is_written_gives_it_back(
    disk: Faults, server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    leaving = asyncio.create_task(client.reserve([queue], lease_ms=LONG_LEASE_MS, wait_ms=60_000))
    await arrived(server, client, [leaving])
    disk.slow_disk(HELD_UP_S, after=1)  # the enqueue passes, and then its claim is held up
    accepted = await client.enqueue(NewTask(queue, "t"))
    await leave(server, client, disk, leaving)
    staying = asyncio.create_task(client.reserve([queue], lease_ms=LONG_LEASE_MS, wait_ms=20_000))
    disk.slow_disk(0)
    [claim] = await staying
    assert claim.task_id == accepted.task_id


async def test_tasks_picked_for_a_repeated_claim_request_wake_others_who_wait(
    disk: Faults, server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    """The second call with one claim_request_id picks a task before it turns out that it is a repetition."""
    await client.enqueue_many([NewTask(queue, "t") for _ in range(2)])
    write = await hold_up(disk, client, queue)
    repeated = [
        asyncio.create_task(client.reserve([queue], lease_ms=LONG_LEASE_MS, claim_request_id=queue)) for _ in range(2)
    ]
    await arrived(server, client, repeated)
    waiting = asyncio.create_task(client.reserve([queue], lease_ms=LONG_LEASE_MS, wait_ms=20_000))
    await arrived(server, client, [waiting])
    disk.slow_disk(0)
    [first], [again] = await asyncio.gather(*repeated)
    assert (first.task_id, first.token) == (again.task_id, again.token)
    async with asyncio.timeout(15):
        [other] = await waiting
    assert other.task_id != first.task_id
    await write


# --- limits -------------------------------------------------------------------------------------------------------


async def test_too_many_writes_are_refused_with_a_time_to_come_back(
    disk: Faults, server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    write = await hold_up(disk, client, queue)
    let_in = PROPOSALS_MAX - 1  # what is held up takes room as well
    # With a deadline of its own each is a request of its own.
    tasks = [NewTask(queue, "t", request_id=str(n)) for n in range(40)]
    calls = [asyncio.create_task(client.enqueue(task, timeout_s=60)) for task in tasks]
    refused: list[Overloaded] = []

    def note(call: "asyncio.Task[object]") -> None:
        if not call.cancelled() and isinstance(error := call.exception(), Overloaded):
            refused.append(error)

    for call in calls:
        call.add_done_callback(note)
    async with asyncio.timeout(30):
        while len(refused) < 40 - let_in:
            await asyncio.sleep(0.01)
    assert all(error.reason == "OVERLOADED" and error.retry_after_ms > 0 for error in refused)

    # A client that may repeat gets through once there is room.
    async with AsyncClient(server.address) as patient:
        late = asyncio.create_task(patient.enqueue(NewTask(queue, "late")))
        await arrived(server, client, [])
        disk.slow_disk(0)
        await asyncio.gather(write, late)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    accepted = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert len(accepted) == let_in
    assert (await client.queue_stats(queue)).ready == let_in + 1, "what was refused was not done"


async def test_too_many_waiting_reserves_are_refused(client: AsyncClient, server: ServerProcess, queue: str) -> None:
    waiting = [asyncio.create_task(client.reserve([queue], wait_ms=60_000)) for _ in range(WAITERS_MAX)]
    await arrived(server, client, waiting)
    with pytest.raises(Overloaded) as refused:
        await client.reserve([queue], wait_ms=60_000)
    assert refused.value.retry_after_ms > 0
    assert await client.reserve([queue]) == [], "who does not wait takes no place"
    # Every task that arrives makes room for another.
    accepted = await client.enqueue(NewTask(queue, "t"))
    done, still_waiting = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert [claim.task_id for call in done for claim in call.result()] == [accepted.task_id]
    assert await client.reserve([queue], wait_ms=1) == []
    for call in still_waiting:
        call.cancel()
    await asyncio.gather(*still_waiting, return_exceptions=True)


async def test_a_worker_holds_only_so_many_claims(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(10)])
    held = await client.reserve([queue], max_tasks=10, worker=queue, lease_ms=LONG_LEASE_MS)
    assert len(held) == CLAIMS_PER_WORKER_MAX
    with pytest.raises(WorkerAtLimit) as refused:
        await client.reserve([queue], worker=queue, lease_ms=LONG_LEASE_MS)
    assert refused.value.reason == "WORKER_AT_LIMIT"
    assert refused.value.retry_after_ms > 0
    others = await client.reserve([queue], max_tasks=1, worker=f"{queue}-other", lease_ms=LONG_LEASE_MS)
    assert len(others) == 1
    await client.ack(held[0])
    more = await client.reserve([queue], max_tasks=10, worker=queue, lease_ms=LONG_LEASE_MS)
    assert len(more) == 1


async def test_a_worker_that_asks_several_times_at_once_holds_only_so_many_claims(
    client: AsyncClient, queue: str
) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(10)])
    answers = await asyncio.gather(
        *(client.reserve([queue], max_tasks=3, worker=queue, lease_ms=LONG_LEASE_MS) for _ in range(3)),
        return_exceptions=True,
    )
    held = sum(len(answer) for answer in answers if isinstance(answer, list))
    assert held == CLAIMS_PER_WORKER_MAX
