"""What both sides of a connection say first, and in which version they go on."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from holdfast.frames.codec import FRAME_SPARE_BYTES, HELLO, VERSION, WELCOME, BrokenFrameError, encode
from holdfast.proto.v1.frames_pb2 import Hello, Welcome

WINDOW_BYTES = 16 * 1024 * 1024  # of calls that are not answered, on one connection
CALLS_MAX = 50_000  # likewise: a router has the waits of many workers on one connection


def hello(expects: str, caller: str, token: str = "") -> bytes:
    return encode(HELLO, 0, Hello(version=VERSION, expects=expects, caller=caller, token=token).SerializeToString())


def read_hello(body: bytes) -> Hello:
    try:
        return Hello.FromString(body)
    except DecodeError:
        raise BrokenFrameError("a hello that cannot be read") from None


def why_not_welcome(greeting: Hello, server: str) -> str:
    """A sentence; empty if this caller can be served."""
    if greeting.version < 1:
        return f"Expected a hello with version 1 to {VERSION}, but it has version {greeting.version}."
    if greeting.expects and greeting.expects != server:
        return f"Expected a caller of {server}, but this one looks for {greeting.expects}: another server has its port."
    return ""


def welcome(greeting: Hello, server: str, methods: Sequence[str], message_bytes_max: int) -> bytes:
    answer = Welcome(
        version=min(VERSION, greeting.version), server=server, methods=methods, window_bytes=WINDOW_BYTES,
        frame_bytes_max=message_bytes_max + FRAME_SPARE_BYTES, calls_max=CALLS_MAX,
    )  # fmt: skip
    return encode(WELCOME, 0, answer.SerializeToString())


def read_welcome(body: bytes, expects: str) -> Welcome:
    """Raises BrokenFrameError for one that cannot be gone by."""
    try:
        answer = Welcome.FromString(body)
    except DecodeError:
        raise BrokenFrameError("a welcome that cannot be read") from None
    if not 1 <= answer.version <= VERSION:
        raise BrokenFrameError(f"a welcome in version {answer.version}")
    if expects and answer.server != expects:
        raise BrokenFrameError(f"a welcome of {answer.server!r}, and not of {expects!r}")
    if not answer.window_bytes or not answer.calls_max or not answer.frame_bytes_max:
        raise BrokenFrameError("a welcome without limits")
    return answer
