"""What may be written as a cron expression, what it means, and what is said about what may not."""

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.cron.errors import CronError
from holdfast.cron.expressions import parse
from holdfast.cron.ticks import upcoming

START = "2024-05-15T10:20:30+00:00"  # a Wednesday


def instant_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def ticks(expression: str, count: int, start: str = START) -> list[str]:
    """The next ticks in UTC, without the seconds where they are zero."""
    found = upcoming(parse(expression), instant_ms(start), count)
    return [datetime.fromtimestamp(tick_ms / 1000, UTC).isoformat()[:19].removesuffix(":00") for tick_ms in found]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", ["2024-05-15T10:21", "2024-05-15T10:22"]),
        ("* * * * * *", ["2024-05-15T10:20:31", "2024-05-15T10:20:32"]),
        ("*/25 59 23 * * *", ["2024-05-15T23:59", "2024-05-15T23:59:25", "2024-05-15T23:59:50", "2024-05-16T23:59"]),
        ("15 9-17/4 * * *", ["2024-05-15T13:15", "2024-05-15T17:15", "2024-05-16T09:15"]),
        ("0,30 22,8 * * *", ["2024-05-15T22:00", "2024-05-15T22:30", "2024-05-16T08:00"]),
        ("50/5 * * * *", ["2024-05-15T10:50", "2024-05-15T10:55", "2024-05-15T11:50"]),
        ("0 0 29-29/2 * *", ["2024-05-29T00:00", "2024-06-29T00:00"]),
        ("0 0 31 * *", ["2024-05-31T00:00", "2024-07-31T00:00", "2024-08-31T00:00", "2024-10-31T00:00"]),
        ("0 0 L * *", ["2024-05-31T00:00", "2024-06-30T00:00"]),
        ("0 0 1,l 2 ?", ["2025-02-01T00:00", "2025-02-28T00:00", "2026-02-01T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 1 jan,JUL-Aug *", ["2024-07-01T00:00", "2024-08-01T00:00", "2025-01-01T00:00"]),
        ("0 0 ? * mon", ["2024-05-20T00:00", "2024-05-27T00:00"]),
        ("0 0 * * 0", ["2024-05-19T00:00", "2024-05-26T00:00"]),
        ("0 0 * * 7", ["2024-05-19T00:00", "2024-05-26T00:00"]),
        ("0 0 * 9 7", ["2024-09-01T00:00", "2024-09-08T00:00"]),
        ("0 0 * * 5-7", ["2024-05-17T00:00", "2024-05-18T00:00", "2024-05-19T00:00", "2024-05-24T00:00"]),
        ("0 0 * * FRI-SUN", ["2024-05-17T00:00", "2024-05-18T00:00", "2024-05-19T00:00", "2024-05-24T00:00"]),
        ("0 0 * * SUN-MON", ["2024-05-19T00:00", "2024-05-20T00:00", "2024-05-26T00:00"]),
        ("0 0 * * */3", ["2024-05-18T00:00", "2024-05-19T00:00", "2024-05-22T00:00", "2024-05-25T00:00"]),
        ("0 0 * * 1/3", ["2024-05-16T00:00", "2024-05-20T00:00", "2024-05-23T00:00"]),
        # Both days restricted: either. One of them open, also with a step: both.
        ("0 0 13 * FRI", ["2024-05-17T00:00", "2024-05-24T00:00", "2024-05-31T00:00", "2024-06-07T00:00",
                          "2024-06-13T00:00", "2024-06-14T00:00"]),
        ("0 0 */2 * MON", ["2024-05-27T00:00", "2024-06-03T00:00", "2024-06-17T00:00"]),
        ("0 0 13 * */5", ["2024-09-13T00:00", "2024-10-13T00:00", "2024-12-13T00:00"]),
        ("0 0 30 2 FRI", ["2025-02-07T00:00", "2025-02-14T00:00"]),
        # The longest wait there is: from one 29 February on a Sunday over the year 2100 to the next.
        ("0 0 29 2 */7", ["2032-02-29T00:00", "2060-02-29T00:00", "2088-02-29T00:00", "2128-02-29T00:00"]),
        ("@hourly", ["2024-05-15T11:00", "2024-05-15T12:00"]),
        ("@daily", ["2024-05-16T00:00", "2024-05-17T00:00"]),
        ("@midnight", ["2024-05-16T00:00", "2024-05-17T00:00"]),
        ("@weekly", ["2024-05-19T00:00", "2024-05-26T00:00"]),
        ("@Monthly", ["2024-06-01T00:00", "2024-07-01T00:00"]),
        ("@yearly", ["2025-01-01T00:00", "2026-01-01T00:00"]),
        (" @annually ", ["2025-01-01T00:00", "2026-01-01T00:00"]),
    ],
)  # fmt: skip
def test_what_expressions_mean(expression: str, expected: list[str]) -> None:
    assert ticks(expression, len(expected)) == expected


