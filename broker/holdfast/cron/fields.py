"""One field of a cron expression, as the set of values that it allows: bit n of a mask stands for value n."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.cron.errors import CronError, quoted

_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SUNDAY_AT_THE_END = 7


@dataclass(frozen=True, slots=True)
class FieldKind:
    """What may stand in a field."""

    name: str
    low: int
    high: int  # the last value of `*`
    number_max: int  # the highest number that may be written; more than `high` for day-of-week, where 7 is Sunday too
    names: Mapping[str, int] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        names = list(self.names)
        or_names = f" or {names[0]} to {names[-1]}" if names else ""
        return f"{self.low} to {self.number_max}{or_names}"


SECOND = FieldKind("second", 0, 59, 59)
MINUTE = FieldKind("minute", 0, 59, 59)
HOUR = FieldKind("hour", 0, 23, 23)
DAY_OF_MONTH = FieldKind("day-of-month", 1, 31, 31)
MONTH = FieldKind("month", 1, 12, 12, {name: number for number, name in enumerate(_MONTHS, start=1)})
DAY_OF_WEEK = FieldKind("day-of-week", 0, 6, 7, {name: number for number, name in enumerate(_WEEKDAYS)})


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a field allows."""

    mask: int
    is_open: bool  # starts with `*` or is `?`: by the rule for days this does not restrict, not even as `*/2`
    has_last: bool  # the last day of the month, whichever that is


def parse_field(text: str, kind: FieldKind) -> Allowed:
    if text == "?" and kind in (DAY_OF_MONTH, DAY_OF_WEEK):
        text = "*"
    mask = 0
    has_last = False
    for item in text.split(","):
        if item.upper() == "L" and kind is DAY_OF_MONTH:
            has_last = True
        else:
            mask |= _item_mask(item, kind)
    if kind is DAY_OF_WEEK and mask >> _SUNDAY_AT_THE_END & 1:
        mask = mask & ~(1 << _SUNDAY_AT_THE_END) | 1
    return Allowed(mask, text.startswith("*"), has_last)


def _item_mask(item: str, kind: FieldKind) -> int:
    """One item of a list: `*`, a value or a range, each with or without a step."""
    span, slash, step_text = item.partition("/")
    step = _step(step_text, item, kind) if slash else 1
    first_text, dash, last_text = span.partition("-")
    if span == "*":
        first, last = kind.low, kind.high
    elif dash:
        first, last = _value(first_text, item, kind), _value(last_text, item, kind)
        if last == 0 < first and last_text.upper() in kind.names:
            last = _SUNDAY_AT_THE_END  # FRI-SUN
        if first > last:
            raise CronError(f"Expected the ranges of the {kind.name} field to run upwards, but got {quoted(item)}.")
    else:
        first = _value(span, item, kind)
        last = max(first, kind.high) if slash else first  # `5/15` goes on to the end
    return sum(1 << value for value in range(first, last + 1, step))


def _value(text: str, item: str, kind: FieldKind) -> int:
    named = kind.names.get(text.upper())
    if named is not None:
        return named
    if not _NUMBER.fullmatch(text) or not kind.low <= int(text) <= kind.number_max:
        raise CronError(f"Expected values of the {kind.name} field from {kind.expected}, but got {quoted(item)}.")
    return int(text)


def _step(text: str, item: str, kind: FieldKind) -> int:
    count = kind.high - kind.low + 1
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= count:
        raise CronError(f"Expected steps of the {kind.name} field from 1 to {count}, but got {quoted(item)}.")
    return int(text)
