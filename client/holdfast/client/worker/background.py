"""Calls that a worker makes in the background, for each shard by themselves."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundCalls:
    """Any number of coroutines at once. `run` ends with the first error that one of them raises, and ends them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._failed = asyncio.Event()

    def start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def run(self) -> None:
        try:
            await self._failed.wait()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._error is not None:
            raise self._error

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
            self._failed.set()