@pytest.mark.parametrize(
    ("period", "seconds"),
    [("90s", 90), ("1s", 1), ("1h30m", 5400), ("1H 30M", 5400), ("2d", 172_800), ("366d", 366 * 86_400),
     ("1d2h3m4s", 93_784), ("8784h", 366 * 86_400)],
)  # fmt: skip
def test_every_ticks_at_its_anchor_and_whole_periods_from_it(period: str, seconds: int) -> None:
    anchor_ms = 1_715_768_430_123
    timetable = parse(f"@every {period}", anchor_ms=anchor_ms)
    assert timetable.next_after_ms(anchor_ms - 1) == timetable.latest_at_ms(anchor_ms) == anchor_ms
    assert timetable.next_after_ms(anchor_ms) == anchor_ms + seconds * 1000
    assert timetable.latest_at_ms(anchor_ms - 1) == anchor_ms - seconds * 1000
    assert upcoming(timetable, anchor_ms + 1, 2) == [anchor_ms + seconds * 1000, anchor_ms + 2 * seconds * 1000]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "five fields (minute, hour, day-of-month, month, day-of-week), or six with the second first, but got 0"),
        ("* * * *", "but got 4: '* * * *'"),
        ("* * * * * * *", "but got 7"),
        ("60 * * * *", "values of the minute field from 0 to 59, but got '60'"),
        ("-1 * * * *", "values of the minute field from 0 to 59, but got '-1'"),
        ("60 * * * * *", "values of the second field from 0 to 59, but got '60'"),
        ("* 24 * * *", "values of the hour field from 0 to 23, but got '24'"),
        ("* 1,,2 * * *", "values of the hour field from 0 to 23, but got ''"),
        ("* 99999999999999999999 * * *", "values of the hour field from 0 to 23, but got '9999"),
        ("* * 0 * *", "values of the day-of-month field from 1 to 31, but got '0'"),
        ("* * 32 * *", "values of the day-of-month field from 1 to 31, but got '32'"),
        ("* * 15W * *", "values of the day-of-month field from 1 to 31, but got '15W'"),
        ("* * * 13 *", "values of the month field from 1 to 12 or JAN to DEC, but got '13'"),
        ("* * * MON *", "values of the month field from 1 to 12 or JAN to DEC, but got 'MON'"),
        ("* * * * 8", "values of the day-of-week field from 0 to 7 or SUN to SAT, but got '8'"),
        ("* * * * FRI#2", "values of the day-of-week field from 0 to 7 or SUN to SAT, but got 'FRI#2'"),
        ("* * * * L", "values of the day-of-week field from 0 to 7 or SUN to SAT, but got 'L'"),
        ("? * * * *", "values of the minute field from 0 to 59, but got '?'"),
        ("1.5 * * * *", "values of the minute field from 0 to 59, but got '1.5'"),
        ("٣ * * * *", "values of the minute field from 0 to 59, but got '٣'"),
        ("1-2-3 * * * *", "values of the minute field from 0 to 59, but got '1-2-3'"),
        ("30-10 * * * *", "ranges of the minute field to run upwards, but got '30-10'"),
        ("* * * * 5-0", "ranges of the day-of-week field to run upwards, but got '5-0'"),
        ("* * * DEC-FEB *", "ranges of the month field to run upwards, but got 'DEC-FEB'"),
        ("*/0 * * * *", "steps of the minute field from 1 to 60, but got '*/0'"),
        ("*/61 * * * *", "steps of the minute field from 1 to 60, but got '*/61'"),
        ("* */-2 * * *", "steps of the hour field from 1 to 24, but got '*/-2'"),
        ("* 1/ * * *", "steps of the hour field from 1 to 24, but got '1/'"),
        ("* * * * */8", "steps of the day-of-week field from 1 to 7, but got '*/8'"),
        ("0 0 30 2 *", "a date that comes, but got '30 2'"),
        ("0 0 31 2,4,6,SEP,11 ?", "a date that comes, but got '31 2,4,6,SEP,11'"),
        ("0 0 30 2 */2", "a date that comes"),
        ("@reboot", "@hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually, @every 90s, but got '@reboot'"),
        ("@daily 5", "but got '@daily 5'"),
        ("@every", "period of @every such as 90s, 1h30m or 2d, but got ''"),
        ("@every 90", "period of @every such as 90s, 1h30m or 2d, but got '90'"),
        ("@every -5s", "period of @every such as 90s, 1h30m or 2d, but got '-5s'"),
        ("@every 1.5h", "but got '1.5h'"),
        ("@every NaNs", "but got 'NaNs'"),
        ("@every 30s1m", "but got '30s1m'"),
        ("@every 0s", "period of @every from 1s to 366d, but got '0s'"),
        ("@every 366d1s", "period of @every from 1s to 366d, but got '366d1s'"),
        ("* " * 200, "at most 256 characters, but got 400"),
    ],
)
def test_a_bad_expression_is_refused_with_field_expected_and_given(expression: str, words: str) -> None:
    with pytest.raises(CronError) as refused:
        parse(expression)
    assert refused.value.field == "expression"
    assert words in str(refused.value)
    assert str(refused.value).startswith("Expected ")
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "europe/berlin", "Europe", "+02:00", "../etc/passwd", "/etc/localtime", "Europe/Berlin\0",
     "zone.tab", "localtime", "right/Europe/Berlin", "Zürich", "a" * 5000],
)  # fmt: skip
@pytest.mark.parametrize("expression", ["* * * * *", "@every 5s"])
def test_an_unknown_zone_is_refused(expression: str, zone: str) -> None:
    with pytest.raises(CronError, match="Expected zone to be a name of the tz database such as UTC") as refused:
        parse(expression, zone)
    assert refused.value.field == "zone"
    assert len(str(refused.value)) < 200


@settings(max_examples=150)
@given(st.text("0123456789*/-,?LWMONJAa#@ every\t\0é", max_size=30), st.text("Europ/Blin.UTC~", max_size=12))
def test_whatever_is_written_is_understood_or_refused(expression: str, zone: str) -> None:
    for written in ((expression, "UTC"), ("@hourly", zone)):
        try:
            timetable = parse(*written)
        except CronError as problem:
            assert str(problem).isprintable()
        else:
            assert timetable.next_after_ms(0) is not None
