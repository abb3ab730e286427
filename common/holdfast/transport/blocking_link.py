"""A connection of frames for a thread that makes one call at a time and waits for its answer itself: without an event
loop, so without handing anything to another thread and back.
"""

import socket
import time
from dataclasses import dataclass

from holdfast.frames import codec
from holdfast.frames.codec import BrokenFrameError, Frame, FrameReader, decode_refusal
from holdfast.frames.hello import hello, read_welcome
from holdfast.frames.metadata import encode_metadata
from holdfast.transport.channels import CallFailedError, Metadata
from holdfast.transport.frame_channels import ANSWER_SECONDS, AllRoom, FramesAddress, NoFramesError, failure_of

_CONNECT_SECONDS = 1.0  # a caller waits for it: after that calls go another way
TICK_S = 1.0  # a wait for bytes is no longer, so that few need a timeout of their own to be set
QUIET_S = 0.5  # after which it is looked whether the server has said goodbye meanwhile
_READ_BYTES = 32 * 1024
_ANSWERS = (codec.ANSWER, codec.REFUSAL)


class _StillSilentError(Exception):
    """No answer yet."""


@dataclass(slots=True)
class BlockingCall:
    """A call that was sent."""

    number: int
    ends_s: float


class BlockingLink:
    """To one server. All but `shut_down` is for one thread at a time."""

    def __init__(
        self, at: FramesAddress, caller: str, message_bytes_max: int, keepalive_s: float, token: str = ""
    ) -> None:
        """`token`: who calls over it. Raises NoFramesError."""
        self.token = token
        self._message_bytes_max = message_bytes_max
        self._keepalive_s = keepalive_s
        self._reader = FrameReader(message_bytes_max + codec.FRAME_SPARE_BYTES, AllRoom())
        self._methods: dict[str, int] = {}
        self._window_bytes = 0
        self._number = 0
        self._timeout_s = _CONNECT_SECONDS  # of the socket
        self._heard_s = time.monotonic()
        self.is_open = False  # takes new calls
        try:
            self._socket = socket.create_connection((at.host, at.port), _CONNECT_SECONDS)
        except OSError as error:
            raise NoFramesError(str(error)) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._enter(at.server, caller)
        except (OSError, BrokenFrameError) as error:
            self.close()
            raise NoFramesError(str(error)) from None
        except BaseException:  # whoever waits for it is ended
            self.close()
            raise

    def _enter(self, expects: str, caller: str) -> None:
        self._socket.sendall(hello(expects, caller, self.token))
        ends_s = time.monotonic() + _CONNECT_SECONDS
        while not (frames := self._receive(ends_s)):
            if time.monotonic() >= ends_s:
                raise BrokenFrameError("no answer to a hello")
        first = frames[0]
        if first.kind == codec.END:
            raise BrokenFrameError(decode_refusal(first.body or b"").message)
        if first.kind != codec.WELCOME or first.body is None:
            raise BrokenFrameError(f"kind {first.kind} at this moment")
        answer = read_welcome(first.body, expects)
        self._methods = {path: number for number, path in enumerate(answer.methods)}
        self._window_bytes = answer.window_bytes
        self.is_open = True

    def takes(self, path: str, size: int) -> bool:
        """Whether such a call can be sent now. A server that is about to close says so, which is noticed here."""
        if self.is_open and time.monotonic() - self._heard_s > QUIET_S:
            self._hear_what_came()
        return self.is_open and path in self._methods and size <= min(self._message_bytes_max, self._window_bytes)

    def call(
        self, path: str, data: bytes, metadata: Metadata | None, timeout_s: float, patience_s: float
    ) -> bytes | BlockingCall:
        """The answer; or the call, if there is none for `patience_s`, and `answer` is to wait on. Raises
        CallFailedError."""
        now_s = time.monotonic()
        self._number = number = self._number % 0xFFFFFFFF + 1
        call = BlockingCall(number, now_s + timeout_s)
        timeout_ms = int(timeout_s * 1000)
        extra = encode_metadata(metadata) if metadata else b""
        head = codec.encode_call(number, self._methods[path], timeout_ms if timeout_ms > 0 else 1, extra, len(data))
        try:
            self._socket.sendall(head + data)
            return self._await(call, min(call.ends_s, now_s + patience_s))
        except _StillSilentError:
            return call
        except (OSError, BrokenFrameError) as error:
            raise self._lost(str(error)) from None
        except CallFailedError:
            raise
        except BaseException:  # Ctrl-C: the server ends the call with its connection
            self.close()
            raise

    def answer(self, call: BlockingCall) -> bytes:
        """What `call` did not wait for."""
        try:
            return self._await(call, call.ends_s)
        except _StillSilentError:
            raise self._give_up(call) from None
        except (OSError, BrokenFrameError) as error:
            raise self._lost(str(error)) from None

    def _await(self, call: BlockingCall, until_s: float) -> bytes:
        asked_s, was_pinged = time.monotonic(), False
        while True:
            answer = self._answer_in(self._receive(until_s), call.number)
            if answer is not None:
                if answer.kind == codec.ANSWER and answer.body is not None:
                    return answer.body
                raise failure_of(answer)
            now_s = time.monotonic()
            silent_s = now_s - max(asked_s, self._heard_s)
            if now_s >= call.ends_s:
                raise self._give_up(call)
            if now_s >= until_s:
                raise _StillSilentError
            if silent_s > self._keepalive_s + ANSWER_SECONDS:
                raise BrokenFrameError("The server does not answer any more.")
            if silent_s > self._keepalive_s and not was_pinged:
                was_pinged = True
                self._socket.sendall(codec.encode(codec.PING, 0))

    def _answer_in(self, frames: list[Frame], number: int) -> Frame | None:
        answer: Frame | None = None
        for frame in frames:
            if frame.call == number and frame.kind in _ANSWERS:
                answer = frame
                continue
            try:
                self._take(frame)
            except BrokenFrameError:  # the server ends the connection: what it answered before that counts
                if answer is None:
                    raise
                self.close()
                break
        return answer

    def _receive(self, until_s: float) -> list[Frame]:
        """What has come; nothing if that takes longer."""
        left_s = until_s - time.monotonic()
        timeout_s = TICK_S if left_s >= TICK_S else max(0.001, left_s)
        if timeout_s != self._timeout_s:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return []
        if not data:
            raise ConnectionError("The connection was lost.")
        self._heard_s = time.monotonic()
        return self._reader.feed(data)

    def _take(self, frame: Frame) -> None:
        """What is no answer to the call that is waited for. Answers to calls that were given up come too late."""
        if frame.kind == codec.PING:
            self._socket.sendall(codec.encode(codec.PONG, frame.call, frame.body or b""))
        elif frame.kind == codec.GOODBYE:
            self.is_open = False
        elif frame.kind == codec.END:
            raise BrokenFrameError(decode_refusal(frame.body or b"").message)
        elif frame.kind not in _ANSWERS and frame.kind != codec.PONG:
            raise BrokenFrameError(f"kind {frame.kind} at this moment")

    def _hear_what_came(self) -> None:
        try:
            for frame in self._receive(0.0):
                self._take(frame)
        except (OSError, BrokenFrameError):
            self.close()

    def _give_up(self, call: BlockingCall) -> CallFailedError:
        try:
            self._socket.sendall(codec.encode(codec.CANCEL, call.number))
        except OSError:
            self.close()
        return CallFailedError("DEADLINE_EXCEEDED", "There was no answer in time.")

    def _lost(self, why: str) -> CallFailedError:
        self.close()
        return CallFailedError("UNAVAILABLE", why)

    def shut_down(self) -> None:
        """From any thread: a call under way ends, as one whose connection was lost."""
        self.is_open = False
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has gone already

    def close(self) -> None:
        self.shut_down()
        self._socket.close()

    def forget(self) -> None:
        """In a forked child: the connection is the parent's, and goes on there."""
        self.is_open = False
        self._socket.close()
