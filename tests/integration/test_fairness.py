"""Who is served first: tenants take weighted turns, priorities are strict but for the share of the oldest, and a queue
can be emptied while it is filled."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.client import AsyncClient, ClaimedTask, NewTask, QueuePolicy, TaskState, TaskUpdate, TenantPolicy
from tests.integration.conftest import MakeServer
from tests.integration.waiters import wait_for_waiters

LONG_LEASE_MS = 600_000
HOUR_MS = 3_600_000
BATCH = 1000
WEIGHTS = {"burst": 1, "heavy": 3, "double": 2, "plain": 1, "": 1}  # what is not listed, and no tenant, weigh 1
STRICT = QueuePolicy(oldest_share_percent=0)


async def fill(client: AsyncClient, tasks: Sequence[NewTask]) -> list[str]:
    """The ids of the tasks."""
    ids: list[str] = []
    for first in range(0, len(tasks), BATCH):
        ids += [accepted.task_id for accepted in await client.enqueue_many(tasks[first : first + BATCH])]  # type: ignore[union-attr]
    return ids


async def claim(client: AsyncClient, queue: str, number: int, batch: int = 100) -> list[ClaimedTask]:
    claims: list[ClaimedTask] = []
    while len(claims) < number:
        wanted = min(batch, number - len(claims))
        more = await client.reserve([queue], max_tasks=wanted, lease_ms=LONG_LEASE_MS)
        assert len(more) == wanted, "there are enough for all"
        claims += more
    return claims


def assert_shares(claims: Sequence[ClaimedTask], weights: dict[str, int]) -> None:
    """Of each tenant its share, within 5 %."""
    taken = Counter(one.tenant for one in claims)
    assert set(taken) == set(weights)
    for tenant, weight in weights.items():
        share = len(claims) * weight / sum(weights.values())
        assert taken[tenant] == pytest.approx(share, rel=0.05), (tenant, taken)


# --- tenants --------------------------------------------------------------------------------------------------------


async def test_a_burst_of_one_tenant_leaves_the_others_their_share(make_server: MakeServer) -> None:
    """Also at a server that has just been started, and knows the tenants from its files only."""
    queue = "shared"
    server = make_server().start()
    async with AsyncClient(server.address) as client:
        tenants = [TenantPolicy("heavy", weight=3), TenantPolicy("double", weight=2)]
        await client.set_queue(queue, policy=QueuePolicy(oldest_share_percent=0, tenants=tenants))
        await fill(client, [NewTask(queue, "t", tenant="burst") for _ in range(5 * BATCH)])
        others = [tenant for tenant in WEIGHTS if tenant != "burst"]
        for tenant in others:
            await fill(client, [NewTask(queue, "t", tenant=tenant) for _ in range(300 * WEIGHTS[tenant])])
        assert_shares(await claim(client, queue, 1000), WEIGHTS)
        assert_shares(await claim(client, queue, 160, batch=7), WEIGHTS)
    server.kill()
    server.start()
    async with AsyncClient(server.address) as client:
        assert_shares(await claim(client, queue, 800), WEIGHTS)
        # Weights that change count for what is waiting already.
        now = [TenantPolicy("heavy", weight=1), TenantPolicy("plain", weight=4)]
        await client.set_queue(queue, policy=QueuePolicy(tenants=now), clear=["tenants"])
        changed = {"burst": 1, "heavy": 1, "double": 1, "plain": 4, "": 1}
        assert_shares(await claim(client, queue, 80), changed)


async def test_who_has_nothing_leaves_his_share_to_the_others(client: AsyncClient, queue: str) -> None:
    await client.set_queue(queue, policy=QueuePolicy(oldest_share_percent=0, tenants=[TenantPolicy("a", weight=50)]))
    tasks = [NewTask(queue, "t", tenant="a") for _ in range(60)] + [NewTask(queue, "t", tenant="b") for _ in range(100)]
    await fill(client, tasks)
    taken = Counter(one.tenant for one in await claim(client, queue, 51))
    assert taken == {"a": 50, "b": 1}
    assert len(await claim(client, queue, 109)) == 109
    # Turns are not saved up: who comes back has his next turn, and no more.
    await fill(client, [NewTask(queue, "t", tenant=tenant) for tenant in ("a", "b") for _ in range(100)])
    assert Counter(one.tenant for one in await claim(client, queue, 102)) == {"a": 100, "b": 2}


async def test_a_thousand_tenants_have_one_turn_each(client: AsyncClient, queue: str) -> None:
    await client.set_queue(queue, policy=STRICT)
    await fill(client, [NewTask(queue, "t", tenant=f"t{n}") for n in range(1000) for _ in range(2)])
    for _ in range(2):
        round_of = Counter(one.tenant for one in await claim(client, queue, 1000))
        assert (len(round_of), max(round_of.values())) == (1000, 1)


# --- priorities -----------------------------------------------------------------------------------------------------


async def test_priorities_are_strict_without_a_share_of_the_oldest(client: AsyncClient, queue: str) -> None:
    """Of all tenants together: turns are taken among tasks of the same priority only."""
    await client.set_queue(queue, policy=replace(STRICT, tenants=[TenantPolicy("low", weight=100)]))
    tasks = [NewTask(queue, "t", tenant="low", priority=n % 3) for n in range(90)]
    tasks += [NewTask(queue, "t", priority=9 - n % 3, limit_key=f"k{n % 5}") for n in range(90)]
    await fill(client, tasks)
    got = [one.priority for one in await claim(client, queue, 180, batch=11)]
    assert got == sorted(got, key=lambda priority: -(priority or 0))


async def test_every_tenth_claim_is_of_the_oldest(client: AsyncClient, queue: str) -> None:
    """As it is by default: what is least urgent comes too, however much is before it."""
    await fill(client, [NewTask(queue, "t", priority=0, tenant="patient") for _ in range(10)])
    await fill(client, [NewTask(queue, "t", priority=9, tenant="urgent") for _ in range(200)])
    claims = await claim(client, queue, 100, batch=9)
    low = [index for index, one in enumerate(claims) if one.priority == 0]
    assert len(low) == 10
    assert max(later - former for former, later in zip([-1, *low], low, strict=False)) <= 10


async def test_a_waiting_task_gets_another_priority(client: AsyncClient, queue: str) -> None:
    await client.set_queue(queue, policy=STRICT)
    tasks = [NewTask(queue, str(n), tenant=f"t{n % 2}", priority=5) for n in range(10)]
    tasks += [NewTask(queue, "later", priority=0, delay_ms=HOUR_MS)]
    ids = await fill(client, tasks)
    await client.update_tasks(
        [TaskUpdate(ids[7], priority=9), TaskUpdate(ids[0], priority=1), TaskUpdate(ids[10], priority=8, delay_ms=0)]
    )
    order = [one.task_id for one in await claim(client, queue, 11, batch=1)]
    assert order[:2] == [ids[7], ids[10]]
    assert order[-1] == ids[0]
    assert len(set(order)) == 11


async def test_a_task_whose_priority_is_raised_goes_to_who_waits(client: AsyncClient, queue: str) -> None:
    """One that is blocked by nothing but its time."""
    [task_id] = await fill(client, [NewTask(queue, "t", delay_ms=HOUR_MS)])
    waiting = asyncio.create_task(client.reserve([queue], wait_ms=60_000))
    await wait_for_waiters(client, queue, 1)
    await client.update_task(task_id, priority=9, delay_ms=0)
    [one] = await waiting
    assert one.task_id == task_id
    assert (await client.get_task(task_id)).priority == 9


# --- a purge --------------------------------------------------------------------------------------------------------


async def test_a_purge_ends_while_tasks_are_coming(client: AsyncClient, queue: str) -> None:
    """All that was there is gone, and what came since is there."""
    kinds: list[dict[str, object]] = [{}, {"tenant": "a"}, {"limit_key": "k", "priority": 9}, {"delay_ms": HOUR_MS}]
    there = await fill(client, [NewTask(queue, "t", **kinds[n % 4]) for n in range(2400)])  # type: ignore[arg-type]
    claims = await claim(client, queue, 10)
    came: list[str] = []
    filled, purged = asyncio.Event(), asyncio.Event()

    async def keep_filling() -> None:
        while not purged.is_set():
            came.extend(await fill(client, [NewTask(queue, "t", **kinds[n % 4]) for n in range(20)]))  # type: ignore[arg-type]
            filled.set()

    filling = asyncio.create_task(keep_filling())
    await filled.wait()
    number = await client.purge_queue(queue)
    purged.set()
    await filling
    stats = await client.queue_stats(queue)
    assert (stats.cancelled_total, stats.claimed) == (number, 10)
    assert stats.ready + stats.delayed == len(there) + len(came) - 10 - number
    assert number >= len(there) - 10
    assert stats.ready + stats.delayed > 0, "some came while it was purged"
    held = {one.task_id for one in claims}
    for task_id in there[::97]:
        state = (await client.get_task(task_id)).state
        assert state is (TaskState.CLAIMED if task_id in held else TaskState.CANCELLED)
    assert await client.purge_queue(queue) == stats.ready + stats.delayed
    assert await client.reserve([queue]) == []
