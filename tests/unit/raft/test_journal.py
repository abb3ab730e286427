"""The journal in memory: what an engine and a simulation may rely on."""

import pytest

from holdfast.raft.codec import configuration_entry
from holdfast.raft.journal import MemoryJournal, found
from holdfast.raft.messages import Configuration, EntryKind, LogEntry

FIRST, SECOND, THIRD = (Configuration.of(version, "abcd"[: version + 1]) for version in (1, 2, 3))


def entries(journal: MemoryJournal) -> list[LogEntry]:
    return [journal.entry_at(index) for index in range(journal.base_index + 1, journal.last_index + 1)]


@pytest.fixture
def journal() -> MemoryJournal:
    """Entries 1 to 6 of terms 1, 1, 2, 2, 3, 3; configurations at 1, 3 and 5."""
    known = {1: FIRST, 3: SECOND, 5: THIRD}
    journal = MemoryJournal((), 3, "a")
    for index in range(1, 7):
        term = (index + 1) // 2
        is_configuration = index in known
        journal.append(
            configuration_entry(index, term, known[index])
            if is_configuration
            else LogEntry(index, term, EntryKind.REGULAR)
        )
    journal.sync()
    return journal


def test_a_new_journal_has_only_its_base() -> None:
    journal = MemoryJournal()
    assert (journal.base_index, journal.base_term, journal.last_index) == (0, 0, 0)
    assert (list(journal.configurations), journal.term_at(0), journal.term_at(1)) == ([], 0, None)


def test_configurations_follow_the_log(journal: MemoryJournal) -> None:
    assert list(journal.configurations) == [(1, FIRST), (3, SECOND), (5, THIRD)]
    journal.cut_from(4)
    assert (journal.last_index, list(journal.configurations)) == (3, [(1, FIRST), (3, SECOND)])


def test_compaction_keeps_what_held_at_the_base(journal: MemoryJournal) -> None:
    journal.compact(4)
    assert (journal.base_index, journal.base_term, journal.last_index) == (4, 2, 6)
    assert list(journal.configurations) == [(3, SECOND), (5, THIRD)]
    assert [journal.term_at(index) for index in range(3, 8)] == [None, 2, 3, 3, None]
    assert journal.entry_at(5).index == 5
    journal.cut_from(5)
    assert list(journal.configurations) == [(3, SECOND)]
    with pytest.raises(AssertionError):
        journal.compact(9)
    with pytest.raises(AssertionError):
        journal.cut_from(4)
    with pytest.raises(AssertionError):
        journal.entry_at(4)


def test_a_reset_leaves_only_the_base(journal: MemoryJournal) -> None:
    journal.reset(20, 7, FIRST)
    assert (journal.base_index, journal.base_term, journal.last_index) == (20, 7, 20)
    assert list(journal.configurations) == [(20, FIRST)]
    assert (journal.term, journal.voted_for) == (3, "a")
    journal.append(LogEntry(21, 8, EntryKind.REGULAR))
    assert journal.term_at(21) == 8


def test_a_crash_takes_back_everything_since_the_last_sync(journal: MemoryJournal) -> None:
    before = entries(journal)
    journal.reset(20, 7, FIRST)
    journal.set_term(9, "b")
    after = journal.after_crash()
    assert (entries(after), len(before)) == (before, 6)
    assert list(after.configurations) == [(1, FIRST), (3, SECOND), (5, THIRD)]
    assert (after.term, after.voted_for) == (3, "a")
    journal.sync()
    after = journal.after_crash()
    assert (after.base_index, after.base_term, list(after.configurations), after.term) == (20, 7, [(20, FIRST)], 9)
    after.append(LogEntry(21, 9, EntryKind.REGULAR))
    assert journal.last_index == 20, "they share nothing"


def test_a_founder_begins_with_its_group() -> None:
    journal = MemoryJournal()
    found(journal, "cab")
    assert list(journal.configurations) == [(1, Configuration(1, ("a", "b", "c")))]
    assert (journal.term_at(1), journal.term, journal.voted_for) == (1, 1, None)
