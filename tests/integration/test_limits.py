"""Caps on claims at the same time, rates of claims, and pauses: kept to the task, used in full, and by the next leader
as well. How many may be claimed is what the server says, and when it was claimed is in shard time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from holdfast.client import (
    AsyncClient,
    ClaimedTask,
    Client,
    InvalidArgument,
    NewTask,
    QueuePolicy,
    QueueSettings,
    RetryShape,
    TaskError,
    TenantPolicy,
)
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeServer
from tests.integration.server import DEADLINE_S
from tests.integration.waiters import wait_for_waiters
from tests.stalls import Stalled, stalls

LONG_LEASE_MS = 600_000
HOUR_MS = 3_600_000
WAIT_MS = 20_000
CAP = 3
NAMES = ("a", "b")  # of tenants and limit keys

# Tasks of one kind have a limit of their own; of the others the limit is the queue's.
Kinds = Mapping[str, Sequence[str]]
CAPS: dict[str, tuple[QueuePolicy, Kinds, int]] = {
    "queue": (QueuePolicy(concurrency_max=CAP), {}, 1),
    "tenant": (QueuePolicy(tenant_concurrency_max=CAP), {"tenant": NAMES}, 2),
    "key": (QueuePolicy(key_concurrency_max=CAP), {"limit_key": NAMES}, 2),
}


def tasks_of(queue: str, kinds: Kinds, number: int) -> list[NewTask]:
    """`number` tasks of each name, in turn; without names of one kind only."""
    given: list[dict[str, str]] = [{field: name} for field, names in kinds.items() for name in names] or [{}]
    return [NewTask(queue, "t", **item) for _ in range(number) for item in given]  # type: ignore[arg-type]


def count_by_name(claims: Sequence[ClaimedTask]) -> dict[str, int]:
    names = [claim.tenant or claim.limit_key for claim in claims]
    return {name: names.count(name) for name in names}


async def claim(
    client: AsyncClient, queue: str, *, wait_ms: int = 0, lease_ms: int = LONG_LEASE_MS
) -> list[ClaimedTask]:
    return await client.reserve([queue], max_tasks=100, wait_ms=wait_ms, lease_ms=lease_ms)


# --- caps ---------------------------------------------------------------------------------------------------------

End = Callable[[AsyncClient, ClaimedTask], Awaitable[object]]


async def cancel_and_release(client: AsyncClient, claimed: ClaimedTask) -> None:
    await client.cancel(claimed.task_id)
    await client.release(claimed)


ENDS: dict[str, End] = {
    "acked": lambda client, claimed: client.ack(claimed),
    "released": lambda client, claimed: client.release(claimed, delay_ms=HOUR_MS),
    "failed": lambda client, claimed: client.fail(claimed, TaskError("E"), retry_delay_ms=HOUR_MS),
    "dead": lambda client, claimed: client.fail(claimed, TaskError("E"), dead=True),
    "cancelled": cancel_and_release,
}


@pytest.mark.parametrize("scope", CAPS)
async def test_a_cap_is_used_in_full_and_never_passed(client: AsyncClient, queue: str, scope: str) -> None:
    policy, kinds, limits = CAPS[scope]
    await client.set_queue(queue, policy=policy)
    await client.enqueue_many(tasks_of(queue, kinds, 20))
    # Many at once, and each of them would take all there is.
    held = [one for claims in await asyncio.gather(*(claim(client, queue) for _ in range(8))) for one in claims]
    assert sorted(count_by_name(held).values()) == [CAP] * limits
    for end in ENDS.values():
        gone = held.pop(0)
        await end(client, gone)
        assert await claim(client, f"{queue}.other") == []
        [one] = await claim(client, queue)
        assert (one.tenant, one.limit_key) == (gone.tenant, gone.limit_key)
        held.append(one)
        assert await claim(client, queue) == []
        assert (await client.queue_stats(queue)).claimed == CAP * limits
    await client.ack_many(held)
    assert sorted(count_by_name(await claim(client, queue)).values()) == [CAP] * limits


async def test_a_slot_is_free_once_a_lease_has_run_out(client: AsyncClient, queue: str) -> None:
    await client.set_queue(
        queue, policy=QueuePolicy(concurrency_max=1, tenant_concurrency_max=1, key_concurrency_max=1)
    )
    await client.enqueue_many([NewTask(queue, "t", tenant="a", limit_key="k", max_claims=1) for _ in range(3)])
    [first] = await claim(client, queue, lease_ms=1000)
    [again] = await claim(client, queue, wait_ms=WAIT_MS, lease_ms=1000)
    assert (again.task_id, again.alone) == (first.task_id, True), "a suspect now, which has its limits like others"
    assert await claim(client, queue) == []
    [second] = await claim(client, queue, wait_ms=WAIT_MS)
    assert second.task_id != first.task_id, "it was claimed as often as it may"
    assert (await client.queue_stats(queue)).expired_total == 2
    assert await claim(client, queue) == []


@pytest.mark.parametrize("scope", CAPS)
async def test_a_slot_that_is_freed_goes_to_who_waits_for_it(client: AsyncClient, queue: str, scope: str) -> None:
    """Within the step that frees it: whoever comes next, even at once, comes too late."""
    policy, kinds, _ = CAPS[scope]
    await client.set_queue(queue, policy=policy)
    await client.enqueue_many(tasks_of(queue, kinds, 10))
    held = await claim(client, queue)
    assert await claim(client, queue) == []
    waiting: list[asyncio.Task[list[ClaimedTask]]] = []
    for number in range(2):
        waiting.append(asyncio.create_task(claim(client, queue, wait_ms=60_000)))
        await wait_for_waiters(client, queue, number + 1)
    for first in waiting:
        await client.ack(held.pop())
        assert await claim(client, queue) == []
        assert len(await first) == 1
    assert (await client.queue_stats(queue)).waiting_reserves == 0


async def test_a_cap_that_changes_counts_at_once(client: AsyncClient, queue: str) -> None:
    await client.set_queue(queue, policy=QueuePolicy(concurrency_max=4))
    await client.enqueue_many(tasks_of(queue, {}, 20))
    held = await claim(client, queue)
    await client.set_queue(queue, policy=QueuePolicy(concurrency_max=2))
    await client.ack_many([held.pop(), held.pop()])
    assert await claim(client, queue) == [], "as many as it may be now are claimed still"
    waiting = asyncio.create_task(claim(client, queue, wait_ms=60_000))
    await wait_for_waiters(client, queue, 1)
    await client.set_queue(queue, policy=QueuePolicy(concurrency_max=5))
    assert len(await waiting) == 3
    await client.set_queue(queue, clear=["concurrency_max"])
    assert len(await claim(client, queue)) == 13


async def test_who_waits_at_a_cap_is_not_in_the_way_of_others(client: AsyncClient, queue: str) -> None:
    """A tenant that has all it may is passed over, however much of it is before the others."""
    await client.set_queue(queue, policy=QueuePolicy(tenant_concurrency_max=1, key_concurrency_max=1))
    await client.enqueue_many([NewTask(queue, "t", tenant="big") for _ in range(1000)])
    assert len(await claim(client, queue)) == 1
    waiting = asyncio.create_task(claim(client, queue, wait_ms=60_000))
    await wait_for_waiters(client, queue, 1)
    await client.enqueue(NewTask(queue, "t", tenant="big", limit_key="k"))
    await client.enqueue(NewTask(queue, "t", tenant="small", priority=0))
    [one] = await waiting
    assert one.tenant == "small"
    await client.enqueue_many([NewTask(queue, "t", tenant=f"t{n}", limit_key=f"k{n % 2}") for n in range(4)])
    assert sorted(one.limit_key for one in await claim(client, queue)) == ["k0", "k1"]


async def test_tasks_of_a_key_that_may_run_once_run_in_order(client: AsyncClient, queue: str) -> None:
    await client.set_queue(queue, policy=QueuePolicy(key_concurrency_max=1))
    tasks = [NewTask(queue, str(n), tenant=f"t{n % 2}", limit_key=f"t{n % 2}") for n in range(40)]
    await client.enqueue_many(tasks)
    seen: list[int] = []
    while claims := await claim(client, queue):
        assert len(claims) == 2
        seen += [int(one.type) for one in claims]
        await client.ack_many(claims)
    assert [n for n in seen if n % 2] == list(range(1, 40, 2))
    assert [n for n in seen if not n % 2] == list(range(0, 40, 2))


# --- rates --------------------------------------------------------------------------------------------------------

PER_SECOND, BURST, SECONDS = 20, 100, 3  # an empty bucket is full after 5 s: stalls of the machine lose nothing
RATES = {
    "queue": (QueuePolicy(rate_per_second=PER_SECOND, rate_burst=BURST), {}),
    "tenant": (QueuePolicy(tenant_rate_per_second=PER_SECOND, tenant_rate_burst=BURST), {"tenant": "a"}),
    "key": (QueuePolicy(key_rate_per_second=PER_SECOND, key_rate_burst=BURST), {"limit_key": "a"}),
}
STEP_S = 0.1  # a claim is in the log a little after its tokens were taken


def assert_within_rate(times_ms: Sequence[int], per_second: float, burst: int, step_s: float = STEP_S) -> None:
    """In no window more than the burst and what came in meanwhile."""
    ordered = sorted(times_ms)
    for first, began_ms in enumerate(ordered):
        for last in range(first, len(ordered)):
            allowed = burst + per_second * ((ordered[last] - began_ms) / 1000 + step_s)
            assert last - first + 1 <= allowed, f"{last - first + 1} claims in {ordered[last] - began_ms} ms"


async def claimed_at_ms(client: AsyncClient, claims: Sequence[ClaimedTask]) -> list[int]:
    return [(await client.get_task(one.task_id)).changed_at_ms for one in claims]


async def claim_at_a_rate(client: AsyncClient, queue: str, scope: str, stalled: Stalled) -> None:
    policy, kind = RATES[scope]
    plenty = 3 * BURST + PER_SECOND * SECONDS
    await client.set_queue(queue, policy=policy)
    await client.enqueue_many([NewTask(queue, "t", **kind) for _ in range(plenty)])  # type: ignore[arg-type]
    claims = await claim(client, queue)
    assert len(claims) == BURST, "all that a full bucket has, at once"
    while len(claims) < BURST + PER_SECOND * SECONDS:
        more = await claim(client, queue, wait_ms=WAIT_MS)
        assert more, "there is always some to come"
        claims += more
    times_ms = await claimed_at_ms(client, claims)
    step_s = STEP_S + stalled.seconds
    assert_within_rate(times_ms, PER_SECOND, BURST, step_s)
    # Each took all there was, so none is missing but the part of one that had come in by the last.
    allowed = BURST + PER_SECOND * ((max(times_ms) - min(times_ms)) / 1000 - step_s)
    assert len(claims) > allowed - 1, f"{len(claims)} claims where {allowed:.0f} were allowed"


async def test_a_rate_is_used_and_never_passed(client: AsyncClient, queue: str) -> None:
    """All kinds of rates at the same time: most of it is waiting."""
    with stalls() as stalled:
        await asyncio.gather(*(claim_at_a_rate(client, f"{queue}.{scope}", scope, stalled) for scope in RATES))


async def test_a_claim_that_came_to_nothing_counts_for_a_rate_too(client: AsyncClient, queue: str) -> None:
    """A rate is one of claims, not of tasks: who claims the same one again and again does not get around it."""
    await client.set_queue(queue, policy=QueuePolicy(rate_per_second=0.01, rate_burst=3))
    await client.enqueue(NewTask(queue, "t"))
    for _ in range(3):
        [one] = await claim(client, queue)
        await client.release(one)
    assert await claim(client, queue) == []
    assert await claim(client, queue, wait_ms=100) == []


async def test_a_rate_that_was_changed_gives_no_more_after_a_restart(make_server: MakeServer) -> None:
    """A bucket has what came in under the rate of the time, whoever reads its level: not what the new rate would have
    given meanwhile, nor what made it full by the former one."""
    server = make_server().start()
    changes = {"raised": (0.01, 4.0), "lowered": (20.0, 0.01)}
    burst = 20
    async with AsyncClient(server.address) as client:
        for queue, (per_second, _) in changes.items():
            await client.set_queue(queue, policy=QueuePolicy(rate_per_second=per_second, rate_burst=burst))
            await client.enqueue_many(tasks_of(queue, {}, 3 * burst))
            claims = await claim(client, queue)
            assert len(claims) == burst
        [emptied_ms] = set(await claimed_at_ms(client, claims))
        await client.set_queue("lowered", policy=QueuePolicy(rate_per_second=changes["lowered"][1]))
        lowered = await client.enqueue(NewTask("clock", "t", delay_ms=2500))
        lowered_s = ((await client.get_task(lowered.task_id)).enqueued_at_ms - emptied_ms) / 1000
        [clock] = await claim(client, "clock", wait_ms=WAIT_MS)
        changed_ms = (await client.get_task(clock.task_id)).changed_at_ms
        await client.set_queue("raised", policy=QueuePolicy(rate_per_second=changes["raised"][1]))
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address) as client:
        more = {queue: await claim(client, queue) for queue in changes}
        times_ms = await claimed_at_ms(client, more["raised"])
        since_s = (max(times_ms, default=changed_ms) - changed_ms) / 1000
        # The lowered one was lowered soon, but not at once.
        allowed = {
            "raised": int(changes["raised"][1] * since_s) + 1, "lowered": int(changes["lowered"][0] * lowered_s) + 1
        }  # fmt: skip
        assert {queue: len(claims) for queue, claims in more.items() if len(claims) > allowed[queue]} == {}, allowed


# --- a pause ------------------------------------------------------------------------------------------------------


async def test_nothing_is_handed_out_of_a_queue_that_is_paused(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many(tasks_of(queue, {"tenant": ["", "a"]}, 1))
    [one, _] = await claim(client, queue)
    before = asyncio.create_task(claim(client, queue, wait_ms=60_000))
    await wait_for_waiters(client, queue, 1)
    await client.pause_queue(queue)
    later = asyncio.create_task(claim(client, queue, wait_ms=60_000))
    await wait_for_waiters(client, queue, 2)
    await client.enqueue_many(tasks_of(queue, {"tenant": ["", "a"]}, 2))
    await client.release(one)
    assert await claim(client, queue) == []
    assert await claim(client, queue, wait_ms=50) == []
    stats = await client.queue_stats(queue)
    assert (stats.paused, stats.ready, stats.claimed, stats.waiting_reserves) == (True, 5, 1, 2)
    await client.enqueue(NewTask(f"{queue}.other", "t"))
    assert len(await claim(client, f"{queue}.other")) == 1, "the others go on"
    await client.resume_queue(queue)
    assert len(await before) == 5
    assert not (await client.queue_stats(queue)).paused
    await client.enqueue(NewTask(queue, "t"))
    assert len(await later) == 1


# --- policies that make no sense ----------------------------------------------------------------------------------


def of_tenant(**given: object) -> QueuePolicy:
    return QueuePolicy(tenants=[TenantPolicy("fine", weight=2), TenantPolicy("acme", **given)])  # type: ignore[arg-type]


# Numbers that make no sense for any field of a policy are in test_bad_numbers.py.
BAD: list[tuple[QueuePolicy, str]] = [
    *((QueuePolicy(**{name: 1_000_001}), f"policy.{name}")  # type: ignore[arg-type]
      for name in ("concurrency_max", "tenant_concurrency_max", "key_concurrency_max")),
    *((QueuePolicy(**{name: value}), f"policy.{name}")  # type: ignore[arg-type]
      for name in ("rate_per_second", "tenant_rate_per_second", "key_rate_per_second") for value in (1e300, 1e-9)),
    *((QueuePolicy(**{name.replace("burst", "per_second"): 1, name: value}), f"policy.{name}")  # type: ignore[arg-type]
      for name in ("rate_burst", "tenant_rate_burst", "key_rate_burst") for value in (0, -1, 1_000_001)),
    (of_tenant(weight=101), "policy.tenants[1].weight"),
    (of_tenant(rate_burst=5), "policy.tenants[1].rate_burst"),
    (QueuePolicy(rate_burst=5), "policy.rate_burst"),
    (QueuePolicy(retry_shape=RetryShape.UNKNOWN), "policy.retry_shape"),
    (QueuePolicy(retry_shape="round"), "policy.retry_shape"),  # type: ignore[arg-type]
    (QueuePolicy(oldest_share_percent=101), "policy.oldest_share_percent"),
    (QueuePolicy(concurrency_max="many"), "policy.concurrency_max"),  # type: ignore[arg-type]
    (QueuePolicy(paused="no"), "policy.paused"),  # type: ignore[arg-type]
    (QueuePolicy(tenants=[TenantPolicy("", weight=2)]), "policy.tenants[0].tenant"),
    (QueuePolicy(tenants=[TenantPolicy("a", weight=1), TenantPolicy("a", weight=2)]), "policy.tenants[1].tenant"),
    (QueuePolicy(dead_alert_url="file:///etc/passwd"), "policy.dead_alert_url"),
]  # fmt: skip


async def test_a_policy_that_makes_no_sense_is_refused_and_changes_nothing(client: AsyncClient, queue: str) -> None:
    known = await client.set_queue(
        queue, policy=QueuePolicy(concurrency_max=7, tenants=[TenantPolicy("acme", weight=3)])
    )
    wrong: list[object] = []
    for policy, field in BAD:
        try:
            wrong.append((field, await client.set_queue(queue, policy=policy)))
        except InvalidArgument as refused:
            if refused.field != field:
                wrong.append((field, refused))
    assert wrong == []
    assert await client.queue_settings(queue) == known
    with pytest.raises(InvalidArgument) as unknown:
        await client.set_queue(queue, policy=QueuePolicy(concurrency_max=8), clear=["no_such_field"])
    assert unknown.value.field == "clear"
    assert await client.queue_settings(queue) == known


# --- the next leader, and the next start ----------------------------------------------------------------------------


@pytest.fixture
def blocking(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        yield client


# However slow the machine is, no bucket is full again within the test: then some of what comes in would be lost.
SLOW_PER_SECOND, SLOW_BURST = 0.5, 60
SLOW_TASKS = 150
SLOW: dict[str, tuple[QueuePolicy, Kinds]] = {
    "rate": (QueuePolicy(rate_per_second=SLOW_PER_SECOND, rate_burst=SLOW_BURST), {}),
    "tenant-rate": (
        QueuePolicy(tenant_rate_per_second=SLOW_PER_SECOND, tenant_rate_burst=SLOW_BURST), {"tenant": ["a"]}
    ),
    "key-rate": (QueuePolicy(key_rate_per_second=SLOW_PER_SECOND, key_rate_burst=SLOW_BURST), {"limit_key": ["a"]}),
}  # fmt: skip
PAUSED = QueuePolicy(paused=True, tenants=[TenantPolicy("acme", weight=3)])


@dataclass
class Scene:
    """Queues with limits that are all used up, by the scope of the limit."""

    queues: dict[str, str]
    settings: dict[str, QueueSettings]
    held: dict[str, list[ClaimedTask]]


def take(client: Client, queue: str, *, wait_ms: int = 0) -> list[ClaimedTask]:
    return client.reserve([queue], max_tasks=100, wait_ms=wait_ms, lease_ms=LONG_LEASE_MS, worker="w")


def prepare(client: Client, queue: str) -> Scene:
    queues: dict[str, str] = {}
    settings: dict[str, QueueSettings] = {}
    capped = {scope: (policy, kinds) for scope, (policy, kinds, _) in CAPS.items()}
    for scope, (policy, kinds) in {**capped, **SLOW, "paused": (PAUSED, {})}.items():
        queues[scope] = f"{queue}.{scope}"
        settings[scope] = client.set_queue(queues[scope], policy=policy)
        client.enqueue_many(tasks_of(queues[scope], kinds, SLOW_TASKS if scope in SLOW else 30))
    return Scene(queues, settings, {scope: take(client, name) for scope, name in queues.items()})


def check_limits(client: Client, scene: Scene) -> None:
    """As many are claimed as may be, and a slot that is freed is worth one claim."""
    assert {scope: client.queue_settings(queue) for scope, queue in scene.queues.items()} == scene.settings
    assert take(client, scene.queues["paused"]) == []
    for scope, (_, _, limits) in CAPS.items():
        queue, held = scene.queues[scope], scene.held[scope]
        assert take(client, queue) == []
        assert client.queue_stats(queue).claimed == CAP * limits == len(held)
        gone = held.pop(0)
        client.ack(gone)
        held += take(client, queue)
        assert sorted(count_by_name(held).values()) == [CAP] * limits
    for scope in SLOW:
        check_rate(client, scene.queues[scope], scene.held[scope])


def check_rate(client: Client, queue: str, claims: list[ClaimedTask]) -> None:
    """The bucket goes on from where it was: nothing is added by a new leader, and what has come in is not lost."""
    claims += take(client, queue) or take(client, queue, wait_ms=WAIT_MS)
    times_ms = [client.get_task(one.task_id).changed_at_ms for one in claims]
    assert_within_rate(times_ms, SLOW_PER_SECOND, SLOW_BURST)
    allowed = SLOW_BURST + SLOW_PER_SECOND * (max(times_ms) - min(times_ms)) / 1000
    assert len(times_ms) > allowed - 1, "whatever was there by the time of the last claim was taken"


def test_limits_hold_at_the_next_leader_and_after_a_restart_of_all(
    cluster: Cluster, blocking: Client, queue: str
) -> None:
    scene = prepare(blocking, queue)
    assert {scope: len(claims) for scope, claims in scene.held.items()} == {
        "queue": CAP, "tenant": 2 * CAP, "key": 2 * CAP, "rate": SLOW_BURST, "tenant-rate": SLOW_BURST,
        "key-rate": SLOW_BURST, "paused": 0,
    }  # fmt: skip
    cluster.kill(cluster.wait_for_leader())
    check_limits(blocking, scene)
    cluster.kill(*(name for name in cluster.names if cluster.nodes[name].is_up))
    cluster.start()
    check_limits(blocking, scene)
