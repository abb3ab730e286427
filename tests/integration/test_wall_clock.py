"""A wall clock that jumps by a day while the server runs: nothing fires, expires or is purged that should not be."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from holdfast.client import AsyncClient, ClaimedTask, NewTask, NotFound, TaskState
from tests.integration.conftest import MakeServer
from tests.integration.faults import Faults
from tests.integration.server import ServerProcess, wait_until

DAY_S = 24 * 3600.0
HOUR_MS = 3_600_000
# Shard time is counted in whole milliseconds, so something may seem to happen a little before its time.
ROUNDING_S = 0.005
LATE_S = 10.0  # on a machine that stalls for seconds; a wrong clock makes it hours
DEAD_RETENTION_S = 1.0


@dataclass
class Scene:
    """Tasks that a wrong clock could harm."""

    delayed_id: str
    run_at_id: str
    retrying_id: str
    finished_id: str
    held: ClaimedTask  # for an hour


async def prepare(client: AsyncClient) -> Scene:
    in_an_hour_ms = time.time_ns() // 1_000_000 + HOUR_MS
    delayed = await client.enqueue(NewTask("delayed", "t", delay_ms=HOUR_MS))
    run_at = await client.enqueue(NewTask("delayed", "t", run_at_ms=in_an_hour_ms))
    ids = {}
    for name in ("retrying", "finished", "held"):
        await client.enqueue(NewTask(name, "t", request_id="once"))
        [claim] = await client.reserve([name], lease_ms=HOUR_MS)
        ids[name] = claim
    await client.fail(ids["retrying"], retry_delay_ms=HOUR_MS)
    await client.ack(ids["finished"], result=b"42")
    return Scene(
        delayed.task_id, run_at.task_id, ids["retrying"].task_id, ids["finished"].task_id, ids["held"]
    )  # fmt: skip


async def check_unharmed(client: AsyncClient, scene: Scene) -> None:
    for task_id, state in (
        (scene.delayed_id, TaskState.DELAYED),
        (scene.run_at_id, TaskState.DELAYED),
        (scene.retrying_id, TaskState.RETRY_PENDING),
        (scene.finished_id, TaskState.SUCCEEDED),
        (scene.held.task_id, TaskState.CLAIMED),
    ):
        assert (await client.get_task(task_id)).state is state
    assert await client.reserve(["delayed", "retrying", "held"]) == []
    assert (await client.get_task(scene.finished_id)).result == b"42"
    again = await client.enqueue(NewTask("finished", "t", request_id="once"))
    assert again.duplicate, "a request id was forgotten"


async def check_on_time(client: AsyncClient, queue: str) -> None:
    """What is put off for a second still takes a second."""
    sent_s = time.monotonic()
    run_at_ms = time.time_ns() // 1_000_000 + 1000
    await client.enqueue_many([NewTask(queue, "t", delay_ms=1000), NewTask(queue, "t", run_at_ms=run_at_ms)])
    for _ in range(2):
        [claim] = await client.reserve([queue], wait_ms=20_000, lease_ms=HOUR_MS)
        assert 1 - ROUNDING_S <= time.monotonic() - sent_s < 1 + LATE_S
        await client.ack(claim)


async def check_lease_on_time(client: AsyncClient, queue: str, jump: Callable[[], None]) -> None:
    """A lease of a second that is under way while the clock jumps still takes a second."""
    await client.enqueue(NewTask(queue, "t"))
    sent_s = time.monotonic()
    await client.reserve([queue], lease_ms=1000)
    jump()
    [claim] = await client.reserve([queue], wait_ms=20_000)
    assert 1 - ROUNDING_S <= time.monotonic() - sent_s < 1 + LATE_S
    await client.ack(claim)


async def check_purge_on_time(server: ServerProcess, client: AsyncClient, queue: str) -> None:
    """A dead letter goes when its second has passed; whatever else seems to be due would go with it."""
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue])
    sent_s = time.monotonic()
    await client.fail(claim, dead=True)
    purged = "holdfast_tasks_purged_total"
    await asyncio.to_thread(wait_until, lambda: server.metric(purged), "the dead letter to be purged")
    assert DEAD_RETENTION_S - ROUNDING_S <= time.monotonic() - sent_s < DEAD_RETENTION_S + LATE_S
    with pytest.raises(NotFound):
        await client.get_task(accepted.task_id)
    assert server.metric(purged) == 1


async def check_restarted_ahead(server: ServerProcess, client: AsyncClient, scene: Scene) -> None:
    """A start believes the wall clock, but what it would delete waits: people may still notice that it is wrong."""
    [claim] = await client.reserve(["retrying"], wait_ms=20_000)
    assert claim.task_id == scene.retrying_id, "its hour has passed, as far as anyone here can know"
    assert (await client.get_task(scene.finished_id)).state is TaskState.SUCCEEDED
    assert (await client.enqueue(NewTask("finished", "t", request_id="once"))).duplicate
    assert server.metric("holdfast_tasks_purged_total") == 0


async def check_restarted_behind(client: AsyncClient, scene: Scene) -> None:
    """The time of the shard never goes back: what was enqueued before is not put off by a day."""
    before = await client.get_task(scene.finished_id)
    [soon] = await client.reserve(["soon"], wait_ms=20_000)
    sent_s = time.monotonic()
    await client.enqueue(NewTask("soon", "t", delay_ms=500))
    [claim] = await client.reserve(["soon"], wait_ms=20_000)
    # Shard time is drawn towards the wall clock, which makes it up to a tenth slower.
    assert 0.5 - ROUNDING_S <= time.monotonic() - sent_s < 0.6 + LATE_S
    assert claim.enqueued_at_ms > before.changed_at_ms
    await client.ack_many([soon, claim])
    await check_unharmed(client, scene)


@pytest.mark.parametrize("jump_s", [DAY_S + 3600, -DAY_S], ids=["forwards", "back"])
async def test_a_jump_of_a_day_harms_nothing(make_server: MakeServer, faults: Faults, jump_s: float) -> None:
    """A day and an hour is beyond every retention.

    The server sleeps until the first thing that it knows to be due. So each kind of thing is made due once while the
    clock is wrong: that wakes it, and it would take along whatever the wrong clock makes due.
    """
    server = make_server(env=faults.env, dead_retention_ms=int(DEAD_RETENTION_S * 1000))
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address) as client:
        scene = await prepare(client)
        await check_lease_on_time(client, "lease", lambda: faults.jump_wall_clock(jump_s))
        jumped = await asyncio.to_thread(server.wait_for_event, "wall_clock_jumped")
        assert abs(jumped["offset_ms"] / 1000 - jump_s) < 5
        await asyncio.gather(check_on_time(client, "short"), check_purge_on_time(server, client, "dead"))
        await check_unharmed(client, scene)

        # Back to where it was: that is a jump as well.
        await check_lease_on_time(client, "lease", lambda: faults.jump_wall_clock(0))
        await check_unharmed(client, scene)
        assert server.metric("holdfast_tasks_expired_total") == 2
        await client.extend(scene.held, HOUR_MS)
        await client.enqueue(NewTask("soon", "t", delay_ms=200))

    server.kill()
    faults.jump_wall_clock(jump_s)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address) as client:
        if jump_s > 0:
            await check_restarted_ahead(server, client, scene)
        else:
            await check_restarted_behind(client, scene)
