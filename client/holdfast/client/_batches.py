"""What goes into one request: the next items of a line, within the limits of a request."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.client._lazy import LazyList
from holdfast.client.models import Ack, Claim

FOLLOW_UPS_PER_CALL_MAX = 1000  # of all acks together

T = TypeVar("T")


def take_batch(line: deque[T], items_max: int, bytes_max: int, bytes_of: Callable[[T], int]) -> list[T]:
    """Takes items from the front, at least one: what is too large by itself goes alone.

    >>> line = deque([b"aa", b"bb", b"ccccc", b"d"])
    >>> [take_batch(line, items_max=2, bytes_max=4, bytes_of=len) for _ in range(4)]
    [[b'aa', b'bb'], [b'ccccc'], [b'd'], []]
    """
    batch: list[T] = []
    room_bytes = bytes_max
    while line and len(batch) < items_max:
        room_bytes -= bytes_of(line[0])
        if batch and room_bytes < 0:
            break
        batch.append(line.popleft())
    return batch


def ack_parts(items: Sequence[Claim | Ack]) -> list[range]:
    """Which of them go into one call, by position: a server takes so many follow-ups in one."""
    if isinstance(items, LazyList) and items.is_unseen:  # claims as they came
        return [range(len(items))]
    made = [len(item.follow_ups) if isinstance(item, Ack) else 0 for item in items]
    if sum(made) <= FOLLOW_UPS_PER_CALL_MAX:
        return [range(len(made))]
    line, parts = deque(range(len(made))), list[range]()
    while line:
        part = take_batch(line, len(made), FOLLOW_UPS_PER_CALL_MAX, made.__getitem__)
        parts.append(range(part[0], part[-1] + 1))
    return parts
