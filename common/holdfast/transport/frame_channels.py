"""`channels` over frames: a connection to one server that is there, and calls over it. The only file that sends frames
for routers and clients.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import NamedTuple, cast

from google.rpc import code_pb2

from holdfast.common.earliest import EarliestTimer
from holdfast.frames import codec
from holdfast.frames.codec import BrokenFrameError, Frame, FrameReader, decode_refusal
from holdfast.frames.hello import hello, read_welcome
from holdfast.frames.metadata import encode_metadata
from holdfast.transport.channels import CallFailedError, Metadata

HANDSHAKE_SECONDS = 5.0
ANSWER_SECONDS = 10.0  # to a ping
_CODES = {number: name for name, number in code_pb2.Code.items()}
_LOST = "The connection was lost."
_CLOSED = "The connection was closed."
_LEAVING = "The server takes no more calls over this connection."
WRITE_BYTES_MAX = 4 * 1024 * 1024  # that the server has not read: nothing more is sent until it reads
# Calls up to this size do not wait behind larger ones: those bring tasks, and nobody loses a claim because they wait.
SMALL_BYTES = 64 * 1024
_LARGE_SHARE = 0.75  # of the window, for larger ones


class NoFramesError(Exception):
    """There is no connection of frames to be had at an address."""


class FramesAddress(NamedTuple):
    """Where a server has its frames."""

    host: str
    port: int
    server: str  # who must be there


class AllRoom:
    """A caller takes whatever it asked for; how much that may be is bounded by what it asks for at a time."""

    def take(self, _size: int) -> bool:
        return True

    def give_back(self, size: int) -> None:
        """Nothing is counted."""


class FrameCall:
    """A call under way."""

    __slots__ = ("_link", "_on_end", "_result", "_waiter", "ends_s", "number", "size")

    def __init__(self, link: "FrameLink", size: int, ends_s: float, on_end: "OnEnd | None") -> None:
        self._link = link
        self._on_end = on_end
        self._result: bytes | CallFailedError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.ends_s = ends_s
        self.number = 0  # once it is sent
        self.size = size

    @property
    def is_unsent(self) -> bool:
        """It waits for room in the window of the connection."""
        return not self.number

    def cancel(self) -> object:
        return self.give_up(CallFailedError("CANCELLED", "It was silent.", was_given_up=True))

    async def answer(self) -> bytes:
        if self._result is None:
            self._waiter = self._link.loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:  # with the task that waits for it
                self.give_up(CallFailedError("CANCELLED", "Nobody waits for it any more.", was_given_up=True))
                raise
        result = self._result
        if isinstance(result, CallFailedError):
            raise result
        assert result is not None
        return result

    def end(self, result: bytes | CallFailedError) -> None:
        if self._result is not None:
            return
        self._result = result
        if self._on_end is not None:
            self._on_end(result)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def give_up(self, failure: CallFailedError) -> bool:
        if self._result is not None:
            return False
        failure.was_connected = not self.is_unsent
        self._link.give_up(self)
        self.end(failure)
        return True


OnEnd = Callable[[bytes | CallFailedError], None]


class _Request(NamedTuple):
    """A call that waits for room."""

    method: int
    data: bytes
    metadata: Metadata | None


class FrameLink(asyncio.Protocol):
    """A connection to one server."""

    def __init__(self, expects: str, caller: str, message_bytes_max: int, keepalive_s: float, token: str = "") -> None:
        """`expects`: who the server must be. `token`: who calls over it."""
        self._expects = expects
        self._caller = caller
        self.token = token
        self._message_bytes_max = message_bytes_max
        self._keepalive_s = keepalive_s
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(message_bytes_max + codec.FRAME_SPARE_BYTES, AllRoom())
        self._methods: dict[str, int] = {}
        self._calls: dict[int, FrameCall] = {}  # that were sent
        self._large: dict[FrameCall, _Request] = {}  # behind a full window, the oldest first
        self._small: dict[FrameCall, _Request] = {}
        self._window_bytes = self._calls_max = self._large_bytes_max = 0
        self._unanswered_bytes = 0
        self._large_bytes = 0  # of these, of large calls
        self.number = 0
        self._outgoing: list[bytes] = []
        self._deadlines = EarliestTimer(self.loop, time.monotonic, self._end_overdue)
        self._is_paused = False  # the server does not read
        self.used_s = self.opened_s = time.monotonic()
        self._asked_s: float | None = None  # the first that was sent since the server was heard
        self._unheard_polls = 0  # since then
        self._watch: asyncio.TimerHandle | None = None
        self._welcomed: asyncio.Future[None] = self.loop.create_future()
        self.is_open = False  # takes new calls
        self.ended_s: float | None = None

    @property
    def calls_under_way(self) -> int:
        return len(self._calls) + len(self._large) + len(self._small)

    def takes(self, path: str) -> bool:
        return self.is_open and path in self._methods

    def call(
        self, path: str, data: bytes, metadata: Metadata | None, timeout_s: float, on_end: OnEnd | None = None
    ) -> FrameCall:
        """`on_end` hears of the answer, or why there is none, in the place of whoever waits for it; perhaps at once."""
        now_s, size = time.monotonic(), len(data)
        call = FrameCall(self, size, now_s + timeout_s, on_end)
        if size > self._message_bytes_max:
            too_large = f"Sent message larger than max ({size} vs. {self._message_bytes_max})"
            call.end(CallFailedError("RESOURCE_EXHAUSTED", too_large))
            return call
        queue = self._small if size <= SMALL_BYTES else self._large
        if queue or not self._has_room(size):
            queue[call] = _Request(self._methods[path], data, metadata)
        else:
            self._send_call(call, self._methods[path], data, metadata, now_s)
        if call.ends_s < self._deadlines.at_s:
            self._deadlines.note(call.ends_s)
        return call

    def give_up(self, call: FrameCall) -> None:
        """Nobody waits for its answer any more."""
        if call.is_unsent:
            self._large.pop(call, None)
            self._small.pop(call, None)
            self._send_queued()  # those that it kept waiting
        elif self._calls.pop(call.number, None) is not None:
            self._leave_window(call)
            self._send((codec.encode(codec.CANCEL, call.number),))
            self._send_queued()
        self._leave_if_done()

    def close(self) -> None:
        self._lose(_CLOSED)

    # --- the window ---------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        """What was given up leaves the window, but not the buffers of a server that does not read."""
        if self._is_paused:
            return False
        calls = len(self._calls)
        if not calls:
            return True
        if self._unanswered_bytes + size > self._window_bytes or calls >= self._calls_max:
            return False
        if size > SMALL_BYTES:
            return not self._large_bytes or self._large_bytes + size <= self._large_bytes_max
        return not self._large or self._has_room_beside_large(size)

    def _has_room_beside_large(self, size: int) -> bool:
        """Small ones have a part of the window while large ones wait. One that takes more than the rest waits until
        there is no other call, and so does everybody."""
        small_bytes = self._unanswered_bytes - self._large_bytes + size
        first = next(iter(self._large))
        return first.size <= self._large_bytes_max and small_bytes <= self._window_bytes - self._large_bytes_max

    def _leave_window(self, call: FrameCall) -> None:
        self._unanswered_bytes -= call.size
        if call.size > SMALL_BYTES:
            self._large_bytes -= call.size

    def _send_queued(self) -> None:
        for queue in (self._large, self._small):
            while queue:
                call, request = next(iter(queue.items()))
                if not self._has_room(call.size):
                    break
                del queue[call]
                self._send_call(call, *request, time.monotonic())

    def _send_call(self, call: FrameCall, method: int, data: bytes, metadata: Metadata | None, now_s: float) -> None:
        self.used_s = now_s
        if self._asked_s is None:
            self._asked_s = now_s
            if self._watch is None:
                self._watch_silence(self._keepalive_s)
        number = self.number % 0xFFFFFFFF + 1
        while number in self._calls:  # the numbers begin anew, and it has waited all the while
            number = number % 0xFFFFFFFF + 1
        self.number = call.number = number
        self._calls[number] = call
        self._unanswered_bytes += call.size
        if call.size > SMALL_BYTES:
            self._large_bytes += call.size
        extra = encode_metadata(metadata) if metadata else b""
        timeout_ms = int((call.ends_s - now_s) * 1000)
        self._send((codec.encode_call(number, method, timeout_ms if timeout_ms > 0 else 1, extra, call.size), data))

    def _send(self, parts: tuple[bytes, ...]) -> None:
        """With all else that is sent in this iteration of the loop. A list is cheaper than uvloop's buffers."""
        if not self._outgoing:
            self.loop.call_soon(self._flush)
        self._outgoing += parts

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.writelines(outgoing)

    def _end_overdue(self, now_s: float) -> float:
        for call in [call for call in self._all_calls() if call.ends_s <= now_s]:
            call.give_up(CallFailedError("DEADLINE_EXCEEDED", "There was no answer in time."))
        return min((call.ends_s for call in self._all_calls()), default=math.inf)

    def _all_calls(self) -> tuple[FrameCall, ...]:
        return *self._calls.values(), *self._large, *self._small

    # --- the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop have its methods, and not its type
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        self._transport.write(hello(self._expects, self._caller, self.token))

    async def welcomed(self, timeout_s: float = HANDSHAKE_SECONDS) -> None:
        """Raises NoFramesError."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._welcomed)
        except TimeoutError:
            self._lose("the server does not answer a hello")
            raise NoFramesError("the server does not answer a hello") from None

    def data_received(self, data: bytes) -> None:
        self._asked_s = time.monotonic() if self._calls else None
        self._unheard_polls = 0
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except BrokenFrameError as error:
            self._lose(f"The server sent {error}.")

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(_LOST if error is None else str(error))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_queued()

    # --- what comes ---------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if frame.kind == codec.ANSWER or frame.kind == codec.REFUSAL:
            result = frame.body if frame.kind == codec.ANSWER and frame.body is not None else failure_of(frame)
            call = self._calls.pop(frame.call, None)
            if call is not None:  # otherwise it was given up
                self._leave_window(call)
                call.end(result)
                if self._large or self._small:
                    self._send_queued()
                if not self.is_open:
                    self._leave_if_done()
        elif frame.kind == codec.WELCOME and not self._welcomed.done():
            self._enter(frame.body)
        elif frame.kind == codec.PING and len(frame.body or b"") <= codec.PING_BYTES_MAX:
            self._send((codec.encode(codec.PONG, frame.call, frame.body or b""),))
        elif frame.kind == codec.GOODBYE:
            self.leave()
        elif frame.kind == codec.END:
            self._lose(decode_refusal(frame.body or b"").message)
        elif frame.kind != codec.PONG:
            raise BrokenFrameError(f"kind {frame.kind} at this moment")

    def _enter(self, body: bytes | None) -> None:
        if body is None:
            raise BrokenFrameError("a welcome that is too long")
        answer = read_welcome(body, self._expects)
        self._methods = {path: number for number, path in enumerate(answer.methods)}
        self._window_bytes, self._calls_max = answer.window_bytes, answer.calls_max
        self._large_bytes_max = int(answer.window_bytes * _LARGE_SHARE)
        self.is_open = True
        self._welcomed.set_result(None)

    # --- its end ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """It takes no new calls: what was not sent can go elsewhere, what was sent is answered."""
        self.is_open = False
        queued = (*self._large, *self._small)
        self._large, self._small = {}, {}
        for call in queued:
            call.end(CallFailedError("UNAVAILABLE", _LEAVING, was_connected=False))
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if not self.is_open and not self._calls and self._welcomed.done():
            self._lose(_LEAVING)

    def _watch_silence(self, pause_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_later(pause_s, self._poll)

    def _poll(self) -> None:
        """A server that was sent something, and has not said anything for a while, is asked whether it is there. It is
        given up after the second look in vain: if this process itself stood still, what the server said meanwhile is
        read between the two."""
        self._watch = None
        if self._asked_s is None or self._transport is None:
            return
        left_s = self._asked_s + self._keepalive_s - time.monotonic()
        if left_s > 0:
            self._watch_silence(left_s)
        elif self._unheard_polls == 2:
            self._lose("The server does not answer any more.")
        else:
            if not self._unheard_polls:
                self._send((codec.encode(codec.PING, 0),))
            self._unheard_polls += 1
            self._watch_silence(ANSWER_SECONDS / 2)

    def _lose(self, why: str) -> None:
        """Whatever is under way may have been carried out, but for what waits in the queue."""
        self.is_open = False
        self._deadlines.stop()
        if self.ended_s is None:
            self.ended_s = time.monotonic()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        if not self._welcomed.done():
            self._welcomed.set_exception(NoFramesError(why))
            self._welcomed.exception()
        calls = self._all_calls()
        self._calls, self._large, self._small = {}, {}, {}
        for call in calls:
            call.end(_lost(why, was_connected=not call.is_unsent))


def _lost(why: str, *, was_connected: bool) -> CallFailedError:
    if why is _CLOSED:  # by its owner, as channels of gRPC are
        return CallFailedError("CANCELLED", why, was_connected=was_connected, was_given_up=True)
    return CallFailedError("UNAVAILABLE", why, was_connected=was_connected)


def failure_of(frame: Frame) -> CallFailedError:
    """Of a call whose answer is none, or is larger than its caller takes."""
    if frame.body is None:
        return CallFailedError("RESOURCE_EXHAUSTED", "Received message larger than max")
    refused = decode_refusal(frame.body)
    return CallFailedError(_CODES.get(refused.code, "UNKNOWN"), refused.message, refused.details or None)


async def connect(
    host: str, port: int, make: Callable[[], FrameLink], timeout_s: float = HANDSHAKE_SECONDS
) -> FrameLink:
    """A link that takes calls; raises NoFramesError."""
    made: list[FrameLink] = []

    def make_one() -> FrameLink:
        made.append(make())
        return made[-1]

    try:
        async with asyncio.timeout(timeout_s):
            _, link = await asyncio.get_running_loop().create_connection(make_one, host, port)
        await link.welcomed(timeout_s)
    except (OSError, TimeoutError, UnicodeError) as error:
        _close(made)
        raise NoFramesError(str(error) or "no connection in time") from None
    except BaseException:  # whoever connects is ended
        _close(made)
        raise
    return link


def _close(links: list[FrameLink]) -> None:
    for link in links:
        link.close()
