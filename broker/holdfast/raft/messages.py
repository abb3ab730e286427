"""What the replicas of a shard say to each other. Every message carries the sender's term."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

TERM_MAX = 2**62  # in a message: nobody is elected beyond it, so nobody must get near it (see engine.py)


class ImpossibleMessageError(ValueError):
    """No correct member can have sent this, whatever was lost, late or repeated. Nothing was changed because of it."""


class EntryKind(IntEnum):
    """What an entry is. The numbers are in logs and messages; the first two are the library's."""

    REGULAR = 0x00  # what a shard's machine applies
    NO_OP = 0x01  # with which a leader begins
    CONFIGURATION = 0x10  # who belongs to the group from here on
    PROBE = 0x11  # a place in the log at which replicas compare themselves; it changes nothing


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log."""

    index: int
    term: int
    kind: EntryKind
    command: bytes = field(default=b"", repr=False)

    @property
    def size_bytes(self) -> int:
        """In a log or in a message, without what is said of every entry. Never 0."""
        return 1 + len(self.command)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who belongs to a group. Each change makes the next version."""

    version: int
    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()  # they get all entries and count for nothing

    def __post_init__(self) -> None:
        for members in (self.voters, self.learners):
            if tuple(sorted(set(members))) != members:
                raise ValueError("Expected members in order and each once, but they are not.")
        if not set(self.voters).isdisjoint(self.learners):
            raise ValueError("Expected a member to vote or to learn, but one does both.")

    @classmethod
    def of(cls, version: int, voters: Iterable[str], learners: Iterable[str] = ()) -> "Configuration":
        """From members in any order."""
        return cls(version, tuple(sorted(voters)), tuple(sorted(learners)))

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(sorted(self.voters + self.learners))


NO_CONFIGURATION = Configuration(0, ())  # of a replica that knows of no group yet


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me? Asked before an election, so that a replica that was cut off disturbs nobody."""

    term: int  # the one that the election would have
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    term: int  # the one asked for if granted, otherwise the sender's own
    granted: bool


@dataclass(frozen=True, slots=True)
class RequestVote:
    term: int
    last_index: int
    last_term: int
    transfer: bool = False  # the leader itself asked for this election


@dataclass(frozen=True, slots=True)
class VoteReply:
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow `previous_index`, or none: a heartbeat."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit_index: int
    round: int  # counts the leader's sendings; a reply repeats it
    now_ms: int = 0  # the leader's shard time; 0 if it does not know


@dataclass(frozen=True, slots=True)
class AppendReply:
    term: int
    success: bool
    # Success: the log agrees up to here, durably; with 0 it says nothing of the log. Otherwise: try from after here.
    index: int
    round: int


class Sign(NamedTuple):
    """What an append or its reply says before it is read in full: that its sender lives."""

    is_reply: bool
    term: int
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: hold an election at once."""

    term: int


Message = PreVote | PreVoteReply | RequestVote | VoteReply | Append | AppendReply | TimeoutNow
