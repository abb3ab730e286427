"""Batches over many shards, of tasks that are alike and tasks that are not: whatever becomes of some of them, each has
an answer of its own, and what was accepted is never hidden behind what was not.
"""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from holdfast.client import Accepted, AsyncClient, Client, Handle, Holdfast, NewTask, Rejected
from holdfast.routing.homes import home_shard
from holdfast.routing.task_ids import shard_of_task
from tests.integration.map_cluster import MapCluster, map_cluster, until
from tests.integration.map_load import claim_all, queues_of_all_shards
from tests.integration.server import DEADLINE_S

SHARDS = 4
TOO_LARGE = 300_000  # bytes
AWAY = ("CONNECTION_FAILED", "NOT_LEADER", "UNREACHABLE", "OUTCOME_UNKNOWN", "NO_LEADER", "DEADLINE_EXCEEDED")

cluster = map_cluster(size=2, shards=SHARDS, replication=1)  # who is away is away with its shards


@pytest.fixture
def away(cluster: MapCluster) -> Iterator[list[int]]:
    """The shards of a node that is gone meanwhile."""
    infos = cluster.info().shards
    gone = infos[0].replicas[0]
    cluster.nodes[gone].kill()
    yield [info.shard for info in infos if gone in info.replicas]
    cluster.nodes[gone].launch()
    cluster.nodes[gone].wait_serving()
    cluster.wait_settled()


def tasks_of(queues: Sequence[str], prefix: str) -> list[NewTask]:
    """Five for each queue and tenant, in turns, each with a request id of its own; two of them cannot be accepted."""
    tasks = [
        NewTask(queue, "t", b"%d" % turn, tenant=tenant, priority=turn % 2, request_id=f"{prefix}-{tenant}-{turn}")
        for turn in range(5)
        for tenant in ("a", "b")
        for queue in queues
    ]
    tasks[3] = NewTask(queues[3], "t", bytes(TOO_LARGE), tenant="a", priority=0, request_id=f"{prefix}-large")
    tasks[6] = NewTask(queues[2], "t", b"x", tenant="b", priority=0, request_id=f"{prefix}\n")
    return tasks


def refused_by_place(outcomes: Sequence[Accepted | Rejected]) -> dict[int, tuple[str, str]]:
    return {
        place: (outcome.reason, outcome.field)
        for place, outcome in enumerate(outcomes)
        if isinstance(outcome, Rejected)
    }


async def enqueued(address: str, tasks: list[NewTask], *, direct: bool) -> list[Accepted | Rejected]:
    async with AsyncClient(address, timeout_s=3, direct=direct) as client:
        return await client.enqueue_many(tasks)


@pytest.mark.parametrize("direct", [False, True])
def test_what_is_wrong_with_some_leaves_all_others_accepted(cluster: MapCluster, direct: bool) -> None:
    queues = queues_of_all_shards(f"wrong-{direct}-", SHARDS)
    tasks = tasks_of(queues, "order")
    outcomes = asyncio.run(enqueued(cluster.address, tasks, direct=direct))
    assert refused_by_place(outcomes) == {
        3: ("TOO_LARGE", "tasks[3].payload"),
        6: ("INVALID_FIELD", "tasks[6].request_id"),
    }
    ids = [outcome.task_id for outcome in outcomes if isinstance(outcome, Accepted)]
    assert len(set(ids)) == len(tasks) - 2
    for task, outcome in zip(tasks, outcomes, strict=True):
        if isinstance(outcome, Accepted):
            assert shard_of_task(outcome.task_id) == home_shard(task.queue, SHARDS)
    with Client(cluster.address, timeout_s=DEADLINE_S, direct=direct) as client:
        again = client.enqueue_many(tasks)
        assert [outcome.task_id for outcome in again if isinstance(outcome, Accepted)] == ids
        assert all(outcome.duplicate for outcome in again if isinstance(outcome, Accepted))
        claims = claim_all(client, queues, len(ids))
        by_id = {claim.task_id: (claim.queue, claim.tenant, claim.request_id, claim.payload) for claim in claims}
        assert by_id == {
            outcome.task_id: (task.queue, task.tenant, task.request_id, task.payload)
            for task, outcome in zip(tasks, outcomes, strict=True)
            if isinstance(outcome, Accepted)
        }
        assert not any(isinstance(outcome, Rejected) for outcome in client.ack_many(claims))


