"""What of a backup is about the map: reading it, and making a cluster of one. Brokers and routers answer alike."""

import re
from bisect import bisect_right
from collections.abc import Sequence

from holdfast.cluster.admin.cluster_service import etcd_errors
from holdfast.cluster.map.fields import RecordError
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.queues import check_queue_name
from holdfast.cluster.map.records import QueueRecord, name_of
from holdfast.cluster.map.store import MapStore
from holdfast.proto.v1 import backups_pb2 as pb
from holdfast.routing.groups import INCARNATION_MAX
from holdfast.serving.refusals import INVALID_FIELD, OUT_OF_RANGE, RefusedError, restore_refused
from holdfast.serving.request_limits import ITEMS_MAX

PAGE_BYTES_MAX = 1024 * 1024

_BACKUP_ID = re.compile(r"[A-Za-z0-9-]{8,64}")


class ClusterBackups:
    """Three of the methods of the service Backups."""

    def __init__(self, store: MapStore, follower: MapFollower) -> None:
        self._store = store
        self._follower = follower

    async def read_map(self, request: pb.ReadMapRequest) -> pb.ReadMapResponse:
        found = self._follower.map
        if found.cluster is None:
            raise found.refusal_without_cluster()
        response = pb.ReadMapResponse(
            cluster_id=found.cluster.cluster_id, name=found.cluster_name, shards=found.cluster.shards,
            replication=found.cluster.replication,
        )  # fmt: skip
        names = sorted(found.queues)
        size_bytes = 0
        for name in names[bisect_right(names, request.page_token) :]:
            if len(response.queues) == ITEMS_MAX or size_bytes > PAGE_BYTES_MAX:
                response.next_page_token = response.queues[-1].queue
                break
            record = found.queues[name].encode()
            size_bytes += len(record)
            response.queues.add(queue=name, record=record)
        return response

    async def restore_cluster(self, request: pb.RestoreClusterRequest) -> pb.RestoreClusterResponse:
        """Until its shards are founded nothing is served; the nodes hear of it as of any other cluster."""
        if not _BACKUP_ID.fullmatch(request.backup_id):
            raise RefusedError(INVALID_FIELD, "Expected {field} to be the id of a backup, but it is not.", "backup_id")
        incarnations = _incarnations(request.incarnations)
        async with etcd_errors():
            cluster = await self._store.restore_cluster(request.replication, request.backup_id, incarnations)
            shards = await self._store.read_shards()
        if [record.incarnation for _, record in sorted(shards.items())] != incarnations:
            raise restore_refused(
                "INCARNATIONS",
                "Expected the incarnations with which this restore was begun; give the same --incarnation again.",
            )
        nodes = self._follower.map.last_nodes
        response = pb.RestoreClusterResponse(cluster_id=cluster.cluster_id)
        for number, record in sorted(shards.items()):
            node = nodes.get(name_of(record.founders[0]))
            response.shards.add(
                shard=number, node=name_of(record.founders[0]), address=node.address if node is not None else "",
                is_founded=record.is_founded,
            )  # fmt: skip
        return response

    async def restore_queues(self, request: pb.RestoreQueuesRequest) -> pb.RestoreQueuesResponse:
        records = {check_queue_name(copy.queue): _record(copy) for copy in request.queues}
        async with etcd_errors():
            cluster = await self._store.cluster()
            if not cluster.is_restored_from(request.backup_id):
                raise restore_refused("NO_RESTORE", f"Expected a cluster that is restored from {request.backup_id!r}.")
            for queue, record in records.items():
                _check_shards(queue, record, cluster.shards)
            for queue, record in records.items():
                await self._store.restore_queue(queue, record)
        return pb.RestoreQueuesResponse()


def _incarnations(given: Sequence[int]) -> list[int]:
    for incarnation in given:
        if not 1 <= incarnation <= INCARNATION_MAX:
            raise RefusedError(
                OUT_OF_RANGE, f"Expected {{field}} from 1 to {INCARNATION_MAX}, but got {incarnation}.", "incarnations",
                f"1..{INCARNATION_MAX}",
            )  # fmt: skip
    return list(given)


def _check_shards(queue: str, record: QueueRecord, shard_count: int) -> None:
    """A backup is of a cluster with as many shards."""
    named = {*record.draining, *record.drained, *(shard for _, shards in record.sets for shard in shards)}
    if named and max(named) >= shard_count:
        sentence = f"Expected {{field}} of {queue} with shards below {shard_count}, but it has {max(named)}."
        raise RefusedError(INVALID_FIELD, sentence, "record")


def _record(copy: pb.QueueRecordCopy) -> QueueRecord:
    try:
        return QueueRecord.decode(f"queues/{copy.queue}", copy.record)
    except RecordError as error:
        raise RefusedError(INVALID_FIELD, f"Expected {{field}} as a map has it. {error}", "record") from error
