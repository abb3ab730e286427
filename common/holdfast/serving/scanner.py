"""Counts the fields of a protobuf message without parsing it, so that what is too much is refused before it is built.

Two bytes of a body can become an empty message of more than a hundred bytes in memory: 4 MiB of them take half a
second and half a gigabyte to parse. Here a field with a length is skipped by its length, and counting ends at the
limit, so the worst body costs no more than the largest good one. Pure.

Only the number of fields is bounded, whatever they are: with that the parser has a bounded amount of work, and what
else may be wrong with a request the validation says better. A message of n bytes has at most n / 2 fields, so nobody
looks into one that is short. Numbers that are packed into one field are counted as well, and a message that can stand
there only once must not come twice: the parser would merge them, and together they could be anything. What is repeated
inside of what is repeated may have a bound over the whole body: 1,000 times 100 is too much although neither is.
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
_CONTINUED = bytes(range(0x80, 0x100))  # a varint goes on after such a byte


class TooManyFieldsError(Exception):
    """`path` are the numbers of the fields in which it was found, the last one being the most frequent of the message
    that has more than `limit` fields: at least `count` of them. `is_total`: those of the whole body are meant."""

    def __init__(self, path: tuple[int, ...], limit: int, count: int, *, is_total: bool = False) -> None:
        super().__init__(f"more than {limit} fields at {path}")
        self.path = path
        self.limit = limit
        self.count = count
        self.is_total = is_total


class BrokenBytesError(Exception):
    """These bytes are no message. Groups, which nothing of ours has, count as broken too."""


class Packed:
    """Numbers in one field. `number_bytes`: of each; 0 if they are varints."""

    def __init__(self, numbers_max: int, number_bytes: int = 0) -> None:
        self.numbers_max = numbers_max
        self.number_bytes = number_bytes
        self.unseen_bytes_max = numbers_max * max(1, number_bytes)
        self.is_counted = False


class Shape:
    """How many fields a message may have, and those of its fields that are to be looked into."""

    def __init__(
        self,
        fields_max: int,
        inside: "Mapping[int, Shape | Packed] | None" = None,
        *,
        is_single: bool = False,
        has_repeated: bool = False,
        total_max: int | None = None,
        shallow_bytes_max: int = 0,
    ) -> None:
        """`inside`: by field number. `is_single`: it may not come twice, unless it is short and has nothing repeated
        (`has_repeated`). `total_max`: how often it may be in the whole body, in all messages that are looked into.
        `shallow_bytes_max`: of a body so small, what is inside can do no harm in all."""
        self.fields_max = fields_max
        self.is_single = is_single
        self.total_max = total_max
        self.shallow_bytes_max = shallow_bytes_max
        inside = inside or {}
        self.unseen_bytes_max: int = min(
            [_FIELD_BYTES_MIN * fields_max, *(shape.unseen_bytes_max for shape in inside.values())]
        )
        self.is_counted = total_max is not None or (is_single and has_repeated)  # also where it is short
        self.inside = {  # by tag: beyond how many bytes it is of interest
            number << 3 | _LENGTH: (-1 if shape.is_counted else shape.unseen_bytes_max, shape)
            for number, shape in inside.items()
        }


def scan(data: bytes, shape: Shape) -> None:
    """Raises `TooManyFieldsError` or `BrokenBytesError`. What it lets pass may still be no good message."""
    inside = shape.inside if len(data) > shape.shallow_bytes_max else {}
    try:
        _scan(data, 0, len(data), shape.fields_max, inside, {})
    except IndexError:
        raise BrokenBytesError from None


def _scan(
    data: bytes,
    offset: int,
    end: int,
    fields_max: int,
    inside: dict[int, tuple[int, Shape | Packed]],
    totals: dict[Shape, int],
) -> None:
    start, left = offset, fields_max
    single: tuple[int, ...] = ()  # tags of what must not come again
    while offset < end:
        left -= 1
        if left < 0:
            number, count = _most_frequent(data, start, max(1, fields_max))
            raise TooManyFieldsError((number,), fields_max, count)
        tag = data[offset]
        offset += 1
        if tag >= 0x80:
            tag, offset = _varint(data, offset - 1)
        kind = tag & 7
        if kind == _LENGTH:
            size = data[offset]
            offset += 1
            if size >= 0x80:  # of two bytes, as a rule
                high = data[offset]
                size, offset = (size + (high - 1 << 7), offset + 1) if high < 0x80 else _varint(data, offset - 1)
            if size > end - offset:
                raise BrokenBytesError
            if tag in inside:
                unseen_bytes_max, shape = inside[tag]
                if size > unseen_bytes_max:
                    single = _scan_inside(data, offset, offset + size, tag, shape, single, totals)
            offset += size
        elif kind == _VARINT:
            while data[offset] >= 0x80:
                offset += 1
            offset += 1
        else:
            offset += _fixed_bytes(kind)
    if offset > end:
        raise BrokenBytesError


def _scan_inside(
    data: bytes,
    offset: int,
    end: int,
    tag: int,
    shape: Shape | Packed,
    single: tuple[int, ...],
    totals: dict[Shape, int],
) -> tuple[int, ...]:
    """Returns which must not come again from now on."""
    if tag in single:
        raise TooManyFieldsError((tag >> 3,), 1, 2)
    if isinstance(shape, Packed):
        count = (end - offset) // shape.number_bytes if shape.number_bytes else _varints(data[offset:end])
        if count > shape.numbers_max:
            raise TooManyFieldsError((tag >> 3,), shape.numbers_max, count)
        return single
    if shape.total_max is not None:
        total = totals[shape] = totals.get(shape, 0) + 1
        if total > shape.total_max:
            raise TooManyFieldsError((tag >> 3,), shape.total_max, total, is_total=True)
    if end - offset > shape.unseen_bytes_max:
        try:
            _scan(data, offset, end, shape.fields_max, shape.inside, totals)
        except TooManyFieldsError as error:
            path = (tag >> 3, *error.path)
            raise TooManyFieldsError(path, error.limit, error.count, is_total=error.is_total) from None
    return (*single, tag) if shape.is_single else single


def _varints(data: bytes) -> int:
    """How many there are: each has one byte that is its last."""
    return len(data.translate(None, _CONTINUED))


def _fixed_bytes(kind: int) -> int:
    if kind == _FIXED_64:
        return 8
    if kind == _FIXED_32:
        return 4
    raise BrokenBytesError


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value > _NUMBER_MAX:
                raise BrokenBytesError
            return value, offset
    raise BrokenBytesError


def _most_frequent(data: bytes, offset: int, fields: int) -> tuple[int, int]:
    """The number of the field that stands there most often, and how often; of those fields that were just counted."""
    [found] = Counter(_numbers(data, offset, fields)).most_common(1)
    return found


def _numbers(data: bytes, offset: int, fields: int) -> Iterator[int]:
    for _ in range(fields):
        tag, offset = _varint(data, offset)
        yield tag >> 3
        kind = tag & 7
        if kind == _LENGTH:
            size, offset = _varint(data, offset)
            offset += size
        elif kind == _VARINT:
            while data[offset] >= 0x80:
                offset += 1
            offset += 1
        else:
            offset += _fixed_bytes(kind)
