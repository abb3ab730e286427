"""What the replicas of a shard say to each other. Every message carries the sender's term."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    command: bytes = field(repr=False)
    index: int
    term: int


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
    entries: tuple[Entry, ...]
    commit_index: int
    round: int  # counts the leader's sendings; a reply repeats it


@dataclass(frozen=True, slots=True)
class AppendReply:
    term: int
    success: bool
    index: int  # success: the log agrees up to here, durably; otherwise: try from after here
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: hold an election at once."""

    term: int


Message = PreVote | PreVoteReply | RequestVote | VoteReply | Append | AppendReply | TimeoutNow
