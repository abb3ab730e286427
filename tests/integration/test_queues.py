"""The list of queues, and limits of single queues in a reserve."""

import asyncio

from holdfast.client import AsyncClient, NewTask, QueueStats
from tests.integration.conftest import MakeServer


async def test_queues_are_listed_by_name_in_pages(make_server: MakeServer) -> None:
    server = make_server().start()
    names = sorted([f"q{n:03}" for n in range(130)] + ["A", "a", "a.b", "a-b", "a_b", "z" * 128])
    async with AsyncClient(server.address) as client:
        assert (await client.list_queues()).queues == ()
        await client.enqueue_many([NewTask(name, "t") for name in reversed(names)])
        await client.enqueue_many([NewTask("q001", "t", delay_ms=60_000), NewTask("q001", "t")])
        seen: list[QueueStats] = []
        token, pages = "", 0
        while True:
            page = await client.list_queues(page_size=10, page_token=token)
            assert 0 < len(page.queues) <= 10
            seen += page.queues
            token, pages = page.next_page_token, pages + 1
            if not token:
                break
        assert [stats.queue for stats in seen] == names
        assert pages == 14
        listed = {stats.queue: stats for stats in seen}
        assert (listed["q001"].ready, listed["q001"].delayed, listed["a"].ready) == (2, 1, 1)
        asked = await client.queue_stats("q001")
        assert (asked.ready, asked.delayed, asked.enqueued_total) == (2, 1, listed["q001"].enqueued_total)
        assert 0 <= listed["q001"].oldest_ready_age_ms <= asked.oldest_ready_age_ms
        whole = await client.list_queues(page_size=len(names))
        assert (len(whole.queues), whole.next_page_token) == (len(names), "")
        assert len((await client.list_queues(page_size=0)).queues) == 100
        # A queue that comes between two pages, before and behind the place, shifts nothing.
        first = await client.list_queues(page_size=5)
        await client.enqueue_many([NewTask("0", "t"), NewTask("zz", "t")])
        rest = await client.list_queues(page_size=1000, page_token=first.next_page_token)
        assert [stats.queue for stats in (*first.queues, *rest.queues)] == sorted([*names, "zz"])


async def test_a_reserve_takes_no_more_of_a_queue_than_its_limit(client: AsyncClient, queue: str) -> None:
    slow, quick = f"{queue}.slow", f"{queue}.quick"
    await client.enqueue_many([NewTask(name, "t") for name in (slow, quick) for _ in range(5)])
    claims = await client.reserve([slow, quick], max_tasks=6, max_tasks_by_queue={slow: 2})
    assert [claim.queue for claim in claims] == [slow] * 2 + [quick] * 4
    claims = await client.reserve([slow, quick], max_tasks=6, max_tasks_by_queue={slow: 1, quick: 6})
    assert [claim.queue for claim in claims] == [slow, quick]


async def test_a_reserve_that_waits_keeps_the_limit_too(client: AsyncClient, queue: str) -> None:
    waiting = asyncio.create_task(client.reserve([queue], max_tasks=10, max_tasks_by_queue={queue: 2}, wait_ms=30_000))
    await asyncio.sleep(0)
    await client.list_queues(page_size=1)  # sent after the reserve, so that has arrived
    assert not waiting.done()
    await client.enqueue_many([NewTask(queue, "t") for _ in range(5)])
    assert len(await waiting) == 2
    assert (await client.queue_stats(queue)).ready == 3
