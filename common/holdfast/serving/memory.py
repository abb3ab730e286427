"""Memory that was needed for a while goes back to the system. The only file that speaks to the allocator.

glibc keeps what was freed for later, in pieces between what is still used: after a flood of large requests that is most
of what the process had taken. `malloc_trim` gives it back. Other C libraries are left alone.
"""

import asyncio
import ctypes
import time

from holdfast.serving.intake import Intake

ARENAS_MAX = 2  # each keeps free pieces of its own, and the thread of the loop allocates nearly everything
MAPPED_BYTES_MIN = 256 * 1024  # so large, a piece is the system's again as soon as it is freed
TRIM_BYTES_MIN = 32 * 1024 * 1024  # of requests that have come since the last time
POLL_SECONDS = 2.0
BUSY_SECONDS = 5.0  # between two trims while more comes
AGAIN_SECONDS = 12.0  # by then what was written is on disk, and callers who went away are forgotten

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - no other library has it
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except (AttributeError, OSError):
        return None
    return library


def keep_little_memory() -> None:
    """The allocator shall keep less of what is freed. To be called before there are many threads."""
    library = glibc()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, ARENAS_MAX)
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


async def give_back_memory(intake: Intake) -> None:
    """Until it is cancelled: gives memory back after much was received, once that is dealt with, and now and then while
    more comes."""
    library = glibc()
    times = TrimTimes()
    while library is not None:
        await asyncio.sleep(POLL_SECONDS)
        if times.is_due(intake.received_bytes, intake.bytes, time.monotonic()):
            await asyncio.to_thread(library.malloc_trim, 0)  # without the interpreter's lock


class TrimTimes:
    """When to trim: it costs a little, and helps only after much was freed. Pure."""

    def __init__(self) -> None:
        self._received_bytes = 0
        self._trimmed_s = float("-inf")
        self._again_s = float("inf")

    def is_due(self, received_bytes: int, bytes_under_way: int, now_s: float) -> bool:
        if received_bytes - self._received_bytes < TRIM_BYTES_MIN:
            is_due = now_s >= self._again_s
            self._again_s = float("inf") if is_due else self._again_s
            return is_due
        is_busy = bytes_under_way >= TRIM_BYTES_MIN // 4
        if is_busy and now_s - self._trimmed_s < BUSY_SECONDS:
            return False
        self._trimmed_s = now_s
        if not is_busy:  # otherwise when it is over
            self._received_bytes = received_bytes
            self._again_s = now_s + AGAIN_SECONDS
        return True
