"""The node's rounds: one shared write and sync for everything that its shards want to append.

While the sync of a round runs in a thread, new proposals queue up for the next one; what the round counts as durable
was frozen before its sync began. Then its entries are applied and answered. Starting the next sync before that would
hide its latency, but was measured to cost more than it saves: rounds get smaller, and every round has its price.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.broker.log.errors import DiskFullError
from holdfast.broker.log.node_log import Flush, NodeLog
from holdfast.broker.metrics import Metrics
from holdfast.broker.refusals import RefusedError
from holdfast.broker.shard import Shard

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]


class Rounds:
    """Drives all shards of a node over its one log."""

    def __init__(
        self,
        log: NodeLog,
        metrics: Metrics,
        *,
        run_blocking: RunBlocking,
        on_disk_full: Callable[[], RefusedError],
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._run_blocking = run_blocking  # runs a blocking function off the event loop
        self._on_disk_full = on_disk_full
        self._shards: list[Shard] = []
        self._wanted = asyncio.Event()
        self._stopping = False

    def attach(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)

    def wake(self) -> None:
        """Something waits for a round."""
        self._wanted.set()

    async def run(self) -> None:
        """Works until stopped and nothing waits. Raises DiskFailedError when the disk fails: that must end the node."""
        while True:
            entries = sum(shard.stage() for shard in self._shards)
            flush = self._log.begin_flush()
            if flush is not None:
                if await self._sync(flush):
                    for shard in self._shards:
                        await shard.apply_committed()
                self._metrics.round_entries.observe(entries)
            elif self._stopping:
                return
            else:
                await self._wanted.wait()
                self._wanted.clear()

    async def _sync(self, flush: Flush) -> bool:
        """Makes a round durable; False if there was no room for it and it was dropped."""
        started = time.perf_counter()
        try:
            await self._run_blocking(flush.run)
        except DiskFullError:
            flush.abort()
            refused = self._on_disk_full()
            for shard in self._shards:
                shard.aborted(refused)
            return False
        self._metrics.fsync_seconds.observe(time.perf_counter() - started)
        flush.done()
        for shard in self._shards:
            shard.flushed()
        return True

    def stop(self) -> None:
        """Ends `run` once nothing waits any more."""
        self._stopping = True
        self._wanted.set()
