"""The only file that knows pysyncobj: which of its private names are used, and what they are called here.

The library is made for one object per process that ticks by itself, talks over its own sockets and writes its own
files. Here it keeps the state of one replica and a few steps that are right as they are (a term and a vote are stored
together, a leader begins with an entry of its own term). Everything that was found wrong is replaced in engine.py, and
nothing of the library is seen there: its object is behind this file's `LibraryRaft`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pysyncobj.syncobj as _module
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION as _VERSION

from holdfast.raft.journal import Journal
from holdfast.raft.messages import EntryKind, LogEntry

_WANTED_VERSION = "0.3.17"
_ATTRIBUTES = (
    "raftState", "raftCurrentTerm", "votedForNodeId", "raftLeader", "raftLog", "noopIDx",
)  # fmt: skip
_METHODS = ("onMessageReceived", "onBecomeLeader", "setCurrentTerm", "setState", "sendAppendEntries")


def _check() -> None:
    """Another release may have renamed or changed any of it: better no start than a wrong one."""
    if _VERSION != _WANTED_VERSION:
        raise ImportError(f"Expected pysyncobj {_WANTED_VERSION}, but {_VERSION} is installed.")
    known = SyncObj.__init__.__code__.co_names
    missing = [name for name in _ATTRIBUTES if f"_SyncObj__{name}" not in known]
    missing += [name for name in _METHODS if not hasattr(SyncObj, f"_SyncObj__{name}")]
    kinds = _module._COMMAND_TYPE
    if (kinds.REGULAR, kinds.NO_OP) != (EntryKind.REGULAR, EntryKind.NO_OP):
        missing.append("the kinds of entries that logs on disk have")
    if missing:
        raise ImportError(f"Expected pysyncobj to have {', '.join(missing)}, but it has not.")


_check()
# A journal is handed over as it is, in the place of a file's name.
_module.createJournal = lambda journal: journal

FOLLOWER: int = _module._RAFT_STATE.FOLLOWER
CANDIDATE: int = _module._RAFT_STATE.CANDIDATE
LEADER: int = _module._RAFT_STATE.LEADER


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient replicas are with each other, in seconds."""

    heartbeat_s: float = 0.15
    election_s_min: float = 0.5  # without a sign of the leader before an election
    election_s_max: float = 1.0
    # Without an answer of a majority before a leader steps down. Counted from when the question was sent, and less than
    # what followers wait from when they got it: nobody can be elected before that.
    silence_s_max: float = 0.45


class Setup(NamedTuple):
    """What a replica begins with."""

    replica: str
    journal: Journal
    timing: Timing
    draw: Callable[[], float]
    now_s: float
    append_bytes_max: int
    shard_time_ms: Callable[[], int]  # what a leader tells the others; 0 if it does not know


class _LibraryJournal:
    """A journal under the names that the library calls, as far as it does. Its rows are a command that begins with the
    kind, the index and the term; there is always one, that of the base, and only the last is ever asked for."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __len__(self) -> int:
        return self._journal.last_index - self._journal.base_index + 1

    def __getitem__(self, position: int) -> tuple[bytes, int, int]:
        assert position == -1
        index = self._journal.last_index
        term = self._journal.term_at(index)
        assert term is not None
        return b"", index, term

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._journal.append(LogEntry(idx, term, EntryKind(command[0]), command[1:]))

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self._journal.set_term(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._journal.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._journal.voted_for

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """It is not kept: after a restart a leader tells it, or an election finds it."""
        return self._journal.base_index


class _NoTransport(Transport):  # type: ignore[misc]  # the library has no types
    """Engines have their own way to the others."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: object, message: object) -> None:
        raise AssertionError("a step of the library that should have been replaced has sent a message")


class _Library(SyncObj):  # type: ignore[misc]  # the library has no types
    """Its object for one replica, without what it would do by itself."""

    def __init__(self, replica: str, journal: Journal) -> None:
        settings = SyncObjConf(autoTick=False, journalFile=_LibraryJournal(journal))
        super().__init__(Node(replica), [], settings, transport=_NoTransport())

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 - its name in the library
        """Called when it becomes the leader. The engine sends by itself."""

    def _SyncObj__onMessageReceived(self, node: object, message: object) -> None:  # noqa: N802
        raise AssertionError("messages go to the engine's own step")


class LibraryRaft:
    """The library's state of one replica, with plain names: what its steps change is read after each of them."""

    def __init__(self, setup: Setup) -> None:
        self.draw = setup.draw
        self.timing = setup.timing
        self.replica = setup.replica
        self.journal = setup.journal
        self._library = _Library(setup.replica, setup.journal)
        self.commit_index = self.applied_index = setup.journal.base_index
        self.election_deadline_s = 0.0
        self._read_library()

    # --- its state, with plain names --------------------------------------------------------------------------

    def _read_library(self) -> None:
        library = self._library
        self.role: int = library._SyncObj__raftState
        self.term: int = library._SyncObj__raftCurrentTerm
        self.voted_for: str | None = library._SyncObj__votedForNodeId
        leader = library._SyncObj__raftLeader
        self.leader: str | None = None if leader is None else str(leader.id)
        self.first_own_index = int(library._SyncObj__noopIDx or 0)  # the entry with which this leader began

    def follow(self, leader: str | None) -> None:
        """Becomes, or stays, a follower; of nobody known yet if there is no leader."""
        self._library._SyncObj__raftLeader = None if leader is None else Node(leader)
        self._library._SyncObj__setState(FOLLOWER)
        self._read_library()

    def stand(self) -> None:
        """Becomes a candidate."""
        self._library._SyncObj__raftLeader = None
        self._library._SyncObj__setState(CANDIDATE)
        self._read_library()

    def set_term(self, term: int, voted_for: str | None) -> None:
        """Term and vote go into the journal together."""
        self._library._SyncObj__setCurrentTerm(term, voted_for)
        self._read_library()

    def lead(self) -> None:
        """Becomes the leader, with an entry of its own term at the end of its log."""
        self._library._SyncObj__onBecomeLeader()
        self._read_library()

    def draw_election_s(self) -> float:
        """How long to wait for a sign of a leader, this time."""
        least_s, most_s = self.timing.election_s_min, self.timing.election_s_max
        return least_s + (most_s - least_s) * self.draw()

    # --- its log ----------------------------------------------------------------------------------------------

    def use_journal(self, journal: Journal) -> None:
        self.journal, self._library._SyncObj__raftLog = journal, _LibraryJournal(journal)

    @property
    def base_index(self) -> int:
        """The last entry that the log no longer has."""
        return self.journal.base_index

    @property
    def last_index(self) -> int:
        return self.journal.last_index

    @property
    def last_term(self) -> int:
        term = self.journal.term_at(self.last_index)
        assert term is not None
        return term

    def term_at(self, index: int) -> int | None:
        """The term of an entry or of the base; None if the log does not have it."""
        return self.journal.term_at(index)

    def entry_at(self, index: int) -> LogEntry:
        return self.journal.entry_at(index)

    def append(self, entry: LogEntry) -> None:
        self.journal.append(entry)

    def cut_from(self, index: int) -> None:
        self.journal.cut_from(index)
