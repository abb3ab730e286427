"""The parts of a call over several shards: all at the same time, and none late because of a shard that does not answer.

There is one answer, and no caller should wait for it because of a shard that has no leader or is silent. So once a part
was answered the others have some time left, longer than an election takes; what is not answered by then is given up. A
shard that was given up lately has less time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar

from holdfast.routing.patience import PART_S, UNHEALTHY_PART_MEMORY_S, UNHEALTHY_PART_S, Leader, UnhealthyShards
from holdfast.transport.giving_up import GivingUp

ResultT = TypeVar("ResultT")


class Parts(Generic[ResultT]):
    """Sends them, and remembers which shards did not answer."""

    def __init__(self, leader_of: Callable[[int], Leader], has_answered: Callable[[ResultT], bool | None]) -> None:
        """`has_answered`: whether a result shows that the shard answers; None if it shows neither that nor the
        opposite."""
        self._leader_of = leader_of
        self._has_answered = has_answered
        self._unhealthy = UnhealthyShards(UNHEALTHY_PART_MEMORY_S)

    async def send(
        self, shards: Iterable[int], send: Callable[[int, GivingUp], Awaitable[ResultT]], *, is_impatient: bool
    ) -> dict[int, ResultT]:
        """What `send` made of each, by shard. `is_impatient`: not of a call that waits, because a part of it may be
        answered long before the others, which wait for something else."""
        patience = {shard: GivingUp() for shard in shards}
        timers: list[asyncio.TimerHandle] = []

        async def one(shard: int) -> ResultT:
            result = await send(shard, patience[shard])
            has_answered = self._has_answered(result)
            if has_answered:
                self._unhealthy.answered(shard)
                if not timers and is_impatient:
                    timers.extend(self.give_up_later(patience))
            elif has_answered is False:
                self._unhealthy.failed(shard, time.monotonic(), self._leader_of(shard))
            return result

        try:
            results = await asyncio.gather(*map(one, patience))
        finally:
            for timer in timers:
                timer.cancel()
        return dict(zip(patience, results, strict=True))

    def give_up_later(self, patience: Mapping[int, GivingUp]) -> list[asyncio.TimerHandle]:
        """What has been answered by then takes no notice."""
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        return [loop.call_later(self._left_s(shard, now_s), call.give_up) for shard, call in patience.items()]

    def _left_s(self, shard: int, now_s: float) -> float:
        return UNHEALTHY_PART_S if self._unhealthy.has(shard, now_s, self._leader_of(shard)) else PART_S
