"""The library's faults with files (see the table in test_stock.py), and that our log does not have them.

"Killed" is the end of the process: what it has written is there. When the power fails, only what was synced is sure to
be there: the library has no place for a disk that can show this, so for it the syncs are counted.
"""

import mmap
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.journal import FileJournal, ResizableFile

from holdfast.raft.codec import configuration_entry
from holdfast.raft.journal import Journal
from holdfast.raft.messages import Append, AppendReply, Configuration, Entry, VoteReply
from holdfast.raft.node_journal import NodeJournal
from holdfast.wal.node_log import SEGMENT_BYTES_MIN, NodeLog
from tests.simulation.fake_disk import FakeDisk, SimulatedCrash
from tests.unit.raft.test_stock_stage import FIRST, PATIENCE_S, Ours, Player, Row, Stock, entry, own_entry

SHARD = 3


OpenJournal = Callable[[str], Any]

# It leaves the file of its term and vote to the garbage collector.
leaves_files_open = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[OpenJournal]:
    """The library's journal of a name."""
    opened: list[Any] = []

    def open_one(name: str) -> Any:
        opened.append(FileJournal(str(tmp_path / name)))
        return opened[-1]

    yield open_one
    for journal in opened:
        journal._destroy()


class StockOnFiles(Stock):
    """With its own journal and its own dump of the state."""

    def __init__(self, open_journal: OpenJournal, dump: Path) -> None:
        self._open_journal = open_journal
        super().__init__(journal=open_journal("journal"), fullDumpFile=str(dump), useFork=False)

    def save_state(self) -> None:
        self.library.forceLogCompaction()
        self.tick()  # the log is compacted in the next one

    def restart(self) -> None:
        self.journal = self._open_journal("journal")
        super().restart()


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


class OursOnDisk(Ours):
    """On the node's log."""

    def __init__(self, seed: int = 0) -> None:
        self.disk = FakeDisk(random.Random(seed))
        self.log = open_log(self.disk)
        self._saved_index = FIRST[0]
        super().__init__()
        self.sync_journal()

    def new_journal(self, first: Entry) -> Journal:
        journal = NodeJournal.create(self.log, SHARD, group=7, state_name="s")
        journal.append(first)
        return journal

    def sync_journal(self) -> None:
        flush(self.log)
        assert isinstance(self.journal, NodeJournal)
        self.journal.synced()

    def save_state(self) -> None:
        self._saved_index = self.engine.applied_index

    def restart(self) -> None:
        self.disk.restart()
        self.journal = load(self.disk)
        self._begin(self._saved_index)


# --- T3: killed between the state and the log -------------------------------------------------------------------------


def entries(first: int, last: int) -> list[Row]:
    return [entry(index, 1, b"%d" % index) for index in range(first, last + 1)]


def killed_between_state_and_log(player: StockOnFiles | OursOnDisk) -> int:
    """The last index, after entries up to 15 were acknowledged."""
    player.hear_append("b", 1, FIRST, entries(2, 10), 10)
    player.tick()
    assert player.commit_index == 10
    player.save_state()
    player.hear_append("b", 1, (10, 1), entries(11, 15), 10)
    assert player.last_index == 15
    player.restart()
    return player.last_index


@leaves_files_open
def test_killed_between_state_and_log_stock(open_journal: OpenJournal, tmp_path: Path) -> None:
    assert killed_between_state_and_log(StockOnFiles(open_journal, tmp_path / "dump")) == 10


def test_killed_between_state_and_log_ours() -> None:
    assert killed_between_state_and_log(OursOnDisk()) == 15


# --- T4: killed while the log is compacted ----------------------------------------------------------------------------

LAST_INDEX, COMPACTED_INDEX = 40, 20
PAYLOAD = b"\x01" + 999 * b"x"  # several segments of them
KEPT = list(range(COMPACTED_INDEX + 1, LAST_INDEX + 1))

# Makes a log, compacts it and is killed at a step: whether it came to that, and the indexes that are there afterwards.
Compaction = Callable[[int], tuple[bool, Sequence[int]]]


def killed_at_any_step_of_a_compaction(compact: Compaction) -> list[int]:
    """How many of the entries that should stay are lost, at each step."""
    lost: list[int] = []
    is_killed = True
    while is_killed:
        is_killed, indexes = compact(len(lost))
        lost.append(sum(index not in indexes for index in KEPT))
    assert lost[-1] == 0, "all went well: it was not killed"
    assert len(lost) > 3
    return lost


class KilledError(Exception):
    pass


