"""What is well and what is not in a cluster: the map compared with what the nodes say. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.client import ClusterInfo, ClusterShard, NodeReport, ReplicaInfo, ReplicaRole

_VOTING = (ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.CANDIDATE)


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard, with what is known of it from both sides."""

    shard: int
    leader: str  # the name of a node; empty if there is none
    epoch: int
    replicas: tuple[str, ...]  # nodes that should have it
    voters: tuple[str, ...]  # nodes that have it, without those that learn it anew
    learners: tuple[str, ...]
    leaving: tuple[str, ...]
    lag: int | None  # of the voter that is furthest behind; None unless all of them tell theirs
    change: str  # what is under way, in a few words
    problem: str  # what is wrong, in a few words


def name_of(identity: str) -> str:
    """The node of a replica."""
    return identity.partition("/")[0]


def views(info: ClusterInfo, reports: Sequence[NodeReport] = ()) -> list[ShardView]:
    """All shards. If no node can be asked from here, the hints in the map have to do."""
    alive = frozenset(node.name for node in info.nodes if node.is_alive)
    answers = {report.name: report.node for report in reports if report.node is not None}
    node_ids = {name: node.node_id for name, node in answers.items()}
    replicas: dict[int, dict[str, ReplicaInfo]] = {}
    for name, node in answers.items():
        for replica in node.replicas:
            replicas.setdefault(replica.shard, {})[name] = replica
    return [_view(shard, _Answers(alive, node_ids, replicas.get(shard.shard, {}))) for shard in info.shards]


@dataclass(frozen=True, slots=True)
class _Answers:
    """What is known of one shard beside the map."""

    alive: frozenset[str]
    node_ids: Mapping[str, str]  # of the nodes that answered; empty if none can be reached from here
    replicas: Mapping[str, ReplicaInfo]  # what they say of their replica, if they have one


def _view(shard: ClusterShard, answers: _Answers) -> ShardView:
    learners = tuple(map(name_of, shard.learners))
    # Who has lost its data learns under a new id before its old one goes: it is no voter that could be counted on.
    voters = tuple(name for name in map(name_of, shard.voters) if name not in learners)
    leader, epoch = _leader(shard, answers)
    missing = [words for identity in shard.voters if (words := _why_missing(identity, answers))]
    lags = [answers.replicas[name].lag for name in voters if name in answers.replicas]
    return ShardView(
        shard=shard.shard,
        leader=leader,
        epoch=epoch,
        replicas=shard.replicas,
        voters=voters,
        learners=learners,
        leaving=tuple(map(name_of, shard.leaving)),
        lag=max(lags) if lags and not missing else None,
        change=_change(shard, voters, learners),
        problem=_problem(shard, leader, missing, answers),
    )


def _leader(shard: ClusterShard, answers: _Answers) -> tuple[str, int]:
    """Who says that it leads; otherwise the map's hint, if that node is there, and others who answer follow it."""
    leading = [(replica.term, name) for name, replica in answers.replicas.items() if replica.role is ReplicaRole.LEADER]
    if leading:
        term, name = max(leading)
        return name, max(term, shard.epoch) if name == shard.leader else term
    if shard.leader not in answers.alive or shard.leader in answers.node_ids:
        return "", 0
    if answers.node_ids and not any(replica.leader == shard.leader for replica in answers.replicas.values()):
        return "", 0
    return shard.leader, shard.epoch


def _change(shard: ClusterShard, voters: Sequence[str], learners: Sequence[str]) -> str:
    desired = set(shard.replicas)
    parts = [f"{name} learns" for name in learners]
    parts += [f"{name} is to come" for name in shard.replicas if name not in voters and name not in learners]
    parts += [f"{name} is to go" for name in voters if name not in desired]
    parts += [f"{name_of(replica)} has to delete it" for replica in shard.leaving]
    return ", ".join(parts) if shard.voters else ""


def _why_missing(identity: str, answers: _Answers) -> str:
    """Why this voter cannot be counted on, in a few words; empty if it can."""
    name, _, node_id = identity.partition("/")
    if name not in answers.node_ids:
        if name not in answers.alive:
            return f"{name} is gone"
        return f"{name} does not answer" if answers.node_ids else ""
    if answers.node_ids[name] != node_id:
        return f"{name} has lost its data and is being rebuilt"
    replica = answers.replicas.get(name)
    if replica is None or replica.role is ReplicaRole.BLANK:
        return f"{name} has no copy yet"
    return "" if replica.role in _VOTING else f"{name} does not vote yet"


def _problem(shard: ClusterShard, leader: str, missing: Sequence[str], answers: _Answers) -> str:
    if not shard.voters:
        return "it has not begun yet: its nodes have not all been there"
    count = len(shard.voters)
    if 2 * (count - len(missing)) <= count:
        return f"no majority of {count} voters: {', '.join(missing)}"
    problems = [*([] if leader else ["no leader"]), *missing]
    if count < len(shard.replicas):  # a move adds before it removes: one was lost, and its successor does not vote yet
        problems.append(f"only {count} of {len(shard.replicas)} voters")
    problems += [
        f"{name} does not serve: {replica.problem}" for name, replica in answers.replicas.items() if replica.problem
    ]
    return "; ".join(problems)


def is_spread(view: ShardView) -> bool:
    """Whether its replicas are where they should be, and nothing is under way."""
    return sorted(view.voters) == sorted(view.replicas) and not view.learners and not view.leaving