@pytest.mark.parametrize("direct", [False, True])
def test_shards_that_are_away_refuse_their_own_tasks_only(cluster: MapCluster, away: list[int], direct: bool) -> None:
    queues = queues_of_all_shards(f"away-{direct}-", SHARDS)
    tasks = tasks_of(queues, "order")
    outcomes = asyncio.run(enqueued(cluster.address, tasks, direct=direct))
    wrong = {3, 6}
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        if isinstance(outcome, Accepted):
            assert home_shard(task.queue, SHARDS) not in away
        else:
            assert place in wrong or home_shard(task.queue, SHARDS) in away, (place, outcome)
    assert 0 < sum(isinstance(outcome, Accepted) for outcome in outcomes) < len(tasks) - 2


def test_an_app_has_a_handle_or_a_refusal_for_each_call(cluster: MapCluster, away: list[int]) -> None:
    queues = queues_of_all_shards("app-", SHARDS)
    with Holdfast(cluster.address, timeout=3) as app:

        @app.task(tenant=lambda place, text: f"tenant-{place % 3}")
        def note(place: int, text: str) -> None: ...

        calls = [note.options(queue=queues[place % SHARDS]).call(place, "x") for place in range(40)]
        calls[5] = note.options(queue=queues[next(s for s in range(SHARDS) if s not in away)]).call(5, "y" * TOO_LARGE)
        outcomes = app.enqueue_many(calls)
    assert len(outcomes) == 40
    for place, outcome in enumerate(outcomes):
        if place == 5:
            assert isinstance(outcome, Rejected) and outcome.field == "tasks[5].payload"  # noqa: PT018 - one claim
        else:
            assert isinstance(outcome, Handle) == (place % SHARDS not in away), outcome
    assert sorted(outcomes.refused) == [place for place in range(40) if place == 5 or place % SHARDS in away]


def test_own_request_ids_of_a_spread_queue_go_to_its_home_and_all_else_anywhere(cluster: MapCluster) -> None:
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.set_queue("wide", spread=SHARDS)
        until(lambda: client.topology(["wide"]).routes[0].generation == 1, "the queue to be spread")
        own = [NewTask("wide", "t", b"%d" % n, request_id=f"order-{n}") for n in range(10)]
        keyed = [NewTask("wide", "t", b"k", limit_key="disk", tenant="a") for _ in range(10)]
        mixed = [task for pair in zip(own, keyed, [NewTask("wide", "t", b"p")] * 10, strict=True) for task in pair]
        shards = set()
        for _ in range(12):
            outcomes = client.enqueue_many(mixed)
            found = [shard_of_task(outcome.task_id) for outcome in outcomes if isinstance(outcome, Accepted)]
            assert len(found) == 30
            assert {*found[0::3], *found[1::3]} == {home_shard("wide", SHARDS)}
            assert len({*found[2::3]}) == 1
            shards |= {*found[2::3]}
        assert len(shards) > 1
        assert all(outcome.duplicate for outcome in outcomes[0::3] if isinstance(outcome, Accepted))
        assert client.queue_stats("wide").ready == 10 + 12 * 20


def test_many_callers_at_once_each_have_their_own_answer(cluster: MapCluster) -> None:
    """What they send at the same moment is accepted together."""
    queues = queues_of_all_shards("callers-", SHARDS)

    def task(caller: int, turn: int) -> NewTask:
        request_id = f"order-{caller}-{turn}" if turn % 3 == 0 else None
        return NewTask(queues[turn % SHARDS], "t", b"%d-%d" % (caller, turn), request_id=request_id)

    async def call(client: AsyncClient, caller: int) -> list[str]:
        return [(await client.enqueue(task(caller, turn))).task_id for turn in range(20)]

    async def all_callers() -> list[list[str]]:
        clients = [AsyncClient(cluster.address, timeout_s=DEADLINE_S) for _ in range(8)]
        try:
            return await asyncio.gather(*map(call, clients, range(8)))
        finally:
            await asyncio.gather(*(client.close() for client in clients))

    found = asyncio.run(all_callers())
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        again = client.enqueue_many([task(caller, turn) for caller in range(8) for turn in range(0, 20, 3)])
        known = [outcome.task_id for outcome in again if isinstance(outcome, Accepted)]
        assert known == [ids[turn] for ids in found for turn in range(0, 20, 3)]
        claimed = {claim.task_id: claim.payload for claim in claim_all(client, queues, 160)}
    assert claimed == {
        task_id: b"%d-%d" % (caller, turn) for caller, ids in enumerate(found) for turn, task_id in enumerate(ids)
    }
