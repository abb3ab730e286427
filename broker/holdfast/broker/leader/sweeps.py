"""Housekeeping by time: each index ordered by time has a sweep that wakes when its first row is due.

A sweep never polls: it sleeps until the first due time it knows, and is armed anew when an earlier one is written. It
reads from where it stopped, so rows that were deleted meanwhile are not walked over again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.machine import keys
from holdfast.machine.kv import Rows

SLEEP_SECONDS_MAX = 60.0  # shard time may run a little faster than the loop's clock
RETRY_SECONDS = 1.0  # after a write that was refused, for example for lack of disk space


class Sweep:
    """One index. `handle` proposes what follows from due rows, and says, once that is applied, whether it worked."""

    def __init__(
        self,
        rows: Rows,
        family: int,
        now_ms: Callable[[], int],
        handle: Callable[[list[tuple[int, bytes]]], Awaitable[bool]],
        *,
        batch_rows: int,
        not_before_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._rows = rows
        self._family = family
        self._now_ms = now_ms
        self._handle = handle
        self._batch_rows = batch_rows
        self._not_before_ms = not_before_ms  # shard time before which nothing is handled
        self._cursor = keys.family_start(family)  # a key: every row before it was handled, or left for good
        self._cursor_ms = 0  # the time in it
        self._next_ms: int | None = 0  # when to look again; None: when armed
        self._armed = asyncio.Event()

    def _set_cursor(self, cursor: bytes) -> None:
        self._cursor, self._cursor_ms = cursor, keys.timed(cursor)[0]

    @property
    def position(self) -> bytes:
        """The key before which there are no rows but such as this sweep has handled or left for good: who reads the
        index from here on walks over no tombstones."""
        return self._cursor

    def arm(self, when_ms: int) -> None:
        """A row due at `when_ms` was written."""
        # A write that was long on its way can be due before what this sweep has read already.
        if when_ms <= self._cursor_ms:
            self._set_cursor(min(self._cursor, keys.timed_from(self._family, when_ms)))
        if self._next_ms is None or when_ms < self._next_ms:
            self._next_ms = when_ms
            self._armed.set()

    def poll_again(self) -> None:
        """Shard time was moved: what was far away may be due."""
        self._armed.set()

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            await self._sleep()
            now_ms = self._now_ms()
            due = self._read(now_ms)
            if len(due) < self._batch_rows:
                self._set_cursor(keys.timed_from(self._family, now_ms))
            else:
                # Behind the last row, not at its time: a page of rows of one time that stay must not hold up the rest.
                self._set_cursor(keys.timed_from(self._family, due[-1][0]) + due[-1][1] + b"\0")
            if due and not await self._handle(due):
                self._set_cursor(min(self._cursor, keys.timed_from(self._family, due[0][0])))
                await asyncio.sleep(RETRY_SECONDS)
            self._next_ms = self._first_ms()

    async def _sleep(self) -> None:
        while True:
            self._armed.clear()
            if self._next_ms is None:
                await self._armed.wait()
                continue
            wait_ms = max(self._next_ms, self._not_before_ms()) - self._now_ms()
            if wait_ms <= 0:
                return
            try:
                async with asyncio.timeout(min(wait_ms / 1000, SLEEP_SECONDS_MAX)):
                    await self._armed.wait()
            except TimeoutError:
                continue

    def _read(self, now_ms: int) -> list[tuple[int, bytes]]:
        """The rows that are due, as (when, what)."""
        rows = self._rows.scan(self._cursor, keys.timed_from(self._family, now_ms + 1), self._batch_rows)
        return [keys.timed(key) for key, _ in rows]

    def _first_ms(self) -> int | None:
        rows = self._rows.scan(self._cursor, keys.family_start(self._family + 1), 1)
        return keys.timed(rows[0][0])[0] if rows else None
