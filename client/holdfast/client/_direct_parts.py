"""The parts of a call over several shards: all at the same time, and none late because of a shard that does not answer.

Routers do the same (`holdfast.router.parts`): once a part was answered the others have some time left, longer than an
election takes; what is not answered by then is given up. A shard that was given up lately has less time.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from holdfast.client._giving_up import GivingUp, Patience
from holdfast.client._rpc import Reply
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.routing.patience import PART_S, UNHEALTHY_PART_MEMORY_S, UNHEALTHY_PART_S, Leader, UnhealthyShards

_PartT = TypeVar("_PartT", bound=Message, contravariant=True)
ResponseT = TypeVar("ResponseT", bound=Message)
RequestT = TypeVar("RequestT", bound=Message)

_NO_ANSWER = (ConnectionFailed, DeadlineExceeded, OutcomeUnknown, Unavailable)


class Send(Protocol[_PartT, ResponseT]):
    """Sends a part to its shard."""

    async def __call__(self, part: _PartT, shard: int, patience: Patience = ...) -> Reply[ResponseT]: ...


class Parts:
    """Sends them, and remembers which shards did not answer."""

    def __init__(self, leader_of: Callable[[int], Leader]) -> None:
        self._leader_of = leader_of
        self._unhealthy = UnhealthyShards(UNHEALTHY_PART_MEMORY_S)

    async def send(
        self, requests: Mapping[int, RequestT], send: Send[RequestT, ResponseT], *, is_impatient: bool
    ) -> dict[int, Reply[ResponseT] | HoldfastError]:
        """What came of each, by shard; an error of this library in the place of an answer."""
        patience = {shard: GivingUp() for shard in requests}
        timers: list[asyncio.TimerHandle] = []

        async def one(shard: int, request: RequestT) -> Reply[ResponseT] | HoldfastError:
            try:
                reply = await send(request, shard, patience[shard])
            except ClientClosed:
                raise
            except HoldfastError as error:
                if isinstance(error, _NO_ANSWER):
                    self._unhealthy.failed(shard, time.monotonic(), self._leader_of(shard))
                return error
            self._unhealthy.answered(shard)
            if not timers and is_impatient:
                timers.extend(self._give_up_later(patience))
            return reply

        try:
            replies = await asyncio.gather(*(one(shard, request) for shard, request in requests.items()))
        finally:
            for timer in timers:
                timer.cancel()
        return dict(zip(requests, replies, strict=True))

    def _give_up_later(self, patience: Mapping[int, GivingUp]) -> list[asyncio.TimerHandle]:
        """What has been answered by then takes no notice."""
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        by_time: dict[float, list[GivingUp]] = {}
        for shard, giving_up in patience.items():
            is_unhealthy = self._unhealthy.has(shard, now_s, self._leader_of(shard))
            by_time.setdefault(UNHEALTHY_PART_S if is_unhealthy else PART_S, []).append(giving_up)
        return [loop.call_later(wait_s, _give_up, late) for wait_s, late in by_time.items()]


def _give_up(late: Sequence[GivingUp]) -> None:
    for giving_up in late:
        giving_up.give_up()
