"""Who may lead in a leader's place: only who answers. Nothing is served until it does, and the dead never do."""

from collections.abc import Collection

from holdfast.raft.engine import ShardRaft


def answers(raft: ShardRaft, member: str, now_s: float) -> bool:
    """Whether a member was there a moment ago, as this leader knows."""
    heard_s = raft.peer_heard_s(member)
    return heard_s is not None and now_s < heard_s + raft.timing.election_s_max


def caught_up(raft: ShardRaft, now_s: float) -> list[str]:
    """The voters that could go on without delay, as this leader knows; itself included."""
    others = (voter for voter in raft.configuration.voters if voter != raft.replica)
    ready = [voter for voter in others if answers(raft, voter, now_s) and raft.has_caught_up(voter)]
    return [*ready, raft.replica] if raft.replica in raft.configuration.voters else ready


def best_successor(raft: ShardRaft, now_s: float, among: Collection[str] | None = None) -> str | None:
    """Of all other voters that answer, or of these, the one that has the most; None if there is none."""
    others = [voter for voter in raft.configuration.voters if voter != raft.replica and (not among or voter in among)]
    there = [voter for voter in others if answers(raft, voter, now_s)]
    # While nothing is written one that has just died has as much as the others: then the newest word counts.
    known = raft.progress
    return max(there, key=lambda voter: (known[voter].match_index, known[voter].echoed_sent_s), default=None)
