"""What a replica's disk holds, and what of it survives: in memory, or the node's real log on a disk that tears."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar
from zlib import crc32

from holdfast.raft.journal import Known, MemoryJournal
from holdfast.raft.messages import Configuration, EntryKind, LogEntry
from holdfast.raft.node_journal import NodeJournal, tombstone_of
from holdfast.wal.node_log import SEGMENT_BYTES_MIN, Flush, NodeLog
from tests.simulation.fake_disk import FakeDisk, SimulatedCrash

GROUP = 7
_CUT_SHARE = 0.1  # of the syncs: segments that are not needed any more go then


@dataclass(frozen=True, slots=True)
class State:
    """The state machine: a digest of all commands up to an index. Equal digests are equal histories."""

    index: int = 0
    digest: int = 0

    def after(self, entry: LogEntry) -> "State":
        assert entry.index == self.index + 1, "entries are applied one after the other"
        return State(entry.index, crc32(entry.command, self.digest) if entry.kind == EntryKind.REGULAR else self.digest)


class Added(Protocol):
    """Is told of each entry that is added to a log, with the term of the one before and the last configuration."""

    def __call__(self, entry: LogEntry, previous_term: int, configuration: Known | None) -> None: ...


class Durable:
    """What is on a disk for certain, kept beside the journal so that checks need not ask it."""

    def __init__(self) -> None:
        self.term = 0
        self.voted_for: str | None = None
        self.base_index = 0
        self.last_index = 0
        self._terms: dict[int, int] = {}

    def is_of(self, journal: MemoryJournal) -> bool:
        """Whether this is what a journal has that was just read."""
        last_index = journal.last_index
        return (
            (self.term, self.voted_for) == (journal.term, journal.voted_for)
            and (self.base_index, self.last_index) == (journal.base_index, last_index)
            and all(
                self._terms[index] == journal.term_at(index) for index in range(self.base_index + 1, last_index + 1)
            )
        )

    def holds(self, index: int, term: int | None) -> bool:
        return index <= self.base_index or (index <= self.last_index and self._terms.get(index) == term)

    def set_vote(self, term: int, voted_for: str | None) -> None:
        self.term, self.voted_for = term, voted_for

    def add(self, index: int, term: int) -> None:
        self._terms[index] = term
        self.last_index = index

    def cut(self, index: int) -> None:
        self.last_index = index - 1

    def compact(self, index: int) -> None:
        self.base_index = index

    def reset(self, index: int) -> None:
        self.base_index = self.last_index = index
        self._terms.clear()

    def wipe(self) -> None:
        """Nothing is left of it but its term and its vote."""
        self.reset(0)


Change = Callable[[Durable], None]

if TYPE_CHECKING:
    _Journal = MemoryJournal
else:
    _Journal = object


class _Watched(_Journal):
    """A journal that says what is done to it. None of it is durable yet."""

    on_add: Added
    changes: list[Change]

    def append(self, entry: LogEntry) -> None:
        previous_term = self.term_at(entry.index - 1)
        assert previous_term is not None
        self.on_add(entry, previous_term, self.configurations[-1] if self.configurations else None)
        super().append(entry)
        self.changes.append(lambda durable: durable.add(entry.index, entry.term))

    def cut_from(self, index: int) -> None:
        super().cut_from(index)
        self.changes.append(lambda durable: durable.cut(index))

    def set_term(self, term: int, voted_for: str | None) -> None:
        super().set_term(term, voted_for)
        self.changes.append(lambda durable: durable.set_vote(term, voted_for))

    def compact(self, index: int) -> None:
        super().compact(index)
        self.changes.append(lambda durable: durable.compact(index))

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        super().reset(index, term, configuration)
        self.changes.append(lambda durable: durable.reset(index))


_Some = TypeVar("_Some", bound=_Watched)


class _WatchedMemory(_Watched, MemoryJournal):
    @classmethod
    def of(cls, journal: MemoryJournal) -> "_WatchedMemory":
        """The same, watched from now on."""
        watched = cls.__new__(cls)
        watched.__dict__.update(vars(journal))
        return watched


class _WatchedNode(_Watched, NodeJournal):
    pass


class MemoryDisk:
    """A journal in memory. A round that was being synced when the power failed is there or is not."""

    journal: _WatchedMemory | _WatchedNode

    def __init__(self, draw: random.Random, on_add: Added) -> None:
        self.draw = draw
        self._on_add = on_add
        self.durable = Durable()
        self.saved = State()  # what is on the disk of the state
        self.installed: State | None = None  # a snapshot's, which counts with the next sync
        self.syncing = False
        self.journal = self._watch(_WatchedMemory.of(MemoryJournal()))

    def _watch(self, journal: _Some) -> _Some:
        journal.on_add, journal.changes = self._on_add, []
        return journal

    @property
    def changed(self) -> bool:
        return bool(self.journal.changes)

    def begin_sync(self) -> None:
        self.syncing = True

    def end_sync(self) -> None:
        self._write()
        self.syncing = False
        self._count_changes()
        if self.installed is not None:
            self.saved, self.installed = self.installed, None

    def _write(self) -> None:
        assert isinstance(self.journal, MemoryJournal)
        self.journal.sync()

    def _count_changes(self) -> None:
        for change in self.journal.changes:
            change(self.durable)
        self.journal.changes.clear()

    def save(self, state: State) -> None:
        """The state reaches the disk from time to time, on its own ways; never before the entries it comes from."""
        if self.installed is None:
            self.saved = state

    def prepare_install(self, state: State) -> None:
        """A snapshot's state is on the disk, beside the old one; the journal will say which one counts."""

    def crash(self) -> None:
        if self.syncing and self.draw.random() < 0.5:
            self.end_sync()
        self.drop()

    def drop(self) -> None:
        """There was no room for the round: nothing of it was written, and all of it is void."""
        self.syncing, self.installed = False, None
        assert isinstance(self.journal, MemoryJournal)
        self.journal = self._watch(_WatchedMemory.of(self.journal.after_crash()))

    def wipe(self) -> None:
        """The replica is deleted and empty again. What it has promised is kept."""
        assert isinstance(self.journal, MemoryJournal)
        self.journal = self._watch(_WatchedMemory.of(self.journal.wiped()))
        self.saved = State()
        self.durable.wipe()


