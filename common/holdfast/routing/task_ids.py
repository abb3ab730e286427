"""Which shard a task is on: its id says so (the layout is that of `holdfast.machine.ids`). And the ids of tasks that
were accepted together: as numbers they follow each other."""

import re

# A UUID of version 8 in its canonical form. The shard is in the 12 bits after the version and 4 bits after the variant.
_TASK_ID = re.compile(
    r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-8([0-9A-Fa-f]{3})-([89ABab][0-9A-Fa-f])[0-9A-Fa-f]{2}-[0-9A-Fa-f]{12}"
)

_DIGITS = 3
_ENDS = [f"{number:0{_DIGITS}x}" for number in range(16**_DIGITS)]


def shard_of_task(task_id: str) -> int | None:
    """None: no shard could have made this id."""
    found = _TASK_ID.fullmatch(task_id)
    if found is None:
        return None
    high, low = found.groups()
    return int(high, 16) << 4 | (int(low, 16) >> 2) & 0xF


def task_number(task_id: str) -> int:
    """The id as a number. ValueError if it is none that a shard could have made."""
    if shard_of_task(task_id) is None:
        raise ValueError(f"{task_id!r} is no task id")
    return int(task_id.replace("-", ""), 16)


def later_task_ids(first: str, count: int) -> list[str]:
    """The ids of so many tasks of a run, from the first on. ValueError if it is no task id.

    They differ in their last digits, which are taken from a table: this runs for every task of every batch."""
    if count == 1:
        return [first]
    number, ids = task_number(first), list[str]()
    while len(ids) < count:
        digits = f"{number:032x}"
        begin = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:-_DIGITS]}"
        position = number % len(_ENDS)
        ends = _ENDS[position : position + count - len(ids)]
        ids += [begin + end for end in ends]
        number += len(ends)
    return ids
