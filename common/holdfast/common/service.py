"""Work that goes on by itself: begun, ended, and asked whether a bug has ended it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

Work = Coroutine[Any, Any, None]


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels them and waits until they have ended, however they do."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def report_bug(error: BaseException) -> None:
    """An `on_error` of what goes on without the work that it ended: it is said, as of any task that nobody awaits."""
    event = {"message": "Work in the background ended by an error", "exception": error}
    asyncio.get_running_loop().call_exception_handler(event)


class Service:
    """Runs from `start` on until it is stopped, and so does what it spawns meanwhile.

    A work that has ended well is done, and to be cancelled is no failure. The first error of any is kept: the owner
    asks for it (`failed`), waits for it beside something else (`wait`), or is ended by it (`run`). With `on_error` all
    errors go there instead: they end what they happened in, and nobody else.
    """

    def __init__(self, *works: Callable[[], Work], on_error: Callable[[BaseException], None] | None = None) -> None:
        self._works = works
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()  # under way: the event loop does not keep them
        self._error: BaseException | None = None
        self._has_failed = asyncio.Event()

    def start(self) -> None:
        for work in self._works:
            self.spawn(work())

    def spawn(self, work: Work, name: str | None = None) -> asyncio.Task[None]:
        """One more, which may be cancelled by itself."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @property
    def under_way(self) -> int:
        """How many works are."""
        return len(self._tasks)

    def cancel(self) -> None:
        """Ends all soon, without waiting for that."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Once all have ended by themselves, also what they spawn."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Ends all, also what they spawn at their end."""
        self.cancel()
        while self._tasks:
            await end_tasks(self._tasks)

    def failed(self) -> BaseException | None:
        """The error that ended one of them, if one did: a bug, or what a person has to act on."""
        return self._error

    async def wait(self, *others: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
        """Until something here has failed, or one of the others has ended, or for so long. The others are cancelled."""
        waits = [asyncio.create_task(other) for other in (self._has_failed.wait(), *others)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(waits)

    async def run(self) -> None:
        """From start to stop for whoever is ended by a failure, and raises it."""
        self.start()
        try:
            await self._has_failed.wait()
        finally:
            await self.stop()
        assert self._error is not None
        raise self._error

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._on_error is not None:
            self._on_error(error)
        elif error is not None and self._error is None:
            self._error = error
            self._has_failed.set()
