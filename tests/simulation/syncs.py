"""Syncs of a log without threads: what stands for the thread is a coroutine, and time is that of the event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Beside:
    """A sync that is never done while somebody blocks the loop and waits for it in line."""

    def __init__(self, running: Awaitable[None]) -> None:
        self._running: asyncio.Future[None] = asyncio.ensure_future(running)

    def done(self) -> bool:
        return self._running.done()

    def wait(self, seconds_max: float) -> None:
        """It would need the loop."""

    def __await__(self) -> Generator[Any, None, float]:
        yield from self._running.__await__()
        return 0.0

    def cancel(self) -> None:
        self._running.cancel()


def beside(run_blocking: Callable[[Callable[[], None]], Awaitable[None]]) -> Callable[[Callable[[], None]], Beside]:
    return lambda work: Beside(run_blocking(work))
