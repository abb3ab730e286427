"""Flushes the state and cuts the log behind it, so that neither grows without bound nor makes a start slow."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.broker.log.node_log import NodeLog
from holdfast.broker.logs import get_logger
from holdfast.broker.state import StateError

_log = get_logger(__name__)


class Flushable(Protocol):
    def flush(self) -> None: ...


class Checkpointer:
    """The log is cut only below the applied index that was captured before a flush began."""

    def __init__(
        self,
        log: NodeLog,
        shard: int,
        state: Flushable,
        applied_index: Callable[[], int],
        *,
        log_bytes_max: int,
        age_seconds_max: float,
        run_blocking: Callable[[Callable[[], None]], Awaitable[None]],
        may_flush: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._shard = shard
        self._state = state
        self._applied_index = applied_index
        self._log_bytes_max = log_bytes_max
        self._age_seconds_max = age_seconds_max
        self._run_blocking = run_blocking
        self._may_flush = may_flush  # a flush that finds no room stops all writes to the state for a while
        self._monotonic = monotonic
        self._flushed_index = 0  # what is known to be durable in the state; at start nothing is
        self._flushed_at = monotonic()

    def is_due(self) -> bool:
        if self._applied_index() <= self._flushed_index:
            return False
        if self._log.bytes_after(self._shard, self._flushed_index) >= self._log_bytes_max:
            return True
        return self._monotonic() - self._flushed_at >= self._age_seconds_max

    async def run_once(self) -> None:
        """Flushes and cuts. A flush that fails costs nothing but log space: the log still has everything."""
        captured = self._applied_index()
        try:
            await self._run_blocking(self._state.flush)
        except StateError as error:
            _log.warning("state_flush_failed", error=str(error))
            self._flushed_at = self._monotonic()
            return
        self._flushed_index = captured
        self._flushed_at = self._monotonic()
        freed = 0

        def cut() -> None:
            nonlocal freed
            freed = self._log.cut({self._shard: captured + 1})

        await self._run_blocking(cut)
        _log.debug("state_flushed", applied_index=captured, log_bytes_freed=freed)

    async def run(self, interval_seconds: float) -> None:
        """Looks regularly until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            if self.is_due() and self._may_flush():
                await self.run_once()
