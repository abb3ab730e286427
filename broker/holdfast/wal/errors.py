"""What the log can raise.

LogError
├── DiskFullError     nothing was written: refuse the write, go on, try again later
├── DiskFailedError   a write or sync failed and what the disk holds is unknown: stop the process, never retry
├── LogDamagedError   bytes that had been made durable are no longer right: refuse to start, or to go on
└── LogFormatError    written by a newer release: refuse to start
"""

from __future__ import annotations

__all__ = ["DiskFailedError", "DiskFullError", "LogDamagedError", "LogError", "LogFormatError"]


class LogError(Exception):
    """Root of everything the log raises on purpose, apart from ValueError and RuntimeError for misuse."""


class DiskFullError(LogError):
    """There is no room. Raised only while space is being reserved, before any byte of a round was written."""


class DiskFailedError(LogError):
    """The disk refused an operation that must not fail.

    After a failed fdatasync the kernel may have dropped the dirty pages and a second call would report success
    for data that is gone. So nobody retries: the process stops, and the next start reads what is really there.
    """


class LogDamagedError(LogError):
    """The log is damaged before its tail, so acknowledged rounds are missing or wrong."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"Expected to read the log to its end, but {file} is damaged at byte {offset}: {reason}. Nothing was "
            "changed on disk. Check the disk."
        )
        self.file = file
        self.offset = offset
        self.reason = reason


class LogFormatError(LogError):
    """The log holds something this release does not know."""

    def __init__(self, file: str, offset: int, found: str) -> None:
        super().__init__(
            f"Expected to know everything in the log, but {file} has {found} at byte {offset}. It was written by a "
            "newer release: start that release or a later one. Nothing was changed on disk."
        )
        self.file = file
        self.offset = offset
        self.found = found
