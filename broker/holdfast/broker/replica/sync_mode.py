"""Whether a round waits for its sync in line or goes on beside it: by how long the disk has taken of late. Pure.

To come back to the event loop costs more than a fast disk takes, so the loop waits for one that answers within about a
millisecond. The first syncs run beside it. So do those after slow ones, more of them each time it goes wrong soon: a
disk that stalls now and then must not hold the loop up again and again. Averages decide: a disk that several share has
a slow one among a hundred, and the loop never waits for longer than a moment.
"""

QUICK_SECONDS = 0.001  # on average, in a trial
SLOW_SECONDS = 0.005  # the loop never waits longer than that
AVERAGE_SECONDS_MAX = 0.0015  # while it waits in line; a sync of 20 ms is enough
AVERAGE_OF = 16  # syncs, about: the newer ones count for more
TRIAL_SYNCS = 32  # before it waits in line
REST_MIN = 32  # syncs beside the loop after it was too slow, before the next trial
REST_MAX = 1024
LARGE_BYTES = 1024 * 1024  # a round of more takes a while on any disk


class SyncMode:
    """Told of every sync; says how the next one is waited for."""

    def __init__(self) -> None:
        self._in_line = False
        self._rest = REST_MIN  # after the next slow one
        self._syncs = 0  # since the mode has changed
        self._tried = 0  # in a trial
        self._tried_s = 0.0
        self._average_s = 0.0
        self._trial_after = 0

    def is_in_line(self, size_bytes: int) -> bool:
        """Of the next round, which has so many bytes to write."""
        return self._in_line and size_bytes <= LARGE_BYTES

    def took(self, seconds: float, size_bytes: int) -> None:
        if size_bytes > LARGE_BYTES:
            return
        self._syncs += 1
        if self._in_line:
            self._average_s += (seconds - self._average_s) / AVERAGE_OF
            if self._average_s > AVERAGE_SECONDS_MAX:
                self._leave_line()
        elif self._syncs > self._trial_after:
            self._tried += 1
            self._tried_s += seconds
            if self._tried == TRIAL_SYNCS:
                self._average_s = self._tried_s / TRIAL_SYNCS
                self._tried, self._tried_s = 0, 0.0
                if self._average_s <= QUICK_SECONDS:
                    self._in_line, self._syncs = True, 0

    def _leave_line(self) -> None:
        """The rest is longer each time, unless this time in line was worth it."""
        if self._syncs >= REST_MAX:
            self._rest = REST_MIN
        self._in_line, self._syncs, self._trial_after = False, 0, self._rest
        self._rest = min(2 * self._rest, REST_MAX)
