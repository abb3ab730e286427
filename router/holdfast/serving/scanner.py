"""Counts the fields of a protobuf message without parsing it, so that what is too much is refused before it is built.

Two bytes of a body can become an empty message of more than a hundred bytes in memory: 4 MiB of them take half a
second and half a gigabyte to parse. Here a field with a length is skipped by its length, and counting ends at the
limit, so the worst body costs no more than the largest good one. Pure.

Only the number of fields is bounded, whatever they are: with that the parser has a bounded amount of work, and what
else may be wrong with a request the validation says better. A message of n bytes has at most n / 2 fields, so nobody
looks into one that is short.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

_VARINT = 0
_FIXED_64 = 1
_LENGTH = 2  # texts, bytes and messages
_FIXED_32 = 5
_FIELD_BYTES_MIN = 2
_NUMBER_MAX = (1 << 32) - 1  # of a tag or a length
_VARINT_BYTES_MAX = 10


class TooManyFieldsError(Exception):
    """`path` are the numbers of the fields in which it was found, the last one being the most frequent of the message
    that has more than `limit` fields."""

    def __init__(self, path: tuple[int, ...], limit: int) -> None:
        super().__init__(f"more than {limit} fields at {path}")
        self.path = path
        self.limit = limit


class BrokenBytesError(Exception):
    """These bytes are no message. Groups, which nothing of ours has, count as broken too."""


class Shape:
    """How many fields a message may have, and those of its fields that are messages to be looked into."""

    def __init__(
        self, fields_max: int, inside: "Mapping[int, Shape] | None" = None, *, shallow_bytes_max: int = 0
    ) -> None:
        """`inside`: by field number. `shallow_bytes_max`: so small, what is inside can do no harm in all."""
        self.fields_max = fields_max
        self.shallow_bytes_max = shallow_bytes_max
        inside = inside or {}
        self.unseen_bytes_max = _FIELD_BYTES_MIN * min([fields_max, *(shape.fields_max for shape in inside.values())])
        self.inside = {  # by tag
            number << 3 | _LENGTH: (shape.unseen_bytes_max, shape) for number, shape in inside.items()
        }


def scan(data: bytes, shape: Shape) -> None:
    """Raises `TooManyFieldsError` or `BrokenBytesError`. What it lets pass may still be no good message."""
    inside = shape.inside if len(data) > shape.shallow_bytes_max else {}
    try:
        _scan(data, 0, len(data), shape.fields_max, inside)
    except IndexError:
        raise BrokenBytesError from None


def _scan(data: bytes, at: int, end: int, fields_max: int, inside: dict[int, tuple[int, Shape]]) -> None:
    start, left = at, fields_max
    while at < end:
        left -= 1
        if left < 0:
            raise TooManyFieldsError((_most_frequent(data, start, max(1, fields_max)),), fields_max)
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1)
        kind = tag & 7
        if kind == _LENGTH:
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = _varint(data, at - 1)
            if size > end - at:
                raise BrokenBytesError
            if tag in inside:
                unseen_bytes_max, shape = inside[tag]
                if size > unseen_bytes_max:
                    _scan_inside(data, at, at + size, tag, shape)
            at += size
        elif kind == _VARINT:
            while data[at] >= 0x80:
                at += 1
            at += 1
        else:
            at += _fixed_bytes(kind)
    if at > end:
        raise BrokenBytesError


def _scan_inside(data: bytes, at: int, end: int, tag: int, shape: Shape) -> None:
    try:
        _scan(data, at, end, shape.fields_max, shape.inside)
    except TooManyFieldsError as error:
        raise TooManyFieldsError((tag >> 3, *error.path), error.limit) from None


def _fixed_bytes(kind: int) -> int:
    if kind == _FIXED_64:
        return 8
    if kind == _FIXED_32:
        return 4
    raise BrokenBytesError


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value > _NUMBER_MAX:
                raise BrokenBytesError
            return value, at
    raise BrokenBytesError


def _most_frequent(data: bytes, at: int, fields: int) -> int:
    """The number of the field that stands there most often; of those fields that were just counted."""
    [(number, _)] = Counter(_numbers(data, at, fields)).most_common(1)
    return number


def _numbers(data: bytes, at: int, fields: int) -> Iterator[int]:
    for _ in range(fields):
        tag, at = _varint(data, at)
        yield tag >> 3
        kind = tag & 7
        if kind == _LENGTH:
            size, at = _varint(data, at)
            at += size
        elif kind == _VARINT:
            while data[at] >= 0x80:
                at += 1
            at += 1
        else:
            at += _fixed_bytes(kind)
