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
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from holdfast.client._batches import take_batch
from holdfast.client._pauses import asked_pause_s
from holdfast.client.errors import InvalidArgument, OutcomeUnknown, Overloaded, Rejected
from holdfast.common.earliest import EarliestTimer

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


# What has become of the items of a request, or how to find out.
Ended = list[DoneT | Rejected] | Awaitable[list[DoneT | Rejected]]


class Begin(Protocol[_TakenT, DoneT]):
    """Sends a request without anybody who waits for its end: `end` hears of that, later. False if there is no such way
    at the moment."""

    def __call__(self, items: Sequence[_TakenT], timeout_s: float, end: Callable[[Ended[DoneT]], None], /) -> bool: ...


@dataclass(slots=True, eq=False)
class _Waiting(Generic[ItemT, DoneT]):
    item: ItemT
    size_bytes: int
    ends_s: float  # on the loop's clock: until then its caller waits
    future: "asyncio.Future[DoneT | Rejected]"
    repeats: int = 0
    unknown: Rejected | None = None  # what was heard of an attempt that may have taken effect


@dataclass(slots=True, eq=False)
class _Request(Generic[ItemT, DoneT]):
    """It is on its way."""

    batch: list[_Waiting[ItemT, DoneT]]
    begun_s: float
    is_late: bool = False  # it is not answered for long
    sender: asyncio.Task[None] | None = None

    @property
    def size_bytes(self) -> int:
        return sum(waiting.size_bytes for waiting in self.batch)


