"""Numbers of queues and workers, in the API and as metrics."""

import asyncio

from holdfast.client import AsyncClient, NewTask, QueuePolicy, TaskError
from tests.integration.conftest import MakeServer


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
        latencies = {each.type: each for each in stats.latencies}
        assert sum(latencies["welcome"].ready_to_claim.counts) == 8
        assert sum(latencies["welcome"].claim_to_ack.counts) == 5
        assert "bill" not in latencies
        assert not (await client.list_queues()).queues[0].latencies

        metrics = server.get("/metrics")[1].splitlines()
        assert {
            'holdfast_queue_tasks{queue="mail",state="dead"} 2.0',
            'holdfast_queue_dead_alert{queue="mail"} 1.0',
            'holdfast_queue_paused{queue="mail"} 0.0',
            'holdfast_task_ready_to_claim_seconds_count{queue="mail",type="welcome"} 8.0',
            'holdfast_task_claim_to_ack_seconds_count{queue="mail",type="welcome"} 5.0',
            "holdfast_latencies_truncated 0.0",
        } <= set(metrics)
        assert server.metric('holdfast_queue_oldest_ready_seconds{queue="mail"}') > 0

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
