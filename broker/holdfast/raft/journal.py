"""What an engine needs of its log. Changes are staged; the driver makes them durable, for all shards together."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast.raft.codec import configuration_entry, decode_configuration
from holdfast.raft.messages import Configuration, EntryKind, LogEntry

Known = tuple[int, Configuration]  # a configuration, and the index of its entry
Last = tuple[int, int]  # term and index of a log's last entry: the larger of two is the more complete one's

NOTHING: Last = (0, 0)


class Journal(Protocol):
    """Entries behind a base: the last that the log no longer has. That of a new group is entry 0 of term 0."""

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

    @property
    def term(self) -> int: ...
    @property
    def voted_for(self) -> str | None: ...
    def set_term(self, term: int, voted_for: str | None) -> None:
        """Both together: a vote is of its term."""
        ...

    def append(self, entry: LogEntry) -> None:
        """After the last."""
        ...

    def cut_from(self, index: int) -> None:
        """Deletes this entry and all behind it."""
        ...

    def entry_at(self, index: int) -> LogEntry:
        """One that is behind the base."""
        ...

    def term_at(self, index: int) -> int | None:
        """None if neither the base nor an entry has this index. Reads no command."""
        ...

    def compact(self, index: int) -> None:
        """Moves the base forward to an entry of the log."""
        ...

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        """A snapshot replaces everything: only its base remains."""
        ...


def found(journal: Journal, voters: Iterable[str]) -> None:
    """Begins a group in the journal of its founder; all others stay empty until they hear of it."""
    assert journal.former_last == NOTHING, "a group is founded once"
    journal.append(configuration_entry(1, 1, Configuration.of(1, voters)))
    journal.set_term(1, None)


class MemoryJournal:
    """A journal for simulations: `sync` is the disk, and `after_crash` is what the disk has."""

    def __init__(
        self,
        entries: Iterable[LogEntry] = (),
        term: int = 0,
        voted_for: str | None = None,
        *,
        base: tuple[int, int] = (0, 0),
        configuration: Known | None = None,
        former_last: Last = NOTHING,
    ) -> None:
        """`entries` are those behind the base; `configuration` is the one that held there."""
        self.former_last = former_last
        self.base_index, self.base_term = base
        self.last_index = self.base_index
        self._entries: list[LogEntry] = []
        self._configurations: list[Known] = [] if configuration is None else [configuration]
        self.term = term
        self.voted_for = voted_for
        for entry in entries:
            self.append(entry)
        self.sync()

    @property
    def configurations(self) -> Sequence[Known]:
        return self._configurations

    def set_term(self, term: int, voted_for: str | None) -> None:
        self.term, self.voted_for = term, voted_for

    def append(self, entry: LogEntry) -> None:
        assert entry.index == self.last_index + 1
        self.last_index = entry.index
        self._entries.append(entry)
        if entry.kind == EntryKind.CONFIGURATION:
            self._configurations.append((entry.index, decode_configuration(entry.command)))

    def cut_from(self, index: int) -> None:
        assert index > self.base_index, "what is at the base is committed"
        del self._entries[index - self.base_index - 1 :]
        self.last_index = index - 1
        while self._configurations and self._configurations[-1][0] > self.last_index:
            self._configurations.pop()

    def entry_at(self, index: int) -> LogEntry:
        assert index > self.base_index, "the log no longer has it"
        return self._entries[index - self.base_index - 1]

    def term_at(self, index: int) -> int | None:
        if index == self.base_index:
            return self.base_term
        return self.entry_at(index).term if self.base_index < index <= self.last_index else None

    def compact(self, index: int) -> None:
        term = self.term_at(index)
        assert term is not None, "only what is in the log can be compacted"
        del self._entries[: index - self.base_index]
        self.base_index, self.base_term = index, term
        while len(self._configurations) > 1 and self._configurations[1][0] <= index:
            del self._configurations[0]

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        self._entries = []
        self.base_index, self.base_term = index, term
        self.last_index = index
        self._configurations = [(index, configuration)]

    def wiped(self) -> "MemoryJournal":
        """The empty journal of this replica after it was deleted and taken back: see node_journal.py."""
        last = (self.term_at(self.last_index) or 0, self.last_index)
        return MemoryJournal((), self.term, self.voted_for, former_last=max(self.former_last, last))

    def sync(self) -> None:
        base = (self.base_index, self.base_term)
        self._durable = (self._entries[:], self._configurations[:], base, self.term, self.voted_for)

    def after_crash(self) -> "MemoryJournal":
        entries, configurations, base, term, voted_for = self._durable
        journal = MemoryJournal((), term, voted_for, base=base, former_last=self.former_last)
        journal._entries, journal._configurations = entries[:], configurations[:]
        journal.last_index += len(entries)
        journal.sync()
        return journal
