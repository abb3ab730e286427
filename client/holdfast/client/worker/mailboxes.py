"""How one thread hands things to another's event loop: in order, many per wake-up."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`put` from any thread; `take` is called on the loop, once for each thing, in the order in which they came.

    It is as bounded as what is put in: a worker has at most one message per task that it holds in each direction.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        self._loop = loop
        self._take = take
        self._things: deque[T] = deque()
        self._woken = False

    def put(self, thing: T) -> None:
        # Waking a loop costs a system call: one that has been woken and has not looked yet need not be woken again.
        # The order matters: put before asking here, reset before looking there, so that nothing is left lying.
        self._things.append(thing)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._poll)
            except RuntimeError:
                pass  # the loop has closed: a handler has ended after its worker, and nobody waits for it any more

    def _poll(self) -> None:
        self._woken = False
        while self._things:
            self._take(self._things.popleft())
