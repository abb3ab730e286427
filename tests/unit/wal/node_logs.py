"""A log of small segments, and what tests of it do again and again."""

from collections.abc import Iterable

from holdfast.wal.disk import Disk
from holdfast.wal.node_log import LogRecord, NodeLog
from tests.simulation.fake_disk import FakeDisk

SEGMENT_BYTES = 32 * 1024


def reopen(disk: Disk) -> NodeLog:
    return NodeLog.open(disk, segment_bytes=SEGMENT_BYTES)


def flush(log: NodeLog) -> None:
    started = log.begin_flush()
    assert started is not None
    started.run()
    started.done()


def append(log: NodeLog, shard: int, indexes: Iterable[int], size: int = 10) -> list[LogRecord]:
    """Stages entries whose bytes tell which they are, and flushes."""
    entries = [LogRecord(shard, index, 1, f"{shard}/{index}:".encode().ljust(size, b".")) for index in indexes]
    for entry in entries:
        log.stage_entry(entry.shard, entry.index, entry.term, entry.payload)
    flush(log)
    return entries


def files(disk: FakeDisk) -> list[str]:
    return sorted(disk.list_files())
