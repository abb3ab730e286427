"""The journal on the node's log when the process or the power ends at any step of what is done to it.

"Killed" is the end of the process: what it has written is there. When the power fails, only what was synced is sure to
be there.
"""

import random
from collections.abc import Callable

import pytest

from holdfast.raft.codec import configuration_entry
from holdfast.raft.messages import Append, AppendReply, Configuration, EntryKind, LogEntry, RequestVote, VoteReply
from holdfast.raft.node_journal import NodeJournal
from holdfast.wal.node_log import SEGMENT_BYTES_MIN, NodeLog
from tests.simulation.fake_disk import FakeDisk, SimulatedCrash
from tests.unit.raft.library_players import FIRST, PATIENCE_S, SHARD, Ours

LAST_INDEX, COMPACTED_INDEX = 40, 20
COMMAND = 999 * b"x"  # several segments of them


def open_log(disk: FakeDisk) -> NodeLog:
    return NodeLog.open(disk, segment_bytes=SEGMENT_BYTES_MIN)


def load(disk: FakeDisk) -> NodeJournal:
    journal = NodeJournal.load(open_log(disk), SHARD)
    assert journal is not None
    return journal


def flush(log: NodeLog) -> None:
    staged = log.begin_flush()
    if staged is not None:
        staged.run()
        staged.done()


def entry(index: int) -> LogEntry:
    return LogEntry(index, 1, EntryKind.NO_OP, COMMAND)


def a_full_log(seed: int) -> tuple[FakeDisk, NodeLog, NodeJournal]:
    disk = FakeDisk(random.Random(seed))
    log = open_log(disk)
    journal = NodeJournal.create(log, SHARD, group=7, state_name="s")
    journal.append(configuration_entry(1, 1, Configuration.of(1, "abc")))
    for index in range(2, LAST_INDEX + 1):
        journal.append(entry(index))
        flush(log)
    return disk, log, journal


@pytest.mark.parametrize("end", [FakeDisk.restart, FakeDisk.crash], ids=["killed", "power"])
@pytest.mark.parametrize("seed", range(3))
def test_a_compaction_that_ends_at_any_step_loses_nothing(end: Callable[[FakeDisk], None], seed: int) -> None:
    segments: list[int] = []
    is_killed = True
    while is_killed:
        disk, log, journal = a_full_log(seed)
        disk.crash_after(len(segments))
        try:
            journal.compact(COMPACTED_INDEX)
            flush(log)
            log.cut({SHARD: COMPACTED_INDEX + 1})
            is_killed = False
        except SimulatedCrash:
            pass
        end(disk)
        segments.append(len(disk.list_files()))
        found = load(disk)
        assert found.base_index in (0, COMPACTED_INDEX)
        assert found.last_index == LAST_INDEX
        for index in range(COMPACTED_INDEX + 1, LAST_INDEX + 1):
            assert found.entry_at(index) == entry(index)
    assert len(set(segments)) > 2, "they went one by one"


@pytest.mark.parametrize("end", [FakeDisk.restart, FakeDisk.crash], ids=["killed", "power"])
@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_that_ends_at_any_step_replaces_all_or_nothing(end: Callable[[FakeDisk], None], seed: int) -> None:
    """It replaces everything at once: log, configuration and the name of the state."""
    old, new = (0, LAST_INDEX, "s", 1), (90, 90, "t", 2)
    found: list[tuple[int, int, str, int]] = []
    is_killed = True
    while is_killed:
        disk, log, journal = a_full_log(seed)
        disk.crash_after(len(found))
        try:
            journal.next_state_name = "t"
            journal.reset(90, 5, Configuration.of(2, "abcd"))
            flush(log)
            is_killed = False
        except SimulatedCrash:
            pass
        end(disk)
        after = load(disk)
        found.append((after.base_index, after.last_index, after.state_name, after.configurations[-1][1].version))
    assert set(found) <= {old, new}
    assert found[0] == old
    assert found[-1] == new


@pytest.mark.parametrize("seed", range(10))
def test_what_was_promised_survives_a_power_failure_at_any_step(seed: int) -> None:
    is_cut_off, step = True, 0
    while is_cut_off:
        player = Ours(seed=seed)
        player.disk.crash_after(step)
        try:
            player.hear("b", Append(1, *FIRST, (entry(2), entry(3)), 1, 1))
            player.now_s += PATIENCE_S
            player.hear("c", RequestVote(2, 3, 1))
            is_cut_off = False
        except SimulatedCrash:
            step += 1
        said = player.take_sent("b") + player.take_sent("c")
        player.disk.crash()
        found = load(player.disk)
        if any(isinstance(message, AppendReply) and message.success for message in said):
            assert [found.entry_at(index) for index in (2, 3)] == [entry(2), entry(3)]
            assert found.term >= 1
        if VoteReply(2, True) in said:
            assert (found.term, found.voted_for) == (2, "c")
        assert not any(isinstance(message, Append) for message in said)
    assert len(said) == 2
    assert step > 1, "it was cut off in the middle as well"
