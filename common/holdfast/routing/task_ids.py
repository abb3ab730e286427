"""Which shard a task is on: its id says so (the layout is that of `holdfast.machine.ids`)."""

import re

# A UUID of version 8 in its canonical form. The shard is in the 12 bits after the version and 4 bits after the variant.
_TASK_ID = re.compile(
    r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-8([0-9A-Fa-f]{3})-([89ABab][0-9A-Fa-f])[0-9A-Fa-f]{2}-[0-9A-Fa-f]{12}"
)


def shard_of_task(task_id: str) -> int | None:
    """None: no shard could have made this id."""
    found = _TASK_ID.fullmatch(task_id)
    if found is None:
        return None
    high, low = found.groups()
    return int(high, 16) << 4 | (int(low, 16) >> 2) & 0xF
