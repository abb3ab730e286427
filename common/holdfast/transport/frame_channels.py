"""`channels` over frames: a connection to one server that is there, and calls over it. The only file that sends frames
for routers and clients.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from google.rpc import code_pb2

from holdfast.frames import codec
from holdfast.frames.codec import BrokenFrameError, Frame, FrameReader, decode_refusal
from holdfast.frames.hello import hello, read_welcome
from holdfast.frames.metadata import encode_metadata
from holdfast.transport.channels import CallFailedError, Metadata

HANDSHAKE_SECONDS = 5.0
ANSWER_SECONDS = 10.0  # to a ping
_CODES = {number: name for name, number in code_pb2.Code.items()}
_LOST = "The connection was lost."


class NoFramesError(Exception):
    """There is no connection of frames to be had at an address."""


class AllRoom:
    """A caller takes whatever it asked for; how much that may be is bounded by what it asks for at a time."""

    def take(self, _size: int) -> bool:
        return True

    def give_back(self, size: int) -> None:
        """Nothing is counted."""


class FrameCall:
    """A call under way."""

    __slots__ = ("_link", "_timer", "answered", "number", "size")

    def __init__(self, link: "FrameLink", number: int, size: int, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._link = link
        self._timer = loop.call_later(timeout_s, self._expire)
        self.answered: asyncio.Future[bytes] = loop.create_future()
        self.number = number
        self.size = size

    @property
    def is_unsent(self) -> bool:
        """It waits for room in the window of the connection."""
        return self._link.is_queued(self)

    def cancel(self) -> object:
        return self._give_up(CallFailedError("CANCELLED", "It was silent.", was_given_up=True))

    async def answer(self) -> bytes:
        try:
            return await self.answered
        finally:
            if self.answered.cancelled():  # with the task that waits for it
                self._timer.cancel()
                self._link.give_up(self)

    def end(self, result: bytes | CallFailedError) -> None:
        self._timer.cancel()
        if self.answered.done():
            return
        if isinstance(result, CallFailedError):
            self.answered.set_exception(result)
            self.answered.exception()  # nobody may wait for it any more
        else:
            self.answered.set_result(result)

    def _expire(self) -> None:
        self._give_up(CallFailedError("DEADLINE_EXCEEDED", "There was no answer in time."))

    def _give_up(self, failure: CallFailedError) -> bool:
        if self.answered.done():
            return False
        failure.was_connected = not self.is_unsent
        self._link.give_up(self)
        self.end(failure)
        return True


class FrameLink(asyncio.Protocol):
    """A connection to one server."""

    def __init__(self, expects: str, caller: str, message_bytes_max: int, keepalive_s: float) -> None:
        """`expects`: who the server must be."""
        self._expects = expects
        self._caller = caller
        self._message_bytes_max = message_bytes_max
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(message_bytes_max + codec.FRAME_SPARE_BYTES, AllRoom())
        self._methods: dict[str, int] = {}
        self._calls: dict[int, FrameCall] = {}  # that were sent
        self._queue: deque[tuple[FrameCall, int, bytes, Metadata | None, float]] = deque()  # behind a full window
        self._window_bytes = self._calls_max = 0
        self._unanswered_bytes = 0
        self._number = 0
        self._outgoing: list[bytes] = []
        self._heard_s = self.used_s = time.monotonic()
        self._watch: asyncio.TimerHandle | None = None
        self._welcomed: asyncio.Future[None] = self._loop.create_future()
        self._why_lost = _LOST
        self.is_open = False  # takes new calls

    @property
    def calls_under_way(self) -> int:
        return len(self._calls) + len(self._queue)

    def takes(self, path: str) -> bool:
        return self.is_open and path in self._methods

    def call(self, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> FrameCall:
        self._number = self._number % 0xFFFFFFFF + 1
        call = FrameCall(self, self._number, len(data), timeout_s)
        method = self._methods[path]
        if len(data) > self._message_bytes_max:
            call.end(CallFailedError("RESOURCE_EXHAUSTED", f"A request of {len(data)} bytes is too large."))
        elif self._queue or not self._has_room(call):
            self._queue.append((call, method, data, metadata, time.monotonic() + timeout_s))
        else:
            self._send_call(call, method, data, metadata, timeout_s)
        return call

    def is_queued(self, call: FrameCall) -> bool:
        return any(queued[0] is call for queued in self._queue)

    def give_up(self, call: FrameCall) -> None:
        """Nobody waits for its answer any more."""
        if self._calls.pop(call.number, None) is call:
            self._unanswered_bytes -= call.size
            self._send(codec.encode(codec.CANCEL, call.number))
            self._send_queued()
        elif self._queue:
            self._queue = deque(queued for queued in self._queue if queued[0] is not call)

    async def close(self) -> None:
        self._lose("It was closed.")

    # --- the window ---------------------------------------------------------------------------------------------

    def _has_room(self, call: FrameCall) -> bool:
        fits = self._unanswered_bytes + call.size <= self._window_bytes and len(self._calls) < self._calls_max
        return fits or not self._calls

    def _send_queued(self) -> None:
        while self._queue and self._has_room(self._queue[0][0]):
            call, method, data, metadata, ends_s = self._queue.popleft()
            self._send_call(call, method, data, metadata, max(0.001, ends_s - time.monotonic()))

    def _send_call(
        self, call: FrameCall, method: int, data: bytes, metadata: Metadata | None, timeout_s: float
    ) -> None:
        self.used_s = time.monotonic()
        if not self._calls:
            self._heard_s = self.used_s  # until now there was nothing to be heard
            self._watch_silence()
        self._calls[call.number] = call
        self._unanswered_bytes += call.size
        extra = encode_metadata(metadata) if metadata else b""
        self._send(codec.encode_call(call.number, method, max(1, int(timeout_s * 1000)), extra, len(data)))
        self._send(data)

    def _send(self, data: bytes) -> None:
        """With all else that is sent in this iteration of the loop."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.writelines(outgoing)

    # --- the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(hello(self._expects, self._caller))

    async def welcomed(self) -> None:
        """Raises NoFramesError."""
        try:
            await asyncio.wait_for(asyncio.shield(self._welcomed), HANDSHAKE_SECONDS)
        except TimeoutError:
            self._lose("the server does not answer a hello")
            raise NoFramesError("the server does not answer a hello") from None

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except BrokenFrameError as error:
            self._lose(f"The server sent {error}.")

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(str(error) if error is not None else self._why_lost)

    # --- what comes ---------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if frame.kind == codec.ANSWER or frame.kind == codec.REFUSAL:
            call = self._calls.pop(frame.call, None)
            if call is not None:  # otherwise it was given up
                self._unanswered_bytes -= call.size
                call.end(_result_of(frame))
                if self._queue:
                    self._send_queued()
        elif frame.kind == codec.WELCOME and not self._welcomed.done():
            self._enter(frame.body)
        elif frame.kind == codec.PING:
            self._send(codec.encode(codec.PONG, frame.call, frame.body or b""))
        elif frame.kind == codec.GOODBYE:
            self.is_open = False
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
        self.is_open = True
        self._welcomed.set_result(None)

    # --- its end ------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(self._keepalive_s, self._poll)

    def _poll(self) -> None:
        """A server that owes answers and has not said anything for a while is asked whether it is there."""
        self._watch = None
        silent_s = time.monotonic() - self._heard_s
        if not self._calls or self._transport is None:
            return
        if silent_s >= self._keepalive_s + ANSWER_SECONDS:
            self._lose("The server does not answer any more.")
            return
        if silent_s >= self._keepalive_s:
            self._send(codec.encode(codec.PING, 0))
            self._watch = self._loop.call_later(ANSWER_SECONDS, self._poll)
        else:
            self._watch = self._loop.call_later(self._keepalive_s - silent_s, self._poll)

    def _lose(self, why: str) -> None:
        """Whatever is under way may have been carried out, but for what waits in the queue."""
        self.is_open = False
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        if not self._welcomed.done():
            self._welcomed.set_exception(NoFramesError(why))
            self._welcomed.exception()
        calls, self._calls = self._calls, {}
        queued, self._queue = self._queue, deque()
        for call in calls.values():
            call.end(CallFailedError("UNAVAILABLE", why))
        for waiting in queued:
            waiting[0].end(CallFailedError("UNAVAILABLE", why, was_connected=False))


def _result_of(frame: Frame) -> bytes | CallFailedError:
    if frame.body is None:
        return CallFailedError("RESOURCE_EXHAUSTED", "The answer is larger than this caller takes.")
    if frame.kind == codec.ANSWER:
        return frame.body
    refused = decode_refusal(frame.body)
    return CallFailedError(_CODES.get(refused.code, "UNKNOWN"), refused.message, refused.details or None)


async def connect(
    host: str, port: int, make: Callable[[], FrameLink], timeout_s: float = HANDSHAKE_SECONDS
) -> FrameLink:
    """A link that takes calls; raises NoFramesError."""
    try:
        connecting = asyncio.get_running_loop().create_connection(make, host, port)
        _, link = await asyncio.wait_for(connecting, timeout_s)
    except (OSError, TimeoutError) as error:
        raise NoFramesError(str(error) or "no connection in time") from None
    await link.welcomed()
    return link
