"""The journal on the node's log does what the one in memory does, and comes back as it was when it was last synced."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.raft import node_journal
from holdfast.raft.codec import configuration_entry
from holdfast.raft.journal import MemoryJournal, found
from holdfast.raft.messages import Configuration, EntryKind, LogEntry
from holdfast.raft.node_journal import HardState, JournalError, NodeJournal, Tombstone, tombstone_of
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.unit.wal.node_logs import flush

SEGMENT_BYTES = 16 * 1024
SHARD = 3


def test_another_founding_takes_the_place_of_the_old_one_in_one_round() -> None:
    """Of a shard that is made anew of one replica: a crash keeps all of the old or has all of the new."""
    disk = FakeDisk(random.Random(0))
    log = NodeLog.open(disk, segment_bytes=SEGMENT_BYTES)
    journal = NodeJournal.create(log, SHARD, group=7, state_name="old")
    found(journal, ["a/1", "b/1"])
    journal.append(LogEntry(2, 1, EntryKind.REGULAR, b"x"))
    _synced(log, journal)
    alone = Configuration.of(2, ["a/1"])
    journal.begin_again(8, "new", 9, 4, 5, alone)
    log.close(clean=False)
    log = NodeLog.open(disk, segment_bytes=SEGMENT_BYTES)
    before = NodeJournal.load(log, SHARD)
    assert before is not None
    assert (before.group, before.state_name, before.last_index) == (7, "old", 2)

    before.begin_again(8, "new", 9, 4, 5, alone)
    _synced(log, before)
    log.close(clean=False)
    after = NodeJournal.load(NodeLog.open(disk, segment_bytes=SEGMENT_BYTES), SHARD)
    assert after is not None
    assert (after.group, after.state_name, after.base_index, after.base_term, after.last_index) == (8, "new", 9, 4, 9)
    assert (after.term, after.voted_for) == (5, None)
    assert list(after.configurations) == [(9, alone)]


def _synced(log: NodeLog, journal: NodeJournal) -> None:
    flush(log)
    journal.synced()


class Stage:
    """Both journals side by side, on a disk that can lose its power."""

    def __init__(self) -> None:
        self.disk = FakeDisk(random.Random(0))
        self.log = NodeLog.open(self.disk, segment_bytes=SEGMENT_BYTES)
        self.real = NodeJournal.create(self.log, SHARD, group=7, state_name="s")
        self.model = MemoryJournal()
        self.sync()

    def sync(self) -> None:
        flush = self.log.begin_flush()
        if flush is not None:
            flush.run()
            flush.done()
        self.real.synced()
        self.model.sync()

    def sync_while_it_is_read(self) -> None:
        """As in a round: what earlier rounds have committed is applied while the sync runs."""
        flush = self.log.begin_flush()
        self.compare()
        if flush is not None:
            flush.run()
            self.compare()
            flush.done()
        self.real.synced()
        self.model.sync()

    def restart(self) -> None:
        """What was staged and not synced is forgotten."""
        self.log.close(clean=False)
        self.log = NodeLog.open(self.disk, segment_bytes=SEGMENT_BYTES)
        journal = NodeJournal.load(self.log, SHARD)
        if tombstone_of(self.log, SHARD) is not None:
            assert journal is None
            journal = NodeJournal.create(self.log, SHARD, group=7, state_name="s")
        assert journal is not None
        self.real = journal
        self.model = self.model.after_crash()

    def forget(self) -> None:
        """The replica is deleted, and later its group takes it back."""
        self.real.forget()
        self.sync()
        self.real = NodeJournal.create(self.log, SHARD, group=7, state_name="s")
        self.model = self.model.wiped()

    def compare(self) -> None:
        real, model = self.real, self.model
        assert real.last_index == model.last_index
        assert (real.base_index, real.base_term) == (model.base_index, model.base_term)
        assert list(real.configurations) == list(model.configurations)
        assert (real.term, real.voted_for) == (model.term, model.voted_for)
        assert real.former_last == model.former_last
        for index in range(model.base_index + 1, model.last_index + 1):
            assert real.entry_at(index) == model.entry_at(index)
        for index in range(max(0, model.base_index - 2), model.last_index + 4):
            assert real.term_at(index) == model.term_at(index), index


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2)),
    st.tuples(st.just("configure"), st.integers(0, 2)),
    st.tuples(st.just("cut"), st.integers(1, 5)),
    st.tuples(st.just("vote"), st.integers(1, 3)),
    st.tuples(st.just("compact"), st.integers(1, 5)),
    st.tuples(st.just("reset"), st.integers(1, 5)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("sync while it is read"), st.just(0)),
    st.tuples(st.just("forget"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


def act(stage: Stage, step: str, number: int) -> None:
    """`number` is how far the term moves, how many entries are cut, and so on."""
    for journal in (stage.real, stage.model):
        last_index, last_term = journal.last_index, journal.term_at(journal.last_index)
        assert last_term is not None
        entries = last_index - journal.base_index
        if step == "add":
            journal.append(LogEntry(last_index + 1, last_term + number, EntryKind.REGULAR, b"%d" % number))
        elif step == "configure":
            version = journal.configurations[-1][1].version + 1 if journal.configurations else 1
            members = Configuration.of(version, ("a", "b"))
            journal.append(configuration_entry(last_index + 1, last_term + number, members))
        elif step == "cut" and entries >= number:
            journal.cut_from(last_index + 1 - number)
        elif step == "vote":
            journal.set_term(journal.term + number, "a" if number > 1 else None)
        elif step == "compact" and entries >= number:
            journal.compact(journal.base_index + number)
        elif step == "reset":
            journal.reset(last_index + number, last_term + number, Configuration.of(9, ("c",)))
    if step == "sync":
        stage.sync()
    elif step == "sync while it is read":
        stage.sync_while_it_is_read()
    elif step == "forget":
        stage.forget()
    elif step == "restart":
        stage.restart()


@given(st.lists(STEPS, max_size=60), st.integers(1, 40), st.sampled_from([3, 100]))
@settings(max_examples=200, deadline=None)
def test_it_does_what_the_one_in_memory_does(
    steps: list[tuple[str, int]], recent_bytes: int, read_entries: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_journal, "RECENT_BYTES_MAX", recent_bytes)
        patch.setattr(node_journal, "READ_ENTRIES", read_entries)
        stage = Stage()
        for step, number in steps:
            act(stage, step, number)
            stage.compare()


def test_it_knows_its_group_and_state_after_a_restart() -> None:
    stage = Stage()
    found(stage.real, ("a", "b"))
    found(stage.model, ("a", "b"))
    stage.sync()
    stage.real.next_state_name = "s-2"
    stage.real.reset(10, 3, Configuration.of(2, ("a",)))
    stage.model.reset(10, 3, Configuration.of(2, ("a",)))
    assert stage.real.state_name == "s-2"
    stage.restart()
    assert (stage.real.group, stage.real.state_name) == (7, "s")  # it had not been durable
    stage.real.next_state_name = "s-3"
    stage.real.reset(10, 3, Configuration.of(2, ("a",)))
    stage.model.reset(10, 3, Configuration.of(2, ("a",)))
    stage.sync()
    stage.restart()
    assert (stage.real.group, stage.real.state_name) == (7, "s-3")
    stage.compare()


def test_old_entries_are_read_only_as_far_as_they_are_valid() -> None:
    """What was cut stays in the log until the next sync, and must not be taken for what replaced it."""
    stage = Stage()
    for index in range(1, 61):
        stage.real.append(LogEntry(index, 1 if index < 50 else 2, EntryKind.REGULAR, b"old %d" % index))
    stage.sync()
    stage.restart()
    stage.real.cut_from(50)
    for index in (50, 51):
        stage.real.append(LogEntry(index, 3, EntryKind.REGULAR, b"new %d" % index))
    assert stage.real.entry_at(1).command == b"old 1"  # reads many at once
    stage.sync()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_journal, "RECENT_BYTES_MAX", 1)
        stage.real.append(LogEntry(52, 3, EntryKind.REGULAR, b"new 52"))
    assert stage.real.entry_at(50) == LogEntry(50, 3, EntryKind.REGULAR, b"new 50")


def test_what_replaces_a_cut_stays_in_memory_until_it_is_durable() -> None:
    """The log reaches further than the cut, and has none of it."""
    stage = Stage()
    for index in range(1, 61):
        stage.real.append(LogEntry(index, 1, EntryKind.REGULAR, b"old %d" % index))
    stage.sync()
    stage.real.cut_from(50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_journal, "RECENT_BYTES_MAX", 1)
        for index in range(50, 56):
            stage.real.append(LogEntry(index, 3, EntryKind.REGULAR, b"new %d" % index))
    assert [stage.real.entry_at(index).command for index in (49, 50, 51)] == [b"old 49", b"new 50", b"new 51"]
    stage.real.reset(70, 4, Configuration.of(2, ("a",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_journal, "RECENT_BYTES_MAX", 1)
        for index in range(71, 74):
            stage.real.append(LogEntry(index, 4, EntryKind.REGULAR, b"newest %d" % index))
    assert stage.real.entry_at(71) == LogEntry(71, 4, EntryKind.REGULAR, b"newest 71")


def test_what_is_staged_is_known() -> None:
    stage = Stage()
    known = [stage.real.is_durable]
    stage.real.append(LogEntry(1, 1, EntryKind.REGULAR))
    known.append(stage.real.is_durable)
    stage.sync()
    known.append(stage.real.is_durable)
    stage.real.set_term(2, None)
    known.append(stage.real.is_durable)
    assert known == [True, False, True, False]


def test_a_vote_that_changes_nothing_is_not_written() -> None:
    stage = Stage()
    stage.real.set_term(2, "a")
    stage.sync()
    stage.real.set_term(2, "a")
    assert stage.log.begin_flush() is None


def test_the_log_knows_nothing_of_other_shards() -> None:
    assert NodeJournal.load(Stage().log, SHARD + 1) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"group":1}', b"\xff"])
def test_a_record_of_another_kind_is_refused(data: bytes) -> None:
    with pytest.raises(JournalError, match="hard state"):
        HardState.decode(data)


# --- gone ---------------------------------------------------------------------------------------------------------


def with_entries(count: int = 60) -> Stage:
    """A replica in term 5 that has voted, with entries of term 4."""
    stage = Stage()
    for index in range(1, count + 1):
        stage.real.append(LogEntry(index, 4, EntryKind.REGULAR, bytes(1000)))
        stage.sync()
    stage.real.set_term(5, "b")
    stage.sync()
    return stage


def test_what_is_gone_is_known_by_what_it_promised() -> None:
    stage = with_entries()
    assert tombstone_of(stage.log, SHARD) is None
    stage.real.forget()
    assert tombstone_of(stage.log, SHARD) is None, "not before it is durable"
    stage.sync()
    gone = Tombstone(7, 5, "b", (4, 60))
    assert (tombstone_of(stage.log, SHARD), NodeJournal.load(stage.log, SHARD)) == (gone, None)
    stage.log.close(clean=False)
    log = NodeLog.open(stage.disk, segment_bytes=SEGMENT_BYTES)
    assert (tombstone_of(log, SHARD), NodeJournal.load(log, SHARD)) == (gone, None)
    assert (log.first_index(SHARD), log.last_index(SHARD), log.terms(SHARD)) == (0, 0, [])


def test_a_crash_before_it_is_durable_leaves_the_replica_as_it_was() -> None:
    stage = with_entries()
    stage.real.forget()
    stage.log.close(clean=False)
    log = NodeLog.open(stage.disk, segment_bytes=SEGMENT_BYTES)
    journal = NodeJournal.load(log, SHARD)
    assert journal is not None
    assert (journal.last_index, journal.state_name, journal.voted_for) == (60, "s", "b")


def test_who_comes_back_to_its_group_is_empty_and_keeps_its_promises() -> None:
    stage = with_entries()
    stage.real.forget()
    stage.sync()
    back = NodeJournal.create(stage.log, SHARD, group=7, state_name="s-2")
    assert (back.term, back.voted_for, back.former_last) == (5, "b", (4, 60))
    assert (back.last_index, back.base_index, list(back.configurations)) == (0, 0, [])
    back.append(LogEntry(1, 1, EntryKind.REGULAR))  # from the beginning, or
    back.reset(80, 5, Configuration.of(3, ("a",)))  # from a snapshot
    back.append(LogEntry(81, 5, EntryKind.REGULAR))
    stage.real = back
    stage.sync()
    stage.log.close(clean=False)
    log = NodeLog.open(stage.disk, segment_bytes=SEGMENT_BYTES)
    loaded = NodeJournal.load(log, SHARD)
    assert loaded is not None
    assert (loaded.last_index, loaded.former_last, loaded.term) == (81, (4, 60), 5)
    assert tombstone_of(log, SHARD) is None


def test_a_crash_before_who_came_back_is_durable_leaves_it_gone() -> None:
    stage = with_entries()
    stage.real.forget()
    stage.sync()
    NodeJournal.create(stage.log, SHARD, group=7, state_name="s-2").append(LogEntry(1, 1, EntryKind.REGULAR))
    stage.log.close(clean=False)
    log = NodeLog.open(stage.disk, segment_bytes=SEGMENT_BYTES)
    assert tombstone_of(log, SHARD) == Tombstone(7, 5, "b", (4, 60))


def test_the_longest_of_several_tombstones_counts() -> None:
    """Who was deleted again before it had everything still owes what it acknowledged at first."""
    stage = with_entries()
    stage.real.forget()
    stage.sync()
    stage.real = NodeJournal.create(stage.log, SHARD, group=7, state_name="s-2")
    stage.real.append(LogEntry(1, 1, EntryKind.REGULAR))
    stage.real.set_term(6, None)
    stage.real.forget()  # in the same round
    stage.sync()
    assert tombstone_of(stage.log, SHARD) == Tombstone(7, 6, None, (4, 60))


def test_another_group_owes_nothing() -> None:
    stage = with_entries()
    stage.real.forget()
    stage.sync()
    other = NodeJournal.create(stage.log, SHARD, group=8, state_name="s-2")
    assert (other.term, other.voted_for, other.former_last) == (0, None, (0, 0))
    found(other, ("a", "b"))


def test_a_group_is_never_founded_again_by_who_forgot_it() -> None:
    stage = with_entries()
    stage.real.forget()
    stage.sync()
    with pytest.raises(AssertionError, match="founded once"):
        found(NodeJournal.create(stage.log, SHARD, group=7, state_name="s-2"), ("a", "b"))


def test_a_replica_that_is_there_is_not_created_anew() -> None:
    with pytest.raises(JournalError, match="the log has one"):
        NodeJournal.create(Stage().log, SHARD, group=7, state_name="s-2")


def test_what_is_gone_does_not_keep_the_log_from_being_cut() -> None:
    """Whether anybody lists it or not, and its promises outlive the segments that they were written to."""
    stage = with_entries()
    other = NodeJournal.create(stage.log, SHARD + 1, group=9, state_name="t")
    for index in range(1, 61):
        other.append(LogEntry(index, 1, EntryKind.REGULAR, bytes(1000)))
        stage.sync()
    other.compact(55)
    stage.sync()
    before = stage.log.size_bytes
    assert stage.log.cut({SHARD + 1: 56}) == 0, "it is there, and nobody says that it needs nothing"
    stage.real.forget()
    stage.sync()
    assert stage.log.cut({SHARD + 1: 56}) > before / 2
    stage.log.close(clean=False)
    log = NodeLog.open(stage.disk, segment_bytes=SEGMENT_BYTES)
    assert tombstone_of(log, SHARD) == Tombstone(7, 5, "b", (4, 60))
    assert NodeJournal.load(log, SHARD + 1) is not None


def test_a_record_of_before_there_were_tombstones_is_read() -> None:
    record = b'{"group":7,"state":"s","term":3,"vote":"a","base":[2,1],"configurations":[[1,1,["a"],[]]]}'
    hard = HardState.decode(record)
    assert hard == HardState(7, "s", 3, "a", 2, 1, ((1, Configuration.of(1, ("a",))),))
    assert hard.encode() == record
