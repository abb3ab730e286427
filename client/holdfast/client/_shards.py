"""What operators ask about shards: every node of the cluster, and every replica of a shard."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from holdfast.client._fitting import fit
from holdfast.client._rpc import Connection, method
from holdfast.client.cluster_models import (
    Membership,
    NodeAddress,
    NodeInfo,
    NodeReport,
    ReplicaHash,
    ReplicaInfo,
    ReplicaRole,
    ShardHash,
    Transferred,
)
from holdfast.client.errors import ClientClosed, HoldfastError, NotFound, UnexpectedAnswer
from holdfast.common.service import end_tasks
from holdfast.proto.v1 import shards_pb2 as pb

NODES_MAX = 1_000  # more than that is not a cluster but a fault
_PROBE_WAIT_S_MAX = 60.0
# Of the time that is left, what a replica may take to get to a probe; the rest is for its answer.
_WAIT_SHARE = 0.9
_ASK_S_MIN = 0.1

_DESCRIBE = method(pb, "Shards", "DescribeNode", pb.DescribeNodeRequest, pb.DescribeNodeResponse)
_TRANSFER = method(pb, "Shards", "TransferLeadership", pb.TransferLeadershipRequest, pb.TransferLeadershipResponse)
_PROBE = method(pb, "Shards", "ProbeShard", pb.ProbeShardRequest, pb.ProbeShardResponse)
_READ_PROBE = method(pb, "Shards", "ReadProbe", pb.ReadProbeRequest, pb.ReadProbeResponse)

_ROLES: dict[int, ReplicaRole] = {
    pb.REPLICA_ROLE_LEADER: ReplicaRole.LEADER,
    pb.REPLICA_ROLE_FOLLOWER: ReplicaRole.FOLLOWER,
    pb.REPLICA_ROLE_LEARNER: ReplicaRole.LEARNER,
    pb.REPLICA_ROLE_CANDIDATE: ReplicaRole.CANDIDATE,
    pb.REPLICA_ROLE_BLANK: ReplicaRole.BLANK,
}


async def describe_nodes(connection: Connection, timeout_s: float) -> list[NodeReport]:
    """Asks the listed servers and all that they name, at the same time; one report per node, by name."""
    ends_s = time.monotonic() + timeout_s
    names: dict[str, str] = {}  # of nodes, by the address that other nodes have for them
    asked: dict[asyncio.Task[NodeInfo], str] = {}
    reports: list[NodeReport] = []

    def ask(address: str) -> None:
        if address not in asked.values() and len(asked) < NODES_MAX:
            asked[asyncio.create_task(_describe(connection, address, ends_s))] = address

    for address in connection.addresses:
        ask(address)
    try:
        while waiting := [task for task in asked if not task.done()]:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for info in (task.result() for task in done if task.exception() is None):
                names |= {node.address: node.name for node in info.nodes}
                for node in info.nodes:
                    if node.name != info.name:
                        ask(node.address)
    finally:
        await end_tasks(asked)
    for task, address in asked.items():
        error = task.exception()
        if isinstance(error, HoldfastError) and not isinstance(error, ClientClosed):
            reports.append(NodeReport(names.get(address, ""), address, error=error))
        else:
            reports.append(NodeReport(task.result().name, address, task.result()))
    return _with_true_lags(_each_once(reports))


async def _describe(connection: Connection, address: str, ends_s: float) -> NodeInfo:
    left_s = round(max(_ASK_S_MIN, ends_s - time.monotonic()), 1)  # people may be told how long it was
    return _node_info(await connection.call_at(address, _DESCRIBE, pb.DescribeNodeRequest(), timeout_s=left_s))


def _each_once(reports: Sequence[NodeReport]) -> list[NodeReport]:
    """A node may have been asked under two addresses, e.g. by its name in the network and by its number."""
    answered = {report.name for report in reports if report.node is not None}
    kept: dict[str, NodeReport] = {}
    for report in reports:
        if report.node is None and report.name in answered:
            continue
        kept.setdefault(report.name or report.address, report)
    return sorted(kept.values(), key=lambda report: (report.name or "\N{REPLACEMENT CHARACTER}", report.address))


def _with_true_lags(reports: Sequence[NodeReport]) -> list[NodeReport]:
    """A node that is cut off cannot know how far the others are, so its lag is counted against what they say."""
    committed: dict[int, int] = {}
    for replica in (replica for report in reports if report.node is not None for replica in report.node.replicas):
        committed[replica.shard] = max(committed.get(replica.shard, 0), replica.commit_index)

    def corrected(node: NodeInfo) -> NodeInfo:
        replicas = (
            replace(replica, lag=max(replica.lag, committed[replica.shard] - replica.applied_index))
            for replica in node.replicas
        )
        return replace(node, replicas=tuple(replicas))

    return [report if report.node is None else replace(report, node=corrected(report.node)) for report in reports]


async def transfer(connection: Connection, shard: int, to: str, timeout_s: float) -> Transferred:
    request = fit(pb.TransferLeadershipRequest, shard=shard, to=to)
    # Repeating it does no harm: a node that leads already is the answer.
    reply = await connection.call(_TRANSFER, request, timeout_s=timeout_s, repeatable=True, shard=shard)
    return Transferred(reply.message.leader, reply.message.epoch)


async def hash_shard(connection: Connection, shard: int, timeout_s: float) -> ShardHash:
    """A probe at the leader, and then every replica's hash at its index."""
    ends_s = time.monotonic() + timeout_s
    request = fit(pb.ProbeShardRequest, shard=shard)
    # A second probe does no harm, so it may be repeated.
    reply = await connection.call(_PROBE, request, timeout_s=timeout_s, repeatable=True, shard=shard)
    index = reply.message.index
    reports = await describe_nodes(connection, max(_ASK_S_MIN, (ends_s - time.monotonic()) / 2))
    replicas = [_read_hash(connection, shard, index, member, reports, ends_s) for member in _members(shard, reports)]
    return ShardHash(shard, index, tuple(await asyncio.gather(*replicas)))


