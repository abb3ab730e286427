"""The bytes per second that all transfers of a node may use together, so that they leave room for the tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable


class Throttle:
    """A token bucket: after a pause `burst_bytes` may pass at once, then `bytes_per_s`, in the order of asking."""

    def __init__(
        self,
        bytes_per_s: float,
        burst_bytes: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"Expected a rate above 0 bytes per second, but got {bytes_per_s}.")
        self._bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._now_s = now_s
        self._sleep = sleep
        self._level_bytes = float(burst_bytes)  # below 0: promised to those who sleep
        self._seen_s = now_s()

    async def take(self, count_bytes: int) -> None:
        """Returns when this many bytes may be sent. Who gives up while waiting has taken them all the same."""
        now_s = self._now_s()
        gained = (now_s - self._seen_s) * self._bytes_per_s
        self._level_bytes = min(float(self._burst_bytes), self._level_bytes + gained) - count_bytes
        self._seen_s = now_s
        if self._level_bytes < 0:
            await self._sleep(-self._level_bytes / self._bytes_per_s)
