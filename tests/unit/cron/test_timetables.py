"""Ticks at known instants, above all where clocks change."""

from datetime import datetime
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.cron.expressions import parse
from holdfast.cron.ticks import upcoming

DAY_MS = 86_400_000


def instant_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def local(tick_ms: int, zone: str) -> str:
    return datetime.fromtimestamp(tick_ms / 1000, ZoneInfo(zone)).isoformat(timespec="minutes")


@pytest.mark.parametrize(
    ("zone", "expression", "expected"),
    [
        # 2:00 to 3:00 is skipped in Berlin on 31 March 2024, and shown twice on 27 October.
        ("Europe/Berlin", "30 2 * * *",
         ["2024-03-30T02:30+01:00", "2024-03-31T03:00+02:00", "2024-04-01T02:30+02:00"]),
        ("Europe/Berlin", "0 3 * * *",
         ["2024-03-30T03:00+01:00", "2024-03-31T03:00+02:00", "2024-04-01T03:00+02:00"]),
        ("Europe/Berlin", "*/20 1-3 * * *",
         ["2024-03-31T01:40+01:00", "2024-03-31T03:00+02:00", "2024-03-31T03:20+02:00"]),
        ("Europe/Berlin", "10,50 2 * * *", ["2024-03-31T03:00+02:00", "2024-04-01T02:10+02:00"]),
        ("Europe/Berlin", "30 2 31 3 *",
         ["2023-03-31T02:30+02:00", "2024-03-31T03:00+02:00", "2025-03-31T02:30+02:00"]),
        ("Europe/Berlin", "30 * * * *", ["2024-03-31T01:30+01:00", "2024-03-31T03:30+02:00"]),
        ("Europe/Berlin", "*/15 * * * *",
         ["2024-03-31T01:45+01:00", "2024-03-31T03:00+02:00", "2024-03-31T03:15+02:00"]),
        ("Europe/Berlin", "30 2 * * *",
         ["2024-10-26T02:30+02:00", "2024-10-27T02:30+02:00", "2024-10-28T02:30+01:00"]),
        ("Europe/Berlin", "*/30 1-3 * * *",
         ["2024-10-27T01:30+02:00", "2024-10-27T02:00+02:00", "2024-10-27T02:30+02:00", "2024-10-27T03:00+01:00"]),
        ("Europe/Berlin", "*/30 * * * *",
         ["2024-10-27T02:00+02:00", "2024-10-27T02:30+02:00", "2024-10-27T02:00+01:00", "2024-10-27T02:30+01:00",
          "2024-10-27T03:00+01:00"]),
        ("Europe/Berlin", "10 0-23 27 10 *",
         ["2024-10-27T02:10+02:00", "2024-10-27T02:10+01:00", "2024-10-27T03:10+01:00"]),
        # In New York 2:00 to 3:00 is skipped on 10 March, and 1:00 to 2:00 comes twice on 3 November.
        ("America/New_York", "15 2 * * SUN",
         ["2024-03-03T02:15-05:00", "2024-03-10T03:00-04:00", "2024-03-17T02:15-04:00"]),
        ("America/New_York", "15 1 * * *", ["2024-11-03T01:15-04:00", "2024-11-04T01:15-05:00"]),
        ("America/New_York", "0 * * * *",
         ["2024-11-03T01:00-04:00", "2024-11-03T01:00-05:00", "2024-11-03T02:00-05:00"]),
        # Lord Howe changes by half an hour: 2:00 to 2:30 is skipped, 1:30 to 2:00 comes twice.
        ("Australia/Lord_Howe", "15 2 * * *",
         ["2024-10-05T02:15+10:30", "2024-10-06T02:30+11:00", "2024-10-07T02:15+11:00"]),
        ("Australia/Lord_Howe", "30 2 * * *", ["2024-10-06T02:30+11:00", "2024-10-07T02:30+11:00"]),
        ("Australia/Lord_Howe", "*/15 * * * *", ["2024-10-06T01:45+10:30", "2024-10-06T02:30+11:00"]),
        ("Australia/Lord_Howe", "0 * * * *", ["2024-10-06T01:00+10:30", "2024-10-06T03:00+11:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", ["2024-04-07T01:45+11:00", "2024-04-08T01:45+10:30"]),
        ("Australia/Lord_Howe", "15,45 * * * *",
         ["2024-04-07T01:15+11:00", "2024-04-07T01:45+11:00", "2024-04-07T01:45+10:30", "2024-04-07T02:15+10:30"]),
        # Sao Paulo skipped its midnight on 4 November 2018, and had the last hour of 17 February 2018 twice.
        ("America/Sao_Paulo", "@daily", ["2018-11-03T00:00-03:00", "2018-11-04T01:00-02:00", "2018-11-05T00:00-02:00"]),
        ("America/Sao_Paulo", "59 23 * * *", ["2018-11-03T23:59-03:00", "2018-11-04T23:59-02:00"]),
        ("America/Sao_Paulo", "@hourly", ["2018-11-03T23:00-03:00", "2018-11-04T01:00-02:00"]),
        ("America/Sao_Paulo", "30 23 * * *", ["2018-02-17T23:30-02:00", "2018-02-18T23:30-03:00"]),
        ("America/Sao_Paulo", "@daily", ["2018-02-17T00:00-02:00", "2018-02-18T00:00-03:00"]),
        # Samoa left out 30 December 2011: fixed times of that day come when the next one begins, intervals do not.
        ("Pacific/Apia", "0 9 * * *", ["2011-12-29T09:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"]),
        ("Pacific/Apia", "0 * 30 12 *", ["2010-12-30T23:00-10:00", "2012-12-30T00:00+14:00"]),
        ("Asia/Kathmandu", "0 6 * * *", ["2024-05-15T06:00+05:45", "2024-05-16T06:00+05:45"]),
        ("UTC", "0 6 28-29 2 *", ["2023-02-28T06:00+00:00", "2024-02-28T06:00+00:00", "2024-02-29T06:00+00:00"]),
        # Far beyond the changes that a file of the tz database lists one by one.
        ("Europe/Berlin", "30 2 * * *", ["2090-03-25T02:30+01:00", "2090-03-26T03:00+02:00"]),
    ],
)  # fmt: skip
def test_known_ticks(zone: str, expression: str, expected: list[str]) -> None:
    timetable = parse(expression, zone)
    first_ms, *_, last_ms = instants = [instant_ms(text) for text in expected]
    found = upcoming(timetable, first_ms - 1, len(expected))
    assert [local(tick_ms, zone) for tick_ms in found] == expected
    assert found == instants
    backwards = [last_ms]
    while len(backwards) < len(expected):
        earlier_ms = timetable.latest_at_ms(backwards[-1] - 1)
        assert earlier_ms is not None
        backwards.append(earlier_ms)
    assert backwards == instants[::-1]


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        ("Europe/Berlin", "*/30 1-3 * * *", "2024-10-27T02:59:59+02:00", "2024-10-27T03:00+01:00"),
        ("Europe/Berlin", "*/30 1-3 * * *", "2024-10-27T02:00:00+01:00", "2024-10-27T03:00+01:00"),
        ("Europe/Berlin", "*/30 1-3 * * *", "2024-10-27T02:59:59+01:00", "2024-10-27T03:00+01:00"),
        ("Europe/Berlin", "*/30 * * * *", "2024-10-27T02:59:59+02:00", "2024-10-27T02:00+01:00"),
        ("Europe/Berlin", "*/30 * * * *", "2024-10-27T02:00:00+01:00", "2024-10-27T02:30+01:00"),
        ("Australia/Lord_Howe", "0 * * * *", "2024-04-07T01:59:59+11:00", "2024-04-07T02:00+10:30"),
        ("Australia/Lord_Howe", "0 * * * *", "2024-04-07T01:30:00+10:30", "2024-04-07T02:00+10:30"),
        ("Australia/Lord_Howe", "30 * * * *", "2024-04-07T01:45:00+11:00", "2024-04-07T01:30+10:30"),
        ("Europe/Berlin", "45 2 * * *", "2024-10-27T02:40:00+01:00", "2024-10-28T02:45+01:00"),
        ("Europe/Berlin", "0 30 2 * * *", "2024-10-27T02:30:00+02:00", "2024-10-28T02:30+01:00"),
        ("Europe/Berlin", "0 */2 * * *", "2024-10-27T02:00:00+02:00", "2024-10-27T04:00+01:00"),
        ("Europe/Berlin", "0 */2 * * *", "2024-03-31T00:30:00+01:00", "2024-03-31T03:00+02:00"),
        ("Europe/Berlin", "0 30 2 * * *", "2024-03-30T12:00:00+01:00", "2024-03-31T03:00+02:00"),
        ("Europe/Berlin", "*/30 2 * * *", "2024-03-30T12:00:00+01:00", "2024-03-31T03:00+02:00"),
        ("Europe/Berlin", "30 2 * * *", "2024-03-31T01:59:59+01:00", "2024-03-31T03:00+02:00"),
        ("Europe/Berlin", "30 2 * * *", "2024-03-31T03:00:00+02:00", "2024-04-01T02:30+02:00"),
    ],
)
def test_from_the_instants_at_which_a_clock_changes(zone: str, expression: str, after: str, expected: str) -> None:
    tick_ms = parse(expression, zone).next_after_ms(instant_ms(after))
    assert tick_ms is not None
    assert local(tick_ms, zone) == expected


