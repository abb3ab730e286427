"""How long nobody can write after the leader is gone (SIGKILL) or stands still (SIGSTOP).

A client with the addresses of all nodes goes on writing all the time. What is measured is from the signal until the
first write is acknowledged that was sent after the leader could no longer answer. Before the next trial the node is
back and has caught up. In the end every write must be there, once.
"""

import asyncio
import time

from harness.bench import Bench
from harness.cluster import Cluster
from harness.failovers import aims, all_trials, fail_over
from harness.probes import calibration_ms
from harness.results import BrokenRunError, Measured, expect, reasons
from holdfast.client import AsyncClient, HoldfastError, NewTask

QUEUE = "bench"
PAYLOAD = bytes(1024)
WRITES_PER_S = 50.0
WRITE_SECONDS_MAX = 30.0
ATTEMPTS_MAX = 5
WHAT = "write"

AIMS = aims(WHAT, 2.0, 5.0)


class Writer:
    """Sends single tasks by a schedule, whether or not earlier ones are acknowledged."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._waiting: dict[asyncio.Future[float], float] = {}  # by what waits: since when a write must have been sent
        self._stopping = False
        self.acknowledged = 0

    async def run(self) -> None:
        """Returns once it is stopped and every write is acknowledged."""
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                group.create_task(self._write())
                await asyncio.sleep(1 / WRITES_PER_S)

    def stop(self) -> None:
        self._stopping = True

    async def _write(self) -> None:
        sent_s = time.monotonic()
        await self._client.enqueue(NewTask(QUEUE, "bench", PAYLOAD))
        now_s = time.monotonic()
        self.acknowledged += 1
        for waiting, since_s in list(self._waiting.items()):
            if sent_s >= since_s and not waiting.done():
                waiting.set_result(now_s)

    async def next_acknowledged_s(self) -> float:
        """When the first write was acknowledged of those that are sent from now on."""
        waiting: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = time.monotonic()
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                return await waiting
        except TimeoutError:
            raise BrokenRunError(f"no write was acknowledged for {WRITE_SECONDS_MAX:g} s") from None
        finally:
            del self._waiting[waiting]


async def measure(bench: Bench) -> Measured:
    measured = Measured()
    before_ms = calibration_ms()
    async with bench.cluster() as cluster:
        async with AsyncClient(cluster.address, timeout_s=WRITE_SECONDS_MAX) as client:
            writer = Writer(client)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(writer.run())
                    await writer.next_acknowledged_s()  # the client has found the leader
                    await all_trials(bench, measured, WHAT, lambda kind: _trial_that_counts(cluster, writer, kind))
                    writer.stop()
            except* (BrokenRunError, HoldfastError) as broken:
                raise BrokenRunError(reasons(broken)) from None
        stats = await bench.stats(cluster.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, writer.acknowledged)
        expect("tasks ready", stats.ready, writer.acknowledged)
        await cluster.wait_whole()
        await cluster.check_equal()
        await cluster.stop()
    measured.calibration_ms = [before_ms, calibration_ms()]
    measured.counts["enqueued"] = stats.enqueued_total
    return measured


async def _trial_that_counts(cluster: Cluster, writer: Writer, kind: str) -> Measured:
    """On a busy machine the leader may have changed by itself just before the signal: then nobody was missed."""
    for _ in range(ATTEMPTS_MAX):
        _, leader = await cluster.leadership()
        part, is_taken_over = await fail_over(cluster, leader, kind, WHAT, lambda: _acknowledged_s(writer))
        if is_taken_over:
            return part
    raise BrokenRunError(f"the leader changed by itself before each of {ATTEMPTS_MAX} signals")


async def _acknowledged_s(writer: Writer) -> list[float]:
    return [await writer.next_acknowledged_s()]
