"""What a task can ask for with `@app.task`, as a program sees it: retries, a timeout, a unique key, and to come again
later."""

import asyncio
from collections import Counter

import pytest

from holdfast.client import (
    Holdfast,
    Retry,
    RunningTask,
    Snooze,
    StopReason,
    TaskFailed,
    Worker,
    WorkerReport,
    current_task,
)

TIMEOUT_S = 20.0  # generous; nothing takes that long unless it is broken


class Shop:
    """An app with one task for each thing that can be asked for. What handlers saw is kept."""

    def __init__(self, address: str, queue: str) -> None:
        self.app = Holdfast(address)
        self.tries: Counter[str] = Counter()
        self.seen: list[RunningTask] = []
        self.stop_reason: StopReason | None = None
        self.opens = asyncio.Event()
        soon = Retry(shape="fixed", base=0.05, jitter=0, non_retryable=[PermissionError])
        task = self.app.task

        @task(queue=queue, retry=soon, max_attempts=3)
        async def charge(card: str) -> int:
            self.tries[card] += 1
            if card == "stolen":
                raise PermissionError(card)
            if card == "empty" or self.tries[card] < 3:
                raise ConnectionError(card)
            return current_task().attempt

        @task(queue=queue, timeout=1, max_attempts=1, lease=30)
        async def render() -> None:
            self.seen.append(current_task())
            try:
                await asyncio.Event().wait()
            finally:
                self.stop_reason = current_task().stop_reason

        @task(
            queue=queue,
            unique_key=lambda user: f"report:{user}",
            limit_key=lambda user: f"user:{user}",
            tenant=lambda user: user.partition("@")[2],
        )
        async def report(user: str) -> str:
            self.seen.append(current_task())
            await self.opens.wait()
            return user

        @task(queue=queue, max_attempts=1, max_claims=1)
        async def poll(name: str) -> int:
            self.tries[name] += 1
            if self.tries[name] < 3:
                raise Snooze(0.05)
            return current_task().attempt

        self.charge, self.render, self.report, self.poll = charge, render, report, poll


async def test_a_shop_whose_tasks_ask_for_all_there_is(app: Holdfast, queue: str) -> None:
    shop = Shop(app.address, queue)
    worker = Worker(shop.app)
    serving = asyncio.create_task(worker.serve())
    try:
        await asyncio.wait_for(use(shop), 3 * TIMEOUT_S)
    finally:
        worker.stop()
        done: WorkerReport = await asyncio.wait_for(serving, TIMEOUT_S)
        await asyncio.to_thread(shop.app.close)
    assert done.lost == 0


async def use(shop: Shop) -> None:
    rendering = await shop.render.enqueue_async()  # takes the longest
    await check_retries(shop)
    await check_unique(shop)
    polled = await shop.poll.enqueue_async("door")
    assert await polled.result(timeout=TIMEOUT_S) == 1, "to come again later is no attempt"
    info = await polled.info()
    assert (info.failures, info.claims, shop.tries["door"]) == (0, 1, 3)
    with pytest.raises(TaskFailed) as failed:
        await rendering.result(timeout=TIMEOUT_S)
    assert (failed.value.error_type, failed.value.dead_reason) == ("TaskTimeout", "ATTEMPTS_SPENT")
    # By whoever noticed it first, the worker or the server.
    assert [attempt.error_type for attempt in (await rendering.info()).attempts] == ["TaskTimeout"]
    async with asyncio.timeout(TIMEOUT_S):  # if it was the server, the handler hears of it a moment later
        while shop.stop_reason is None:
            await asyncio.sleep(0.01)
    assert shop.stop_reason is StopReason.TIMED_OUT
    assert shop.seen[0].type == "render"
    assert shop.seen[0].seconds_left == 0


async def check_retries(shop: Shop) -> None:
    good, empty, stolen = [await shop.charge.enqueue_async(card) for card in ("good", "empty", "stolen")]
    assert await good.result(timeout=TIMEOUT_S) == 3, "the third attempt"
    for handle, reason, tries in ((empty, "ATTEMPTS_SPENT", 3), (stolen, "NON_RETRYABLE", 1)):
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=TIMEOUT_S)
        assert failed.value.dead_reason == reason
        assert (await handle.info()).failures == tries
    assert shop.tries == {"good": 3, "empty": 3, "stolen": 1}


async def check_unique(shop: Shop) -> None:
    first = await shop.report.enqueue_async("ada@acme")
    again = await shop.report.enqueue_async("ada@acme")
    other = await shop.report.enqueue_async("bob@acme")
    assert first.id == again.id != other.id
    shop.opens.set()
    assert [await handle.result(timeout=TIMEOUT_S) for handle in (first, again, other)] == ["ada@acme"] * 2 + [
        "bob@acme"
    ]
    mine = [task for task in shop.seen if task.id == first.id]
    assert [(task.tenant, task.limit_key) for task in mine] == [("acme", "user:ada@acme")], "it ran once"
    later = await shop.report.enqueue_async("ada@acme")
    assert later.id != first.id, "the key is free once its task is done"
    assert await later.result(timeout=TIMEOUT_S) == "ada@acme"