def test_killed_at_any_step_of_a_compaction_stock(open_journal: OpenJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    def compact(step: int) -> tuple[bool, Sequence[int]]:
        journal = open_journal(str(step))
        for index in range(1, LAST_INDEX + 1):
            journal.add(PAYLOAD, index, 1)
        steps = iter(range(step))
        write = ResizableFile.write

        def write_until_killed(self: Any, offset: int, values: bytes) -> None:
            if next(steps, None) is None:
                raise KilledError
            write(self, offset, values)

        is_killed = False
        with monkeypatch.context() as patch:
            patch.setattr(ResizableFile, "write", write_until_killed)
            try:
                journal.deleteEntriesTo(COMPACTED_INDEX)
            except KilledError:
                is_killed = True
        return is_killed, [row[1] for row in open_journal(str(step))[0:]]

    lost = killed_at_any_step_of_a_compaction(compact)
    assert lost[0] == 0, "nothing had been done yet"
    assert lost[1] == len(KEPT), "the first that it does is to forget everything"


def a_full_log(seed: int) -> tuple[FakeDisk, NodeLog, NodeJournal]:
    disk = FakeDisk(random.Random(seed))
    log = open_log(disk)
    journal = NodeJournal.create(log, SHARD, group=7, state_name="s")
    journal.append(configuration_entry(1, 1, Configuration.of(1, "abc")))
    for index in range(2, LAST_INDEX + 1):
        journal.append(own_entry((PAYLOAD, index, 1)))
        flush(log)
    return disk, log, journal


@pytest.mark.parametrize("end", [FakeDisk.restart, FakeDisk.crash], ids=["killed", "power"])
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_step_of_a_compaction_ours(end: Callable[[FakeDisk], None], seed: int) -> None:
    segments: set[int] = set()

    def compact(step: int) -> tuple[bool, Sequence[int]]:
        disk, log, journal = a_full_log(seed)
        disk.crash_after(step)
        is_killed = False
        try:
            journal.compact(COMPACTED_INDEX)
            flush(log)
            log.cut({SHARD: COMPACTED_INDEX + 1})
        except SimulatedCrash:
            is_killed = True
        end(disk)
        segments.add(len(disk.list_files()))
        found = load(disk)
        assert found.base_index in (0, COMPACTED_INDEX)
        indexes = range(found.base_index + 1, found.last_index + 1)
        assert all(found.entry_at(index) == own_entry((PAYLOAD, index, 1)) for index in indexes[1:])
        return is_killed, indexes

    assert set(killed_at_any_step_of_a_compaction(compact)) == {0}
    assert len(segments) > 2, "they went one by one"


@pytest.mark.parametrize("end", [FakeDisk.restart, FakeDisk.crash], ids=["killed", "power"])
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_step_of_a_snapshot_ours(end: Callable[[FakeDisk], None], seed: int) -> None:
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


# --- nothing is ever synced -------------------------------------------------------------------------------------------


def promises_are_made(player: Player, count_syncs: Callable[[], int]) -> list[bool]:
    """Whether something was synced before an entry was acknowledged, before a vote was given, and before one was asked
    for."""
    synced, before = [], count_syncs()

    def note() -> None:
        nonlocal before
        before, now = count_syncs(), before
        synced.append(before > now)

    player.hear_append("b", 1, FIRST, entries(2, 3), 1)
    assert player.take_sent("b")
    note()
    player.wait(PATIENCE_S)
    player.hear_vote_request("c", 2, (3, 1))
    assert player.votes_given(2) == ["c"]
    note()
    player.stand()
    assert player.term == 3
    assert player.take_sent("b")
    note()
    return synced


@leaves_files_open
def test_promises_are_made_stock(open_journal: OpenJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    class CountedMap(mmap.mmap):
        def flush(self, *place: int) -> None:
            synced.append("mmap")
            super().flush(*place)

    monkeypatch.setattr(mmap, "mmap", CountedMap)
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *_, name=name: synced.append(name))
    player = StockOnFiles(open_journal, tmp_path / "dump")
    assert promises_are_made(player, lambda: len(synced)) == [False, False, False]
    player.save_state()
    player.work(1.5)  # what it does once a second as well
    assert synced == []
    player.journal.flush()
    assert synced == ["mmap"], "it could, and it would be counted"


def test_promises_are_made_ours() -> None:
    player = OursOnDisk()
    assert promises_are_made(player, lambda: player.disk.sync_count) == [True, True, True]


@pytest.mark.parametrize("seed", range(10))
def test_what_was_promised_survives_a_power_failure_at_any_step_ours(seed: int) -> None:
    is_cut_off, step = True, 0
    while is_cut_off:
        player = OursOnDisk(seed)
        player.disk.crash_after(step)
        try:
            player.hear_append("b", 1, FIRST, entries(2, 3), 1)
            player.wait(PATIENCE_S)
            player.hear_vote_request("c", 2, (3, 1))
            is_cut_off = False
        except SimulatedCrash:
            step += 1
        said = player.take_sent("b") + player.take_sent("c")
        player.disk.crash()
        found = load(player.disk)
        if any(isinstance(message, AppendReply) and message.success for message in said):
            assert [found.entry_at(index) for index in (2, 3)] == [own_entry(row) for row in entries(2, 3)]
            assert found.term >= 1
        if VoteReply(2, True) in said:
            assert (found.term, found.voted_for) == (2, "c")
        assert not any(isinstance(message, Append) for message in said)
    assert len(said) == 2
    assert step > 1, "it was cut off in the middle as well"
