"""A server of frames: the same calls as over gRPC, with the same bounds and refusals, for a tenth of the work.

A connection has many calls under way. What is written in one iteration of the event loop leaves together. Requests are
let in by their size while they arrive: what there is no room for is passed over as it comes, and refused.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast

from google.rpc import code_pb2

from holdfast.common.secure_streams import READ_BYTES, SecureReader, Write, writer_of
from holdfast.common.service import Service
from holdfast.frames import codec
from holdfast.frames.codec import BrokenFrameError, Frame, FrameReader
from holdfast.frames.hello import CALLS_MAX, WINDOW_BYTES, read_hello, welcome, why_not_welcome
from holdfast.frames.metadata import Metadata, decode_metadata
from holdfast.serving.grpc_server import HANDSHAKE_SECONDS, IDLE_SECONDS, ServerLimits
from holdfast.serving.intake import Intake
from holdfast.serving.logs import get_logger
from holdfast.serving.ports import PortError, listening_socket
from holdfast.serving.refusals import BATCH_TOO_LARGE, RefusedError, forget_frames, overloaded, shutting_down
from holdfast.serving.served import ConnectionCredentials, Refuse, Served
from holdfast.serving.tls import Listening
from holdfast.serving.tls_door import TlsDoor

POLL_SECONDS = 2.0
SILENT_SECONDS = 20.0  # of a caller that waits for answers, before it is asked whether it is there
GONE_SECONDS = 30.0  # of one that says nothing to that either
RECEIVING_SECONDS_MAX = 60.0  # of one frame
SLOW_SECONDS = 5.0  # likewise, while there is no room for more that is slow
UNREAD_SECONDS_MAX = 60.0  # of answers that the caller does not read
LEAVING_SECONDS = 1.0  # so long callers without calls under way have to leave a server that stops
WRITE_BYTES_MAX = 1024 * 1024  # that a caller has not read: nothing more is taken from it until it reads
UNREAD_BYTES_MAX = 64 * 1024 * 1024  # answers that were under way by then: beyond it the connection ends
CALLS_AT_ONCE = 256  # of one connection in one iteration of the loop: others have theirs between them
ACCEPTED_AT_ONCE = 8  # in one iteration: those that are too many are closed before there are many of them
QUEUED_MAX = 1024  # connections that are not accepted yet
_CODES = dict(code_pb2.Code.items())
_INVALID = _CODES["INVALID_ARGUMENT"]
_UNKNOWN_METHOD = _CODES["UNIMPLEMENTED"]

_log = get_logger(__name__)


class FrameServer:
    """Serves what is added to it on a port of its own."""

    def __init__(self, limits: ServerLimits, intake: Intake, refuse: Refuse, name: Callable[[], str]) -> None:
        """`intake`: the room for requests, which all transports of a server share. `name`: who the server is."""
        self.limits = limits
        self.intake = intake
        self.refuse = refuse
        self.name = name
        self.paths: list[str] = []
        self.methods: list[Served] = []
        self.is_stopping = False
        self.port = 0  # 0: it does not listen
        self.connections: set[_Connection] = set()
        self.calls: set[_Call] = set()  # under way, also those that nobody waits for any more
        self.calls_begun = 0  # since the start
        self._has_ended = asyncio.Event()  # a call, or a connection
        self.listener: asyncio.Server | None = None
        self._door: TlsDoor | None = None
        self._background = Service(self._watch)

    def add(self, service: str, methods: Mapping[str, Served]) -> None:
        for name, served in methods.items():
            self.paths.append(f"/{service}/{name}")
            self.methods.append(served)

    async def start(self, host: str, port: int, tls: Listening | None = None) -> int:
        """Listens; returns the port, which is chosen by the system if `port` is 0."""
        try:
            if tls is not None:
                self._door = TlsDoor(tls.frames, "frames")
                listening = listening_socket(host, port, QUEUED_MAX)
                buffer = bytearray(READ_BYTES)
                self._door.open(listening, lambda: SecureReader(_Connection(self), buffer))
                self._background.start()
                self.port = int(listening.getsockname()[1])
                return self.port
            # asyncio takes the backlog also for how many are accepted at once.
            self.listener = await asyncio.get_running_loop().create_server(
                partial(_Connection, self), host.strip("[]"), port, backlog=ACCEPTED_AT_ONCE
            )
        except OSError as error:
            raise PortError(
                f"Expected to listen for frames on {host}:{port}, but it cannot be had: {error.strerror or error}. "
                "Choose another frames_port; 0 takes a free one."
            ) from error
        for listening in self.listener.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(QUEUED_MAX)
        self._background.start()
        self.port = int(self.listener.sockets[0].getsockname()[1])
        return self.port

    async def stop(self, grace_seconds: float) -> None:
        """No new calls; those under way may end until then. Callers leave by themselves once they have their answers:
        one that is ended here cannot know whether the call that it was just sending has arrived."""
        self.is_stopping = True
        if self.listener is not None:
            self.listener.close()
        if self._door is not None:
            self._door.close()
        for connection in list(self.connections):
            connection.say_goodbye()
        ends_s = time.monotonic() + grace_seconds
        await self._wait(lambda: not self.calls, grace_seconds)
        left_s = max(0.0, ends_s - time.monotonic())
        await self._wait(lambda: not self.connections, min(LEAVING_SECONDS, left_s))
        for connection in list(self.connections):
            connection.close()
        if self._door is not None:
            await self._door.stop()
        await self._background.stop()

    def ended(self, call: "_Call") -> None:
        self.calls.discard(call)
        self.intake.leave(call.size)
        if self.is_stopping:
            self._has_ended.set()

    def left(self, connection: "_Connection") -> None:
        self.connections.discard(connection)
        self._has_ended.set()

    async def _wait(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._has_ended.clear()
                    await self._has_ended.wait()
        except TimeoutError:
            pass

    async def _watch(self) -> None:
        """Ends connections that say nothing when they should, and calls whose callers should have ended them."""
        polled_s = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            last_s, polled_s = polled_s, time.monotonic()
            if polled_s - last_s > 2 * POLL_SECONDS:
                continue  # this process stood still: what they said meanwhile has not been read yet
            for connection in list(self.connections):
                connection.poll(polled_s)


class _Call:
    """A call under way, as those who answer it see it."""

    __slots__ = (
        "_answered", "_cancel", "_connection", "_deadline_s", "_is_cancelled", "_metadata", "_started_s",
        "_waits_for", "is_done", "number", "served", "size",
    )  # fmt: skip

    def __init__(
        self, connection: "_Connection", number: int, served: Served, size: int, timeout_ms: int, metadata: Metadata
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._started_s = time.monotonic()
        self._deadline_s = self._started_s + timeout_ms / 1000 if timeout_ms else None
        self.is_done = False
        self._is_cancelled = False
        self._answered: Coroutine[Any, Any, Any] | None = None  # what makes the answer, if it is a coroutine
        self._cancel: Callable[[], object] | None = None  # ends whatever else makes it
        self._waits_for: asyncio.Future[Any] | None = None
        self.number = number
        self.served = served
        self.size = size

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    @property
    def connection_credentials(self) -> ConnectionCredentials:
        return self._connection.credentials

    def peer(self) -> str:
        """From which address it came."""
        return self._connection.peer

    def time_remaining(self) -> float | None:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())

    def done(self) -> bool:
        return self.is_done

    def is_overdue(self, now_s: float) -> bool:
        return self._deadline_s is not None and now_s > self._deadline_s

    def cancel(self) -> None:
        """The caller waits no longer."""
        self.is_done = True
        if self._cancel is not None:
            self._cancel()
        else:
            # What has come to its end already goes on in a moment, and hears of it then.
            self._is_cancelled = self._waits_for is None or not self._waits_for.cancel()

    def begin(self, answered: Coroutine[Any, Any, Any], *, in_task: bool) -> None:
        """It is answered before this ends, if nothing has to be waited for."""
        self._metadata = ()  # it was looked at, and the call may wait for long
        self._cancel = None
        self._is_cancelled = self.is_done
        self._answered = _in_task(answered) if in_task else answered
        self._go_on()

    # Of those that are completed by whoever carries them out.

    def on_cancel(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel

    def complete(self, response: bytes) -> None:
        was_cancelled = self.is_done
        self._connection.answer(self, response)
        self.end("CANCELLED" if was_cancelled else "OK")

    def refuse(self, error: Exception) -> None:
        self.end(self._connection.refuse(self, error))

    def drop(self) -> None:
        self.end("CANCELLED")

    def _go_on(self, _ended: object = None) -> None:
        """As tasks do it, until the answer is there or something has to be waited for."""
        answered = self._answered
        assert answered is not None
        self._waits_for = None
        code = "OK"
        try:
            try:
                if self._is_cancelled:
                    self._is_cancelled = False
                    waits_for = answered.throw(asyncio.CancelledError)
                else:
                    waits_for = answered.send(None)
            except StopIteration as end:
                self._connection.answer(self, self.served.encode(end.value))
            else:
                if waits_for is None:  # it only lets others have their turn
                    asyncio.get_running_loop().call_soon(self._go_on)
                    return
                waits_for._asyncio_future_blocking = False  # as tasks do it: others may wait for the same
                waits_for.add_done_callback(self._go_on)
                self._waits_for = waits_for
                return
        except asyncio.CancelledError:
            code = "CANCELLED"
            self._connection.end_untold(self)
        except Exception as error:  # noqa: BLE001 - the last line of defence: it is logged and answered
            code = self._connection.refuse(self, error)
        self._answered = None
        self.end(code)

    def end(self, code: str) -> None:
        self.is_done = True
        self._connection.ended(self)
        self.served.observed.observe(code, time.monotonic() - self._started_s)


async def _in_task(answered: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.get_running_loop().create_task(answered)


class _Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, server: FrameServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        # Until it has said hello, little is read of it.
        self._reader = FrameReader(codec.HELLO_BYTES_MAX, server.intake)
        self._calls: dict[int, _Call] = {}  # that the caller waits for
        self._unanswered_bytes = 0  # of these
        self._has_said_hello = False
        self.credentials = ConnectionCredentials()
        self.peer = ""
        self._has_ended = False
        self._outgoing: list[bytes] = []
        self._write: Write  # once there is a connection
        self._heard_s = self._began_s = time.monotonic()
        self.receiving_since_s: float | None = None  # a frame that is not complete
        self.unread_since_s: float | None = None  # more answers than it should have left unread
        self._leaving_since_s: float | None = None
        self._was_pinged = False
        self._is_paused = False  # nothing is read of it

    # --- the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop have its methods, and not its type
        self._write = writer_of(self._transport)
        if len(self._server.connections) >= self._server.limits.connections_max or self._server.is_stopping:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        self._server.connections.add(self)
        found = self._transport.get_extra_info("peername")
        self.peer = f"{found[0]}:{found[1]}" if isinstance(found, tuple) else ""

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._server.left(self)
        self._reader.drop()
        self._cancel_all()

    def pause_writing(self) -> None:
        self.unread_since_s = time.monotonic()
        self._read_or_not()

    def resume_writing(self) -> None:
        self.unread_since_s = None
        self._heard_s = time.monotonic()  # so far nobody listened
        self._read_or_not()

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        self._was_pinged = False
        self._take_some(data)

    def _take_more(self) -> None:
        """Of what has come already: so far nobody listened."""
        if not self._has_ended:
            self._heard_s = time.monotonic()
            self._take_some(b"")

    def _take_some(self, data: bytes) -> None:
        """A connection that sent very many calls at once does not keep the others waiting for all of them. They stay
        as they came until it is their turn."""
        reader = self._reader
        try:
            frames = reader.feed(data, CALLS_AT_ONCE)
            if reader.is_between or reader.has_more:
                self.receiving_since_s = None
            elif frames or self.receiving_since_s is None:
                self.receiving_since_s = self._heard_s
            for frame in frames:
                if frame.kind == codec.CALL and self._has_said_hello:
                    self._begin(frame)
                else:
                    self._take(frame)
                if self._has_ended:
                    return
        except BrokenFrameError as error:
            self.end(f"Expected a frame, but got {error}.")
            return
        if reader.has_more:
            self._loop.call_soon(self._take_more)
        if reader.has_more or self._is_paused:
            self._read_or_not()

    def _read_or_not(self) -> None:
        """Nothing is read from who does not read, or has sent more than was taken yet."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._reader.has_more or self.unread_since_s is not None:
            transport.pause_reading()
            self._is_paused = True
        elif self._is_paused:
            transport.resume_reading()
            self._is_paused = False

    # --- what comes ---------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        """What is no call."""
        if frame.kind == codec.CANCEL and self._has_said_hello:
            call = self._forget(frame.call)
            if call is not None:
                call.cancel()
        elif frame.kind == codec.HELLO and not self._has_said_hello:
            self._greet(frame.body)
        elif frame.kind == codec.PING and self._has_said_hello and len(frame.body or b"") <= codec.PING_BYTES_MAX:
            self._send(codec.encode(codec.PONG, frame.call, frame.body or b""))
        elif frame.kind != codec.PONG or not self._has_said_hello:
            raise BrokenFrameError(f"kind {frame.kind} at this moment")

    def _greet(self, body: bytes | None) -> None:
        if body is None:
            raise BrokenFrameError("a hello that is too long")
        greeting = read_hello(body)
        server = self._server
        reason = why_not_welcome(greeting, server.name())
        if reason:
            self.end(reason)
            return
        self._has_said_hello = True
        self.credentials = ConnectionCredentials(greeting.token, self._certificate_names())
        bytes_max = server.limits.message_bytes_max
        self._reader.raise_limit(bytes_max + codec.FRAME_SPARE_BYTES)
        self._send(welcome(greeting, server.name(), server.paths, bytes_max))

    def _certificate_names(self) -> tuple[str, ...]:
        """Of a client's certificate that TLS has checked."""
        found = None if self._transport is None else self._transport.get_extra_info("peercert")
        if not found:
            return ()
        names = [value for _, value in found.get("subjectAltName", ()) if isinstance(value, str)]
        names += [value for part in found.get("subject", ()) for kind, value in part if kind == "commonName"]
        return tuple(dict.fromkeys(names))

    def _begin(self, frame: Frame) -> None:
        server = self._server
        _, number, body, method, timeout_ms, metadata, was_too_large = frame
        if method >= len(server.methods):
            self._send(codec.encode_refusal(number, _UNKNOWN_METHOD, "Expected a method of the welcome."))
            return
        served = server.methods[method]
        calls = self._calls
        size = 0 if body is None else len(body)
        if number in calls:
            raise BrokenFrameError(f"call {number}, which is under way already")
        if calls and (len(calls) >= CALLS_MAX or self._unanswered_bytes + size > WINDOW_BYTES):
            raise BrokenFrameError("more calls, or bytes of them, than the welcome allows")
        call = calls[number] = _Call(self, number, served, size, timeout_ms, decode_metadata(metadata))
        self._unanswered_bytes += size
        server.calls.add(call)
        server.calls_begun += 1
        has_room = server.intake.enter(size, brings_tasks=served.brings_tasks)
        # What refuses it: in the order in which gRPC's server asks.
        try:
            if server.is_stopping:
                raise shutting_down()
            if len(server.calls) > server.limits.calls_max:
                raise overloaded("calls under way", server.limits.calls_max)
            answer = served.begin_framed(call)
            if was_too_large:
                raise _too_large(served)
            if body is None or not has_room:
                raise server.intake.refusal(brings_tasks=served.brings_tasks)
            served.limit.check(body)
            answered = answer(body)
        except Exception as error:  # noqa: BLE001 - as of those that have begun
            call.end(self.refuse(call, error))
            return
        if answered is not None:
            call.begin(answered, in_task=not served.is_driven)

    # --- what leaves --------------------------------------------------------------------------------------------

    def answer(self, call: _Call, response: bytes) -> None:
        if self._transport is not None and not call.is_done:
            self._send(codec.encode_answer(call.number, len(response)), response)

    def refuse(self, call: _Call, error: Exception) -> str:
        """Ends a call with what is wrong with it; returns its code."""
        code, message, details = self._server.refuse(call.served.name, error)
        forget_frames(error)
        if self._transport is not None and not call.is_done:
            self._send(codec.encode_refusal(call.number, _CODES[code], message, details or b""))
        return code

    def end_untold(self, call: _Call) -> None:
        """Of a call that was ended, and not by its caller: it would wait for ever."""
        if self._transport is not None and not call.is_done:
            self._send(codec.encode_refusal(call.number, _CODES["CANCELLED"], "The server has ended the call."))

    def ended(self, call: _Call) -> None:
        if self._calls.get(call.number) is call:
            del self._calls[call.number]
            self._unanswered_bytes -= call.size
        self._server.ended(call)

    def _forget(self, number: int) -> _Call | None:
        """The caller does not wait for this call any more, and has its part of the window back."""
        call = self._calls.pop(number, None)
        if call is not None:
            self._unanswered_bytes -= call.size
        return call

    def _send(self, *data: bytes) -> None:
        """With all else that is sent in this iteration of the loop."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += data

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is None or not outgoing:
            return
        self._write(outgoing)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._transport.abort()

    # --- its end ------------------------------------------------------------------------------------------------

    def say_goodbye(self) -> None:
        """Whoever hears it sends nothing more here, and goes when it has its answers."""
        self._leaving_since_s = time.monotonic()
        if self._has_said_hello and self._transport is not None:
            self._send(codec.encode(codec.GOODBYE, 0))

    def close(self) -> None:
        """Ends what is under way, and the connection when all that was said has left."""
        self._has_ended = True
        self._leaving_since_s = self._leaving_since_s or time.monotonic()  # even what it says last may not be read
        self._cancel_all()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _cancel_all(self) -> None:
        for number in list(self._calls):
            call = self._forget(number)
            assert call is not None
            call.cancel()

    def poll(self, now_s: float) -> None:
        """It is looked at every few seconds."""
        silent_s = now_s - self._heard_s
        if self._transport is None:
            return
        if self._is_gone(now_s, silent_s):
            self._transport.abort()
            return
        for call in [call for call in self._calls.values() if call.is_overdue(now_s)]:
            self._send(codec.encode_refusal(call.number, _CODES["DEADLINE_EXCEEDED"], "The call took too long."))
            self._forget(call.number)
            call.cancel()
        if silent_s > IDLE_SECONDS and not self._calls and self._leaving_since_s is None:
            self.say_goodbye()
        elif silent_s > SILENT_SECONDS and self._calls and not self._was_pinged and self.unread_since_s is None:
            self._was_pinged = True
            self._send(codec.encode(codec.PING, 0))

    def _is_gone(self, now_s: float, silent_s: float) -> bool:
        def is_longer(since_s: float | None, than_s: float) -> bool:
            return since_s is not None and now_s - since_s > than_s

        is_crowded = self._server.intake.is_crowded
        return (
            (not self._has_said_hello and now_s - self._began_s > HANDSHAKE_SECONDS)
            or is_longer(self.receiving_since_s, SLOW_SECONDS if is_crowded else RECEIVING_SECONDS_MAX)
            or is_longer(self.unread_since_s, UNREAD_SECONDS_MAX)
            or (self._was_pinged and silent_s > GONE_SECONDS and self.unread_since_s is None)
            or (is_longer(self._leaving_since_s, GONE_SECONDS) and not self._calls)
        )

    def end(self, reason: str) -> None:
        """The caller's program is wrong: nothing that it says can be understood any more."""
        _log.info("frames_refused", reason=reason)  # a caller chooses how often
        if self._transport is not None:
            self._send(codec.encode_refusal(0, _INVALID, reason, kind=codec.END))
        self.close()


def _too_large(served: Served) -> RefusedError:
    limit = served.limit.bytes_max
    return RefusedError(
        BATCH_TOO_LARGE, f"Expected a call of at most {limit} bytes, but got more.", "request", str(limit)
    )
