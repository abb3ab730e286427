"""Random expressions around changes of clocks, against a model that walks through time step by step.

The model knows no rules of zones: it looks at a wall clock at one instant after the other, and for fixed times
remembers the latest time that it has seen.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
from hypothesis import given, settings

from holdfast.cron.expressions import parse
from holdfast.cron.ticks import upcoming

# Zone, and an instant at which its clock changes.
CHANGES = [
    ("Europe/Berlin", "2024-03-31T01:00Z"),
    ("Europe/Berlin", "2024-10-27T01:00Z"),
    ("America/New_York", "2024-03-10T07:00Z"),
    ("America/New_York", "2024-11-03T06:00Z"),
    ("Australia/Lord_Howe", "2024-10-05T15:30Z"),
    ("Australia/Lord_Howe", "2024-04-06T15:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),
    ("America/Sao_Paulo", "2018-02-18T02:00Z"),
    ("Antarctica/Troll", "2024-03-31T01:00Z"),  # by two hours
    ("Antarctica/Troll", "2024-10-27T01:00Z"),
    ("Africa/Casablanca", "2024-03-10T02:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),  # ahead by a day
    ("Asia/Pyongyang", "2015-08-14T15:00Z"),  # back by half an hour, not by daylight saving
    ("Asia/Kathmandu", "2024-05-15T00:00Z"),  # no change at all
    ("Europe/Berlin", "2085-10-28T01:00Z"),
]
CHANGES_IN_SECONDS = [*CHANGES, ("Africa/Monrovia", "1972-01-07T00:44:30Z")]  # ahead by 44 minutes and 30 seconds


Written = tuple[str, set[int]]  # a field, and the values that it allows


@dataclass(frozen=True)
class Fields:
    text: str
    allowed: tuple[frozenset[int], ...]  # second, minute, hour, day, month, day of the week
    is_either_day: bool

    def allows(self, wall: datetime) -> bool:
        seconds, minutes, hours, days, months, weekdays = self.allowed
        if wall.second not in seconds or wall.minute not in minutes or wall.hour not in hours:
            return False
        fits = (wall.day in days, wall.isoweekday() % 7 in weekdays)
        return wall.month in months and (any(fits) if self.is_either_day else all(fits))


@st.composite
def items(draw: st.DrawFn, low: int, high: int, first_max: int) -> Written:
    first = draw(st.integers(low, first_max))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, high - low + 1))
    return draw(
        st.sampled_from(
            [
                (f"{first}", {first}),
                (f"{first}-{last}", set(range(first, last + 1))),
                (f"{first}-{last}/{step}", set(range(first, last + 1, step))),
                (f"{first}/{step}", set(range(first, high + 1, step))),
                (f"*/{step}", set(range(low, high + 1, step))),
            ]
        )
    )


def everything(low: int, high: int) -> st.SearchStrategy[Written]:
    return st.just(("*", set(range(low, high + 1))))


def listed(low: int, high: int, first_max: int | None = None) -> st.SearchStrategy[Written]:
    lists = st.lists(items(low, high, first_max or high), min_size=1, max_size=3)
    return lists.map(lambda parts: (",".join(text for text, _ in parts), set().union(*(values for _, values in parts))))


def mostly_open(low: int, high: int) -> st.SearchStrategy[Written]:
    return st.one_of(everything(low, high), everything(low, high), everything(low, high), listed(low, high))


@st.composite
def expressions(draw: st.DrawFn, has_seconds: bool) -> Fields:
    second = draw(st.one_of(everything(0, 59), listed(0, 59))) if has_seconds else ("0", {0})
    minute = draw(st.one_of(mostly_open(0, 59), listed(0, 59)))
    hour = draw(st.one_of(everything(0, 23), listed(0, 23), listed(0, 23, first_max=3)))
    # Days are mostly open, so that there are ticks near the change to compare. Each month has a day up to 28.
    day = draw(st.one_of(everything(1, 31), everything(1, 31), listed(1, 31, first_max=28)))
    weekday = draw(mostly_open(0, 6))
    month = draw(everything(1, 12))
    parts = [second, minute, hour, day, month, weekday]
    text = " ".join(text for text, _ in (parts if has_seconds else parts[1:]))
    is_either = not day[0].startswith("*") and not weekday[0].startswith("*")
    return Fields(text, tuple(frozenset(values) for _, values in parts), is_either)


@cache
def shown(zone: str, change: str, around_s: int, step_s: int) -> list[tuple[int, datetime]]:
    """Instants around a change, each with what the wall clock shows."""
    change_s = int(datetime.fromisoformat(change).timestamp())
    instants = range(change_s - around_s, change_s + around_s, step_s)
    return [(at_s, datetime.fromtimestamp(at_s, ZoneInfo(zone)).replace(tzinfo=None, fold=0)) for at_s in instants]


def walked(fields: Fields, clock: list[tuple[int, datetime]], step_s: int) -> list[int]:
    """The ticks by the model, in milliseconds."""
    if len(fields.allowed[2]) == 24:
        return [at_s * 1000 for at_s, wall in clock[1:] if fields.allows(wall)]
    ticks = []
    latest = clock[0][1]
    step = timedelta(seconds=step_s)
    for at_s, wall in clock[1:]:
        is_due = False
        while latest < wall:
            latest += step
            is_due = is_due or fields.allows(latest)
        if is_due:
            ticks.append(at_s * 1000)
    return ticks


def compare(fields: Fields, zone: str, clock: list[tuple[int, datetime]], step_s: int, places: list[float]) -> None:
    expected = walked(fields, clock, step_s)
    timetable = parse(fields.text, zone)
    start_ms, end_ms = clock[0][0] * 1000, clock[-1][0] * 1000
    for place in places:
        at_ms = start_ms + int(place * (end_ms - start_ms))
        position = bisect_right(expected, at_ms)
        later = [tick_ms for tick_ms in upcoming(timetable, at_ms, 8) if tick_ms <= end_ms]
        assert later == expected[position : position + len(later)]
        assert len(later) == min(8, len(expected) - position)
        for tick_ms in (at_ms, *later):
            before = bisect_left(expected, tick_ms + 1)
            latest_ms = timetable.latest_at_ms(tick_ms)
            if before:
                assert latest_ms == expected[before - 1]
            else:
                assert latest_ms is None or latest_ms <= start_ms


# Places in the walked time, half of them close to the change, which is in the middle.
PLACES = st.lists(st.one_of(st.floats(0, 1), st.floats(0.47, 0.53)), min_size=6, max_size=6)


@settings(max_examples=100)
@given(expressions(has_seconds=False), st.sampled_from(CHANGES), PLACES)
def test_ticks_are_those_of_a_walk_minute_by_minute(
    fields: Fields, change: tuple[str, str], places: list[float]
) -> None:
    compare(fields, change[0], shown(*change, around_s=30 * 3600, step_s=60), 60, places)


@settings(max_examples=40)
@given(expressions(has_seconds=True), st.sampled_from(CHANGES_IN_SECONDS), PLACES)
def test_ticks_are_those_of_a_walk_second_by_second(
    fields: Fields, change: tuple[str, str], places: list[float]
) -> None:
    compare(fields, change[0], shown(*change, around_s=9000, step_s=1), 1, places)


@settings(max_examples=60)
@given(expressions(has_seconds=True), st.sampled_from(CHANGES_IN_SECONDS), st.integers(-(10**8), 10**8))
def test_next_and_latest_agree_from_anywhere(fields: Fields, change: tuple[str, str], away_ms: int) -> None:
    timetable = parse(fields.text, change[0])
    at_ms = int(datetime.fromisoformat(change[1]).timestamp()) * 1000 + away_ms
    tick_ms = timetable.next_after_ms(at_ms)
    latest_ms = timetable.latest_at_ms(at_ms)
    assert tick_ms is not None
    assert latest_ms is not None
    assert latest_ms <= at_ms < tick_ms
    assert tick_ms % 1000 == latest_ms % 1000 == 0
    for between_ms in (latest_ms, (latest_ms + tick_ms) // 2, tick_ms - 1):
        assert timetable.next_after_ms(between_ms) == tick_ms
        assert timetable.latest_at_ms(between_ms) == latest_ms
