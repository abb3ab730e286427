"""The workloads: who is at work, and which part of it counts."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from harness.results import BrokenRunError
from peers.results import BATCHED, DRAIN, LIVES, PICKUP, SINGLE, Sample
from peers.stage import BATCH_TASKS, POLL_SECONDS, Meter, Stage, with_calls
from peers.tally import DONE, SENT

FILLERS = 2
UNFINISHED_MAX = 2_000  # of whole lives
PICKUP_RATE_PER_S = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    warm_seconds: float  # before what counts, so that all are at it
    enqueue_seconds: float
    drain_tasks: int  # that are there before
    fill_seconds_max: float  # however few have been enqueued by then
    drain_seconds_max: float
    life_seconds: float
    pickup_seconds: float
    late_seconds_max: float  # for tasks that are picked up after that


FULL = Sizes(
    warm_seconds=0.5,
    enqueue_seconds=3.0,
    drain_tasks=100_000,
    fill_seconds_max=10.0,
    drain_seconds_max=10.0,
    life_seconds=5.0,
    pickup_seconds=5.0,
    late_seconds_max=20.0,
)
QUICK = Sizes(
    warm_seconds=0.2,
    enqueue_seconds=0.5,
    drain_tasks=20_000,
    fill_seconds_max=2.0,
    drain_seconds_max=5.0,
    life_seconds=1.0,
    pickup_seconds=1.0,
    late_seconds_max=10.0,
)


async def measure_single(stage: Stage, sizes: Sizes) -> Sample:
    return await _enqueue(stage, sizes, producers=1, batch_tasks=1)


async def measure_batched(stage: Stage, sizes: Sizes) -> Sample:
    return await _enqueue(stage, sizes, producers=2, batch_tasks=BATCH_TASKS)


async def _enqueue(stage: Stage, sizes: Sizes, *, producers: int, batch_tasks: int) -> Sample:
    """Each producer makes its next call as soon as the last is confirmed."""
    async with stage.clients(stage.producers(producers, batch_tasks)) as clients:
        await clients.sleep(sizes.warm_seconds)
        meter = Meter(stage.peer.pids, clients.pids, stage.tally.read(SENT).tasks)
        await clients.sleep(sizes.enqueue_seconds)
        sample = meter.sample(stage.tally.read(SENT).tasks)
        results = await clients.stop()
    return with_calls(sample, meter, list(results.values()))


async def measure_drain(stage: Stage, sizes: Sizes) -> Sample:
    """What is there before is claimed and acked, from when all consumers are at it until nothing is left."""
    await _fill(stage, sizes)
    sent = stage.tally.read(SENT)
    async with stage.consuming() as consumers:
        meter = Meter(stage.peer.pids, consumers.pids, 0)
        await stage.all_begun(consumers)
        if (done := stage.tally.read(DONE).tasks) <= sent.tasks // 2:
            meter = Meter(stage.peer.pids, consumers.pids, done)
        ends_s = time.monotonic() + sizes.drain_seconds_max
        while stage.tally.read(DONE).tasks < sent.tasks and time.monotonic() < ends_s:
            await consumers.sleep(POLL_SECONDS)
        done_now = stage.tally.read(DONE)
        sample = meter.sample(done_now.tasks)
    if done_now.tasks > sent.tasks or (done_now.tasks == sent.tasks and done_now.sum_of_ids != sent.sum_of_ids):
        raise BrokenRunError(f"{done_now.tasks:,} tasks were done of {sent.tasks:,}, and they are not the same")
    return sample


async def _fill(stage: Stage, sizes: Sizes) -> None:
    async with stage.clients(stage.producers(FILLERS, BATCH_TASKS)) as clients:
        ends_s = time.monotonic() + sizes.fill_seconds_max
        while stage.tally.read(SENT).tasks < sizes.drain_tasks and time.monotonic() < ends_s:
            await clients.sleep(POLL_SECONDS)
        await clients.stop()


async def measure_lives(stage: Stage, sizes: Sizes) -> Sample:
    """One producer and the consumers at once, the producer never far ahead."""
    producers = stage.producers(1, BATCH_TASKS, unfinished_max=UNFINISHED_MAX)
    async with stage.consuming() as consumers, stage.clients(producers) as clients:
        await stage.all_begun(clients)
        await clients.sleep(sizes.warm_seconds)
        meter = Meter(stage.peer.pids, [*consumers.pids, *clients.pids], stage.tally.read(DONE).tasks)
        await clients.sleep(sizes.life_seconds)
        return meter.sample(stage.tally.read(DONE).tasks)


async def measure_pickup(stage: Stage, sizes: Sizes) -> Sample:
    """Single enqueues by a schedule, and one consumer that takes one at a time: how old each is then."""
    async with (
        stage.clients(stage.consumers(1, 1, is_sampled=True)) as consumer,
        stage.clients(stage.producers(1, 1, rate_per_s=PICKUP_RATE_PER_S)) as producer,
    ):
        await producer.sleep(sizes.warm_seconds)
        pids = [*consumer.pids, *producer.pids]
        meter = Meter(stage.peer.pids, pids, stage.tally.read(DONE).tasks)
        await producer.sleep(sizes.pickup_seconds)
        sample = meter.sample(stage.tally.read(DONE).tasks)
        await producer.stop()
        # What is still on its way is the slowest of all, so it must not be left out.
        ends_s = time.monotonic() + sizes.late_seconds_max
        while stage.tally.unfinished and time.monotonic() < ends_s:
            await consumer.sleep(POLL_SECONDS)
        results = await consumer.stop()
    return with_calls(sample, meter, list(results.values()))


Measure = Callable[[Stage, Sizes], Awaitable[Sample]]

MEASURES: Mapping[str, Measure] = {
    SINGLE: measure_single,
    BATCHED: measure_batched,
    DRAIN: measure_drain,
    LIVES: measure_lives,
    PICKUP: measure_pickup,
}
