"""The parts of a batch over several shards: sent at the same time, and joined to one answer.

There is one answer, and no caller should wait for it because of a shard that has no leader or is silent. So once a part
was answered the others have some time left, longer than an election takes; what is not answered by then is given up,
and its items are refused one by one. A shard that was given up lately has less time.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.router.batches import Part, join_answers
from holdfast.router.failures import FAILURES, Failure, is_passing, may_pass_if_read
from holdfast.router.forwarding import Forwarder, Sending
from holdfast.router.methods import Method
from holdfast.routing.patience import PART_S, UNHEALTHY_PART_MEMORY_S, UNHEALTHY_PART_S, Leader, UnhealthyShards

# Parts must answer before the caller has hung up: then it hears of those that did.
_MARGIN_S_MAX = 0.1
_MARGIN_SHARE = 0.05


class Parts:
    """Sends them, and remembers which shards did not answer."""

    def __init__(self, forwarder: Forwarder, leader_of: Callable[[int], Leader]) -> None:
        self._forwarder = forwarder
        self._leader_of = leader_of
        self._unhealthy = UnhealthyShards(UNHEALTHY_PART_MEMORY_S)

    async def send(self, method: Method, parts: Sequence[Part], deadline_s: float) -> Any:
        """The joined response. Raises CallFailedError or RefusedError if all parts failed alike."""
        left_s = deadline_s - time.monotonic()
        deadline_s -= min(_MARGIN_S_MAX, max(0.0, left_s) * _MARGIN_SHARE)
        sendings = [Sending() for _ in parts]
        timers: list[asyncio.TimerHandle] = []

        async def one(part: Part, sending: Sending) -> bytes | Failure:
            try:
                answer = await self._forwarder.send(method, part.shard, part.data, deadline_s, sending)
            except FAILURES as failure:
                self._note(part.shard, failure)
                return failure
            self._unhealthy.answered(part.shard)
            # A part of a call that waits may be answered long before the others, which wait for something else.
            if not timers and not method.waits:
                timers.extend(self._give_up_later(parts, sendings))
            return answer

        try:
            answers = await asyncio.gather(*map(one, parts, sendings))
        finally:
            for timer in timers:
                timer.cancel()
        return join_answers(method, parts, answers)

    def _give_up_later(self, parts: Sequence[Part], sendings: Sequence[Sending]) -> list[asyncio.TimerHandle]:
        """What has been answered by then takes no notice."""
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        by_patience: dict[float, list[Sending]] = {}
        for part, sending in zip(parts, sendings, strict=True):
            is_unhealthy = self._unhealthy.has(part.shard, now_s, self._leader_of(part.shard))
            by_patience.setdefault(UNHEALTHY_PART_S if is_unhealthy else PART_S, []).append(sending)
        return [loop.call_later(wait_s, _abandon, late) for wait_s, late in by_patience.items()]

    def _note(self, shard: int, failure: Failure) -> None:
        if is_passing(failure) or may_pass_if_read(failure):
            self._unhealthy.failed(shard, time.monotonic(), self._leader_of(shard))


def _abandon(sendings: Sequence[Sending]) -> None:
    for sending in sendings:
        sending.abandon()
