"""A log with an entry that nobody can apply, on all nodes: they stop and say which, and go on when told to pass over
it."""

from pathlib import Path

from holdfast.client import Client, NewTask
from holdfast.raft.messages import EntryKind, LogEntry
from holdfast.raft.node_journal import NodeJournal
from holdfast.wal.disk import RealDisk
from holdfast.wal.node_log import NodeLog
from tests.integration.cluster import SETTINGS, Cluster, NodeProcess
from tests.integration.server import DEADLINE_S, wait_until

SEGMENT_BYTES = SETTINGS["segment_bytes"]


def poison(node: NodeProcess) -> int:
    """Appends it as an earlier build would have taken it from whoever reached the peer port. The index."""
    assert isinstance(SEGMENT_BYTES, int)
    log = NodeLog.open(RealDisk(node.data_dir / "log"), segment_bytes=SEGMENT_BYTES)
    journal = NodeJournal.load(log, 0)
    assert journal is not None
    index = journal.last_index + 1
    journal.append(LogEntry(index, journal.term, EntryKind.REGULAR, b"\xff"))
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    flush.done()
    log.close(clean=False)
    return index


def test_nodes_go_on_without_an_entry_that_none_of_them_can_apply(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.enqueue_many([NewTask("q", "t") for _ in range(10)])
        cluster.wait_whole()
        nodes = list(cluster.nodes.values())
        for node in nodes:
            node.kill()
        [index] = {poison(node) for node in nodes}
        for node in nodes:
            node.launch()
        # Once a majority has ended, the last may never hear that the entry is committed.
        ended = wait_until(lambda: next((node for node in nodes if not node.is_up), None), "a node to stop")
        assert ended is not None
        assert ended.exit_code == 1
        [line] = ended.events("stopped_by_failure")
        assert f"entry {index} of shard 0" in line["error"]
        name = line["error"].partition("set skip_entries to ")[2].split()[0]
        for node in nodes:
            node.kill()
            node.settings["skip_entries"] = name
            node.launch()
        cluster.wait_whole()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.enqueue(NewTask("q", "t"))
            assert client.queue_stats("q").ready == 11
        cluster.check_hashes()
        assert all(len(node.events("entry_skipped")) == 1 for node in nodes)
