"""From what people write to a timetable.

- **Five fields**: minute, hour, day-of-month, month, day-of-week; **six** with the second first. A field is a list of
  values, ranges `9-17` and steps `*/15`, `9-17/2`, `5/15` (from 5 to the end); `*` is all. Months and weekdays have
  names (`JAN`, `mon`), Sunday is 0 and 7. The day fields may be `?`, which is `*`; `L` is the last day of the month.
- **The two day fields**: if both are restricted, a day that fits either of them is meant; if not, one that fits both.
  As always in cron, a field that starts with `*` does not restrict: `0 0 */2 * MON` is the Mondays on odd days.
- **Names** for usual ones: `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`.
- **`@every 90s`**: equal periods, also `1h30m` or `2d`, from one second to 366 days. They are counted from the start of
  1970 in UTC unless there is another anchor.
"""

import re

from holdfast.cron import fields
from holdfast.cron.errors import CronError, quoted
from holdfast.cron.timetables import CronTimetable, EveryTimetable, Timetable
from holdfast.cron.walls import WallTimes
from holdfast.cron.zones import Zone

EXPRESSION_CHARS_MAX = 256

_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EVERY = "@every"
_PERIOD = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII | re.IGNORECASE)
_UNITS_S = (86_400, 3600, 60, 1)
_PERIOD_S_MAX = 366 * 86_400
_EVERY_HOUR = (1 << 24) - 1


def parse(expression: str, zone: str = "UTC", anchor_ms: int = 0) -> Timetable:
    """The timetable of an expression; `anchor_ms` is a tick of `@every` and of no meaning to others.

    Raises CronError, also for dates that never come, such as 30 February.
    """
    clock = Zone(zone)
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise CronError(
            f"Expected expression of at most {EXPRESSION_CHARS_MAX} characters, but got {len(expression)} of them."
        )
    words = expression.split()
    if words and words[0].lower() == _EVERY:
        return EveryTimetable(_period_s(words[1:]) * 1000, anchor_ms)
    if words and words[0].startswith("@"):
        alias = _ALIASES.get(words[0].lower())
        if alias is None or len(words) > 1:
            known = ", ".join([*_ALIASES, f"{_EVERY} 90s"])
            raise CronError(f"Expected expression to be fields or one of {known}, but got {quoted(expression)}.")
        words = alias.split()
    return _from_fields(words, expression, clock)


def _from_fields(words: list[str], expression: str, clock: Zone) -> CronTimetable:
    if len(words) not in (5, 6):
        raise CronError(
            "Expected expression to have five fields (minute, hour, day-of-month, month, day-of-week), or six with the "
            f"second first, but got {len(words)}: {quoted(expression)}."
        )
    second, minute, hour, day, month, weekday = ["0", *words] if len(words) == 5 else words
    hours = fields.parse_field(hour, fields.HOUR).mask
    days = fields.parse_field(day, fields.DAY_OF_MONTH)
    weekdays = fields.parse_field(weekday, fields.DAY_OF_WEEK)
    times = WallTimes(
        seconds=fields.parse_field(second, fields.SECOND).mask,
        minutes=fields.parse_field(minute, fields.MINUTE).mask,
        hours=hours,
        days=days.mask,
        months=fields.parse_field(month, fields.MONTH).mask,
        weekdays=weekdays.mask,
        has_last_day=days.has_last,
        is_either_day=not days.is_open and not weekdays.is_open,
    )
    if times.nearest(0, 1) is None:
        raise CronError(
            f"Expected day-of-month and month to name a date that comes, but got {quoted(f'{day} {month}')}: none of "
            "these months has such a day."
        )
    return CronTimetable(times, clock, has_every_hour=hours == _EVERY_HOUR)


def _period_s(words: list[str]) -> int:
    text = "".join(words)
    match = _PERIOD.fullmatch(text)
    if match is None or not text:
        raise CronError(f"Expected the period of @every such as 90s, 1h30m or 2d, but got {quoted(' '.join(words))}.")
    period_s = sum(int(count or 0) * unit_s for count, unit_s in zip(match.groups(), _UNITS_S, strict=True))
    if not 1 <= period_s <= _PERIOD_S_MAX:
        raise CronError(f"Expected the period of @every from 1s to 366d, but got {quoted(text)}.")
    return period_s
