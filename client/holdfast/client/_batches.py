"""What goes into one request: the next items of a line, within the limits of a request."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

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
