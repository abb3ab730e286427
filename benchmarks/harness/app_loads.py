"""Loads that go through the app and the worker, as most users' programs do."""

import asyncio
import time

from harness.loads import Load, Role
from harness.protocol import PRODUCE_CALLS, PRODUCE_SINGLY, WORK
from holdfast.client import Call, Holdfast, Worker


def _app(load: Load) -> tuple[Holdfast, Call[None]]:
    """An app with one task that does nothing but to be counted, and a call of it."""
    app = Holdfast(load.spec.address)

    @app.task(queue=load.spec.queue)
    async def nothing() -> None:
        load.count(1)

    return app, nothing.call()


async def produce_many(load: Load) -> None:
    """Hands over calls in batches, one batch after the other."""
    app, call = _app(load)
    for first in range(0, load.spec.tasks, load.spec.batch_tasks):
        count = min(load.spec.batch_tasks, load.spec.tasks - first)
        started_s = time.monotonic()
        (await app.enqueue_many_async([call] * count)).handles()
        load.result.call_ms.append((time.monotonic() - started_s) * 1000)
        load.count(count)
    app.close()


async def produce_singly(load: Load) -> None:
    """Hands over one call after the other, blocking, as a plain program does."""

    def produce() -> None:
        app, call = _app(load)
        for _ in range(load.spec.tasks):
            started_s = time.monotonic()
            app.enqueue(call)
            load.result.call_ms.append((time.monotonic() - started_s) * 1000)
            load.count(1)
        app.close()

    await asyncio.to_thread(produce)


async def work(load: Load) -> None:
    """A worker, until told to stop."""
    app, _ = _app(load)
    worker = Worker(app, concurrency=load.spec.calls_in_flight, name=load.spec.worker)

    async def stop() -> None:
        await load.control.until_stop()
        worker.stop()

    stopping = asyncio.create_task(stop())
    await worker.serve()
    await stopping


ROLES: dict[str, Role] = {
    PRODUCE_CALLS: produce_many,
    PRODUCE_SINGLY: produce_singly,
    WORK: work,
}