class NodeDisk(MemoryDisk):
    """The node's log with small segments, on a disk that loses and tears what was not synced."""

    def __init__(self, draw: random.Random, on_add: Added) -> None:
        super().__init__(draw, on_add)
        self._disk = FakeDisk(random.Random(draw.random()))
        self._states: dict[str, State] = {}  # by the name of their directory
        self._flush: Flush | None = None
        self._open()

    def _open(self) -> None:
        self._log = NodeLog.open(self._disk, segment_bytes=SEGMENT_BYTES_MIN, random_bytes=self._disk.rng.randbytes)
        self._load()

    def _load(self) -> None:
        journal = _WatchedNode.load(self._log, 0) or _WatchedNode.create(
            self._log, 0, group=GROUP, state_name=self._add_state(State())
        )
        assert isinstance(journal, _WatchedNode)
        self.journal = self._node = self._watch(journal)
        self.saved = self._states[journal.state_name]

    @property
    def changed(self) -> bool:
        return self._log.staged_bytes > 0

    def begin_sync(self) -> None:
        super().begin_sync()
        self._flush = self._log.begin_flush()

    def _write(self) -> None:
        flush = self._flush if self.syncing else self._log.begin_flush()
        if flush is not None:
            flush.run()
            flush.done()
        self._flush = None
        self._node.synced()
        if self.draw.random() < _CUT_SHARE:
            self._log.cut({0: self._node.base_index + 1})

    def save(self, state: State) -> None:
        super().save(state)
        if self.installed is None:
            self._states[self._node.state_name] = state

    def prepare_install(self, state: State) -> None:
        self._node.next_state_name = self._add_state(state)

    def _add_state(self, state: State) -> str:
        name = f"s{len(self._states)}"
        self._states[name] = state
        return name

    def crash(self) -> None:
        """In the middle of a write, if one is under way: any part of it may have reached the disk."""
        if self._flush is not None:
            self._disk.crash_after(self.draw.randrange(6))
            with contextlib.suppress(SimulatedCrash):
                self._flush.run()
        changes = self._node.changes if self._flush is not None else []
        self._flush, self.syncing, self.installed = None, False, None
        self._disk.crash()
        self._open()
        self._learn_what_survived(changes)

    def drop(self) -> None:
        assert self._flush is not None
        self._flush.abort()
        self._flush, self.syncing, self.installed = None, False, None
        self._load()

    def wipe(self) -> None:
        """The power may fail while the log is told; then it is told again."""
        crashes_after = self.draw.choice([None, self.draw.randrange(6)])
        while tombstone_of(self._log, 0) is None:
            self._node.forget()
            flush = self._log.begin_flush()
            assert flush is not None
            if crashes_after is None:
                flush.run()
                flush.done()
                break
            self._disk.crash_after(crashes_after)
            with contextlib.suppress(SimulatedCrash):
                flush.run()
            self._disk.crash()
            crashes_after = None
            self._open()
        self.durable.wipe()
        self._load()

    def _learn_what_survived(self, changes: list[Change]) -> None:
        """A round is on the disk as a whole or not at all."""
        if not self.durable.is_of(self._node):
            for change in changes:
                change(self.durable)
            if not self.durable.is_of(self._node):
                raise AssertionError("a crash has left a log that never was")
