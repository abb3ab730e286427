"""What an engine needs of its log. Changes are staged; the driver makes them durable, for all shards together."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast.raft.codec import decode_configuration, encode_configuration
from holdfast.raft.messages import CONFIGURATION, Configuration

Row = tuple[bytes, int, int]  # command, index, term: as the library wants it
Known = tuple[int, Configuration]  # a configuration, and the index of its entry
Last = tuple[int, int]  # term and index of a log's last entry: the larger of two is the more complete one's

NOTHING: Last = (0, 0)


class Journal(Protocol):
    """The methods keep the names that pysyncobj calls. Positions count from the base: the last entry that the log no
    longer has. Its row is always there, with an empty command, so a journal is never empty. A new group's is (0, 0)."""

    @property
    def base_index(self) -> int: ...
    @property
    def base_term(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def configurations(self) -> Sequence[Known]:
        """Oldest first: the one that held at the base (none if there was none yet), then each in the log."""
        ...

    @property
    def former_last(self) -> Last:
        """How far the log reached that this replica had before it was deleted, if it ever was: what it acknowledged
        then still binds it, though it does not have it any more."""
        ...

    def add(self, command: bytes, idx: int, term: int) -> None: ...
    def deleteEntriesFrom(self, entryFrom: int) -> None: ...  # noqa: N802, N803
    def __getitem__(self, item: int) -> Row: ...
    def __len__(self) -> int: ...
    def term_at(self, index: int) -> int | None:
        """None if neither the base nor an entry has this index. Reads no command."""
        ...

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None: ...  # noqa: N802, N803
    def getCurrentTerm(self) -> int: ...  # noqa: N802
    def getVotedForNodeId(self) -> str | None: ...  # noqa: N802
    def setRaftCommitIndex(self, raftCommitIndex: int) -> None: ...  # noqa: N802, N803
    def getRaftCommitIndex(self) -> int: ...  # noqa: N802

    def compact(self, index: int) -> None:
        """Moves the base forward to an entry of the log."""
        ...

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        """A snapshot replaces everything: only its base remains."""
        ...


def found(journal: Journal, voters: Iterable[str]) -> None:
    """Begins a group in the journal of its founder; all others stay blank until they hear of it."""
    assert journal.former_last == NOTHING, "a group is founded once"
    journal.add(CONFIGURATION + encode_configuration(Configuration.of(1, voters)), 1, 1)
    journal.setCurrentTerm(1, None)


class MemoryJournal:
    """A journal for simulations: `sync` is the disk, and `after_crash` is what the disk has."""

    def __init__(
        self,
        rows: Iterable[Row] = (),
        term: int = 0,
        voted_for: str | None = None,
        *,
        base: tuple[int, int] = (0, 0),
        configuration: Known | None = None,
        former_last: Last = NOTHING,
    ) -> None:
        """`rows` are the entries behind the base; `configuration` is the one that held there."""
        self.former_last = former_last
        self._rows: list[Row] = [(b"", *base)]
        self._configurations: list[Known] = [] if configuration is None else [configuration]
        self._term = term
        self._voted_for = voted_for
        for row in rows:
            self.add(*row)
        self.sync()

    @property
    def base_index(self) -> int:
        return self._rows[0][1]

    @property
    def base_term(self) -> int:
        return self._rows[0][2]

    @property
    def last_index(self) -> int:
        return self._rows[-1][1]

    @property
    def configurations(self) -> Sequence[Known]:
        return self._configurations

    def add(self, command: bytes, idx: int, term: int) -> None:
        assert self._rows[-1][1] + 1 == idx
        self._rows.append((command, idx, term))
        if command[:1] == CONFIGURATION:
            self._configurations.append((idx, decode_configuration(command[1:])))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        assert entryFrom > 0, "what is at the base is committed"
        del self._rows[entryFrom:]
        while self._configurations and self._configurations[-1][0] > self._rows[-1][1]:
            self._configurations.pop()

    def __getitem__(self, item: int) -> Row:
        return self._rows[item]

    def __len__(self) -> int:
        return len(self._rows)

    def term_at(self, index: int) -> int | None:
        position = index - self._rows[0][1]
        return self._rows[position][2] if 0 <= position < len(self._rows) else None

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self._term, self._voted_for = term, votedForNodeId

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not kept: after a restart a leader tells it, or an election finds it."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self.base_index

    def compact(self, index: int) -> None:
        term = self.term_at(index)
        assert term is not None, "only what is in the log can be compacted"
        self._rows = [(b"", index, term), *self._rows[index - self.base_index + 1 :]]
        while len(self._configurations) > 1 and self._configurations[1][0] <= index:
            del self._configurations[0]

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        self._rows = [(b"", index, term)]
        self._configurations = [(index, configuration)]

    def wiped(self) -> "MemoryJournal":
        """The blank journal of this replica after it was deleted and taken back: see node_journal.py."""
        last = (self._rows[-1][2], self._rows[-1][1])
        return MemoryJournal((), self._term, self._voted_for, former_last=max(self.former_last, last))

    def sync(self) -> None:
        self._durable = (list(self._rows), list(self._configurations), self._term, self._voted_for)

    def after_crash(self) -> "MemoryJournal":
        rows, configurations, term, voted_for = self._durable
        journal = MemoryJournal((), term, voted_for, former_last=self.former_last)
        journal._rows, journal._configurations = list(rows), list(configurations)
        journal.sync()
        return journal
