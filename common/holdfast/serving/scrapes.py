"""What a process counts, printed for Prometheus: once for all who ask at the same time, and not all the time.

Many queues take a while to read and to print. Eight who ask again and again must not keep the loop from its work.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol

SLICE_SECONDS = 0.002  # of the loop at a time
REST_FACTOR = 3.0  # how much longer than it took nothing is printed
REST_SECONDS_MAX = 5.0


class Shown(Protocol):
    """What a process counts."""

    @property
    def content_type(self) -> str: ...

    def refresh(self) -> Iterator[None]:
        """Brings up to date what is not counted as it happens, in steps. Called on the loop, which may do other work
        between two of them."""
        ...

    def format(self) -> bytes:
        """As Prometheus reads it. Called in a thread."""
        ...


class Scrapes:
    """Whoever asks gets figures that were read after that: those who ask meanwhile share the next ones."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._next: asyncio.Task[bytes] | None = None  # that has not begun to read
        self._one_at_a_time = asyncio.Lock()
        self._rests_until_s = 0.0

    @property
    def content_type(self) -> str:
        return self._shown.content_type

    async def text(self) -> bytes:
        if self._next is None:
            self._next = asyncio.create_task(self._render(), name="metrics")
        return await asyncio.shield(self._next)  # for the others, if this one goes away

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    async def _render(self) -> bytes:
        async with self._one_at_a_time:
            await asyncio.sleep(self._rests_until_s - time.monotonic())
            self._next = None
            began_s = time.monotonic()
            await self._read()
            text = await asyncio.to_thread(self._shown.format)
            ended_s = time.monotonic()
            self._rests_until_s = ended_s + min(REST_SECONDS_MAX, REST_FACTOR * (ended_s - began_s))
            return text

    async def _read(self) -> None:
        slice_ends_s = time.monotonic() + SLICE_SECONDS
        for _ in self._shown.refresh():
            if time.monotonic() >= slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = time.monotonic() + SLICE_SECONDS
