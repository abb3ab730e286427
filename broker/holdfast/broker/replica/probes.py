"""Hashes of a replica's state at marked places of the log: equal on all replicas, or something is wrong.

A mark is an entry like any other, so every replica stops at the same place. It hashes the state as it was there in a
thread while it goes on: one state of the node at a time, and with rests, because the thread shares the interpreter with
the loop.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NoReturn

from holdfast.machine.kv import state_hash
from holdfast.serving.logs import get_logger
from holdfast.storage.rocksdb import StateError, StateView

KEPT_MAX = 8
REST_FACTOR = 3.0  # how much longer than it works a hash rests

_log = get_logger(__name__)


class Probes:
    """The last hashes of one replica."""

    def __init__(
        self,
        view: Callable[[], StateView],
        on_failed: Callable[[Exception], None] = lambda _error: None,
        one_at_a_time: asyncio.Lock | None = None,
    ) -> None:
        """`one_at_a_time`: shared by all states of a node."""
        self._view = view
        self._one_at_a_time = one_at_a_time or asyncio.Lock()
        self._on_failed = on_failed  # the state could not be read: who hashes reads all of it
        self._hashes: OrderedDict[int, asyncio.Task[bytes]] = OrderedDict()
        self._changed = asyncio.Event()

    def reached(self, index: int) -> None:
        """A mark was applied, and nothing after it."""
        view = self._view()
        self._hashes[index] = asyncio.create_task(self._hash(view), name=f"probe-{index}")
        self._hashes[index].add_done_callback(lambda task: self._poll(index, task))
        if len(self._hashes) > KEPT_MAX:
            _, oldest = self._hashes.popitem(last=False)
            oldest.cancel()
        self._changed.set()

    @property
    def is_busy(self) -> bool:
        """Whether a hash is not ready yet."""
        return any(not task.done() for task in self._hashes.values())

    async def _hash(self, view: StateView) -> bytes:
        try:
            await self._one_at_a_time.acquire()
        except asyncio.CancelledError:
            view.close()
            raise
        try:
            return await asyncio.to_thread(_hash, view)  # closes the view, even if nobody waits for it any more
        finally:
            self._one_at_a_time.release()

    def passed(self) -> None:
        """A snapshot took the replica on: marks that somebody waits for may lie behind it."""
        self._changed.set()

    async def wait_for(self, index: int, applied_index: Callable[[], int], wait_s: float) -> bytes | None:
        """The hash at this mark; None if the replica does not get there in time."""
        found: asyncio.Task[bytes] | None = None
        try:
            async with asyncio.timeout(wait_s):
                while index not in self._hashes and applied_index() < index:
                    self._changed.clear()
                    await self._changed.wait()
                found = self._hashes.get(index)
                return None if found is None else await asyncio.shield(found)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if found is not None and found.cancelled():
                return None  # too many came after it
            raise

    def has_lost(self, index: int, applied_index: int) -> bool:
        """Whether this mark will never be answered: it was passed too long ago, or by a snapshot."""
        return index not in self._hashes and applied_index >= index

    def _poll(self, index: int, task: "asyncio.Task[bytes]") -> None:
        if not task.cancelled() and isinstance(error := task.exception(), StateError):
            _log.error("probe_failed", index=index, error=str(error))
            self._on_failed(error)


def _hash(view: StateView) -> bytes:
    with view:
        return bytes.fromhex(state_hash(_Resting(view)))


class _Resting:
    """A state that is read with rests in between."""

    def __init__(self, view: StateView) -> None:
        self._view = view
        self._resumed_s = time.monotonic()

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self._view.get_many(keys)

    def write(self, changes: Mapping[bytes, bytes | None]) -> NoReturn:
        self._view.write(changes)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        time.sleep(REST_FACTOR * (time.monotonic() - self._resumed_s))
        self._resumed_s = time.monotonic()
        return self._view.scan(start, stop, limit)
