"""Durations and instants as people write and read them."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?)(?P<unit>ms|[smhd])", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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
