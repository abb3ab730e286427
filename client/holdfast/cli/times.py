"""Durations and instants as people write and read them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?)(?P<unit>ms|[smhd])", re.ASCII)
_RATE = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)/(?P<unit>[smhd])", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

RATE_MIN_PER_SECOND = 0.001
RATE_MAX_PER_SECOND = 1_000_000
TIMEOUT_MIN_S = 0.001
TIMEOUT_MAX_S = 366 * 86_400.0


def duration_ms(text: str) -> int:
    """Milliseconds of a duration; ValueError with a sentence if it is none.

    >>> duration_ms("90s"), duration_ms("1h30m"), duration_ms("1.5s")
    (90000, 5400000, 1500)
    """
    compact = text.strip().lower()
    parts = list(_PART.finditer(compact))
    if not parts or "".join(part[0] for part in parts) != compact:
        raise ValueError(f"Expected a duration such as 500ms, 90s, 5m, 2h, 1d or 1h30m, but got {text!r}.")
    return int(sum(Decimal(part["number"]) * _UNITS_MS[part["unit"]] for part in parts))


def duration_or_zero_ms(text: str) -> int:
    """The same, but 0 needs no unit."""
    return 0 if text.strip() == "0" else duration_ms(text)


def duration_between_ms(low: str, high: str) -> Callable[[str], int]:
    """Parses durations of at least `low` and at most `high`.

    >>> duration_between_ms("1s", "30d")("90s")
    90000
    """
    low_ms, high_ms = duration_or_zero_ms(low), duration_ms(high)

    def parse(text: str) -> int:
        found_ms = duration_or_zero_ms(text)
        if not low_ms <= found_ms <= high_ms:
            raise ValueError(f"Expected a duration from {low} to {high}, but got {text!r}.")
        return found_ms

    return parse


def rate_per_second(text: str) -> float:
    """How many a second of a rate; ValueError with a sentence if it is none.

    >>> rate_per_second("10/s"), rate_per_second("90/m"), rate_per_second("0.5/s")
    (10.0, 1.5, 0.5)
    """
    match = _RATE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"Expected a rate such as 10/s, 100/m or 500/h, but got {text!r}.")
    per_second = float(Decimal(match["number"]) * 1000 / _UNITS_MS[match["unit"]])
    if not RATE_MIN_PER_SECOND <= per_second <= RATE_MAX_PER_SECOND:
        raise ValueError(f"Expected a rate from 0.001/s (3.6/h) to 1000000/s, but got {text!r}.")
    return per_second


def shown_rate(per_second: float) -> str:
    """A rate for people, in the smallest unit in which it is a whole number.

    >>> shown_rate(10), shown_rate(1.5), shown_rate(5 / 3600), shown_rate(0.123)
    ('10/s', '90/m', '5/h', '0.123/s')
    """
    for unit in ("s", "m", "h"):
        count = per_second * _UNITS_MS[unit] / 1000
        if round(count) and abs(count - round(count)) < 1e-6:
            return f"{round(count)}/{unit}"
    return f"{per_second:g}/s"


def moment_ms(text: str, now_ms: int) -> int:
    """An instant, or how long ago it was; ValueError with a sentence if it is neither.

    >>> moment_ms("2h", 10_000_000), moment_ms("1970-01-01T00:00:01Z", 0)
    (2800000, 1000)
    """
    try:
        return now_ms - duration_ms(text)
    except ValueError:
        pass
    try:
        return instant_ms(text)
    except ValueError:
        raise ValueError(
            f"Expected how long ago (90s, 2h, 7d) or a time with its zone (2030-01-02T03:04:05Z), but got {text!r}."
        ) from None


def instant_ms(text: str) -> int:
    """Milliseconds since the Unix epoch of an ISO 8601 time with its zone; ValueError with a sentence if it is none.

    >>> instant_ms("2030-01-02T03:04:05Z") == instant_ms("2030-01-02T04:04:05+01:00")
    True
    """
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ValueError(f"Expected a time with its zone, e.g. 2030-01-02T03:04:05+01:00 or …Z, but got {text!r}.")
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def shown_instant(instant_ms: int | None) -> str:
    """An instant for people, in UTC; a dash if there is none.

    >>> shown_instant(0), shown_instant(1_893_553_445_678)
    ('-', '2030-01-02 03:04:05.678 UTC')
    """
    if not instant_ms:
        return "-"
    try:
        instant = _EPOCH + timedelta(milliseconds=instant_ms)
    except OverflowError:
        return f"{instant_ms} ms"
    return f"{instant:%Y-%m-%d %H:%M:%S}.{instant_ms % 1000:03d} UTC"


def zone_of(name: str) -> tzinfo | None:
    """The time zone of that name; None if this machine knows none."""
    if name in ("", "UTC"):
        return UTC
    from zoneinfo import ZoneInfo  # only where times of a zone are shown

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no name of a zone, no tz database
        return None


def local_instant(instant_ms: int, zone: tzinfo) -> datetime | None:
    """What the clocks of the zone show then; None if it is too far away to be told."""
    try:
        return (_EPOCH + timedelta(milliseconds=instant_ms)).astimezone(zone)
    except (OverflowError, ValueError):
        return None


def shown_local(instant_ms: int | None, zone: tzinfo) -> str:
    """An instant for people as the clocks of a zone show it, with its offset from UTC; a dash if there is none.

    >>> shown_local(1_893_553_445_000, UTC), shown_local(None, UTC)
    ('Wed 2030-01-02 03:04:05 +00:00', '-')
    """
    if not instant_ms:
        return "-"
    local = local_instant(instant_ms, zone)
    if local is None:
        return f"{instant_ms} ms"
    written = local.isoformat(" ", "seconds")
    return f"{local:%a} {written[:19]} {written[19:]}"


def shown_latency(duration_ms: float | None) -> str:
    """A duration that was measured, for people; a dash if there is none.

    >>> shown_latency(None), shown_latency(3.25), shown_latency(480), shown_latency(1500), shown_latency(90_000)
    ('-', '3.2ms', '480ms', '1.5s', '1m 30s')
    """
    if duration_ms is None:
        return "-"
    if duration_ms < 10:
        return f"{duration_ms:.1f}ms"
    if duration_ms < 1_000:
        return f"{duration_ms:.0f}ms"
    return f"{duration_ms / 1000:.1f}s" if duration_ms < 60_000 else shown_duration(int(duration_ms))


def shown_duration(duration_ms: int) -> str:
    """A duration for people, in its two largest units.

    >>> shown_duration(0), shown_duration(850), shown_duration(90_000), shown_duration(93_784_000)
    ('-', '850ms', '1m 30s', '1d 2h')
    """
    if duration_ms <= 0:
        return "-"
    parts: list[str] = []
    rest_ms = duration_ms
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest_ms = divmod(rest_ms, _UNITS_MS[unit])
        if count and not (unit == "ms" and parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def timeout_s(text: str | float) -> float:
    """Seconds of a time limit, written as a duration or as a bare number of seconds.

    >>> timeout_s("90s"), timeout_s("1.5"), timeout_s("2m")
    (90.0, 1.5, 120.0)
    """
    try:
        seconds = float(text) if isinstance(text, float) or _SECONDS.fullmatch(text.strip()) else None
        limit_s = duration_ms(str(text)) / 1000 if seconds is None else seconds
    except ValueError:
        raise ValueError(f"Expected a time such as 500ms, 30s, 5m, or seconds, but got {text!r}.") from None
    if not TIMEOUT_MIN_S <= limit_s <= TIMEOUT_MAX_S:
        raise ValueError(f"Expected between {TIMEOUT_MIN_S * 1000:g}ms and 366d, but got {text!r}.")
    return limit_s
