"""Calls between brokers, as bodies of frames. Pure.

    request   2 (1 byte), number (8 bytes), method (1 byte), shard (4 bytes), patience in ms (4 bytes), message
    answer    3 (1 byte), number (8 bytes), 0 and a message, or 1, the length of a reason (1 byte), reason, sentence

The caller chooses the number, and the answer repeats it. The first byte tells calls from the messages of shards
(bodies.py) and from the words of the transport (words.py).
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from holdfast.broker.peers.bodies import BodyError

REQUEST: Final = 2
ANSWER: Final = 3

_REQUEST: Final = Struct(">BQBII")
_ANSWER: Final = Struct(">BQB")
_REASON_BYTES_MAX: Final = 255
_SENTENCE_BYTES_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    method: int
    shard: int  # that it is for
    patience_ms: int  # after which nobody waits for the answer
    message: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """`reason` is empty unless the call was refused."""

    number: int
    message: bytes = b""
    reason: str = ""
    sentence: str = ""


def is_call(body: bytes) -> bool:
    return body[0] in (REQUEST, ANSWER)


def encode_call(call: Request | Answer) -> bytes:
    if isinstance(call, Request):
        return _REQUEST.pack(REQUEST, call.number, call.method, call.shard, call.patience_ms) + call.message
    if not call.reason:
        return _ANSWER.pack(ANSWER, call.number, 0) + call.message
    reason = call.reason.encode()[:_REASON_BYTES_MAX]
    sentence = call.sentence.encode()[:_SENTENCE_BYTES_MAX]
    return b"".join((_ANSWER.pack(ANSWER, call.number, 1), bytes([len(reason)]), reason, sentence))


def decode_call(body: bytes) -> Request | Answer:
    """Raises `BodyError` for anything else."""
    form = _REQUEST if body[0] == REQUEST else _ANSWER
    if len(body) < form.size:
        raise BodyError("a call without its beginning")
    if body[0] == REQUEST:
        _, number, method, shard, patience_ms = _REQUEST.unpack_from(body)
        return Request(number, method, shard, patience_ms, body[form.size :])
    _, number, is_refused = _ANSWER.unpack_from(body)
    if is_refused > 1:
        raise BodyError("a flag that is neither 0 nor 1")
    if not is_refused:
        return Answer(number, body[form.size :])
    if len(body) == form.size or not 0 < body[form.size] <= len(body) - form.size - 1:
        raise BodyError("a refusal without its reason")
    begin = form.size + 1
    end = begin + body[form.size]
    return Answer(number, reason=body[begin:end].decode(errors="replace"), sentence=body[end:].decode(errors="replace"))
