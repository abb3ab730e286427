"""Single calls that come at the same time share a request.

The first goes out at once. What comes while enough requests are on their way waits for the next, together: the busier a
client is, the larger its requests, and the less each task costs. A client with nothing else to do pays nothing for it.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from holdfast.client._batches import take_batch
from holdfast.client.errors import InvalidArgument, Overloaded, Rejected

ItemT = TypeVar("ItemT")
DoneT = TypeVar("DoneT")

# Two, so that one is prepared and sent while the server works on the other.
_REQUESTS_MAX = 2
_WAITING_MAX = 10_000
_SLACK_S = 0.1


@dataclass(slots=True, eq=False)
class _Waiting(Generic[ItemT, DoneT]):
    item: ItemT
    size_bytes: int
    ends_s: float  # on the loop's clock: until then its caller waits
    future: "asyncio.Future[DoneT | Rejected]"


class Coalescer(Generic[ItemT, DoneT]):
    """Sends items in batches as large as what has come together, within the limits of one request."""

    def __init__(
        self,
        send: Callable[[Sequence[ItemT], float], Awaitable[list[DoneT | Rejected]]],  # in at most so many seconds
        items_max: int,
        bytes_max: int,
    ) -> None:
        self._send = send
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._waiting: deque[_Waiting[ItemT, DoneT]] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def put(self, item: ItemT, size_bytes: int, timeout_s: float) -> DoneT | Rejected:
        """The item's outcome. What makes a whole request fail is raised for each item in it; `TimeoutError` if it was
        not answered in time, whether it was sent or not."""
        if len(self._waiting) >= _WAITING_MAX:
            raise Overloaded(
                f"Expected at most {_WAITING_MAX:,} calls that wait in this client, but there are more.",
                reason="OVERLOADED",
                retry_after_ms=100,
            )
        loop = asyncio.get_running_loop()
        waiting = _Waiting[ItemT, DoneT](item, size_bytes, loop.time() + timeout_s, loop.create_future())
        self._waiting.append(waiting)
        if len(self._senders) < _REQUESTS_MAX:
            self._senders.add(asyncio.create_task(self._send_what_waits()))
        # A moment longer than the request itself, whose own error says more.
        async with asyncio.timeout_at(waiting.ends_s + _SLACK_S):
            return await waiting.future

    async def drain(self) -> None:
        """Waits until nothing is on its way any more: everybody who called has had an answer."""
        while self._senders:
            await asyncio.gather(*self._senders, return_exceptions=True)

    async def _send_what_waits(self) -> None:
        try:
            while batch := self._next_batch():
                await self._send_batch(batch)
        finally:
            # Here, not in a callback: between its last look and a callback somebody could take it for one that looks.
            self._senders.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _next_batch(self) -> list[_Waiting[ItemT, DoneT]]:
        """Without those whose callers have gone; empty only if nobody is left."""
        while self._waiting:
            batch = take_batch(self._waiting, self._items_max, self._bytes_max, lambda waiting: waiting.size_bytes)
            if wanted := [waiting for waiting in batch if not waiting.future.done()]:
                return wanted
        return []

    async def _send_batch(self, batch: list[_Waiting[ItemT, DoneT]]) -> None:
        left_s = batch[-1].ends_s - asyncio.get_running_loop().time()  # those before it give up by themselves
        try:
            outcomes = await self._send([waiting.item for waiting in batch], max(0.0, left_s))
        except InvalidArgument as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one bad item spoils a request: its neighbours must not suffer for it
                await asyncio.gather(*(self._send_batch([waiting]) for waiting in batch))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            _fail(batch, error)
        except asyncio.CancelledError:  # the loop ends
            for waiting in batch:
                waiting.future.cancel()
            raise
        else:
            for waiting, outcome in zip(batch, outcomes, strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(outcome)


def _fail(batch: Sequence[_Waiting[ItemT, DoneT]], error: Exception) -> None:
    for waiting in batch:
        if not waiting.future.done():
            # One for each: callers on different threads raise it, and each adds its own traceback.
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            waiting.future.set_exception(own)
