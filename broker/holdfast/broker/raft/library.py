"""The only file that knows pysyncobj: which of its private names are used, and what they are called here.

The library is made for one object per process that ticks by itself, talks over its own sockets and writes its own
files. Here it keeps the state of one replica and a few steps that are right as they are (a term and a vote are stored
together, a leader begins with an entry of its own term). Everything that was found wrong is replaced in engine.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pysyncobj.syncobj as _module
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION as _VERSION

from holdfast.broker.raft.journal import Journal
from holdfast.broker.raft.messages import Entry

_WANTED_VERSION = "0.3.17"
_ATTRIBUTES = (
    "raftState", "raftCurrentTerm", "votedForNodeId", "raftLeader", "raftElectionDeadline", "raftLog",
    "raftCommitIndex", "raftLastApplied", "raftNextIndex", "raftMatchIndex", "otherNodes", "noopIDx",
)  # fmt: skip
_METHODS = (
    "onMessageReceived",
    "onBecomeLeader",
    "setCurrentTerm",
    "setState",
    "sendAppendEntries",
    "generateRaftTimeout",
)


def _check() -> None:
    """Another release may have renamed or changed any of it: better no start than a wrong one."""
    if _VERSION != _WANTED_VERSION:
        raise ImportError(f"Expected pysyncobj {_WANTED_VERSION}, but {_VERSION} is installed.")
    known = SyncObj.__init__.__code__.co_names
    missing = [name for name in _ATTRIBUTES if f"_SyncObj__{name}" not in known]
    missing += [name for name in _METHODS if not hasattr(SyncObj, f"_SyncObj__{name}")]
    if missing:
        raise ImportError(f"Expected pysyncobj to have {', '.join(missing)}, but it has not.")


_check()
# The journal is handed over as it is, in the place of a file's name.
_module.createJournal = lambda journal: journal

FOLLOWER, CANDIDATE, LEADER = _module._RAFT_STATE.FOLLOWER, _module._RAFT_STATE.CANDIDATE, _module._RAFT_STATE.LEADER
NO_OP = bytes([_module._COMMAND_TYPE.NO_OP])
REGULAR = bytes([_module._COMMAND_TYPE.REGULAR])


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient replicas are with each other, in seconds."""

    heartbeat_s: float = 0.05
    election_s_min: float = 0.3  # without a sign of the leader before an election
    election_s_max: float = 0.6
    # Without an answer of a majority before a leader steps down. Counted from when the question was sent, and less than
    # what followers wait from when they got it: nobody can be elected before that.
    silence_s_max: float = 0.25


class _NoTransport(Transport):  # type: ignore[misc]  # the library has no types
    """Engines put what they have to say into their outbox."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: object, message: object) -> None:
        raise AssertionError("a step of the library that should have been replaced has sent a message")


class LibraryRaft(SyncObj):  # type: ignore[misc]  # the library has no types
    """The library's state of one replica, with plain names."""

    def __init__(
        self, replica: str, voters: set[str], journal: Journal, timing: Timing, draw: Callable[[], float]
    ) -> None:
        self.draw = draw
        self.timing = timing
        settings = SyncObjConf(
            autoTick=False,
            journalFile=journal,
            dynamicMembershipChange=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=timing.heartbeat_s,
            raftMinTimeout=timing.election_s_min,
            raftMaxTimeout=timing.election_s_max,
            leaderFallbackTimeout=timing.silence_s_max,
            connectionTimeout=max(timing.election_s_max, 1.0),
        )
        others = [Node(voter) for voter in sorted(voters) if voter != replica]
        super().__init__(Node(replica), others, settings, transport=_NoTransport())
        self.replica = replica

    # --- its state, with plain names --------------------------------------------------------------------------

    @property
    def role(self) -> int:
        return int(self._SyncObj__raftState)

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def voted_for(self) -> str | None:
        voted: str | None = self._SyncObj__votedForNodeId
        return voted

    @property
    def leader(self) -> str | None:
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    def follow(self, leader: str | None) -> None:
        """Becomes, or stays, a follower; of nobody known yet if there is no leader."""
        self._SyncObj__raftLeader = None if leader is None else Node(leader)
        self._SyncObj__setState(FOLLOWER)

    def stand(self) -> None:
        """Becomes a candidate."""
        self._SyncObj__raftLeader = None
        self._SyncObj__setState(CANDIDATE)

    def set_term(self, term: int, voted_for: str | None) -> None:
        """Term and vote go into the journal together."""
        self._SyncObj__setCurrentTerm(term, voted_for)

    def lead(self) -> None:
        """Becomes the leader, with an entry of its own term at the end of its log."""
        self._SyncObj__onBecomeLeader()

    @property
    def first_own_index(self) -> int:
        """The entry with which this leader began."""
        return int(self._SyncObj__noopIDx or 0)

    @property
    def others(self) -> list[str]:
        return sorted(str(node.id) for node in self._SyncObj__otherNodes)

    @property
    def election_deadline_s(self) -> float:
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline_s.setter
    def election_deadline_s(self, deadline_s: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline_s

    @property
    def commit_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex)

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    def next_index(self, replica: str) -> int:
        return int(self._SyncObj__raftNextIndex[Node(replica)])

    def set_next_index(self, replica: str, index: int) -> None:
        self._SyncObj__raftNextIndex[Node(replica)] = index

    def match_index(self, replica: str) -> int:
        return int(self._SyncObj__raftMatchIndex[Node(replica)])

    def set_match_index(self, replica: str, index: int) -> None:
        self._SyncObj__raftMatchIndex[Node(replica)] = index

    # --- its log ----------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Any:
        return self._SyncObj__raftLog

    @property
    def first_index(self) -> int:
        return int(self._log[0][1])

    @property
    def last_index(self) -> int:
        return int(self._log[-1][1])

    @property
    def last_term(self) -> int:
        return int(self._log[-1][2])

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None if the log does not have it."""
        position = index - self.first_index
        return int(self._log[position][2]) if 0 <= position < len(self._log) else None

    def entry_at(self, index: int) -> Entry:
        command, at, term = self._log[index - self.first_index]
        return Entry(command, at, term)

    def append(self, entry: Entry) -> None:
        self._log.add(entry.command, entry.index, entry.term)

    def cut_from(self, index: int) -> None:
        self._log.deleteEntriesFrom(index - self.first_index)

    # --- steps that the library would call by itself ----------------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 - its name in the library
        """Called when it becomes the leader. The engine sends by itself."""

    def _SyncObj__onMessageReceived(self, node: object, message: object) -> None:  # noqa: N802
        raise AssertionError("messages go to the engine's own step")

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        least_s, most_s = self.timing.election_s_min, self.timing.election_s_max
        return least_s + (most_s - least_s) * self.draw()
