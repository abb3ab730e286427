"""Counting the fields of a message without parsing it, against the real parser."""

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.scanner import BrokenBytesError, Packed, Shape, TooManyFieldsError, scan

ANY = Shape(1_000_000)
TASKS = 1  # of an EnqueueRequest
HEADERS = 4  # of a TaskSpec

texts = st.text(max_size=5)
numbers = st.integers(0, 2**63 - 1)
tasks = st.builds(
    pb.TaskSpec, queue=texts, payload=st.binary(max_size=200), headers=st.dictionaries(texts, texts, max_size=4),
    priority=st.none() | numbers, delay_ms=numbers,
    retry=st.none() | st.builds(pb.RetryPolicy, base_ms=st.none() | numbers, non_retryable=st.lists(texts, max_size=3)),
)  # fmt: skip
requests = st.builds(pb.EnqueueRequest, tasks=st.lists(tasks, max_size=8))


def varint(number: int, extra_bytes: int = 0) -> bytes:
    """As it travels; with `extra_bytes` longer than it need be, which every parser takes."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    for _ in range(extra_bytes):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


def with_length(number: int, body: bytes, extra_bytes: int = 0) -> bytes:
    return varint(number << 3 | 2, extra_bytes) + varint(len(body), extra_bytes) + body


def field_of_any_kind(number: int, kind: int, value: int, extra_bytes: int) -> bytes:
    tag = varint(number << 3 | kind, extra_bytes)
    bodies = {0: varint(value), 1: value.to_bytes(8, "little"), 2: varint(3) + b"abc", 5: bytes(4)}
    return tag + bodies[kind]


fields = st.builds(
    field_of_any_kind, st.integers(1, 2**29 - 1), st.sampled_from([0, 1, 2, 5]), numbers, st.integers(0, 2)
)


def passes(data: bytes, shape: Shape) -> bool:
    try:
        scan(data, shape)
    except TooManyFieldsError:
        return False
    return True


def parses(data: bytes) -> bool:
    try:
        pb.EnqueueRequest.FromString(data)
    except DecodeError:
        return False
    return True


def least(most: int, holds: Callable[[int], bool]) -> int:
    return next(number for number in range(most + 1) if holds(number))


@given(requests)
def test_it_counts_what_the_parser_finds(request: pb.EnqueueRequest) -> None:
    data = request.SerializeToString()
    assert least(10, lambda limit: passes(data, Shape(limit))) == len(request.tasks)


@given(st.lists(fields, max_size=20))
def test_fields_of_every_kind_are_counted_alike(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert least(20, lambda limit: passes(data, Shape(limit))) == len(parts)


@given(requests, st.integers(1, 6))
def test_what_is_inside_is_counted_too(request: pb.EnqueueRequest, limit: int) -> None:
    """Whatever has more fields inside is found, and nothing else but that is refused."""
    data = request.SerializeToString()
    counts = [least(30, lambda n, task=task: passes(task.SerializeToString(), Shape(n))) for task in request.tasks]  # type: ignore[misc]
    assert passes(data, Shape(10, {TASKS: Shape(limit)})) == all(count <= limit for count in counts)


@given(st.binary(max_size=60) | requests.map(lambda request: request.SerializeToString()[:-1]))
def test_bytes_that_it_calls_broken_are_so_to_the_parser(data: bytes) -> None:
    try:
        scan(data, ANY)
    except BrokenBytesError:
        assert not parses(data) or _has_group(data)


def _has_group(data: bytes) -> bool:
    """The parser skips groups that it does not know; in random bytes they are found now and then."""
    return any(byte & 7 in (3, 4) for byte in data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # no length
        b"\x0a\x05abc",  # shorter than it says
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length without an end
        b"\x0a\xff\xff\xff\xff\xff\x01",  # a length beyond all messages
        b"\x08",  # no number
        b"\x08\xff",  # a number without an end
        b"\x09\x00",  # too few bytes
        b"\x0d\x00",
        b"\x0b\x0c",  # a group
        b"\x0e\x00",  # no kind of field
        with_length(TASKS, b"\x0a\x7f" + b"abc" * 5),  # inside
    ],
)
def test_broken_bytes(data: bytes) -> None:
    with pytest.raises(BrokenBytesError):
        scan(data, Shape(10, {TASKS: Shape(5)}))


def test_the_field_that_is_too_frequent_is_named() -> None:
    item = with_length(1, b"mail") + with_length(HEADERS, b"") * 50
    with pytest.raises(TooManyFieldsError) as inside:
        scan(with_length(TASKS, b"") + with_length(TASKS, item), Shape(10, {TASKS: Shape(20)}))
    assert (inside.value.path, inside.value.limit) == ((TASKS, HEADERS), 20)
    with pytest.raises(TooManyFieldsError) as above:
        scan(b"\x78\x01" + with_length(TASKS, b"") * 20, Shape(10))
    assert (above.value.path, above.value.limit) == ((TASKS,), 10)


def test_an_end_at_the_limit_is_not_beyond_it() -> None:
    body = with_length(TASKS, b"") * 10
    scan(body, Shape(10))
    with pytest.raises(TooManyFieldsError):
        scan(body + with_length(TASKS, b""), Shape(10))


def test_a_bound_over_the_whole_body_counts_what_is_short_too() -> None:
    shape = Shape(100, {TASKS: Shape(10, {HEADERS: Shape(5, total_max=30)})})
    item = with_length(HEADERS, b"") * 10
    scan(with_length(TASKS, item) * 3, shape)
    with pytest.raises(TooManyFieldsError) as refused:
        scan(with_length(TASKS, item) * 4, shape)
    assert (refused.value.path, refused.value.limit, refused.value.is_total) == ((TASKS, HEADERS), 30, True)


def test_small_bodies_are_not_looked_into() -> None:
    body = with_length(TASKS, with_length(HEADERS, b"") * 50)
    scan(body, Shape(10, {TASKS: Shape(20)}, shallow_bytes_max=len(body)))
    with pytest.raises(TooManyFieldsError):
        scan(body, Shape(10, {TASKS: Shape(20)}, shallow_bytes_max=len(body) - 1))


def test_no_body_costs_more_than_the_largest_good_one() -> None:
    """Counted in bytes read, which a clock cannot be trusted with: 16 MiB of empty messages end at the limit."""

    class Watched(bytes):
        read = 0

        def __getitem__(self, key: object) -> int:  # type: ignore[override]
            Watched.read += 1
            assert isinstance(key, int)
            return super().__getitem__(key)

    with pytest.raises(TooManyFieldsError):
        scan(Watched(with_length(TASKS, b"") * (8 << 20)), Shape(1064))
    assert Watched.read < 5 * 1064


@given(st.lists(numbers, max_size=20))
def test_packed_numbers_are_counted(values: list[int]) -> None:
    data = pb.ReserveRequest(queue_tasks_max=values).SerializeToString()
    assert least(20, lambda limit: passes(data, Shape(10, {7: Packed(limit)}))) == len(values)


def test_packed_numbers_of_a_fixed_size() -> None:
    body = with_length(1, bytes(8 * 5))
    assert passes(body, Shape(10, {1: Packed(5, 8)}))
    assert not passes(body, Shape(10, {1: Packed(4, 8)}))


def test_a_message_that_stands_there_once_does_not_come_twice() -> None:
    """Unless it is short: a newer client may well send an empty one again."""
    retry = Shape(10, is_single=True)
    once, short = with_length(14, bytes(b"\x08\x01" * 9 + b"\x12\x05hello")), with_length(14, b"\x08\x01")
    assert passes(short + once + short, Shape(10, {14: retry}))
    with pytest.raises(TooManyFieldsError) as again:
        scan(once + once, Shape(10, {14: retry}))
    assert (again.value.path, again.value.limit) == ((14,), 1)
    assert passes(once + once, Shape(10, {14: Shape(10)}))
