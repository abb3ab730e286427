"""Flushes states and cuts the log behind them, so that neither grows without bound nor makes a start slow."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.serving.logs import get_logger
from holdfast.storage.rocksdb import StateError
from holdfast.wal.node_log import NodeLog

# A state that nobody writes to any more need not be kept in memory until it is old.
QUIET_SECONDS = 5.0
QUIET_BYTES_MIN = 4 * 1024 * 1024

_log = get_logger(__name__)


@runtime_checkable
class Flushable(Protocol):
    """A state that can be made durable."""

    def flush(self) -> None:
        """Blocks."""
        ...


class CheckpointSource(Protocol):
    """A replica, as far as its state and its part of the log are concerned."""

    @property
    def number(self) -> int: ...

    @property
    def applied_index(self) -> int:
        """The newest entry that is in the state."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody who might need old entries."""
        ...

    @property
    def durable_base_index(self) -> int:
        """The log is known, for good, to begin after this entry."""
        ...

    @property
    def state(self) -> Flushable:
        """The state that it has now. A snapshot brings another one; if that cannot be kept, this one comes back."""
        ...

    def compact(self, index: int) -> None:
        """Lets the log begin after this entry, with the next round."""
        ...


@dataclass(slots=True)
class _Flushed:
    state: Flushable  # of no other one: a snapshot brings a state of its own, and the old one may come back
    index: int  # what is known to be durable in it; at start nothing is
    at_s: float
    seen_index: int = 0  # the newest entry that was in the state when it was last looked at
    quiet_since_s: float = 0.0  # as long as that is the same


class Checkpointer:
    """The log is cut only below the applied index that was captured before a flush began, and, where others may lag,
    only once enough of it follows to spare them a snapshot."""

    def __init__(
        self,
        log: NodeLog,
        replicas: Callable[[], Iterable[CheckpointSource]],
        *,
        log_bytes_max: int,
        age_seconds_max: float,
        keep_bytes: int,
        run_blocking: Callable[[Callable[[], None]], Awaitable[None]],
        may_flush: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._replicas = replicas
        self._log_bytes_max = log_bytes_max
        self._age_seconds_max = age_seconds_max
        self._keep_bytes = keep_bytes
        self._run_blocking = run_blocking
        self._may_flush = may_flush  # a flush that finds no room stops all writes to the state for a while
        self._monotonic = monotonic
        self._flushed: dict[int, _Flushed] = {}
        self._cut_before: tuple[dict[int, int], int] | None = None

    def age_s(self, number: int) -> float | None:
        """How long ago the state of a shard was last made durable; None if it has not been since the start."""
        flushed = self._flushed.get(number)
        return None if flushed is None or not flushed.index else self._monotonic() - flushed.at_s

    def is_due(self, replica: CheckpointSource) -> bool:
        flushed = self._of(replica)
        if replica.applied_index <= flushed.index:
            return False
        now_s = self._monotonic()
        if flushed.seen_index != replica.applied_index:
            flushed.seen_index, flushed.quiet_since_s = replica.applied_index, now_s
        is_quiet = now_s - flushed.quiet_since_s >= QUIET_SECONDS
        bytes_max = min(self._log_bytes_max, QUIET_BYTES_MIN) if is_quiet else self._log_bytes_max
        if self._log.bytes_after(replica.number, flushed.index) >= bytes_max:
            return True
        return now_s - flushed.at_s >= self._age_seconds_max

    async def flush(self, replica: CheckpointSource) -> None:
        """A flush that fails costs nothing but log space: the log still has everything."""
        state, captured = replica.state, replica.applied_index
        flushed = self._of(replica)
        try:
            await self._run_blocking(state.flush)
        except StateError as error:
            _log.warning("state_flush_failed", shard=replica.number, error=str(error))
            flushed.at_s = self._monotonic()
            return
        if replica.state is not state:
            return  # a snapshot came, or was taken back because it could not be kept: this says nothing of that state
        flushed.index, flushed.at_s = captured, self._monotonic()
        _log.debug("state_flushed", shard=replica.number, applied_index=captured)
        self.compact(replica)

    def compact(self, replica: CheckpointSource) -> None:
        """Lets the log of a shard begin as late as it may. What other shards write moves that on as well, so it is done
        even if there is nothing to flush: an idle shard would otherwise pin the log that it shares with all.

        Nobody is woken for it: an idle replica has a round with every heartbeat.
        """
        flushed_index = self._of(replica).index
        if flushed_index <= replica.durable_base_index:
            return
        base_index = flushed_index
        if not replica.is_alone:
            base_index = min(flushed_index, self._log.index_with_bytes_after(replica.number, self._keep_bytes))
        if base_index > replica.durable_base_index:
            replica.compact(base_index)

    async def cut(self) -> None:
        """Cuts what no replica needs any more."""
        keep_from = {replica.number: replica.durable_base_index + 1 for replica in self._replicas()}
        emptied = self._log.emptied  # a replica that is gone has nothing in the log any more
        wanted = keep_from, emptied
        if wanted == self._cut_before:
            return
        freed = 0

        def cut() -> None:
            nonlocal freed
            freed = self._log.cut(keep_from, emptied)

        await self._run_blocking(cut)
        self._cut_before = wanted
        if freed:
            _log.debug("log_cut", bytes_freed=freed)

    async def run(self, interval_seconds: float) -> None:
        """Looks regularly until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            await self.poll()

    async def poll(self) -> None:
        """Flushes what is due, and cuts what is needed no more."""
        for replica in list(self._replicas()):
            if self.is_due(replica) and self._may_flush():
                await self.flush(replica)
            else:
                self.compact(replica)
        await self.cut()

    async def flush_all(self) -> None:
        """At the end, so that the next start has nothing to replay."""
        for replica in list(self._replicas()):
            await self.flush(replica)

    def forget(self, number: int) -> None:
        """The state that a shard had is no longer there."""
        self._flushed.pop(number, None)

    def _of(self, replica: CheckpointSource) -> _Flushed:
        """What is known of the state that the replica has at this moment: nothing, if it had another one before."""
        flushed = self._flushed.get(replica.number)
        if flushed is None or flushed.state is not replica.state:
            flushed = self._flushed[replica.number] = _Flushed(replica.state, 0, self._monotonic())
        return flushed
