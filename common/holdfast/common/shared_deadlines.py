"""One timer for very many waits that mostly end before their time: a timer of its own costs each of them more than an
entry in a list."""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

STEP_S = 0.01  # so much later a wait may end; those of one step end together

T = TypeVar("T")


class SharedDeadlines(Generic[T]):
    """`go_off` is called for each item that is there when its time is over."""

    __slots__ = ("_count", "_go_off", "_items", "_steps", "_timer")

    def __init__(self, go_off: Callable[[T], object]) -> None:
        self._go_off = go_off
        self._items: dict[int, dict[T, None]] = {}  # by the step in which they go off
        self._steps: list[int] = []  # those, the earliest first: a heap
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None  # for the earliest; there while anything waits

    def __len__(self) -> int:
        return self._count

    def add(self, item: T, wait_s: float) -> int:
        """Returns the step, which `remove` wants to know."""
        loop = asyncio.get_running_loop()
        step = int((loop.time() + wait_s) / STEP_S) + 1  # never a step that is over already
        items = self._items.get(step)
        if items is None:
            items = self._items[step] = {}
            heappush(self._steps, step)
            if self._steps[0] == step:
                self._set_timer(loop)
        items[item] = None
        self._count += 1
        return step

    def remove(self, item: T, step: int) -> None:
        """Does nothing if it has gone off. A step without items stays until its time, but for the last of all."""
        items = self._items.get(step)
        if items is None or item not in items:
            return
        del items[item]
        self._count -= 1
        if not self._count:
            self._items.clear()
            self._steps.clear()
            self._stop_timer()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now_s = loop.time()
        while self._steps and self._steps[0] * STEP_S <= now_s:
            items = self._items.pop(heappop(self._steps))
            self._count -= len(items)
            for item in items:
                self._go_off(item)
        if self._count:
            self._set_timer(loop)
        else:
            self._items.clear()
            self._steps.clear()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop_timer()
        self._timer = loop.call_at(self._steps[0] * STEP_S, self._look, loop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
