"""The append-only log of one node: segment files, one fdatasync per round, replay at start. Others call what is
exported here, and `recovery` for what can still be read of a damaged one.

node_log.py   `NodeLog`: what is staged, flushed, read and cut
writer.py     one pwrite and one fdatasync for a round, in the flush thread
recovery.py   opening a log: a torn tail is cut, damage is told
segments.py   which entries are where
frames.py     the format of a segment file                                        (pure)
file_window.py  reading a file in large pieces
disk.py       the seam to the disk; errors.py: what can go wrong
"""

from holdfast.wal.disk import Disk, RealDisk
from holdfast.wal.errors import DiskFailedError, DiskFullError, LogDamagedError, LogError, LogFormatError
from holdfast.wal.node_log import Flush, LogRecord, NodeLog

__all__ = [
    "Disk",
    "DiskFailedError",
    "DiskFullError",
    "Flush",
    "LogDamagedError",
    "LogError",
    "LogFormatError",
    "LogRecord",
    "NodeLog",
    "RealDisk",
]
