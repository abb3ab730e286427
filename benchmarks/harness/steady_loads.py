"""Loads that go on steadily while something else is measured, or that set it up."""

import asyncio
import dataclasses
import time
from itertools import count

from harness.loads import CALL_SECONDS_MAX, LEASE_MS, WAIT_MS, Load, Role, all_done, together
from harness.protocol import FLOOD, HOLD, PROBE, SATURATE, WORK_STEADILY
from holdfast.client import AsyncClient, OutcomeUnknown, Overloaded, Unavailable


async def probe(load: Load) -> None:
    """One task per tick of a schedule until told to stop, whether or not earlier ones have returned."""
    spec, result = load.spec, load.result
    first_s = time.monotonic() + 0.01
    stopping = asyncio.ensure_future(load.control.until_stop())

    async def send() -> None:
        [task] = load.new_tasks(1)
        sent_s = time.monotonic()
        await load.client.enqueue(task)
        result.sent_s.append(sent_s)
        result.send_ms.append((time.monotonic() - sent_s) * 1000)
        load.count(1)

    async with asyncio.TaskGroup() as group:
        for tick in count():
            delay_s = first_s + tick / spec.rate_per_s - time.monotonic()
            if delay_s > 0:
                await asyncio.wait([stopping], timeout=delay_s)
            if stopping.done():
                break
            group.create_task(send())


async def work_steadily(load: Load) -> None:
    """One batch per tick of a schedule: claimed, acked. A tick that is missed is not made up for."""
    spec = load.spec
    stopping = asyncio.ensure_future(load.control.until_stop())
    while not stopping.done():  # between two batches: what is claimed is acked
        ends_s = time.monotonic() + spec.batch_tasks / spec.rate_per_s
        claims = await load.client.reserve(
            [spec.queue], max_tasks=spec.batch_tasks, lease_ms=LEASE_MS, worker=spec.worker
        )
        all_done(await load.client.ack_many(claims))
        load.count(len(claims))
        await asyncio.wait([stopping], timeout=max(0.0, ends_s - time.monotonic()))


async def flood(load: Load) -> None:
    """`calls_in_flight` callers, each with a connection, and its next task as soon as the last was accepted or
    refused."""
    spec = load.spec
    stopping = asyncio.ensure_future(load.control.until_stop())

    async def caller() -> None:
        async with AsyncClient(spec.address, timeout_s=CALL_SECONDS_MAX, retry=spec.retry) as client:
            while not stopping.done():
                try:
                    all_done(await client.enqueue_many(load.new_tasks(1)))
                except Overloaded:
                    load.result.refused += 1
                else:
                    load.count(1)

    await together(caller, spec.calls_in_flight)


async def saturate(load: Load) -> None:
    """In each queue `calls_in_flight` callers that enqueue a batch, claim as much and ack it, without a pause."""
    stopping = asyncio.ensure_future(load.control.until_stop())
    spec, result = load.spec, load.result

    async def live(queue: str) -> None:
        tasks = [dataclasses.replace(task, queue=queue) for task in load.new_tasks(spec.batch_tasks)]
        all_done(await load.client.enqueue_many(tasks))
        claims = await load.client.reserve([queue], max_tasks=len(tasks), lease_ms=LEASE_MS, worker=f"w-{queue}")
        all_done(await load.client.ack_many(claims))
        load.count(len(claims))

    async def caller(queue: str) -> None:
        while not stopping.done():
            started_s = time.monotonic()
            try:
                await live(queue)
            except OutcomeUnknown:
                result.unknown += 1
            except (Overloaded, Unavailable):
                result.refused += 1
                await asyncio.sleep(0.1)
            else:
                result.call_ms.append((time.monotonic() - started_s) * 1000)

    async with asyncio.TaskGroup() as group:
        for queue in spec.queues:
            for _ in range(spec.calls_in_flight):
                group.create_task(caller(queue))


async def hold(load: Load) -> None:
    """Claims so many tasks, each batch under the name of another worker, with leases that all end at one moment."""
    spec = load.spec
    left = spec.tasks
    numbers = count()

    async def caller() -> None:
        nonlocal left
        while left > 0:
            wanted = min(spec.batch_tasks, left)
            left -= wanted
            claims = await load.client.reserve(
                [spec.queue],
                max_tasks=wanted,
                lease_ms=round((spec.lease_ends_s - time.monotonic()) * 1000),
                wait_ms=WAIT_MS,
                worker=f"{spec.worker}-{next(numbers)}",
            )
            left += wanted - len(claims)
            load.count(len(claims))

    await together(caller, spec.calls_in_flight)


ROLES: dict[str, Role] = {
    PROBE: probe,
    WORK_STEADILY: work_steadily,
    FLOOD: flood,
    SATURATE: saturate,
    HOLD: hold,
}
