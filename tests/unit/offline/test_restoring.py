"""A shard that is made of the one replica that is left."""

from pathlib import Path

from holdfast.broker.offline.restoring import recover_from_replica
from holdfast.machine.entries import LeaderStarted, encode
from holdfast.raft.journal import found
from holdfast.raft.messages import EntryKind, LogEntry
from holdfast.raft.node_journal import NodeJournal
from holdfast.routing.groups import mapped_group
from holdfast.storage.data_dir import DataDir
from holdfast.storage.snapshots.checkpoint import meta_of
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.wal.disk import RealDisk
from holdfast.wal.node_log import NodeLog

SHARD = 3
OTHERS = ("n2/" + "2" * 32, "n3/" + "3" * 32)


def replica_without_a_flush(path: Path) -> None:
    """All that it knows is in its log: its state was never written."""
    with DataDir.open(path) as directory:
        log = NodeLog.open(RealDisk(directory.log_dir), segment_bytes=1024 * 1024)
        directories = StateDirectories(directory.state_dir, SHARD)
        name = directories.new_name(0)
        directories.create(name)
        journal = NodeJournal.create(log, SHARD, group=mapped_group(1, 5), state_name=name)
        found(journal, [f"n1/{directory.node_id}", *OTHERS])
        journal.append(LogEntry(2, 1, EntryKind.REGULAR, encode(LeaderStarted(1_000, stepped=False))))
        flush = log.begin_flush()
        assert flush is not None
        flush.run()
        flush.done()
        log.close(clean=True)
        directory.note_log_begun()


def test_the_shard_is_the_same_also_if_its_state_was_never_written(tmp_path: Path) -> None:
    """Its number is in the ids of all tasks that it makes from then on."""
    replica_without_a_flush(tmp_path)
    report = recover_from_replica(tmp_path, SHARD)
    assert (report.incarnation, report.last_index) == (2, 2)
    with DataDir.open(tmp_path) as directory:
        log = NodeLog.open(RealDisk(directory.log_dir), segment_bytes=1024 * 1024)
        journal = NodeJournal.load(log, SHARD)
        log.close(clean=True)
        assert journal is not None
        meta = meta_of(StateDirectories(directory.state_dir, SHARD).state(journal.state_name))
    assert (meta.shard, meta.incarnation) == (SHARD, 2)
