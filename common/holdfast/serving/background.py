"""Work that goes on by itself, beside what serves calls: begun, ended, and asked whether a bug has ended it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


def failure_of(tasks: Iterable[asyncio.Task[Any]]) -> BaseException | None:
    """The error that ended one of them, if one did. To be cancelled is no failure."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            return error
    return None


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels them and waits until they have ended, however they do."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


class Background:
    """What runs from `start` on until it is stopped. Nobody awaits it, so its owner asks whether it has `failed`."""

    def __init__(self, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._works = works
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(work()) for work in self._works]

    def cancel(self) -> None:
        """Ends it soon, without waiting for that."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.cancel()
        await end_tasks(self._tasks)

    def failed(self) -> BaseException | None:
        """The error that ended it, if one did: a bug that must stop the node."""
        return failure_of(self._tasks)
