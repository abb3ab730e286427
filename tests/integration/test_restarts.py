"""What a killed and restarted server still knows: one server, killed by every test."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from holdfast.client import AsyncClient, NewTask, StaleToken, TaskError, TaskState, WorkerAtLimit
from tests.integration.server import ServerProcess

LONG_LEASE_MS = 600_000
# Shard time is counted in whole milliseconds, so something may seem to happen a little before its time.
ROUNDING_S = 0.005
LATE_S = 10.0  # on a machine that stalls for seconds
CLAIMS_PER_WORKER_MAX = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("restarts")
    with ServerProcess(directory, claims_per_worker_max=CLAIMS_PER_WORKER_MAX) as server:
        yield server.start()


async def kill_and_restart(server: ServerProcess) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


async def test_settlements_and_claims_are_remembered(server: ServerProcess, queue: str) -> None:
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([NewTask(queue, str(n), b"body") for n in range(5)])
        first = await client.reserve([queue], max_tasks=5, lease_ms=LONG_LEASE_MS, claim_request_id=queue)
        to_ack, to_ack_plainly, to_fail, to_release, kept = first
        follow_ups = [NewTask(f"{queue}.next", "n"), NewTask(f"{queue}.next", "n", request_id="once")]
        acked = await client.ack(to_ack, result=b"42", follow_ups=follow_ups)
        await client.ack(to_ack_plainly)
        failed = await client.fail(to_fail, TaskError("E", "m"), retry_delay_ms=3_600_000)
        released = await client.release(to_release)
    await kill_and_restart(server)
    [recovered] = server.events("recovered")
    assert recovered["entries_to_apply"] > 0
    assert recovered["clean"] is False
    async with AsyncClient(server.address) as client:
        assert await client.ack(to_ack, result=b"42", follow_ups=follow_ups) == acked
        await client.ack(to_ack_plainly)
        assert await client.fail(to_fail) == failed
        assert await client.release(to_release) == released
        with pytest.raises(StaleToken):
            await client.fail(to_ack)
        assert (await client.queue_stats(f"{queue}.next")).enqueued_total == 2
        assert (await client.get_task(to_ack.task_id)).result == b"42"

        # The claim that was not settled still holds, under the same token, for its caller and nobody else.
        [again] = await client.reserve([queue], max_tasks=5, lease_ms=LONG_LEASE_MS, claim_request_id=queue)
        assert (again.task_id, again.token, again.payload) == (kept.task_id, kept.token, b"body")
        others = await client.reserve([queue], max_tasks=5, lease_ms=LONG_LEASE_MS)
        assert [claim.task_id for claim in others] == [to_release.task_id]
        assert others[0].token > max(claim.token for claim in first), "tokens grow across a restart"
        await client.ack_many([kept, *others])


async def test_a_request_id_makes_one_task(server: ServerProcess, queue: str) -> None:
    def batch() -> list[NewTask]:
        return [NewTask(queue, "t", request_id=f"r{n % 3}") for n in range(6)] + [NewTask(f"{queue}.2", "t")]

    async with AsyncClient(server.address) as client:
        before = [
            outcome.task_id for outcome in await client.enqueue_many(batch()) if not isinstance(outcome, Exception)
        ]
        assert before[:3] == before[3:6], "also within one batch"
        [claim] = await client.reserve([queue])
        await client.ack(claim)
    await kill_and_restart(server)
    async with AsyncClient(server.address) as client:
        after = [outcome for outcome in await client.enqueue_many(batch()) if not isinstance(outcome, Exception)]
        assert [accepted.task_id for accepted in after[:6]] == before[:6], "also that of a finished task"
        assert [accepted.duplicate for accepted in after] == [True] * 6 + [False]
        other = await client.enqueue(NewTask(f"{queue}.2", "t", request_id="r0"))
        assert not other.duplicate, "a request id counts within its queue"
        stats = await client.queue_stats(queue)
        assert (stats.enqueued_total, stats.ready, stats.succeeded_total) == (3, 2, 1)


async def test_delays_go_on_while_the_server_is_down(server: ServerProcess, queue: str) -> None:
    """What was due meanwhile fires after the start; what is not yet due is not early."""
    sent_s, sent_wall_ms = time.monotonic(), time.time_ns() // 1_000_000
    later_ms = 3000
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([
            NewTask(queue, "due", delay_ms=50),
            NewTask(queue, "due", run_at_ms=sent_wall_ms + 50),
            NewTask(queue, "later", delay_ms=later_ms),
            NewTask(queue, "later", run_at_ms=sent_wall_ms + later_ms),
            NewTask(queue, "later", priority=9),
        ])  # fmt: skip
        [to_fail] = await client.reserve([queue])
        await client.fail(to_fail, retry_delay_ms=later_ms)
    await kill_and_restart(server)
    started_s = time.monotonic()
    seen: list[str] = []
    seen_s: list[float] = []
    async with AsyncClient(server.address) as client, asyncio.timeout(30):
        while len(seen) < 5:
            [claim] = await client.reserve([queue], wait_ms=20_000, lease_ms=LONG_LEASE_MS)
            seen.append(claim.type)
            seen_s.append(time.monotonic())
            if claim.type == "later":
                assert time.monotonic() - sent_s >= later_ms / 1000 - ROUNDING_S
    assert sorted(seen) == ["due", "due", "later", "later", "later"]
    if seen_s[1] < sent_s + later_ms / 1000:  # otherwise all were due by then, and the urgent one comes first
        assert seen == sorted(seen)
    assert time.monotonic() < max(started_s, sent_s + later_ms / 1000) + LATE_S


async def test_leases_go_on_and_end(server: ServerProcess, queue: str) -> None:
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([NewTask(queue, str(n)) for n in range(2)])
        [long] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
        [short] = await client.reserve([queue], lease_ms=1000)
    await kill_and_restart(server)
    async with AsyncClient(server.address) as client:
        [claim] = await client.reserve([queue], max_tasks=5, wait_ms=20_000)
        assert (claim.task_id, claim.alone) == (short.task_id, True)
        with pytest.raises(StaleToken):
            await client.ack(short)
        await client.ack_many([claim, long])
        assert (await client.queue_stats(queue)).succeeded_total == 2


async def test_dead_letters_and_budgets_are_kept(server: ServerProcess, queue: str) -> None:
    async with AsyncClient(server.address) as client:
        accepted = await client.enqueue(NewTask(queue, "t", b"body", max_attempts=2))
        [claim] = await client.reserve([queue])
        await client.fail(claim, retry_delay_ms=0)
        dead = await client.enqueue(NewTask(f"{queue}.dead", "t", b"dead body"))
        [claim] = await client.reserve([f"{queue}.dead"])
        await client.fail(claim, TaskError("E", "m", "trace"), dead=True)
    await kill_and_restart(server)
    async with AsyncClient(server.address) as client:
        [claim] = await client.reserve([queue], wait_ms=20_000)
        assert (claim.task_id, claim.attempt) == (accepted.task_id, 2)
        assert (await client.fail(claim)).state is TaskState.DEAD
        letter = await client.get_dead_letter(dead.task_id)
        assert letter.task is not None
        assert (letter.task.payload, letter.last_error) == (b"dead body", TaskError("E", "m", "trace"))


async def test_a_worker_at_its_limit_stays_there(server: ServerProcess, queue: str) -> None:
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([NewTask(queue, "t") for _ in range(CLAIMS_PER_WORKER_MAX + 5)])
        held = await client.reserve([queue], max_tasks=100, worker=queue, lease_ms=LONG_LEASE_MS)
        assert len(held) == CLAIMS_PER_WORKER_MAX
    await kill_and_restart(server)
    async with AsyncClient(server.address, retry=False) as client:
        with pytest.raises(WorkerAtLimit):
            await client.reserve([queue], worker=queue, lease_ms=LONG_LEASE_MS)
        await client.ack_many(held[:3])
        assert len(await client.reserve([queue], max_tasks=100, worker=queue, lease_ms=LONG_LEASE_MS)) == 3
