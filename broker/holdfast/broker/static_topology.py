"""The cluster side of the wire API where there is no map: clients may still ask where the shards are led."""

from collections.abc import Sequence

from google.protobuf.message import Message

from holdfast.broker.hosting import Host
from holdfast.broker.peers.identities import name_of
from holdfast.broker.surroundings import Surroundings
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving.refusals import OUT_OF_RANGE, RefusedError, no_cluster

QUEUES_MAX = 1000


class StaticTopology:
    """GetTopology from what this node knows; everything else needs a map."""

    def __init__(self, host: Host, surroundings: Surroundings) -> None:
        self._host = host
        self._surroundings = surroundings

    async def get_topology(self, request: pb.GetTopologyRequest) -> pb.GetTopologyResponse:
        if len(request.queues) > QUEUES_MAX:
            raise RefusedError(
                OUT_OF_RANGE, f"Expected at most {QUEUES_MAX} queues, but got {len(request.queues)}.", field="queues",
                limit=str(QUEUES_MAX),
            )  # fmt: skip
        return pb.GetTopologyResponse(
            shards=self._surroundings.shard_count,
            leaders=self._leaders(),
            # A call that names no shard is for shard 0, so without a map that is where all queues live.
            routes=[pb.QueueRoute(queue=queue) for queue in request.queues],
            addresses=[node.address for node in self._surroundings.nodes],
        )

    def _leaders(self) -> Sequence[pb.ShardLeader]:
        addresses = {node.name: node.address for node in self._surroundings.nodes}
        return [
            pb.ShardLeader(shard=number, node=name, address=addresses.get(name, ""), epoch=replica.raft.term)
            for number, replica in self._host.replicas.items()
            if replica.raft.leader is not None
            for name in (name_of(replica.raft.leader),)
        ]

    def __getattr__(self, name: str) -> object:
        """Every other call of the service."""

        async def refuse(_request: Message) -> Message:
            raise no_cluster()

        return refuse