def _members(shard: int, reports: Sequence[NodeReport]) -> list[str]:
    """Identities of all replicas, by the newest membership that a replica knows."""
    known = [
        replica.membership
        for report in reports
        if report.node is not None
        for replica in report.node.replicas
        if replica.shard == shard
    ]
    newest = max(known, key=lambda membership: membership.version, default=Membership())
    if not newest.voters:
        raise UnexpectedAnswer(f"no node knows the members of shard {shard}")
    return sorted((*newest.voters, *newest.learners))


async def _read_hash(
    connection: Connection, shard: int, index: int, member: str, reports: Sequence[NodeReport], ends_s: float
) -> ReplicaHash:
    name, _, node_id = member.partition("/")
    report = next((report for report in reports if report.name == name), None)
    if report is None:
        return ReplicaHash(name, "", error=_missing(f"Expected node {name} in the cluster, but no node names it."))
    if report.node is None:
        return ReplicaHash(name, report.address, error=report.error)
    if report.node.node_id != node_id:
        problem = f"Expected replica {member}, but node {name} has lost it: it is another one now."
        return ReplicaHash(name, report.address, error=_missing(problem))
    left_s = max(_ASK_S_MIN, ends_s - time.monotonic())
    wait_ms = int(min(_PROBE_WAIT_S_MAX, left_s * _WAIT_SHARE) * 1000)
    request = pb.ReadProbeRequest(shard=shard, index=index, wait_ms=wait_ms)
    try:
        probe = await connection.call_at(report.address, _READ_PROBE, request, timeout_s=left_s)
    except HoldfastError as error:
        return ReplicaHash(name, report.address, error=error)
    return ReplicaHash(name, report.address, probe.state_hash.hex() or None, probe.applied_index)


def _missing(sentence: str) -> NotFound:
    return NotFound(sentence, reason="SHARD_NOT_FOUND")


def _node_info(message: pb.DescribeNodeResponse) -> NodeInfo:
    nodes = tuple(NodeAddress(node.name, node.address) for node in message.nodes)
    return NodeInfo(message.name, message.node_id, message.version, nodes, tuple(map(_replica_info, message.replicas)))


def _replica_info(message: pb.Replica) -> ReplicaInfo:
    members = message.membership
    return ReplicaInfo(
        shard=message.shard,
        role=_ROLES.get(message.role, ReplicaRole.UNKNOWN),
        term=message.term,
        leader=message.leader,
        commit_index=message.commit_index,
        applied_index=message.applied_index,
        last_index=message.last_index,
        lag=message.lag,
        log_bytes=message.log_bytes,
        snapshot_age_ms=None if message.snapshot_age_ms < 0 else message.snapshot_age_ms,
        membership=Membership(members.version, tuple(members.voters), tuple(members.learners)),
        problem=message.problem,
    )
