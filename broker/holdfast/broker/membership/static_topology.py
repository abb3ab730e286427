"""The cluster side of the wire API where there is no map: clients may ask where the shards are led, and operators may
set what queues do in their own way. All queues live on shard 0 then, so its leader answers for them."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import Message

from holdfast.broker.cluster_view.view import ClusterView
from holdfast.broker.peers.identities import name_of
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.shard import Shard
from holdfast.cluster.admin.conversion import fill_settings, policy_message, policy_of, queue_change, queue_settings
from holdfast.cluster.map.policy import NO_POLICY, PolicyRecord, change_policy
from holdfast.cluster.map.queues import QUEUES_MAX, check_page, check_queue_name, check_queue_names
from holdfast.cluster.map.records import QueueRecord
from holdfast.machine.rows import SettingsRow
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving.refusals import NO_CLUSTER, OUT_OF_RANGE, RefusedError, conflict, no_cluster

HOME: Final = 0  # a call that names no shard is for this one, so without a map it is where all queues live
TRIES_MAX: Final = 10  # while others change the same queue

_NOTHING: Final = SettingsRow(0, b"")


class StaticTopology:
    """Topology and policies of queues from what this node knows; everything else needs a map."""

    def __init__(self, host: Host, cluster_view: ClusterView) -> None:
        self._host = host
        self._cluster_view = cluster_view

    async def get_topology(self, request: pb.GetTopologyRequest) -> pb.GetTopologyResponse:
        if len(request.queues) > QUEUES_MAX:
            raise RefusedError(
                OUT_OF_RANGE, f"Expected at most {QUEUES_MAX} queues, but got {len(request.queues)}.", field="queues",
                limit=str(QUEUES_MAX),
            )  # fmt: skip
        return pb.GetTopologyResponse(
            shards=self._cluster_view.shard_count,
            leaders=self._leaders(),
            routes=[pb.QueueRoute(queue=queue, home=HOME) for queue in request.queues],
            addresses=[node.address for node in self._cluster_view.nodes],
        )

    async def set_queue(self, request: pb.SetQueueRequest) -> pb.SetQueueResponse:
        """Returns once the policy is in the log: it counts from then on."""
        queue, change = check_queue_name(request.queue), queue_change(request)
        if change.placement is not None:
            raise no_cluster()
        shard = await self._home()
        for _ in range(TRIES_MAX):
            version, policy = _read(shard, queue)
            changed = change_policy(policy, change.policy or {}, change.clear)
            if changed is policy:
                return pb.SetQueueResponse(settings=_settings(queue, policy, version))
            data = policy_message(changed).SerializeToString()
            if await shard.set_queue(queue.encode(), version + 1, data):
                return pb.SetQueueResponse(settings=_settings(queue, changed, version + 1))
        raise conflict(f"the queue {queue}")

    async def list_queue_settings(self, request: pb.ListQueueSettingsRequest) -> pb.ListQueueSettingsResponse:
        check_queue_names(request.queues)
        count_max = check_page(request.page_size, request.page_token)
        shard = await self._home()
        response = pb.ListQueueSettingsResponse()
        if request.queues:
            named = ((queue, *_read(shard, queue)) for queue in request.queues)
            fill_settings(
                response, (_settings(queue, policy, version) for queue, version, policy in named), is_page=False
            )
            return response
        # A queue whose settings were all taken back has a row still. Looked at are as many as a page may have, so one
        # may have fewer.
        rows, more = shard.reader.all_settings(request.page_token.encode(), count_max)
        differ = (
            _settings(name.decode(), _policy_in(settings), settings.version)
            for name, settings in rows
            if _policy_in(settings) != NO_POLICY
        )
        if not fill_settings(response, differ, is_page=True):
            response.next_page_token = response.queues[-1].route.queue
        elif more:
            response.next_page_token = rows[-1][0].decode()
        return response

    async def _home(self) -> Shard:
        """Up to date; refused with who leads it if this node does not."""
        shard = self._host.find_to_serve(HOME).shard
        await shard.read_barrier()
        return shard

    def _leaders(self) -> Sequence[pb.ShardLeader]:
        addresses = {node.name: node.address for node in self._cluster_view.nodes}
        return [
            pb.ShardLeader(shard=number, node=name, address=addresses.get(name, ""), epoch=replica.raft.term)
            for number, replica in self._host.replicas.items()
            if replica.raft.leader is not None
            for name in (name_of(replica.raft.leader),)
        ]

    async def get_access(self, _request: pb.GetAccessRequest) -> pb.GetAccessResponse:
        raise _no_map_of_access()

    async def set_access(self, _request: pb.SetAccessRequest) -> pb.SetAccessResponse:
        raise _no_map_of_access()

    def __getattr__(self, name: str) -> object:
        """Every other call of the service."""

        async def refuse(_request: Message) -> Message:
            raise no_cluster()

        return refuse


def _no_map_of_access() -> RefusedError:
    return RefusedError(
        NO_CLUSTER,
        "Expected a cluster with a map, but this server has none: who may do what stands in its access_file, which it "
        "reads again when it changes.",
    )


def _read(shard: Shard, queue: str) -> tuple[int, PolicyRecord]:
    settings = shard.reader.settings(queue.encode()) or _NOTHING
    return settings.version, _policy_in(settings)


def _policy_in(settings: SettingsRow) -> PolicyRecord:
    return policy_of(pb.QueuePolicy.FromString(settings.policy))


def _settings(queue: str, policy: PolicyRecord, version: int) -> pb.QueueSettings:
    return queue_settings(queue, QueueRecord(policy=policy), version, shard_count=1)
