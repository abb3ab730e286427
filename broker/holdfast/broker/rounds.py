"""The node's rounds: one shared write and sync for everything that its shards want to append.

While the sync of one round runs in a thread, the entries of the round before are applied and answered, and new
proposals queue up for the round after. What a round counts as durable was frozen before its sync began.
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
        unapplied = False
        while True:
            entries = sum(shard.stage() for shard in self._shards)
            flush = self._log.begin_flush()
            if flush is None and not unapplied:
                if self._stopping:
                    return
                await self._wanted.wait()
                self._wanted.clear()
                continue
            syncing = asyncio.ensure_future(self._run_blocking(self._timed(flush))) if flush is not None else None
            if unapplied:
                for shard in self._shards:
                    await shard.apply_committed()
            unapplied = False
            if flush is not None and syncing is not None:
                unapplied = await self._finish(flush, syncing)
                self._metrics.round_entries.observe(entries)

    def _timed(self, flush: Flush) -> Callable[[], None]:
        def run() -> None:
            started = time.perf_counter()
            flush.run()
            self._metrics.fsync_seconds.observe(time.perf_counter() - started)

        return run

    async def _finish(self, flush: Flush, syncing: Awaitable[None]) -> bool:
        """Waits until a round is durable; False if there was no room for it and it was dropped."""
        try:
            await syncing
        except DiskFullError:
            flush.abort()
            refused = self._on_disk_full()
            for shard in self._shards:
                shard.aborted(refused)
            return False
        flush.done()
        for shard in self._shards:
            shard.flushed()
        return True

    def stop(self) -> None:
        """Ends `run` once nothing waits any more."""
        self._stopping = True
        self._wanted.set()
