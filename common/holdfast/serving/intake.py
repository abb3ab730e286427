"""Bodies of calls: let in only as far as there is room for them.

gRPC holds 64 KiB of a call that nobody reads, and all of its message as soon as somebody wants it. So a call is first
judged by what it is, its name and its metadata, and its body is read when it is its turn. What is refused before that
costs next to nothing, however large it would have been.

How much of a body has come cannot be seen before it is complete. So each one that is read may become as large as any,
and few are read at a time. A caller who sends headers and no body would hold what others need. Therefore whoever is
read while others wait has a moment, in which all that was sent along with the headers has come; large bodies have a few
places in which they may take longer; connections take turns; and those that kept others waiting for nothing come last.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from holdfast.serving.refusals import MALFORMED_REQUEST, OVERLOADED, RefusedError, overloaded

# If each of those that are being received were as large as allowed:
NEW_TASKS_BYTES_MAX = 64 * 1024 * 1024
OTHERS_BYTES_MAX = 128 * 1024 * 1024
RECEIVING_MIN = 4
SLOW_SHARE = 4  # one in so many places is for bodies that take longer than a moment

# How long a body may take while others wait. Nobody loses a claim because an enqueue waits, and those are large.
NEW_TASKS_SECONDS = 0.25
OTHERS_SECONDS = 0.025
SLOW_SECONDS = 5.0  # in one of the places for slow ones

SILENT_SECONDS = 60.0  # so long a connection that sent nothing comes after the others
SILENT_MAX = 20_000  # connections that are remembered for that
SETTLING_SHARE = 1.25  # of the room, for calls that do not bring new tasks: a flood of those must not keep acks out


class Intake:
    """Counts the bytes of requests from when they have come until they are answered, and reads a few at a time."""

    def __init__(self, *, bytes_max: int, message_bytes_max: int, waiting_max: int) -> None:
        self.bytes = 0  # under way
        self.received_bytes = 0  # since the start
        self._new_tasks_max = bytes_max
        self._others_max = int(bytes_max * SETTLING_SHARE)
        self._parts_max = max(bytes_max // 2, message_bytes_max)
        self._parts_bytes = 0
        silent = _SilentConnections()
        places = max(RECEIVING_MIN, NEW_TASKS_BYTES_MAX // message_bytes_max)
        self._new_tasks = _BodyQueue(places, NEW_TASKS_SECONDS, waiting_max, silent)
        places = max(RECEIVING_MIN, OTHERS_BYTES_MAX // message_bytes_max)
        self._others = _BodyQueue(places, OTHERS_SECONDS, waiting_max, silent)  # not behind new tasks of many megabytes
        self._asides = RECEIVING_MIN

    async def receive(self, context: Any, *, brings_tasks: bool) -> bytes:
        """The body of a call: `leave` must follow, unless this refuses the call."""
        if brings_tasks:
            data = await self._new_tasks.receive(context, self._check_new_tasks)
        else:
            data = await self._others.receive(context, self._check_others)
        self.bytes += len(data)
        self.received_bytes += len(data)
        return data

    async def receive_aside(self, context: Any) -> bytes | None:
        """A body of which nothing is kept, of a call that must be answered whatever others do: None if too many are
        being received like this."""
        if not self._asides:
            return None
        self._asides -= 1
        try:
            return await _read(context)
        finally:
            self._asides += 1

    def leave(self, size: int) -> None:
        self.bytes -= size

    # What comes in frames has come when it is seen: it has no turn, and what there is no room for is passed over.

    @property
    def is_crowded(self) -> bool:
        """Parts of bodies have most of the room that there is for them: those that come slowly keep others out."""
        return self._parts_bytes > self._parts_max // 2

    def enter(self, size: int, *, brings_tasks: bool) -> bool:
        """The body of a call has come: `leave` must follow. Returns whether there was room for it."""
        has_room = self.bytes < (self._new_tasks_max if brings_tasks else self._others_max)
        self.bytes += size
        self.received_bytes += size
        return has_room

    def take(self, size: int) -> bool:
        """Whether there is room for this part of a body, of which the rest has not come yet. Not all of the room is for
        such parts: what is small and comes at once must not wait for those who send slowly."""
        if self._parts_bytes + size > self._parts_max or self.bytes + size > self._others_max:
            return False
        self._parts_bytes += size
        self.bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Parts of a body that has come, or is not needed any more."""
        self._parts_bytes -= size
        self.bytes -= size

    def refusal(self, *, brings_tasks: bool) -> RefusedError:
        """Of a body that was passed over."""
        return overloaded("bytes of requests under way", self._new_tasks_max if brings_tasks else self._others_max)

    def _check_new_tasks(self) -> None:
        if self.bytes >= self._new_tasks_max:
            raise overloaded("bytes of requests under way", self._new_tasks_max)

    def _check_others(self) -> None:
        if self.bytes >= self._others_max:
            raise overloaded("bytes of requests under way", self._others_max)