class _Group(Generic[ItemT, DoneT]):
    """It is there while something waits or is on its way."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: deque[_Waiting[ItemT, DoneT]] = deque()
        self.requests: dict[_Request[ItemT, DoneT], None] = {}  # the oldest first
        self.late = 0
        self.late_bytes = 0
        self.begins = False  # what waits is looked at in the next iteration of the loop
        self.timer: asyncio.TimerHandle | None = None  # until the next one is late, while something waits for that

    @property
    def is_busy(self) -> bool:
        """No further request may leave now."""
        requests = len(self.requests)
        is_full = requests >= _REQUESTS_MAX + _LATE_REQUESTS_MAX or self.late_bytes >= _LATE_BYTES_MAX
        return requests - self.late >= _REQUESTS_MAX or is_full


class Coalescer(Generic[ItemT, DoneT]):
    """Sends items in batches as large as what has come together, within the limits of one request."""

    def __init__(
        self,
        requests: Requests[ItemT, DoneT],
        items_max: int,
        bytes_max: int,
        begin: Begin[ItemT, DoneT] = lambda *_: False,
    ) -> None:
        self._requests = requests
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._begin_request = begin
        self._groups: dict[Hashable, _Group[ItemT, DoneT]] = {}
        self._waiting = 0  # in all groups
        self._paused: dict[_Waiting[ItemT, DoneT], tuple[asyncio.TimerHandle, Hashable]] = {}  # sent again then
        self._callers: dict[_Waiting[ItemT, DoneT], None] = {}  # that wait for their outcomes
        self._deadlines: EarliestTimer | None = None
        self._has_ended: asyncio.Event | None = None  # what was on its way, while somebody waits until all has

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
        ends_s = loop.time() + timeout_s
        waiting: _Waiting[ItemT, DoneT] = _Waiting(item, size_bytes, ends_s, loop.create_future())
        self._add(loop, key, waiting)
        self._callers[waiting] = None
        if self._deadlines is None:
            self._deadlines = EarliestTimer(loop, loop.time, self._end_overdue)
        # A moment longer than the request itself, whose own error says more.
        if ends_s + _SLACK_S < self._deadlines.at_s:
            self._deadlines.note(ends_s + _SLACK_S)
        try:
            return await waiting.future
        finally:
            del self._callers[waiting]

    def _end_overdue(self, now_s: float) -> float:
        over = [
            waiting for waiting in self._callers if waiting.ends_s + _SLACK_S <= now_s and not waiting.future.done()
        ]
        for waiting in over:
            if waiting.unknown is not None:
                waiting.future.set_result(waiting.unknown)
            else:
                waiting.future.set_exception(TimeoutError())
        left = (waiting.ends_s + _SLACK_S for waiting in self._callers if not waiting.future.done())
        return min(left, default=math.inf)

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way any more: everybody who called has had an answer."""
        return not (self._paused or self._groups)

    async def drain(self) -> None:
        """Waits until it is idle."""
        loop = asyncio.get_running_loop()
        while not self.is_idle:
            for waiting, (timer, key) in list(self._paused.items()):
                timer.cancel()
                self._add_again(loop, key, waiting)
            if not self.is_idle:
                self._has_ended = self._has_ended or asyncio.Event()
                self._has_ended.clear()
                await self._has_ended.wait()
        if self._deadlines is not None:
            self._deadlines.stop()

    def _add(self, loop: asyncio.AbstractEventLoop, key: Hashable, waiting: _Waiting[ItemT, DoneT]) -> None:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
        group.waiting.append(waiting)
        self._waiting += 1
        if not group.begins:
            group.begins = True  # with all that comes in this iteration of the loop
            loop.call_soon(self._begin, loop, group)

    def _begin(self, loop: asyncio.AbstractEventLoop, group: _Group[ItemT, DoneT]) -> None:
        group.begins = False
        self._send_what_waits(loop, group)

    def _send_what_waits(self, loop: asyncio.AbstractEventLoop, group: _Group[ItemT, DoneT]) -> None:
        while group.waiting and not group.is_busy:
            if batch := self._next_batch(group):
                self._send(loop, group, batch)
        if group.waiting:
            self._await_lateness(loop, group)
        elif not group.requests and not group.begins:
            if group.timer is not None:
                group.timer.cancel()
            del self._groups[group.key]

    def _next_batch(self, group: _Group[ItemT, DoneT]) -> list[_Waiting[ItemT, DoneT]]:
        """Without those whose callers have gone."""
        if len(group.waiting) == 1:
            self._waiting -= 1
            waiting = group.waiting.pop()
            return [] if waiting.future.done() else [waiting]
        batch = take_batch(group.waiting, self._items_max, self._bytes_max, lambda waiting: waiting.size_bytes)
        self._waiting -= len(batch)
        return [waiting for waiting in batch if not waiting.future.done()]

    def _send(
        self, loop: asyncio.AbstractEventLoop, group: _Group[ItemT, DoneT], batch: list[_Waiting[ItemT, DoneT]]
    ) -> None:
        now_s = loop.time()
        request: _Request[ItemT, DoneT] = _Request(batch, now_s)
        group.requests[request] = None
        left_s = max(0.0, batch[-1].ends_s - now_s)  # those before it give up by themselves
        items = [waiting.item for waiting in batch]
        try:
            is_begun = self._begin_request(items, left_s, partial(self._ended, loop, group, request))
        except Exception:  # noqa: BLE001 - the longer way meets it again, and tells those who wait
            is_begun = False
        if not is_begun:
            self._ended(loop, group, request, self._requests.send(items, left_s))

    def _ended(
        self,
        loop: asyncio.AbstractEventLoop,
        group: _Group[ItemT, DoneT],
        request: _Request[ItemT, DoneT],
        ended: Ended[DoneT],
    ) -> None:
        if isinstance(ended, list):
            self._settle(loop, request.batch, ended)
            self._forget(loop, group, request)
        else:
            request.sender = loop.create_task(self._find_out(loop, group, request, ended))

    async def _find_out(
        self,
        loop: asyncio.AbstractEventLoop,
        group: _Group[ItemT, DoneT],
        request: _Request[ItemT, DoneT],
        outcomes: Awaitable[list[DoneT | Rejected]],
    ) -> None:
        try:
            await self._settle_when_known(loop, request.batch, outcomes)
        finally:
            self._forget(loop, group, request)

    def _forget(
        self, loop: asyncio.AbstractEventLoop, group: _Group[ItemT, DoneT], request: _Request[ItemT, DoneT]
    ) -> None:
        """It is not on its way any more."""
        del group.requests[request]
        if request.is_late:
            group.late -= 1
            group.late_bytes -= request.size_bytes
        self._send_what_waits(loop, group)
        if self._has_ended is not None:
            self._has_ended.set()

    def _await_lateness(self, loop: asyncio.AbstractEventLoop, group: _Group[ItemT, DoneT]) -> None:
        """Something waits: until a request is so late that another may pass it."""
        if group.timer is None:
            begun_s = next((request.begun_s for request in group.requests if not request.is_late), None)
            if begun_s is not None:
                group.timer = loop.call_later(begun_s + LATE_S - loop.time(), self._note_lateness, loop, group)

    def _note_lateness(self, loop: asyncio.AbstractEventLoop, group: _Group[ItemT, DoneT]) -> None:
        group.timer = None
        late_s = loop.time() - LATE_S
        for request in group.requests:
            if request.begun_s <= late_s and not request.is_late:
                request.is_late = True
                group.late += 1
                group.late_bytes += request.size_bytes
        self._send_what_waits(loop, group)

    async def _settle_when_known(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_Waiting[ItemT, DoneT]],
        outcomes: Awaitable[list[DoneT | Rejected]],
    ) -> None:
        try:
            self._settle(loop, batch, await outcomes)
        except InvalidArgument as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            # One bad item spoils a request: its neighbours must not suffer for it.
            left_s = max(0.0, batch[-1].ends_s - loop.time())
            await asyncio.gather(
                *(
                    self._settle_when_known(loop, [waiting], self._requests.send([waiting.item], left_s))
                    for waiting in batch
                )
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            _fail(batch, error)
        except asyncio.CancelledError:  # the loop ends
            for waiting in batch:
                waiting.future.cancel()
            raise

    def _settle(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Sequence[_Waiting[ItemT, DoneT]],
        outcomes: Sequence[DoneT | Rejected],
    ) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if waiting.future.done():
                continue
            if not isinstance(outcome, Rejected):
                waiting.future.set_result(outcome)
            elif not self._repeats(loop, waiting, outcome):
                waiting.future.set_result(waiting.unknown or outcome)

    def _repeats(self, loop: asyncio.AbstractEventLoop, waiting: _Waiting[ItemT, DoneT], refusal: Rejected) -> bool:
        """Whether an item that was refused is sent again, after a pause."""
        pause_s = asked_pause_s(waiting.repeats, refusal)
        if loop.time() + pause_s + _REPEAT_S_MIN > waiting.ends_s:
            return False
        key = self._requests.group_of_repeated(waiting.item, refusal)
        if key is None:
            return False
        waiting.repeats += 1
        if isinstance(refusal, OutcomeUnknown):
            waiting.unknown = refusal
        self._paused[waiting] = loop.call_later(pause_s, self._add_again, loop, key, waiting), key
        return True

    def _add_again(self, loop: asyncio.AbstractEventLoop, key: Hashable, waiting: _Waiting[ItemT, DoneT]) -> None:
        del self._paused[waiting]
        if not waiting.future.done():
            self._add(loop, key, waiting)


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
