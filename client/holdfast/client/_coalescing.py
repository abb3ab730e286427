"""Single calls that come at the same time share a request.

The first goes out at once. What comes while enough requests are on their way waits for the next, together: the busier a
client is, the larger its requests, and the less each task costs. A client with nothing else to do pays nothing for it.

Only items of one group share a request, because a request is answered when the last of its items is: a shard that is
silent, or has no leader, must not hold up what goes to others. Groups know nothing of each other. Within a group a
request that is not answered for long does not count any more, so that others pass it, up to a bound: not all items of a
group need be of one shard.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from holdfast.client._batches import take_batch
from holdfast.client._pauses import asked_pause_s
from holdfast.client.errors import InvalidArgument, OutcomeUnknown, Overloaded, Rejected

ItemT = TypeVar("ItemT")
DoneT = TypeVar("DoneT")
_TakenT = TypeVar("_TakenT", contravariant=True)

# Of a group. Two, so that one is prepared and sent while the server works on the other.
_REQUESTS_MAX = 2
LATE_S = 1.0  # after that long without an answer a request is passed by others
_LATE_REQUESTS_MAX = 6
_LATE_BYTES_MAX = 4 * 1024 * 1024
# How many items wait: in a group, and in all.
WAITING_MAX = 10_000
_WAITING_IN_ALL_MAX = 40_000
_SLACK_S = 0.1
_REPEAT_S_MIN = 0.1  # with less time left a refused item is not sent again


class Requests(Protocol[_TakenT, DoneT]):
    """What is shared, and how."""

    async def send(self, items: Sequence[_TakenT], timeout_s: float) -> list[DoneT | Rejected]:
        """In at most so many seconds. What it raises is the outcome of each item."""
        ...

    def group_of(self, item: _TakenT) -> Hashable:
        """Items of different groups never share a request. There must be few groups."""
        ...

    def group_of_repeated(self, item: _TakenT, refusal: Rejected) -> Hashable | None:
        """Of one that was refused while others of its request were not: where it is sent again; None if it is not."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting(Generic[ItemT, DoneT]):
    item: ItemT
    size_bytes: int
    ends_s: float  # on the loop's clock: until then its caller waits
    future: "asyncio.Future[DoneT | Rejected]"
    repeats: int = 0
    unknown: Rejected | None = None  # what was heard of an attempt that may have taken effect