class _Reading:
    """A call whose body is being received."""

    __slots__ = ("context", "is_ended", "since_s", "task")

    def __init__(self, context: Any, since_s: float) -> None:
        self.context = context
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.since_s = since_s  # in the place that it has
        self.is_ended = False  # it was told to make room

    def end(self) -> None:
        assert self.task is not None
        self.is_ended = True
        self.task.cancel()


class _BodyQueue:
    """Calls whose bodies are being received, a few at a time. The others wait, and their connections take turns."""

    def __init__(self, places: int, moment_s: float, waiting_max: int, silent: "_SilentConnections") -> None:
        self._slow_max = max(1, places // SLOW_SHARE)
        self._free = places - self._slow_max
        self._moment_s = moment_s
        self._silent = silent
        self._waiting = _Turns(waiting_max)
        self._waiting_silent = _Turns(waiting_max)
        self._quick: dict[_Reading, None] = {}  # the oldest first, as below
        self._slow: dict[_Reading, None] = {}
        self._watch: asyncio.TimerHandle | asyncio.Handle | None = None

    async def receive(self, context: Any, check: Callable[[], None]) -> bytes:
        """`check` refuses, before it waits and before it reads."""
        check()
        if self._free:
            self._free -= 1
        else:
            await self._wait(context.peer())
        reading = _Reading(context, asyncio.get_running_loop().time())
        self._quick[reading] = None
        try:
            check()
            return await _read(context)
        except asyncio.CancelledError:
            if reading.is_ended and reading.task is not None and reading.task.uncancel() == 0:
                raise _too_slow(self._moment_s) from None
            raise
        finally:
            self._leave(reading)

    async def _wait(self, connection: str) -> None:
        """Until it has a place."""
        turns = self._waiting_silent if self._silent.has(connection) else self._waiting
        turn = turns.join(connection)
        self._watch_quick()
        try:
            has_place = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                turns.leave(connection, turn)
            elif turn.result():  # a place that it does not use
                self._hand_on()
            raise
        if not has_place:
            raise turns.refusal()

    def _leave(self, reading: _Reading) -> None:
        if reading in self._quick:
            del self._quick[reading]
            self._hand_on()
        else:
            self._slow.pop(reading, None)

    def _hand_on(self) -> None:
        """A place for quick ones is free."""
        if not self._waiting.call_next() and not self._waiting_silent.call_next():
            self._free += 1

    # --- those who keep others waiting ------------------------------------------------------------------------

    def _watch_quick(self) -> None:
        if self._watch is None and self._is_waited_for:
            loop = asyncio.get_running_loop()
            oldest = next(iter(self._quick), None)
            since_s = loop.time() if oldest is None else oldest.since_s
            # One turn of the loop later: what has come by then has been taken.
            self._watch = loop.call_at(since_s + self._moment_s, lambda: loop.call_soon(self._end_moments))

    @property
    def _is_waited_for(self) -> bool:
        return bool(self._waiting or self._waiting_silent)

    def _end_moments(self) -> None:
        """Those that are not complete make room for as many as wait."""
        self._watch = None
        now_s = asyncio.get_running_loop().time()
        wanted = len(self._waiting) + len(self._waiting_silent)
        late = [call for call in self._quick if call.since_s <= now_s - self._moment_s and not call.is_ended]
        for reading in late[:wanted]:
            if self._find_slow_place(reading, now_s):
                del self._quick[reading]
                reading.since_s = now_s
                self._slow[reading] = None
                self._hand_on()
            else:
                self._end(reading)
        self._watch_quick()

    def _find_slow_place(self, reading: _Reading, now_s: float) -> bool:
        if len(self._slow) < self._slow_max:
            return True
        is_silent = self._silent.has(reading.context.peer())
        for other in self._slow:
            is_late = other.since_s <= now_s - SLOW_SECONDS
            if is_late or (not is_silent and self._silent.has(other.context.peer())):
                del self._slow[other]
                self._end(other)
                return True
        return False

    def _end(self, reading: _Reading) -> None:
        self._silent.add(reading.context.peer())
        reading.end()


class _Turns:
    """Who waits. Connections take turns, and each has its calls served in the order in which they came."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._count = 0
        self._calls: dict[str, dict[asyncio.Future[bool], None]] = {}  # by connection, the next one first

    def __len__(self) -> int:
        return self._count

    def join(self, connection: str) -> asyncio.Future[bool]:
        """What it returns becomes true when there is a place, and false when there shall be none. If too many wait, it
        is at the cost of whichever connection has most of them."""
        calls = self._calls.get(connection, {})
        if self._count >= self._waiting_max:
            if len(calls) * len(self._calls) >= self._count:
                raise self.refusal()
            self._refuse_newest(max(self._calls, key=lambda other: len(self._calls[other])))
        turn = asyncio.get_running_loop().create_future()
        self._calls.setdefault(connection, calls)[turn] = None
        self._count += 1
        return turn

    def leave(self, connection: str, turn: asyncio.Future[bool]) -> None:
        """Whoever gave up waiting. It may have been passed over since then."""
        if turn in self._calls.get(connection, ()):
            del self._calls[connection][turn]
            self._drop(connection)

    def call_next(self) -> bool:
        """Ends the wait of the next one, if there is one."""
        while self._calls:
            connection = next(iter(self._calls))
            calls = self._calls.pop(connection)
            self._calls[connection] = calls  # it is the last one now
            turn = next(iter(calls))
            del calls[turn]
            self._drop(connection)
            if not turn.done():
                turn.set_result(True)
                return True
        return False

    def refusal(self) -> RefusedError:
        return overloaded("calls whose requests wait to be received", self._waiting_max)

    def _refuse_newest(self, connection: str) -> None:
        turn, _ = self._calls[connection].popitem()
        self._drop(connection)
        if not turn.done():
            turn.set_result(False)

    def _drop(self, connection: str) -> None:
        """One of its calls has left."""
        self._count -= 1
        if not self._calls[connection]:
            del self._calls[connection]


class _SilentConnections:
    """Those that kept others waiting for bodies that did not come."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}  # the oldest first

    def has(self, connection: str) -> bool:
        return self._until_s.get(connection, 0.0) > asyncio.get_running_loop().time()

    def add(self, connection: str) -> None:
        self._until_s.pop(connection, None)
        self._until_s[connection] = asyncio.get_running_loop().time() + SILENT_SECONDS
        if len(self._until_s) > SILENT_MAX:
            del self._until_s[next(iter(self._until_s))]


async def _read(context: Any) -> bytes:
    data = await context.read()
    if data is grpc.aio.EOF:
        raise RefusedError(MALFORMED_REQUEST, "Expected a request, but the call has none.")
    body: bytes = data
    return body


def _too_slow(moment_s: float) -> RefusedError:
    return RefusedError(
        OVERLOADED,
        f"Expected the whole request within {moment_s * 1000:g} ms while others wait, but it has not come; try again.",
        limit=f"{moment_s * 1000:g} ms",
        retry_after_ms=1000,
    )
