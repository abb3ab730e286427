"""Frames as bytes, and bytes cut into frames.

    size u32   kind u8   call u32   what the kind has

Numbers are little-endian; `size` counts all that follows it. `call` is a number that the caller chose for a call, and 0
in frames that are about the connection.

    HELLO    to the server     a Hello
    WELCOME  to the caller     a Welcome
    CALL     to the server     method u16, timeout u32 in ms (0: none), size of the metadata u16, metadata, request
    ANSWER   to the caller     response
    REFUSAL  to the caller     gRPC code u8, size of the message u16, message, details (a google.rpc.Status)
    CANCEL   to the server     the caller waits no longer; there is no answer
    PING     to either         anything, at most 8 bytes
    PONG     to either         the same
    GOODBYE  to the caller     no new calls from now on; those under way are answered
    END      to the caller     gRPC code u8, size of the message u16, message: why the connection is closed now
"""

import struct
from typing import Final, NamedTuple, Protocol

VERSION: Final = 1

HELLO: Final = 1
WELCOME: Final = 2
CALL: Final = 3
ANSWER: Final = 4
REFUSAL: Final = 5
CANCEL: Final = 6
PING: Final = 7
PONG: Final = 8
GOODBYE: Final = 9
END: Final = 10

PING_BYTES_MAX = 8
HELLO_BYTES_MAX = 16 * 1024
METADATA_BYTES_MAX = 8 * 1024  # as with gRPC
MESSAGE_BYTES_MAX = 0xFFFF  # of the sentence of a refusal

_SIZE_BYTES = 4
_HEAD = struct.Struct("<IBI")
_CALL = struct.Struct("<IBIHIH")
_REFUSAL = struct.Struct("<IBIBH")
_REFUSED = struct.Struct("<BH")

FRAME_SPARE_BYTES = _CALL.size - _SIZE_BYTES + METADATA_BYTES_MAX  # what a frame may have beside its request
_TIMEOUT_MS_MAX = 0xFFFFFFFF
_ALL = 1 << 62  # more than there can be


class BrokenFrameError(ValueError):
    """What came is no frame, so nothing after it can be understood: the connection must end."""


class Frame(NamedTuple):
    """One that is complete."""

    kind: int
    call: int
    body: bytes | None  # None: it was larger than allowed, or there was no room for it, and it was passed over
    method: int = 0  # these three of a CALL
    timeout_ms: int = 0
    metadata: bytes = b""
    was_too_large: bool = False  # of one that was passed over


class Refusal(NamedTuple):
    code: int
    message: str
    details: bytes


