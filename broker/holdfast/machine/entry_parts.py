"""How much goes into one entry: between entries others have a turn."""

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.machine.rows import Execution

DEPARTING_BYTES_MAX: Final = 4 * 1024 * 1024


def departing_bytes(task: Execution | None) -> int:
    """What is moved if a task departs from its run: it takes its payload along."""
    return task.size_bytes if task is not None and task.is_in_run else 0


def in_parts(places: Iterable[int], weights: Sequence[int], weight_max: int) -> list[list[int]]:
    """The same places in parts, in order; what is at them weighs no more in each, unless it is one place."""
    parts: list[list[int]] = []
    room = 0
    for index in places:
        if not parts or weights[index] > room:
            parts.append([])
            room = weight_max
        parts[-1].append(index)
        room -= weights[index]
    return parts