class _Group(Generic[ItemT, DoneT]):
    """It is there while something waits or is on its way."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: deque[_Waiting[ItemT, DoneT]] = deque()
        self.senders: set[asyncio.Task[None]] = set()
        self.late = 0  # senders whose request is not answered for long
        self.late_bytes = 0

    @property
    def is_busy(self) -> bool:
        """No further request may leave now."""
        requests = len(self.senders)
        is_full = requests >= _REQUESTS_MAX + _LATE_REQUESTS_MAX or self.late_bytes >= _LATE_BYTES_MAX
        return requests - self.late >= _REQUESTS_MAX or is_full


class Coalescer(Generic[ItemT, DoneT]):
    """Sends items in batches as large as what has come together, within the limits of one request."""

    def __init__(self, requests: Requests[ItemT, DoneT], items_max: int, bytes_max: int) -> None:
        self._requests = requests
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._groups: dict[Hashable, _Group[ItemT, DoneT]] = {}
        self._waiting = 0  # in all groups
        self._paused: dict[_Waiting[ItemT, DoneT], tuple[asyncio.TimerHandle, Hashable]] = {}  # sent again then

    async def put(self, item: ItemT, size_bytes: int, timeout_s: float) -> DoneT | Rejected:
        """The item's outcome. What makes a whole request fail is raised for each item in it; `TimeoutError` if it was
        not answered in time, whether it was sent or not."""
        key = self._requests.group_of(item)
        group = self._groups.get(key)
        if self._waiting >= _WAITING_IN_ALL_MAX or (group is not None and len(group.waiting) >= WAITING_MAX):
            raise Overloaded(
                f"Expected at most {WAITING_MAX:,} calls that wait in this client, but there are more.",
                reason="OVERLOADED",
                retry_after_ms=100,
            )
        loop = asyncio.get_running_loop()
        waiting = _Waiting[ItemT, DoneT](item, size_bytes, loop.time() + timeout_s, loop.create_future())
        self._add(key, waiting)
        try:
            # A moment longer than the request itself, whose own error says more.
            async with asyncio.timeout_at(waiting.ends_s + _SLACK_S):
                return await waiting.future
        except TimeoutError:
            if waiting.unknown is not None:
                return waiting.unknown
            raise

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way any more: everybody who called has had an answer."""
        return not (self._paused or self._groups)

    async def drain(self) -> None:
        """Waits until it is idle."""
        while not self.is_idle:
            for waiting, (timer, key) in list(self._paused.items()):
                timer.cancel()
                self._add_again(key, waiting)
            senders = [sender for group in self._groups.values() for sender in group.senders]
            await asyncio.gather(*senders, return_exceptions=True)

    def _add(self, key: Hashable, waiting: _Waiting[ItemT, DoneT]) -> None:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
        group.waiting.append(waiting)
        self._waiting += 1
        self._begin(group)

    def _begin(self, group: _Group[ItemT, DoneT]) -> None:
        if not group.is_busy:
            group.senders.add(asyncio.create_task(self._send_what_waits(group)))

    async def _send_what_waits(self, group: _Group[ItemT, DoneT]) -> None:
        try:
            # More than there should be are left when late requests are answered after all.
            while len(group.senders) - group.late <= _REQUESTS_MAX and (batch := self._next_batch(group)):
                await self._send_noting_lateness(group, batch)
        finally:
            # Here, not in a callback: between its last look and a callback somebody could take it for one that looks.
            group.senders.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            if not group.senders and not group.waiting:
                del self._groups[group.key]

    def _next_batch(self, group: _Group[ItemT, DoneT]) -> list[_Waiting[ItemT, DoneT]]:
        """Without those whose callers have gone; empty only if nobody is left."""
        while group.waiting:
            batch = take_batch(group.waiting, self._items_max, self._bytes_max, lambda waiting: waiting.size_bytes)
            self._waiting -= len(batch)
            if wanted := [waiting for waiting in batch if not waiting.future.done()]:
                return wanted
        return []

    async def _send_noting_lateness(self, group: _Group[ItemT, DoneT], batch: list[_Waiting[ItemT, DoneT]]) -> None:
        size_bytes = sum(waiting.size_bytes for waiting in batch)
        is_late = False

        def be_late() -> None:
            nonlocal is_late
            is_late = True
            group.late += 1
            group.late_bytes += size_bytes
            if group.waiting:
                self._begin(group)

        timer = asyncio.get_running_loop().call_later(LATE_S, be_late)
        try:
            await self._send_batch(batch)
        finally:
            timer.cancel()
            if is_late:
                group.late -= 1
                group.late_bytes -= size_bytes

    async def _send_batch(self, batch: list[_Waiting[ItemT, DoneT]]) -> None:
        left_s = batch[-1].ends_s - asyncio.get_running_loop().time()  # those before it give up by themselves
        try:
            outcomes = await self._requests.send([waiting.item for waiting in batch], max(0.0, left_s))
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
                if not waiting.future.done() and not (
                    isinstance(outcome, Rejected) and self._repeats(waiting, outcome)
                ):
                    reported = waiting.unknown if isinstance(outcome, Rejected) and waiting.unknown else outcome
                    waiting.future.set_result(reported)

    def _repeats(self, waiting: _Waiting[ItemT, DoneT], refusal: Rejected) -> bool:
        """Whether an item that was refused is sent again, after a pause."""
        loop = asyncio.get_running_loop()
        pause_s = asked_pause_s(waiting.repeats, refusal)
        if loop.time() + pause_s + _REPEAT_S_MIN > waiting.ends_s:
            return False
        key = self._requests.group_of_repeated(waiting.item, refusal)
        if key is None:
            return False
        waiting.repeats += 1
        if isinstance(refusal, OutcomeUnknown):
            waiting.unknown = refusal
        self._paused[waiting] = loop.call_later(pause_s, self._add_again, key, waiting), key
        return True

    def _add_again(self, key: Hashable, waiting: _Waiting[ItemT, DoneT]) -> None:
        del self._paused[waiting]
        if not waiting.future.done():
            self._add(key, waiting)


def _fail(batch: Sequence[_Waiting[ItemT, DoneT]], error: Exception) -> None:
    for waiting in batch:
        if waiting.future.done():
            continue
        if waiting.unknown is not None:
            waiting.future.set_result(waiting.unknown)
            continue
        # One for each: callers on different threads raise it, and each adds its own traceback.
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        waiting.future.set_exception(own)
