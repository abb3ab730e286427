"""The wall clock of a time zone: what it shows at an instant, and when it shows a time.

The rules of zones are those of the machine's tz database, or of the package tzdata where the machine has none. Two
nodes may have other releases of it, so ticks are worked out by one of them, the leader, and never while applying.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from holdfast.cron.errors import CronError, quoted
from holdfast.cron.walls import Step

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_NAME_CHARS_MAX = 64
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*", re.ASCII)
# Files of a tz database that are no zones: other forms of them, and what this machine was set to.
_NOT_ZONES = ("right/", "posix/", "localtime", "posixrules", "Factory")


class ClockChange(NamedTuple):
    """A clock is set ahead, so that times are skipped, or back, so that times are shown twice."""

    at_s: int  # the first instant that is counted in the new way
    wall_before_s: int  # what the clock would have shown then
    wall_after_s: int  # what it shows

    @property
    def is_ahead(self) -> bool:
        return self.wall_after_s > self.wall_before_s

    def far_side(self, step: Step) -> tuple[int, int]:
        """The first instant beyond the change by `step`, and what the clock shows then."""
        return (self.at_s, self.wall_after_s) if step > 0 else (self.at_s - 1, self.wall_before_s - 1)


class Reading(NamedTuple):
    """When a clock shows a time."""

    reached_s: int  # the first instant at which it shows this time or a later one
    change: ClockChange | None  # the change that skips or repeats this time; None: it is shown once


class Zone:
    """Instants are seconds since 1970 in UTC, wall times as in `walls`."""

    __slots__ = ("_epoch", "_info", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._info = _zone_info(name)
        self._epoch = datetime(1970, 1, 1, tzinfo=self._info)  # adding to it counts what the clock shows

    def wall_s(self, at_s: int) -> int:
        return at_s + self._offset_s(at_s)

    def highest_wall_s(self, at_s: int) -> int:
        """The latest time that the clock has shown until this instant, also if it was set back since."""
        wall_s = self.wall_s(at_s)
        change = self.reading(wall_s).change
        return wall_s if change is None or at_s < change.at_s else change.wall_before_s - 1

    def reading(self, wall_s: int) -> Reading:
        moment = self._epoch + timedelta(seconds=wall_s)
        before_s, after_s = _whole_seconds(moment.utcoffset()), _whole_seconds(moment.replace(fold=1).utcoffset())
        if before_s == after_s:
            return Reading(wall_s - before_s, None)
        # The change is between the instants that the time would be by the one way of counting and by the other.
        low, high = wall_s - max(before_s, after_s), wall_s - min(before_s, after_s)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset_s(middle) == before_s:
                low = middle
            else:
                high = middle
        change = ClockChange(high, high + before_s, high + after_s)
        return Reading(change.at_s if change.is_ahead else wall_s - before_s, change)

    def _offset_s(self, at_s: int) -> int:
        moment = (_EPOCH_UTC + timedelta(seconds=at_s)).astimezone(self._info)
        return _whole_seconds(moment.utcoffset())


def _whole_seconds(offset: timedelta | None) -> int:
    assert offset is not None, "every zone of the tz database has an offset at every instant"
    return offset.days * 86_400 + offset.seconds


def _zone_info(name: str) -> ZoneInfo:
    if len(name) <= _NAME_CHARS_MAX and _NAME.fullmatch(name) and not name.startswith(_NOT_ZONES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # unknown, no file of a zone, a folder such as `Europe`
            pass
    raise CronError(
        f"Expected zone to be a name of the tz database such as UTC or Europe/Berlin, but got {quoted(name)}.", "zone"
    )
