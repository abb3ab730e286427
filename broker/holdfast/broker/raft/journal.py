"""What an engine needs of its log. Changes are staged; the driver makes them durable, for all shards together."""

from typing import Protocol

Row = tuple[bytes, int, int]  # command, index, term: as the library wants it


class Journal(Protocol):
    """The methods keep the names that pysyncobj calls. Positions count from the first entry that is kept."""

    def add(self, command: bytes, idx: int, term: int) -> None: ...
    def deleteEntriesFrom(self, entryFrom: int) -> None: ...  # noqa: N802, N803
    def __getitem__(self, item: int) -> Row: ...
    def __len__(self) -> int: ...
    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None: ...  # noqa: N802, N803
    def getCurrentTerm(self) -> int: ...  # noqa: N802
    def getVotedForNodeId(self) -> str | None: ...  # noqa: N802
    def setRaftCommitIndex(self, raftCommitIndex: int) -> None: ...  # noqa: N802, N803
    def getRaftCommitIndex(self) -> int: ...  # noqa: N802


class MemoryJournal:
    """A journal for simulations: `sync` is the disk, and `after_crash` is what the disk has."""

    def __init__(self, rows: list[Row] | None = None, term: int = 0, voted_for: str | None = None) -> None:
        self._rows: list[Row] = rows or []
        self._term = term
        self._voted_for = voted_for
        self._durable: tuple[list[Row], int, str | None] = (list(self._rows), term, voted_for)

    def add(self, command: bytes, idx: int, term: int) -> None:
        assert not self._rows or self._rows[-1][1] + 1 == idx
        self._rows.append((command, idx, term))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        del self._rows[entryFrom:]

    def __getitem__(self, item: int) -> Row:
        return self._rows[item]

    def __len__(self) -> int:
        return len(self._rows)

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self._term, self._voted_for = term, votedForNodeId

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not kept: after a restart a leader tells it, or an election finds it."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._rows[0][1] if self._rows else 1

    def sync(self) -> None:
        self._durable = (list(self._rows), self._term, self._voted_for)

    def after_crash(self) -> "MemoryJournal":
        rows, term, voted_for = self._durable
        return MemoryJournal(list(rows), term, voted_for)
