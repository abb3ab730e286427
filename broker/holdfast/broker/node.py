"""One broker process: puts the parts together, starts them in order, and stops them in the reverse order."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from holdfast.broker.checkpoints import Checkpointer
from holdfast.broker.clock import ShardClock, SystemTime
from holdfast.broker.config import BrokerConfig
from holdfast.broker.data_dir import DataDir
from holdfast.broker.disk_guard import DiskGuard, free_bytes
from holdfast.broker.log.disk import RealDisk
from holdfast.broker.log.errors import LogError
from holdfast.broker.log.node_log import NodeLog
from holdfast.broker.logs import get_logger
from holdfast.broker.metrics import QUEUES_MAX, Metrics
from holdfast.broker.ops import OpsServer
from holdfast.broker.recovery import recover_shard
from holdfast.broker.refusals import shutting_down
from holdfast.broker.replication import SoloReplicator
from holdfast.broker.rounds import Rounds
from holdfast.broker.rpc import RpcServer
from holdfast.broker.service import Service
from holdfast.broker.shard import Shard
from holdfast.broker.state import RocksState, StateError
from holdfast.broker.views import read_queue_names

SHARD = 0
SWITCH_SECONDS = 0.0001  # with Python's default the hand-over from the sync thread alone costs tens of milliseconds
GC_THRESHOLDS = (50_000, 20, 50)  # a batch makes thousands of short-lived objects, none of them in cycles
WATCH_SECONDS = 1.0
CALLS_SPARE = 1000
STOP_SECONDS_MAX = 30.0  # beyond the grace period
EXIT_FORCED = 1  # of a stop that was asked for twice, or could not be finished; 3 is the missing extra

_log = get_logger(__name__)


class Node:
    """A broker with one shard. `start`, then `run` until a signal or a failure, which it returns."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._stack = ExitStack()  # what must be closed, in reverse order
        self._stop_asked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = False
        self.metrics = Metrics()
        self.port = 0
        self.ops_port = 0

    async def start(self) -> None:
        """Recovers and begins to serve. Raises what a person can act on; then nothing is left running."""
        try:
            loop = asyncio.get_running_loop()
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(signum, self.ask_to_stop)
            sys.setswitchinterval(SWITCH_SECONDS)
            gc.set_threshold(*GC_THRESHOLDS)
            await asyncio.to_thread(self._open_storage)
            self._build()
            self._tasks.append(asyncio.create_task(self._rounds.run(), name="rounds"))
            await self._first_entry()
            self._tasks.append(asyncio.create_task(self._checkpointer.run(WATCH_SECONDS), name="checkpoints"))
            self._tasks.append(asyncio.create_task(self._watch(), name="watch"))
            self.port = await self._rpc.start(self._config.host, self._config.port)
            await self._ops.start()
            self.ops_port = self._ops.port
            self._ready = True
        except BaseException:
            await self._abandon()
            raise

    def _open_storage(self) -> None:
        config = self._config
        started = time.perf_counter()
        self._data_dir = DataDir.open(config.data_dir)
        self._stack.callback(self._data_dir.close)
        self._node_log = NodeLog.open(RealDisk(self._data_dir.log_dir), segment_bytes=config.segment_bytes)
        self._state = RocksState(
            self._data_dir.state_dir / str(SHARD),
            write_buffer_bytes=config.state_write_buffer_bytes,
            block_cache_bytes=config.state_block_cache_bytes,
        )
        self._stack.callback(_close_state, self._state)
        recovered = recover_shard(self._node_log, self._state, SHARD, on_progress=_log_progress)
        self._machine = recovered.machine
        _log.info(
            "recovered",
            applied_index=self._machine.meta.applied_index,
            entries_replayed=recovered.entries_replayed,
            log_bytes=self._node_log.size_bytes,
            clean=self._node_log.was_closed,
            seconds=round(time.perf_counter() - started, 3),
        )

    def _build(self) -> None:
        config, metrics = self._config, self.metrics
        self._guard = DiskGuard(lambda: free_bytes(config.data_dir), config.free_bytes_min)
        self._log_thread = self._stack.enter_context(ThreadPoolExecutor(1, "holdfast-log"))
        flush_thread = self._stack.enter_context(ThreadPoolExecutor(1, "holdfast-flush"))
        self._rounds = Rounds(
            self._node_log, metrics, run_blocking=_runner(self._log_thread), on_disk_full=self._guard.found_full
        )
        self._shard = Shard(
            self._state,
            self._machine,
            SoloReplicator(self._node_log, SHARD, self._machine.meta.applied_index),
            ShardClock(SystemTime(), self._machine.meta.now_ms),
            config,
            metrics,
            wake_rounds=self._rounds.wake,
            check_disk=self._guard.check,
            found_full=self._guard.found_full,
        )
        self._rounds.attach([self._shard])
        self._checkpointer = Checkpointer(
            self._node_log,
            SHARD,
            self._state,
            lambda: self._shard.applied_index,
            log_bytes_max=config.state_flush_log_bytes,
            age_seconds_max=config.state_flush_age_seconds,
            run_blocking=_runner(flush_thread),
            may_flush=lambda: not self._guard.critical,
        )
        service = Service(self._shard, self._state, config, metrics)
        # Only a last bound: within it, what is too much gets a typed refusal.
        calls_max = 2 * config.waiters_max + config.proposals_max + CALLS_SPARE
        self._rpc = RpcServer(service, metrics, batch_bytes_max=config.batch_bytes_max, calls_max=calls_max)
        self._ops = OpsServer(config.host, config.ops_port, metrics, self._readiness)
        metrics.watch_queues(self._queue_counts)

    async def _first_entry(self) -> None:
        """The first entry of the term; neither a disk that fails meanwhile nor a signal must leave this waiting."""
        starting = asyncio.create_task(self._shard.start())
        stop_asked = asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait([starting, stop_asked, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        stop_asked.cancel()
        if not starting.done():
            starting.cancel()
            raise self._failure() or shutting_down()
        await starting

    async def run(self) -> BaseException | None:
        """Serves until SIGTERM, SIGINT or `ask_to_stop`, then stops gracefully. Returns the failure that ended it."""
        stop_asked = asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait([stop_asked, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        stop_asked.cancel()
        failure = self._failure()
        if failure is not None:
            await self._abandon()
            return failure
        return await self._stop()

    def ask_to_stop(self) -> None:
        """Asked once: stops gracefully, within bounds. Asked twice: at once; nothing that was acknowledged is lost."""
        if self._stop_asked.is_set():
            os._exit(EXIT_FORCED)
        self._stop_asked.set()
        # A disk that hangs can block every orderly way out.
        patience = threading.Timer(3 * self._config.shutdown_grace_seconds + STOP_SECONDS_MAX, os._exit, [EXIT_FORCED])
        patience.daemon = True
        patience.start()

    def _failure(self) -> BaseException | None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None

    async def _stop(self) -> BaseException | None:
        """Finishes what is on its way, then closes everything so that the next start has nothing to replay."""
        _log.info("stopping", grace_seconds=self._config.shutdown_grace_seconds)
        self._ready = False
        await self._rpc.drain()
        self._shard.drain()
        await self._rpc.stop(self._config.shutdown_grace_seconds)
        await self._ops.stop()
        await self._shard.stop()
        self._rounds.stop()
        # On a full disk the state may take nothing for as long as one likes to wait; the log has everything.
        done, _ = await asyncio.wait([self._tasks[0]], timeout=max(1.0, self._config.shutdown_grace_seconds))
        failure = self._failure()
        if failure is not None:
            await self._abandon()
            return failure
        await self._cancel_tasks()
        try:
            if done and not self._guard.critical:
                await self._checkpointer.run_once()
            self._log_thread.shutdown()
            self._node_log.close(clean=bool(done))
        except LogError as error:
            return error
        finally:
            self._stack.close()
        _log.info("stopped")
        return None

    async def _abandon(self) -> None:
        """Something failed: nothing more is written, callers are told that the outcome of their writes is unknown."""
        self._ready = False
        try:
            if hasattr(self, "_ops"):  # the last part that is built: then all are there
                self._shard.give_up()
                await self._rpc.stop(0.2)
                await self._ops.stop()
                await self._shard.stop()
            await self._cancel_tasks()
            if hasattr(self, "_log_thread"):
                self._log_thread.shutdown()  # a sync may be under way still
            if hasattr(self, "_node_log"):
                self._node_log.close(clean=False)
        finally:
            self._stack.close()

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what is shown ----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Looks at disk and clock, once a second, and keeps the gauges."""
        jumped = False
        refusing = self._guard.refusing
        while True:
            if self._guard.look():
                self._shard.serve_all_waiters()
            if self._guard.refusing != refusing:
                refusing = self._guard.refusing
                _log.warning(
                    "writes_refused" if refusing else "writes_resumed", free_bytes=self._guard.free_bytes,
                    free_bytes_min=self._config.free_bytes_min,
                )  # fmt: skip
            self._shard.now_ms()
            clock = self._shard.clock
            if clock.jumped and not jumped:
                _log.warning(
                    "wall_clock_jumped", offset_ms=round(clock.wall_offset_ms), followed="no, until the next start"
                )
            jumped = clock.jumped
            self._show()
            failure = self._shard.failed()
            if failure is not None:
                raise failure
            await asyncio.sleep(WATCH_SECONDS)

    def _show(self) -> None:
        metrics = self.metrics
        metrics.proposals_waiting.set(self._shard.proposals_waiting)
        metrics.waiters.set(self._shard.waiters)
        metrics.watched_tasks.set(self._shard.watched_tasks)
        metrics.log_bytes.set(self._node_log.size_bytes)
        metrics.applied_index.set(self._shard.applied_index)
        metrics.free_bytes.set(self._guard.free_bytes)
        metrics.writes_refused.set(self._guard.refusing)
        metrics.clock_offset_seconds.set(self._shard.clock.wall_offset_ms / 1000)

    def _readiness(self) -> tuple[bool, str]:
        if not self._ready:
            return False, "starting or stopping"
        if self._guard.refusing:
            return False, f"new tasks are refused: {self._guard.free_bytes} bytes of disk are free"
        return True, "serving"

    def _queue_counts(self) -> Iterator[tuple[str, dict[str, int]]]:
        for name in read_queue_names(self._state, QUEUES_MAX):
            queue = self._shard.queue(name)
            if queue is not None:
                yield (
                    name.decode(),
                    {
                        "ready": queue.ready,
                        "claimed": queue.claimed,
                        "delayed": queue.delayed,
                        "retrying": queue.retrying,
                        "dead": queue.dead,
                    },
                )


def _runner(executor: ThreadPoolExecutor) -> Callable[[Callable[[], None]], "asyncio.Future[None]"]:
    def run(function: Callable[[], None]) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(executor, function)

    return run


def _close_state(state: RocksState) -> None:
    try:
        state.close()
    except StateError as error:
        _log.warning("state_not_flushed", error=str(error))


def _log_progress(index: int, last: int) -> None:
    _log.info("replaying", index=index, last=last)
