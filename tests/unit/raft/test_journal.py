"""The journal in memory: what an engine and a simulation may rely on."""

import pytest

from holdfast.raft.codec import encode_configuration
from holdfast.raft.journal import MemoryJournal, found
from holdfast.raft.messages import CONFIGURATION, REGULAR, Configuration

FIRST, SECOND, THIRD = (Configuration.of(version, "abcd"[: version + 1]) for version in (1, 2, 3))


def command(configuration: Configuration) -> bytes:
    return CONFIGURATION + encode_configuration(configuration)


@pytest.fixture
def journal() -> MemoryJournal:
    """Entries 1 to 6 of terms 1, 1, 2, 2, 3, 3; configurations at 1, 3 and 5."""
    rows = [(REGULAR + b"x", index, (index + 1) // 2) for index in range(1, 7)]
    for index, configuration in ((1, FIRST), (3, SECOND), (5, THIRD)):
        rows[index - 1] = (command(configuration), index, (index + 1) // 2)
    return MemoryJournal(rows, 3, "a")


def test_a_new_journal_has_only_its_base() -> None:
    journal = MemoryJournal()
    assert (len(journal), journal[0], journal[-1]) == (1, (b"", 0, 0), (b"", 0, 0))
    assert (list(journal.configurations), journal.term_at(0), journal.term_at(1)) == ([], 0, None)


def test_configurations_follow_the_log(journal: MemoryJournal) -> None:
    assert list(journal.configurations) == [(1, FIRST), (3, SECOND), (5, THIRD)]
    journal.deleteEntriesFrom(4)
    assert (journal[-1][1], list(journal.configurations)) == (3, [(1, FIRST), (3, SECOND)])


def test_compaction_keeps_what_held_at_the_base(journal: MemoryJournal) -> None:
    journal.compact(4)
    assert (journal.base_index, journal.base_term, len(journal)) == (4, 2, 3)
    assert list(journal.configurations) == [(3, SECOND), (5, THIRD)]
    assert [journal.term_at(index) for index in range(3, 8)] == [None, 2, 3, 3, None]
    assert journal[1][1] == 5
    journal.deleteEntriesFrom(1)
    assert list(journal.configurations) == [(3, SECOND)]
    with pytest.raises(AssertionError):
        journal.compact(9)
    with pytest.raises(AssertionError):
        journal.deleteEntriesFrom(0)


def test_a_reset_leaves_only_the_base(journal: MemoryJournal) -> None:
    journal.reset(20, 7, FIRST)
    assert (len(journal), journal[-1], list(journal.configurations)) == (1, (b"", 20, 7), [(20, FIRST)])
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (3, "a")
    journal.add(REGULAR, 21, 8)
    assert journal.term_at(21) == 8


def test_a_crash_takes_back_everything_since_the_last_sync(journal: MemoryJournal) -> None:
    before = [journal[place] for place in range(len(journal))]
    journal.reset(20, 7, FIRST)
    journal.setCurrentTerm(9, "b")
    after = journal.after_crash()
    assert [after[place] for place in range(len(after))] == before
    assert list(after.configurations) == [(1, FIRST), (3, SECOND), (5, THIRD)]
    assert (after.getCurrentTerm(), after.getVotedForNodeId()) == (3, "a")
    journal.sync()
    after = journal.after_crash()
    assert (after[0], list(after.configurations), after.getCurrentTerm()) == ((b"", 20, 7), [(20, FIRST)], 9)
    after.add(REGULAR, 21, 9)
    assert len(journal) == 1, "they share nothing"


def test_a_founder_begins_with_its_group() -> None:
    journal = MemoryJournal()
    found(journal, "cab")
    assert list(journal.configurations) == [(1, Configuration(1, ("a", "b", "c")))]
    assert (journal.term_at(1), journal.getCurrentTerm(), journal.getVotedForNodeId()) == (1, 1, None)