@pytest.mark.parametrize("expression", ["* * * * * *", "0 12 * * *"])
def test_a_tick_is_strictly_after_and_the_latest_may_be_now(expression: str) -> None:
    timetable = parse(expression)
    noon_ms = instant_ms("2024-05-15T12:00Z")
    assert timetable.next_after_ms(noon_ms - 1) == noon_ms
    assert timetable.next_after_ms(noon_ms) != noon_ms
    assert timetable.next_after_ms(noon_ms + 1) == timetable.next_after_ms(noon_ms)
    assert timetable.latest_at_ms(noon_ms) == timetable.latest_at_ms(noon_ms + 999) == noon_ms
    assert timetable.latest_at_ms(noon_ms - 1) != noon_ms


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Pacific/Kiritimati"])
@pytest.mark.parametrize("expression", ["0 * * * *", "0 5 * * *"])
def test_ticks_begin_in_1970_and_have_an_end(zone: str, expression: str) -> None:
    timetable = parse(expression, zone)
    first_ms = timetable.next_after_ms(-(10**30))
    assert first_ms is not None
    assert 0 <= first_ms <= DAY_MS
    assert timetable.latest_at_ms(first_ms) == first_ms
    assert timetable.latest_at_ms(first_ms - 1) is timetable.latest_at_ms(-(10**30)) is None
    last_ms = timetable.latest_at_ms(10**30)
    assert last_ms is not None
    assert instant_ms("9997-12-31T00:00Z") <= last_ms < instant_ms("9998-01-01T00:00Z")
    assert timetable.next_after_ms(last_ms - 1) == last_ms
    assert timetable.next_after_ms(last_ms) is timetable.next_after_ms(10**30) is None


@settings(max_examples=25)
@given(
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "UTC",
                          "Asia/Kathmandu", "Africa/Casablanca", "Antarctica/Troll", "America/Havana"]),
    year=st.integers(2008, 2030), hour=st.integers(0, 23), minute=st.integers(0, 59),
)  # fmt: skip
def test_a_daily_time_comes_once_on_each_day_of_the_calendar(zone: str, year: int, hour: int, minute: int) -> None:
    timetable = parse(f"{minute} {hour} * * *", zone)
    end = datetime(year + 1, 1, 1, tzinfo=ZoneInfo(zone))
    tick_ms = timetable.next_after_ms(int(datetime(year, 1, 1, tzinfo=ZoneInfo(zone)).timestamp()) * 1000 - 1)
    days = []
    while tick_ms is not None and tick_ms < end.timestamp() * 1000:
        days.append(datetime.fromtimestamp(tick_ms / 1000, ZoneInfo(zone)).timetuple().tm_yday)
        tick_ms = timetable.next_after_ms(tick_ms)
    assert days == list(range(1, len(days) + 1))
    assert len(days) == datetime(year, 12, 31).timetuple().tm_yday
