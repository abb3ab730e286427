"""How long nobody can write after the leader is gone (SIGKILL) or stands still (SIGSTOP).

A client with the addresses of all nodes goes on writing all the time. What is measured is from the signal until the
first write is acknowledged that was sent after the leader could no longer answer. Before the next trial the node is
back and has caught up. In the end every write must be there, once.
"""

import asyncio
import time

from harness.bench import Bench
from harness.cluster import Cluster
from harness.probes import NoiseMeter, calibration_ms
from harness.results import Aim, BrokenRunError, Measured, Target, expect, reasons
from holdfast.client import AsyncClient, HoldfastError, NewTask

QUEUE = "bench"
PAYLOAD = bytes(1024)
WRITES_PER_S = 50.0
WRITE_SECONDS_MAX = 30.0
LAG_ENTRIES_MAX = 10  # of a replica that has caught up: as many may be on their way
ATTEMPTS_MAX = 5
KILL = "SIGKILL"
STOP = "SIGSTOP"
_KINDS = (KILL, STOP)

AIMS = tuple(
    aim
    for kind in _KINDS
    for aim in (
        Aim(f"{kind}, next write", "s", Target(2.0)),
        Aim(f"{kind}, slowest of all", "s", Target(5.0)),
        Aim(f"{kind}, next leader", "s"),
    )
)


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
                    await _all_trials(bench, cluster, writer, measured)
                    writer.stop()
            except* (BrokenRunError, HoldfastError) as broken:
                raise BrokenRunError(reasons(broken)) from None
        stats = await bench.stats(cluster.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, writer.acknowledged)
        expect("tasks ready", stats.ready, writer.acknowledged)
        await cluster.wait_whole()
        await cluster.check_equal()
        await cluster.stop()
    for kind in _KINDS:
        measured.figures[f"{kind}, slowest of all"] = [max(measured.figures[f"{kind}, next write"])]
    measured.calibration_ms = [before_ms, calibration_ms()]
    measured.counts = {"fail-overs": len(_KINDS) * bench.sizes.trials, "enqueued": stats.enqueued_total}
    return measured


async def _all_trials(bench: Bench, cluster: Cluster, writer: Writer, measured: Measured) -> None:
    """Both kinds take turns, so that both meet the same noise."""
    trials = bench.sizes.trials
    with bench.display.progress("fail-over", len(_KINDS) * trials) as on_progress:
        await writer.next_acknowledged_s()  # the client has found the leader
        for trial in range(trials):
            for at, kind in enumerate(_KINDS):
                measured.add(await _trial_that_counts(cluster, writer, kind))
                on_progress(trial * len(_KINDS) + at + 1)


async def _trial_that_counts(cluster: Cluster, writer: Writer, kind: str) -> Measured:
    """On a busy machine the leader may have changed by itself just before the signal: then nobody was missed."""
    for _ in range(ATTEMPTS_MAX):
        part = await _trial(cluster, writer, kind)
        if part is not None:
            return part
    raise BrokenRunError(f"the leader changed by itself before each of {ATTEMPTS_MAX} signals")


async def _trial(cluster: Cluster, writer: Writer, kind: str) -> Measured | None:
    """None if no other node had to take over."""
    _, leader = await cluster.leadership()
    node = cluster.nodes[leader]
    noise, before_s = NoiseMeter(), cluster.cpu_s
    gone_s = time.monotonic()
    if kind == KILL:
        await node.kill()
    else:
        await node.pause()
    write_s = await writer.next_acknowledged_s() - gone_s
    others_percent = noise.others_percent(sum(spent_s - before_s[pid] for pid, spent_s in cluster.cpu_s.items()))
    figures = {f"{kind}, next write": [write_s]}
    led_s = cluster.led_at_s - gone_s
    if led_s > 0:  # otherwise that line of its log has not been read yet
        figures[f"{kind}, next leader"] = [led_s]
    if kind == KILL:
        await cluster.start_node(leader)
    else:
        node.resume()
    await cluster.wait_whole(lag_max=LAG_ENTRIES_MAX)
    return Measured(figures=figures, others_percent=[others_percent]) if cluster.led_at_s > gone_s else None
