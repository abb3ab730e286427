"""Being asked to stop, from any thread."""

import asyncio
import threading


class StopRequest:
    """How often somebody asked to stop, and a way to wait for it that works from any thread and before the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._from_afar = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warm: asyncio.Event | None = None
        self._quick: asyncio.Event | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loop, self._warm, self._quick = loop, asyncio.Event(), asyncio.Event()
            self._notify()

    def request(self) -> None:
        with self._lock:
            self._count += 1
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._notify)

    def request_from_afar(self) -> None:
        """An operator wants it to stop warmly. A signal that follows, as one does where the process is then taken down,
        is the first of its kind: it must not cut the grace period short."""
        with self._lock:
            self._from_afar = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        assert self._warm is not None
        assert self._quick is not None
        if self._count > 0 or self._from_afar:
            self._warm.set()
        if self._count > 1:
            self._quick.set()

    async def warm(self) -> None:
        assert self._warm is not None
        await self._warm.wait()

    async def quick(self) -> None:
        assert self._quick is not None
        await self._quick.wait()
