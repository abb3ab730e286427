"""The append-only log of one node: segment files, one fdatasync per round, replay at start."""

from holdfast.wal.disk import Disk, RealDisk
from holdfast.wal.errors import DiskFailedError, DiskFullError, LogDamagedError, LogError, LogFormatError
from holdfast.wal.node_log import Entry, Flush, NodeLog

__all__ = [
    "Disk",
    "DiskFailedError",
    "DiskFullError",
    "Entry",
    "Flush",
    "LogDamagedError",
    "LogError",
    "LogFormatError",
    "NodeLog",
    "RealDisk",
]
