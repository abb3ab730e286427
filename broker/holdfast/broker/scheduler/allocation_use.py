"""What a shard makes of its allocation of a queue while tasks wait there.

Tasks that wait do not mean that the shard could hand out more: limits of tenants or keys may hold them up, or nobody
may ask for them here. More than was used is wanted only while the allocation itself is what holds tasks up.
"""

from collections import deque
from typing import NamedTuple

EVERY_MS = 450  # between what is noted: each look of the manager that nobody woke
SEEN = 5
SPAN_MS = 1800  # what is noted says nothing before it is about so long a time
HELD_UP_LEAST = 2  # times of these, and the allocation is too small; one alone may be a moment between two tasks
SPARE_PERCENT = 10  # of a rate, over what was used of it: tasks do not come evenly
UNUSED_PART = 20  # of a rate is kept, at most one of so many, where tasks could be handed out and nobody asks for them
NOW_AND_THEN_MILLI = 3000  # of a rate is wanted, at most, where somebody asks only now and then and finds too little


class Outlook(NamedTuple):
    """What the scheduler says of a queue."""

    is_open: bool  # there is a task that nothing but the queue's own cap or rate may hold up, as far as is known
    was_short_of_slots: bool  # somebody asked for more than the cap let through, since the look before
    was_short_of_rate: bool
    most_in_use: int  # of the cap, since then: tasks may be short
    was_asked: bool = True  # somebody asked for tasks, since then


NOTHING_OPEN = Outlook(is_open=False, was_short_of_slots=False, was_short_of_rate=False, most_in_use=0)


class Seen(NamedTuple):
    at_ms: int
    claimed_total: int
    in_use: int  # at most, since the look before
    is_open: bool
    slots_hold_up: bool  # somebody asks for a task that would be handed out, were it not for the allocation of the cap
    rate_holds_up: bool
    was_asked: bool = True  # somebody asked for tasks, since the look before


class AllocationUse:
    """Of one queue, while it has ready tasks."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=SEEN)

    def is_due(self, now_ms: int) -> bool:
        return not self._seen or now_ms - self._seen[-1].at_ms >= EVERY_MS

    def note(self, seen: Seen) -> None:
        self._seen.append(seen)

    def forget(self) -> None:
        """What was so far says nothing of what will be."""
        self._seen.clear()

    @property
    def is_blocked(self) -> bool:
        """All that was ready was held up by other limits when it was last looked at."""
        return bool(self._seen) and not self._seen[-1].is_open

    def slots(self) -> int | None:
        """How many slots are enough; None: more than there are, or nobody knows."""
        if not self._is_long or sum(seen.slots_hold_up for seen in self._seen) >= HELD_UP_LEAST:
            return None
        return max(int(self._could_use), max(seen.in_use for seen in self._seen))

    def rate_milli(self, total_milli: int, quiet_milli: int) -> int | None:
        """How much of a rate is enough; None: more than there is, or nobody knows."""
        held_up = sum(seen.rate_holds_up for seen in self._seen)
        if not self._is_long or held_up >= HELD_UP_LEAST:
            return None
        if not self._could_use:
            return 0
        first, last = self._seen[0], self._seen[-1]
        used_milli = (last.claimed_total - first.claimed_total) * 1_000_000 // (last.at_ms - first.at_ms)
        least_milli = max(1, min(quiet_milli, total_milli // UNUSED_PART))
        if held_up and held_up == sum(seen.was_asked for seen in self._seen):
            # He may not come a second time before this is forgotten, and would find as little each time.
            least_milli = max(least_milli, NOW_AND_THEN_MILLI)
        return min(total_milli, max(least_milli, used_milli * (100 + SPARE_PERCENT) // 100))

    @property
    def _is_long(self) -> bool:
        return len(self._seen) == SEEN and self._seen[-1].at_ms - self._seen[0].at_ms >= SPAN_MS

    @property
    def _could_use(self) -> bool:
        """Whether anything was handed out, or could have been."""
        return self._seen[-1].claimed_total > self._seen[0].claimed_total or any(seen.is_open for seen in self._seen)
