"""Bodies of calls: let in only as far as there is room for them.

gRPC holds 64 KiB of a connection whose calls nobody reads, and all of a message as soon as somebody wants it. So a call
is first judged by what it is, its name and its metadata, and its body is read when it is its turn. What is refused
before that costs next to nothing, however large it would have been.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from holdfast.serving.refusals import MALFORMED_REQUEST, OVERLOADED, RefusedError, overloaded

RECEIVING_BYTES_MAX = 64 * 1024 * 1024  # if each of those that are being received were as large as allowed
RECEIVING_MIN = 4
SLOW_SECONDS = 5.0  # a body that takes longer makes room if others wait
SETTLING_SHARE = 1.25  # of the room, for calls that do not bring new tasks: a flood of those must not keep acks out


class Intake:
    """Counts the bytes of requests from when they have come until they are answered, and reads a few at a time."""

    def __init__(self, *, bytes_max: int, message_bytes_max: int) -> None:
        self.bytes = 0  # under way
        self.received_bytes = 0  # since the start
        slots = max(RECEIVING_MIN, RECEIVING_BYTES_MAX // message_bytes_max)
        self._new_tasks_max = bytes_max
        self._others_max = int(bytes_max * SETTLING_SHARE)
        self._new_tasks = _Lane(slots)
        self._others = _Lane(slots)  # not behind new tasks of many megabytes

    async def receive(self, context: Any, *, brings_tasks: bool) -> bytes:
        """The body of a call: `leave` must follow, unless this refuses the call."""
        if brings_tasks:
            data = await self._new_tasks.receive(context, self._check_new_tasks)
        else:
            data = await self._others.receive(context, self._check_others)
        self.bytes += len(data)
        self.received_bytes += len(data)
        return data

    def leave(self, size: int) -> None:
        self.bytes -= size

    def _check_new_tasks(self) -> None:
        if self.bytes >= self._new_tasks_max:
            raise overloaded("bytes of requests under way", self._new_tasks_max)

    def _check_others(self) -> None:
        if self.bytes >= self._others_max:
            raise overloaded("bytes of requests under way", self._others_max)


class _Lane:
    """Calls whose bodies are being received, a few at a time; the others wait in the order in which they came."""

    def __init__(self, slots: int) -> None:
        self._free = asyncio.Semaphore(slots)
        self._receiving: dict[asyncio.Task[Any], float] = {}  # since when, the oldest first
        self._slow: set[asyncio.Task[Any]] = set()  # those that were told to make room
        self._waiting = 0
        self._watch: asyncio.TimerHandle | None = None

    async def receive(self, context: Any, check: Callable[[], None]) -> bytes:
        """`check` refuses, before it waits and before it reads."""
        check()
        if not self._free.locked():
            async with self._free:
                return await self._read(context)
        self._waiting += 1
        try:
            self._watch_slow()
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            check()
            return await self._read(context)
        finally:
            self._free.release()

    async def _read(self, context: Any) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self._receiving[task] = asyncio.get_running_loop().time()
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if task in self._slow and task.uncancel() == 0:
                raise _too_slow() from None
            raise
        finally:
            del self._receiving[task]
            self._slow.discard(task)
        if data is grpc.aio.EOF:
            raise RefusedError(MALFORMED_REQUEST, "Expected a request, but the call has none.")
        body: bytes = data
        return body

    def _watch_slow(self) -> None:
        if self._watch is None and self._waiting:
            loop = asyncio.get_running_loop()
            oldest_s = next(iter(self._receiving.values()), loop.time())
            self._watch = loop.call_at(oldest_s + SLOW_SECONDS, self._end_slow)

    def _end_slow(self) -> None:
        """Whoever holds a place and sends nothing loses it to those who wait."""
        self._watch = None
        late_s = asyncio.get_running_loop().time() - SLOW_SECONDS
        for task, since_s in self._receiving.items():
            if since_s <= late_s and task not in self._slow:
                self._slow.add(task)
                task.cancel()
        self._watch_slow()


def _too_slow() -> RefusedError:
    return RefusedError(
        OVERLOADED,
        f"Expected the whole request within {SLOW_SECONDS:g} s while others wait, but it has not come; try again.",
        limit=f"{SLOW_SECONDS:g} s",
        retry_after_ms=1000,
    )
