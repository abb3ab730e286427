"""Who may lead in a leader's place: only who answers. Nothing is served until it does, and the dead never do."""

from collections.abc import Collection

from holdfast.broker.cluster_view.view import ClusterView
from holdfast.broker.peers.identities import name_of
from holdfast.raft.engine import ShardRaft

RELUCTANT_ELECTIONS = 3  # for which a node that is about to be stopped waits for others to be elected


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


def hand_over(
    raft: ShardRaft,
    now_s: float,
    cluster_view: ClusterView,
    *,
    is_stopping: bool = False,
    among: Collection[str] | None = None,
) -> bool:
    """Begins to hand over to the best of these, or of all that are willing; False if there is nobody to hand over to.
    `is_stopping`: this node ends at this moment."""
    if among is None and not (among := _willing(raft, cluster_view, is_stopping=is_stopping)):
        return False
    successor = best_successor(raft, now_s, among)
    return successor is not None and raft.hand_over(successor)


def _willing(raft: ShardRaft, cluster_view: ClusterView, *, is_stopping: bool) -> list[str]:
    """Voters that are not about to be stopped. A node that stops at this moment takes what it can get."""
    others = [voter for voter in raft.configuration.voters if voter != raft.replica]
    takes = cluster_view.takes_leadership
    staying = [voter for voter in others if takes(name_of(voter))]
    at_need = [voter for voter in others if takes(name_of(voter), at_need=True)] if is_stopping else []
    return staying or at_need


def is_reluctant(raft: ShardRaft, now_s: float, *, is_handing_over: bool) -> bool:
    """Before a node is stopped it leaves elections to others. But what nobody leads for long it would rather lead
    than leave without a leader."""
    if not is_handing_over:
        return False
    return raft.leader_silent_s(now_s) < RELUCTANT_ELECTIONS * raft.timing.election_s_max