class Room(Protocol):
    """Where frames that arrive in pieces are kept."""

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more."""
        ...

    def give_back(self, size: int) -> None: ...


def encode(kind: int, call: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(_HEAD.size - _SIZE_BYTES + len(body), kind, call) + body


def encode_call(call: int, method: int, timeout_ms: int, metadata: bytes, request_bytes: int) -> bytes:
    """All of a call but its request, which follows."""
    if len(metadata) > METADATA_BYTES_MAX:
        raise ValueError(f"expected at most {METADATA_BYTES_MAX} bytes of metadata, but got {len(metadata)}")
    size = _CALL.size - _SIZE_BYTES + len(metadata) + request_bytes
    return _CALL.pack(size, CALL, call, method, min(timeout_ms, _TIMEOUT_MS_MAX), len(metadata)) + metadata


def encode_answer(call: int, response_bytes: int) -> bytes:
    """All of an answer but the response, which follows."""
    return _HEAD.pack(_HEAD.size - _SIZE_BYTES + response_bytes, ANSWER, call)


def encode_refusal(call: int, code: int, message: str, details: bytes = b"", *, kind: int = REFUSAL) -> bytes:
    sentence = message.encode(errors="replace")[:MESSAGE_BYTES_MAX]
    size = _REFUSAL.size - _SIZE_BYTES + len(sentence) + len(details)
    return _REFUSAL.pack(size, kind, call, code, len(sentence)) + sentence + details


def decode_refusal(body: bytes) -> Refusal:
    """The body of a REFUSAL or an END."""
    if len(body) < _REFUSED.size:
        raise BrokenFrameError("a refusal without a code")
    code, size = _REFUSED.unpack_from(body)
    stop = _REFUSED.size + size
    if stop > len(body):
        raise BrokenFrameError("a refusal whose message is not complete")
    return Refusal(code, body[_REFUSED.size : stop].decode(errors="replace"), body[stop:])


class FrameReader:
    """Cuts what arrives into frames, however it arrives."""

    __slots__ = (
        "_bytes_max", "_frame", "_kept_bytes", "_missing", "_parts", "_room", "_start", "has_more", "is_between",
    )  # fmt: skip

    def __init__(self, bytes_max: int, room: Room) -> None:
        """`bytes_max`: of what follows the size of a frame; larger ones are passed over. `room`: for the pieces of
        frames that are not complete."""
        self._bytes_max = bytes_max
        self._room = room
        self._start = b""  # of a frame, too little to tell what it is; or what has come and is not cut yet
        self._frame: Frame | None = None  # that is not complete: all but its body
        self._parts: list[bytes] | None = None  # of its body; None: it is passed over
        self._missing = 0  # bytes of its body
        self._kept_bytes = 0
        self.is_between = True  # nothing of a frame has come that is not complete
        self.has_more = False  # something was left uncut

    def raise_limit(self, bytes_max: int) -> None:
        """Frames may be larger from now on."""
        self._bytes_max = bytes_max

    def feed(self, data: bytes, frames_max: int = _ALL) -> list[Frame]:
        """The frames that are complete now. Raises BrokenFrameError. `frames_max`: the others stay as they came, which
        is a tenth of what they take when they are cut, until this is called again, with more or with nothing."""
        frames: list[Frame] = []
        if self._start:
            data, self._start = self._start + data, b""
        offset = self._go_on(data, frames) if self._frame is not None else 0
        end = len(data)
        self.has_more = False
        while offset < end and len(frames) < frames_max:
            left = end - offset
            if left >= _CALL.size:  # of what is no call, the last three mean nothing
                size, kind, call, method, timeout_ms, metadata_bytes = _CALL.unpack_from(data, offset)
            elif left >= _HEAD.size and data[offset + _SIZE_BYTES] != CALL:
                size, kind, call = _HEAD.unpack_from(data, offset)
            else:
                self._start = data[offset:]
                break
            stop = offset + _SIZE_BYTES + size
            if kind == CALL:
                metadata_at = offset + _CALL.size
                body_at = metadata_at + metadata_bytes
                if body_at > stop or metadata_bytes > METADATA_BYTES_MAX:
                    raise BrokenFrameError(f"a call of {size} bytes with {metadata_bytes} bytes of metadata")
                if body_at > end:
                    self._start = data[offset:]
                    break
                metadata = data[metadata_at:body_at]
            else:
                if not HELLO <= kind <= END or size < _HEAD.size - _SIZE_BYTES:
                    raise BrokenFrameError(f"kind {kind} with a size of {size}")
                body_at = offset + _HEAD.size
                method, timeout_ms, metadata = 0, 0, b""
            is_too_large = size > self._bytes_max
            body = data[body_at:stop] if stop <= end and not is_too_large else None
            frame = Frame(kind, call, body, method, timeout_ms, metadata, is_too_large)
            if stop <= end:
                frames.append(frame)
                offset = stop
                continue
            self._frame = frame
            self._parts = None if is_too_large else []
            self._missing = stop - body_at
            self._go_on(data[body_at:], frames)
            break
        else:
            self._start, self.has_more = data[offset:], offset < end
        self.is_between = self._frame is None and not self._start
        return frames

    def drop(self) -> None:
        """The connection has ended: gives back the room of what was not complete."""
        self._room.give_back(self._kept_bytes)
        self._kept_bytes = 0
        self._parts, self._frame, self._start = None, None, b""
        self.is_between, self.has_more = True, False

    def _go_on(self, data: bytes, frames: list[Frame]) -> int:
        """More of the body that is not complete; returns how much of the data that was."""
        frame = self._frame
        assert frame is not None
        taken = min(self._missing, len(data))
        if self._parts is not None:
            self._keep(data[:taken])
        self._missing -= taken
        if not self._missing:
            body = None if self._parts is None else b"".join(self._parts)
            self._give_back()
            self._frame = self._parts = None
            frames.append(frame._replace(body=body))
        return taken

    def _keep(self, part: bytes) -> None:
        assert self._parts is not None
        if self._room.take(len(part)):
            self._kept_bytes += len(part)
            self._parts.append(part)
        else:
            self._give_back()
            self._parts = None

    def _give_back(self) -> None:
        self._room.give_back(self._kept_bytes)
        self._kept_bytes = 0
