"""Which ticks to act on. The work grows with the number of ticks that are returned, never with how many were missed."""

from typing import Literal, NamedTuple

from holdfast.cron.timetables import Timetable

CATCH_UP_POLICIES = ("none", "one", "all")
CATCH_UP_TICKS_MAX = 1000
UPCOMING_TICKS_MAX = 1000

CatchUp = Literal["none", "one", "all"]


class DueTicks(NamedTuple):
    fire: tuple[int, ...]  # the ticks to act on now, the oldest first
    next_ms: int | None  # when to decide again; None: there is no tick any more


def upcoming(timetable: Timetable, after_ms: int, count: int) -> list[int]:
    """The next ticks after an instant, `count` of them and at most 1000."""
    ticks: list[int] = []
    tick_ms = timetable.next_after_ms(after_ms)
    while tick_ms is not None and len(ticks) < min(count, UPCOMING_TICKS_MAX):
        ticks.append(tick_ms)
        tick_ms = timetable.next_after_ms(tick_ms)
    return ticks


def missed(timetable: Timetable, after_ms: int, until_ms: int, limit: int) -> list[int]:
    """The ticks after an instant and until another one, in order. If there are more than `limit`, the newest ones."""
    # From the newest to the oldest, so that what is dropped is never looked at.
    ticks: list[int] = []
    tick_ms = timetable.latest_at_ms(until_ms)
    while tick_ms is not None and tick_ms > after_ms and len(ticks) < limit:
        ticks.append(tick_ms)
        tick_ms = timetable.latest_at_ms(tick_ms - 1)
    ticks.reverse()
    return ticks


def catch_up(policy: CatchUp, timetable: Timetable, last_ms: int, now_ms: int, limit: int, grace_ms: int) -> DueTicks:
    """What to do at `now_ms` about the ticks after `last_ms`, up to which all were decided on.

    A tick is always a little late, and while leadership changes hands a little more. If none is older than the grace,
    nothing was missed, and each of them is acted on. If one is, there was an outage, and all up to now were missed,
    also those that are not older: of these

    - `none` takes none,
    - `one` takes the newest, however old,
    - `all` takes each.

    Never more than `limit` and 1000: the oldest are dropped. A clock that went back behind `last_ms` repeats nothing.
    """
    if limit < 1:
        raise ValueError(f"Expected a limit of at least 1 tick, but got {limit}.")
    if grace_ms < 0:
        raise ValueError(f"Expected a grace of at least 0 ms, but got {grace_ms}.")
    if policy not in CATCH_UP_POLICIES:
        raise ValueError(f"Expected a catch-up policy of {', '.join(CATCH_UP_POLICIES)}, but got {policy!r}.")
    limit = min(limit, CATCH_UP_TICKS_MAX)
    oldest_ms = timetable.next_after_ms(last_ms)
    if oldest_ms is not None and oldest_ms < now_ms - grace_ms:
        limit = {"none": 0, "one": 1, "all": limit}[policy]
    fire = missed(timetable, last_ms, now_ms, limit)
    return DueTicks(tuple(fire), timetable.next_after_ms(max(last_ms, now_ms)))
