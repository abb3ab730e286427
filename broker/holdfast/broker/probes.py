"""Hashes of a replica's state at marked places of the log: equal on all replicas, or something is wrong.

A mark is an entry like any other, so every replica stops at the same place. It hashes the state as it was there in a
thread while it goes on.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from holdfast.broker.state import StateError, StateView
from holdfast.machine.hashing import state_hash
from holdfast.serving.logs import get_logger

KEPT_MAX = 8

_log = get_logger(__name__)


class Probes:
    """The last hashes of one replica."""

    def __init__(
        self, view: Callable[[], StateView], on_failed: Callable[[Exception], None] = lambda _error: None
    ) -> None:
        self._view = view
        self._on_failed = on_failed  # the state could not be read: who hashes reads all of it
        self._hashes: OrderedDict[int, asyncio.Task[bytes]] = OrderedDict()
        self._changed = asyncio.Event()

    def reached(self, index: int) -> None:
        """A mark was applied, and nothing after it."""
        view = self._view()
        self._hashes[index] = asyncio.create_task(asyncio.to_thread(_hash, view), name=f"probe-{index}")
        self._hashes[index].add_done_callback(lambda task: self._look(index, task))
        if len(self._hashes) > KEPT_MAX:
            self._hashes.popitem(last=False)
        self._changed.set()

    def passed(self) -> None:
        """A snapshot took the replica on: marks that somebody waits for may lie behind it."""
        self._changed.set()

    async def wait_for(self, index: int, applied_index: Callable[[], int], wait_s: float) -> bytes | None:
        """The hash at this mark; None if the replica does not get there in time."""
        try:
            async with asyncio.timeout(wait_s):
                while index not in self._hashes and applied_index() < index:
                    self._changed.clear()
                    await self._changed.wait()
                found = self._hashes.get(index)
                return None if found is None else await asyncio.shield(found)
        except TimeoutError:
            return None

    def has_lost(self, index: int, applied_index: int) -> bool:
        """Whether this mark will never be answered: it was passed too long ago, or by a snapshot."""
        return index not in self._hashes and applied_index >= index

    def _look(self, index: int, task: "asyncio.Task[bytes]") -> None:
        if not task.cancelled() and isinstance(error := task.exception(), StateError):
            _log.error("probe_failed", index=index, error=str(error))
            self._on_failed(error)


def _hash(view: StateView) -> bytes:
    with view:
        return bytes.fromhex(state_hash(view))
