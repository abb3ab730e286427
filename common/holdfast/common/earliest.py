"""One timer for many deadlines: a timer of its own for each would cost more than most of what they wait for."""

import asyncio
import math
from collections.abc import Callable

_PAUSE_S = 0.005  # between two looks at all deadlines: so much later may be noticed that one of them has passed


class EarliestTimer:
    """Goes off when the earliest deadline has come that was noted. It may go off too early, for one that is met by now:
    whoever owns it looks which have passed."""

    __slots__ = ("_go_off", "_handle", "_loop", "_now_s", "at_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float], go_off: Callable[[float], float]
    ) -> None:
        """`go_off`: ends what is over by this moment, and returns the earliest deadline that is left, or infinity."""
        self._loop = loop
        self._now_s = now_s
        self._go_off = go_off
        self._handle: asyncio.TimerHandle | None = None
        self.at_s = math.inf  # the earliest: nothing need be noted that comes later

    def note(self, deadline_s: float) -> None:
        if deadline_s < self.at_s:
            self._set(deadline_s, 0.0)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.at_s = None, math.inf

    def _set(self, deadline_s: float, pause_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self.at_s = deadline_s
        self._handle = self._loop.call_later(max(pause_s, deadline_s - self._now_s()), self._look)

    def _look(self) -> None:
        self._handle, self.at_s = None, math.inf
        deadline_s = self._go_off(self._now_s())
        if deadline_s < self.at_s:
            self._set(deadline_s, _PAUSE_S)
