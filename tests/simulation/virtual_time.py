"""An asyncio event loop on virtual time: nobody really waits, and a seed is one order of events.

Time stands still while anything can run and then jumps to the next timer. Callbacks that are ready at the same moment
run in an order drawn from the seed, not in the order in which they were scheduled: code that is right only because of
that order is found out. There are no sockets, no threads and no signals.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

TURNS_WITHOUT_TIME_MAX = 100_000
SECONDS_MAX = 100_000.0


class StalledError(RuntimeError):
    """Everybody waits for something that will never happen: no timer is left, or only those of a watch."""


class LivelockError(RuntimeError):
    """Callbacks keep scheduling each other and time does not move."""


class _Clockwork:
    """Stands where the loop expects its selector: instead of waiting for files it moves the time."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise StalledError("no callback is ready and no timer is set")
        self._loop.pass_time(timeout)
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Deterministic for a seed, as long as the code that runs on it draws nothing from elsewhere."""

    _ready: deque[asyncio.Handle]  # the base class's own; what runs in the next turn

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = 0.0
        self._shuffles = random.Random(seed)
        self._turns_without_time = 0
        self._selector = _Clockwork(self)
        self.unhandled: list[str] = []  # what asyncio would only have logged
        self.set_exception_handler(self._record)

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        if seconds > 0:
            if self._now > SECONDS_MAX:
                raise StalledError(f"still running after {self._now} s")
            self._now += seconds
            self._turns_without_time = 0

    def start_afresh(self) -> None:
        """For the cleaning up after a run that was given up."""
        self._now = 0.0
        self._turns_without_time = 0

    def _run_once(self) -> None:
        self._turns_without_time += 1
        if self._turns_without_time > TURNS_WITHOUT_TIME_MAX:
            raise LivelockError(f"time stands still at {self._now} s")
        if len(self._ready) > 1:
            shuffled = list(self._ready)
            self._shuffles.shuffle(shuffled)
            self._ready.clear()
            self._ready.extend(shuffled)
        super()._run_once()  # type: ignore[misc]  # not in the published stubs

    def _process_events(self, event_list: list[object]) -> None:
        """There are no files, so there are no events."""

    def _write_to_self(self) -> None:
        """There are no other threads that could have to wake this one."""

    def _record(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")


def run(main: Callable[[], Coroutine[Any, Any, Result]], seed: int) -> Result:
    """Runs a coroutine to its end on a loop of its own. An error that asyncio would only log is raised instead."""
    loop = VirtualTimeLoop(seed)
    try:
        result = loop.run_until_complete(main())
    finally:
        _cancel_leftovers(loop)
        loop.close()
    if loop.unhandled:
        raise AssertionError(f"errors that nobody handled: {loop.unhandled}")
    return result


def _cancel_leftovers(loop: VirtualTimeLoop) -> None:
    # all_tasks gives a set, whose order is not the seed's; after the run that no longer matters.
    leftovers = asyncio.all_tasks(loop)
    for task in leftovers:
        task.cancel()
    loop.start_afresh()
    if leftovers:
        loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
