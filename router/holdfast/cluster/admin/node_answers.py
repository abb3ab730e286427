"""What a plan needs and only the nodes know: how large a replica is, how far it is behind, and how to make one lead."""

from collections.abc import Callable
from typing import Final

from holdfast.cluster.admin.node_calls import NodeCallError, NodeCalls
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import name_of
from holdfast.proto.v1 import cluster_pb2 as cluster_pb
from holdfast.proto.v1 import shards_pb2 as pb
from holdfast.serving.refusals import ETCD_UNAVAILABLE, RefusedError, change_refused, node_not_found

ASK_SECONDS: Final = 3.0
TRANSFER_SECONDS: Final = 10.0
HAND_OVER_SECONDS: Final = 8.0
UNKNOWN: Final = -1

_SERVICE: Final = "/holdfast.proto.v1.Shards"
_HAND_OVER: Final = "/holdfast.proto.v1.Cluster/HandOverNode"
_HOPS_MAX: Final = 3


class NodeAnswers:
    """Each method asks the nodes that the map names."""

    def __init__(self, calls: NodeCalls, find_map: Callable[[], PartitionMap]) -> None:
        self._calls = calls
        self._find_map = find_map

    async def state_bytes(self, shard: int) -> int:
        """About what a new replica has to copy."""
        found = self._find_map()
        leader, record = found.shard_leader(shard), found.shards.get(shard)
        names = [leader.node] if leader is not None else []
        names += [name_of(voter) for voter in record.voters] if record is not None else []
        for name in dict.fromkeys(names):
            replica = await self._replica(shard, name)
            if replica is not None:
                return replica.state_bytes
        return UNKNOWN

    async def lag(self, shard: int, node: str) -> int:
        """Entries that the replica on a node lacks of what the leader has committed."""
        leader = self._find_map().shard_leader(shard)
        replica = await self._replica(shard, node)
        if replica is None or leader is None:
            return UNKNOWN
        leading = await self._replica(shard, leader.node)
        committed = leading.commit_index if leading is not None else 0
        return max(0, replica.lag, committed - replica.applied_index)

    async def transfer(self, shard: int, to: str) -> None:
        """Returns once that node leads. Raises NodeCallError."""
        found = self._find_map()
        leader = found.shard_leader(shard)
        address = found.address_of(leader.node if leader is not None else to) or ""
        request = pb.TransferLeadershipRequest(shard=shard, to=to)
        for hop in range(_HOPS_MAX):
            try:
                await self._calls.call(
                    address, f"{_SERVICE}/TransferLeadership", request, pb.TransferLeadershipResponse.FromString,
                    timeout_s=TRANSFER_SECONDS,
                )  # fmt: skip
                return
            except NodeCallError as error:
                if not error.leader or hop == _HOPS_MAX - 1:
                    raise
                address = error.leader

    async def hand_over(self, request: cluster_pb.HandOverNodeRequest) -> cluster_pb.HandOverNodeResponse:
        """Passes the request on to the node that it is about."""
        found = self._find_map()
        address = found.address_of(request.node)
        if address is None or request.is_passed_on:
            raise node_not_found(request.node)
        if not found.is_alive(request.node):
            raise change_refused(
                "gone",
                f"Expected {request.node} to be there, but it has no lease in etcd: it has nothing to hand over.",
            )
        passed_on = cluster_pb.HandOverNodeRequest(node=request.node, undo=request.undo, is_passed_on=True)
        try:
            return await self._calls.call(
                address, _HAND_OVER, passed_on, cluster_pb.HandOverNodeResponse.FromString, timeout_s=HAND_OVER_SECONDS
            )
        except NodeCallError as error:
            if error.reason == ETCD_UNAVAILABLE:
                raise RefusedError(error.reason, error.sentence, retry_after_ms=1000) from None
            raise change_refused("unreachable", f"Expected {request.node} to hand over, but {error}.") from None

    async def describe(self, node: str, timeout_s: float = ASK_SECONDS) -> pb.DescribeNodeResponse | None:
        """What a node says of itself; None if it does not answer."""
        address = self._find_map().address_of(node)
        if address is None:
            return None
        try:
            return await self._calls.call(
                address, f"{_SERVICE}/DescribeNode", pb.DescribeNodeRequest(), pb.DescribeNodeResponse.FromString,
                timeout_s=timeout_s,
            )  # fmt: skip
        except NodeCallError:
            return None

    async def _replica(self, shard: int, node: str) -> pb.Replica | None:
        answer = await self.describe(node)
        replicas = () if answer is None else answer.replicas
        return next((replica for replica in replicas if replica.shard == shard), None)
