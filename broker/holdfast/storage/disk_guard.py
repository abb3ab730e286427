"""Watches the free space of the data directory: below the watermark new tasks are refused, below half of it all writes.

Finishing work frees space in the end, so acks, failures and purges go on for longer than what adds to the disk.
"""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from holdfast.machine.entries import Enqueue, Entry, Receive, RetryDead
from holdfast.machine.operator_entries import FireSchedule, PutSchedule
from holdfast.machine.run_entries import EnqueueRuns
from holdfast.serving.refusals import RefusedError, disk_low

_GROWING = (Enqueue, EnqueueRuns, Receive, RetryDead, FireSchedule, PutSchedule)


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


class DiskGuard:
    """What may be written, by the last look at the disk."""

    def __init__(self, measure: Callable[[], int], free_bytes_min: int) -> None:
        self._measure = measure
        self._free_bytes_min = free_bytes_min
        self.free_bytes = 0
        self._found_full = False
        self.poll()

    def poll(self) -> bool:
        """Measures again; returns whether some writes that were refused before are allowed now."""
        was_refusing, was_critical = self.refusing, self.critical
        self._measure_free()
        # A write found no room: believe that until there is enough again for what frees space.
        if self._found_full and self.free_bytes > self._free_bytes_min // 2:
            self._found_full = False
        return (was_refusing and not self.refusing) or (was_critical and not self.critical)

    @property
    def refusing(self) -> bool:
        """Whether anything is refused."""
        return self._found_full or self.free_bytes < self._free_bytes_min

    def check(self, entry: Entry) -> None:
        """Refuses an entry that the disk has no room for."""
        if self.refusing and (self.critical or isinstance(entry, _GROWING)):
            raise disk_low(self.free_bytes, self._free_bytes_min)

    @property
    def critical(self) -> bool:
        """Whether everything that writes is refused."""
        return self._found_full or self.free_bytes < self._free_bytes_min // 2

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether so much can be written and everything else goes on."""
        return not self._found_full and self.free_bytes - size_bytes >= self._free_bytes_min

    def found_full(self) -> RefusedError:
        """A write found no room: refuse everything until there is some."""
        self._found_full = True
        self._measure_free()
        return disk_low(self.free_bytes, self._free_bytes_min)

    def _measure_free(self) -> None:
        # A disk that does not even answer this keeps its last value: the next write will tell.
        with contextlib.suppress(OSError):
            self.free_bytes = self._measure()
