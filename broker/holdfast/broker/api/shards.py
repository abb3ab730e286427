"""The operators' side of the wire API: translates between `ShardAdmin` and messages. It holds no rules of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from holdfast.broker.cluster_view.view import NodeAddress
from holdfast.proto.v1 import shards_pb2 as pb
from holdfast.raft.messages import Configuration
from holdfast.serving.refusals import INVALID_FIELD, MISSING_FIELD, OUT_OF_RANGE, RefusedError

PROBE_WAIT_MS_MAX = 60_000
SHARD_MAX = 2**32 - 1  # as wide as on the wire between nodes

_INT64_MAX = 2**63 - 1
_NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Role(Enum):
    """What a replica is at the moment."""

    LEADER = pb.REPLICA_ROLE_LEADER
    FOLLOWER = pb.REPLICA_ROLE_FOLLOWER
    LEARNER = pb.REPLICA_ROLE_LEARNER
    CANDIDATE = pb.REPLICA_ROLE_CANDIDATE
    BLANK = pb.REPLICA_ROLE_BLANK


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica of this node. Each field is that of the message `Replica`."""

    shard: int
    role: Role
    term: int
    leader: str | None  # the name of the node
    commit_index: int
    applied_index: int
    last_index: int
    lag: int
    log_bytes: int
    snapshot_age_ms: int | None  # None: never
    configuration: Configuration
    problem: str = ""  # why it refuses to serve
    state_bytes: int = 0
    caught_up: Sequence[str] = ()  # of a leader


@dataclass(frozen=True, slots=True)
class NodeView:
    """This node."""

    name: str
    node_id: str
    version: str
    nodes: Sequence[NodeAddress]  # all of the cluster, in the order of the configuration
    replicas: Sequence[ReplicaView]  # by shard
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who leads a shard in a term; no node if that is not known."""

    epoch: int
    node: NodeAddress | None


@dataclass(frozen=True, slots=True)
class ProbeView:
    """How far a replica is, and the hash of its state at the probe if it got there in time."""

    applied_index: int
    state_hash: bytes | None


class ShardAdmin(Protocol):
    """What a node lets operators do. Each method raises the refusals that shards.proto names for its call
    (`refusals.shard_not_found`, `not_leader`, `probe_not_found`, `change_refused`) or `OutcomeUnknownError`."""

    def describe(self) -> NodeView: ...

    def find_leader(self, shard: int) -> LeaderView:
        """As far as this node knows. Called often by clients whose leader is silent: it must cost nothing."""

    async def transfer(self, shard: int, to: str) -> LeaderView:
        """Returns once the node named `to` leads, at once if it does already."""

    async def probe(self, shard: int) -> int:
        """Writes an entry at which every replica hashes its state; its index, once it is committed."""

    async def read_probe(self, shard: int, index: int, wait_ms: int) -> ProbeView:
        """This replica's hash at that entry, waiting for it to be applied."""


class ShardService:
    """One method per RPC of the service Shards."""

    def __init__(self, admin: ShardAdmin) -> None:
        self._admin = admin

    async def describe_node(self, request: pb.DescribeNodeRequest) -> pb.DescribeNodeResponse:
        node = self._admin.describe()
        response = pb.DescribeNodeResponse(
            name=node.name, node_id=node.node_id, version=node.version, is_stopping=node.is_stopping
        )
        for info in node.nodes:
            response.nodes.add(name=info.name, address=info.address)
        for replica in node.replicas:
            _fill_replica(response.replicas.add(), replica)
        return response

    async def find_leader(self, request: pb.FindLeaderRequest) -> pb.FindLeaderResponse:
        found = self._admin.find_leader(_shard(request.shard))
        response = pb.FindLeaderResponse(epoch=found.epoch)
        if found.node is not None:
            response.leader, response.address = found.node.name, found.node.address
        return response

    async def transfer_leadership(self, request: pb.TransferLeadershipRequest) -> pb.TransferLeadershipResponse:
        found = await self._admin.transfer(_shard(request.shard), _node_name(request.to))
        return pb.TransferLeadershipResponse(leader=found.node.name if found.node else request.to, epoch=found.epoch)

    async def probe_shard(self, request: pb.ProbeShardRequest) -> pb.ProbeShardResponse:
        return pb.ProbeShardResponse(index=await self._admin.probe(_shard(request.shard)))

    async def read_probe(self, request: pb.ReadProbeRequest) -> pb.ReadProbeResponse:
        shard, index = _shard(request.shard), _number(request.index, "index", 1, _INT64_MAX)
        wait_ms = _number(request.wait_ms, "wait_ms", 0, PROBE_WAIT_MS_MAX)
        probe = await self._admin.read_probe(shard, index, wait_ms)
        return pb.ReadProbeResponse(state_hash=probe.state_hash or b"", applied_index=probe.applied_index)


def _fill_replica(message: pb.Replica, replica: ReplicaView) -> None:
    message.shard = replica.shard
    message.role = replica.role.value
    message.term = replica.term
    message.leader = replica.leader or ""
    message.commit_index = replica.commit_index
    message.applied_index = replica.applied_index
    message.last_index = replica.last_index
    message.lag = replica.lag
    message.log_bytes = replica.log_bytes
    message.state_bytes = replica.state_bytes
    message.snapshot_age_ms = -1 if replica.snapshot_age_ms is None else replica.snapshot_age_ms
    message.membership.version = replica.configuration.version
    message.membership.voters.extend(replica.configuration.voters)
    message.membership.learners.extend(replica.configuration.learners)
    message.problem = replica.problem
    message.caught_up.extend(replica.caught_up)


def _number(value: int, field: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise RefusedError(
            OUT_OF_RANGE, f"Expected {{field}} from {low} to {high}, but got {value}.", field, f"{low}..{high}"
        )
    return value


def _shard(number: int) -> int:
    return _number(number, "shard", 0, SHARD_MAX)


def _node_name(text: str) -> str:
    if not text:
        raise RefusedError(MISSING_FIELD, "Expected the name of a node ({field}), but it is empty.", "to")
    if not _NODE_NAME.fullmatch(text):
        raise RefusedError(INVALID_FIELD, "Expected {field} to be the name of a node, but it cannot be one.", "to")
    return text
