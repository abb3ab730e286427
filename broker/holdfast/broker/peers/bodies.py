"""The body of a frame: messages of many shards that go to one node together. Pure.

    body      version (1 byte), sender's wall clock in ms (8 bytes), then messages up to the end
    message   shard (4 bytes), group (8 bytes), length (4 bytes), bytes of raft/codec.py

Numbers are unsigned and big-endian. What comes from the network is read by place and size; what does not fit exactly is
refused as a whole, before the first message is handed out. The first byte of a body is never 0: that is how
the transport marks its own words (words.py).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from holdfast.broker.peers.reasons import PeerError, Reason

BODY_VERSION: Final = 1
NUMBER_MAX: Final = 2**63 - 1  # of a time: what fits a signed column, with room for counting on

_BODY: Final = Struct(">BQ")
_MESSAGE: Final = Struct(">IQI")
BODY_HEAD_BYTES: Final = _BODY.size
MESSAGE_HEAD_BYTES: Final = _MESSAGE.size

# (shard, group, message). A plain tuple: one is made for every message of every shard. What was unpacked is a view of
# its body: whoever takes something out of it makes the only copy.
Packed = tuple[int, int, bytes | memoryview]


class BodyError(PeerError):
    """This body does not consist of messages."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.BODY_BROKEN, detail)


def pack(wall_ms: int, messages: Iterable[Packed]) -> bytes:
    """One body with all these messages."""
    parts: list[bytes | memoryview] = [_BODY.pack(BODY_VERSION, wall_ms)]
    for shard, group, message in messages:
        parts += (_MESSAGE.pack(shard, group, len(message)), message)
    return b"".join(parts)


def pack_within(wall_ms: int, messages: Iterable[Packed], body_bytes_max: int) -> list[bytes]:
    """As few bodies as hold these messages in order, each within the limit; none for no message.

    A message that is too large by itself raises ValueError: whoever made it has to know the limit.
    """
    bodies: list[bytes] = []
    together: list[Packed] = []
    size = BODY_HEAD_BYTES
    for packed in messages:
        message_size = MESSAGE_HEAD_BYTES + len(packed[2])
        if BODY_HEAD_BYTES + message_size > body_bytes_max:
            raise ValueError(
                f"Expected messages that fit a body of {body_bytes_max} bytes, but one has {message_size}."
            )
        if size + message_size > body_bytes_max:
            bodies.append(pack(wall_ms, together))
            together, size = [], BODY_HEAD_BYTES
        together.append(packed)
        size += message_size
    if together:
        bodies.append(pack(wall_ms, together))
    return bodies


def unpack(body: bytes) -> tuple[int, list[Packed]]:
    """The sender's wall clock in ms and the messages; raises `BodyError` for anything else."""
    size = len(body)
    if size < BODY_HEAD_BYTES:
        raise BodyError("a body without its beginning")
    version, wall_ms = _BODY.unpack_from(body)
    if version != BODY_VERSION:
        raise BodyError(f"a body of version {version} where {BODY_VERSION} is known")
    if wall_ms > NUMBER_MAX:
        raise BodyError("a time that is too large")
    messages: list[Packed] = []
    view = memoryview(body)
    place = BODY_HEAD_BYTES
    while place < size:
        if size - place < MESSAGE_HEAD_BYTES:
            raise BodyError("a message without its beginning")
        shard, group, length = _MESSAGE.unpack_from(body, place)
        place += MESSAGE_HEAD_BYTES
        if length == 0 or size - place < length:
            raise BodyError("a message that is empty or has no end")
        messages.append((shard, group, view[place : place + length]))
        place += length
    return wall_ms, messages
