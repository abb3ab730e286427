"""Numbers of queues and workers, in the API and as metrics."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.client import AsyncClient, Conflict, NewTask, QueuePolicy, TaskError
from tests.integration.conftest import MakeServer
from tests.integration.server import wait_until


async def test_what_happens_in_a_queue_shows_in_its_numbers(make_server: MakeServer) -> None:
    server = make_server().start()
    async with AsyncClient(server.address) as client:
        await client.set_queue("mail", policy=QueuePolicy(dead_alert_at=2))
        await client.enqueue_many([NewTask("mail", "welcome") for _ in range(10)] + [NewTask("mail", "bill")])
        claims = await client.reserve(["mail"], max_tasks=8, worker="ann", lease_ms=600_000)
        for claim in claims[:5]:
            await client.ack(claim)
        await client.fail(claims[5], TaskError("E", "no"), dead=True)
        await client.fail(claims[6], TaskError("E", "no"), dead=True)
        stats = await client.queue_stats("mail")
        assert (stats.ready, stats.claimed, stats.dead, stats.dead_alert, stats.paused) == (3, 1, 2, True, False)
        assert stats.oldest_ready_age_ms > 0
        rates = (
            stats.enqueued_per_second,
            stats.claimed_per_second,
            stats.succeeded_per_second,
            stats.failed_per_second,
        )
        assert [round(rate / rates[2], 2) for rate in rates] == [2.2, 1.6, 1.0, 0.4]
        assert 0 < rates[0] <= 11 / 5
        latencies = {latency.type: latency for latency in stats.latencies}
        assert sum(latencies["welcome"].ready_to_claim.counts) == 8
        assert sum(latencies["welcome"].claim_to_ack.counts) == 5
        assert "bill" not in latencies
        assert not (await client.list_queues()).queues[0].latencies

        metrics = server.get("/metrics")[1].splitlines()
        assert {
            'holdfast_queue_tasks{queue="mail",state="dead"} 2.0',
            'holdfast_queue_events_total{event="enqueued",queue="mail"} 11.0',
            'holdfast_queue_events_total{event="claimed",queue="mail"} 8.0',
            'holdfast_queue_events_total{event="succeeded",queue="mail"} 5.0',
            'holdfast_queue_events_total{event="failed",queue="mail"} 2.0',
            'holdfast_queue_events_total{event="dead",queue="mail"} 2.0',
            'holdfast_queue_events_total{event="expired",queue="mail"} 0.0',
            'holdfast_queue_events_total{event="cancelled",queue="mail"} 0.0',
            "holdfast_claims_held 1.0",
            'holdfast_queue_dead_alert{queue="mail"} 1.0',
            'holdfast_queue_paused{queue="mail"} 0.0',
            'holdfast_task_ready_to_claim_seconds_count{queue="mail",type="welcome"} 8.0',
            'holdfast_task_claim_to_ack_seconds_count{queue="mail",type="welcome"} 5.0',
            "holdfast_latencies_truncated 0.0",
        } <= set(metrics)
        assert server.metric('holdfast_queue_oldest_ready_seconds{queue="mail"}') > 0
        # This one is not looked at when it is asked for but once in a while.
        await asyncio.to_thread(wait_until, lambda: server.metric("holdfast_workers") == 1.0, "the worker")

        await client.pause_queue("mail")
        assert server.metric('holdfast_queue_paused{queue="mail"}') == 1.0
        assert (await client.queue_stats("mail")).paused


async def test_workers_are_listed_with_what_they_hold(make_server: MakeServer) -> None:
    server = make_server().start()
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([NewTask("mail", "t") for _ in range(3)])
        claims = await client.reserve(["mail"], max_tasks=3, worker="ann", lease_ms=600_000)
        waiting = asyncio.create_task(client.reserve(["mail", "bills"], worker="bob", wait_ms=60_000))
        while True:
            page = await client.list_workers()
            if len(page.workers) == 2:
                break
        ann, bob = page.workers
        assert (ann.worker, ann.claims, ann.queues, ann.is_waiting) == ("ann", 3, ("mail",), False)
        assert (bob.worker, bob.claims, bob.queues, bob.is_waiting) == ("bob", 0, ("mail", "bills"), True)
        assert ann.last_seen_ms is not None
        await client.ack(claims[0])
        await client.enqueue(NewTask("bills", "t"))
        assert len(await waiting) == 1
        first = await client.list_workers(page_size=1)
        second = await client.list_workers(page_size=1, page_token=first.next_page_token)
        found = [(worker.worker, worker.claims, worker.is_waiting) for worker in (*first.workers, *second.workers)]
        assert found == [("ann", 2, False), ("bob", 1, False)]
        assert not second.next_page_token
        server.kill()
        server.start()
    async with AsyncClient(server.address) as client:
        workers = (await client.list_workers()).workers
        assert [(worker.worker, worker.claims, worker.last_seen_ms) for worker in workers] == [
            ("ann", 2, None), ("bob", 1, None),
        ]  # fmt: skip


async def test_a_worker_is_seen_when_it_says_something_about_its_claims(client: AsyncClient, queue: str) -> None:
    """It has no room for more tasks, so it asks for none."""
    worker = f"{queue}.w"

    async def last_seen_ms() -> int:
        (found,) = [item for item in (await client.list_workers(page_size=1000)).workers if item.worker == worker]
        assert found.last_seen_ms is not None
        return found.last_seen_ms

    await client.enqueue_many([NewTask(queue, "t") for _ in range(4)])
    claims = await client.reserve([queue], max_tasks=4, worker=worker, lease_ms=600_000)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.extend(claims[3], 600_000),
        lambda: client.ack(claims[0]),
        lambda: client.fail(claims[1], dead=True),
        lambda: client.release(claims[2]),
    ]
    seen_ms = await last_seen_ms()
    for call in calls:
        await asyncio.sleep(0.01)
        await call()
        assert await last_seen_ms() > seen_ms
        seen_ms = await last_seen_ms()
    [again] = await client.reserve([queue], worker=f"{queue}.other", lease_ms=600_000)
    assert again.task_id == claims[2].task_id
    seen_ms = await last_seen_ms()
    await asyncio.sleep(0.01)
    for lost in (client.extend(claims[2], 600_000), client.ack(claims[2])):
        with pytest.raises(Conflict):
            await lost
    assert await last_seen_ms() == seen_ms, "who has lost a claim says nothing about another worker"
