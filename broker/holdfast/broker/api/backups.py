"""The service Backups of a broker: translates, and holds no rules of its own."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.cluster_view.view import ClusterView
from holdfast.broker.replica.backups import Backups
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.snapshot_transfers import SnapshotTransfers
from holdfast.machine.ids import SHARD_MAX
from holdfast.proto.v1 import backups_pb2 as pb
from holdfast.raft.messages import Configuration
from holdfast.serving.refusals import (
    INVALID_FIELD,
    OUT_OF_RANGE,
    OVERLOADED,
    TOO_LARGE,
    RefusedError,
    no_cluster,
    restore_refused,
)
from holdfast.storage.data_dir import FORMAT_VERSION
from holdfast.storage.snapshots.codec import CHUNK_BYTES_MAX, FILE_BYTES_MAX, FILES_MAX, is_snapshot_file
from holdfast.storage.snapshots.messages import Outcome, SnapshotBegin, SnapshotChunk, SnapshotDone, SnapshotFile
from holdfast_queue import version

LIST_WAIT_MS_MAX: Final = 30_000
TAKE_SECONDS_MAX: Final = 10.0  # for a replica to say what it wants next

_NUMBER_MAX: Final = (1 << 62) - 1
_CONFIGURATION_VERSION: Final = 1  # of a shard that is just founded


class MapBackups(Protocol):
    """What is about the map: `cluster/admin/backups.py`, where there is one."""

    async def read_map(self, request: pb.ReadMapRequest) -> pb.ReadMapResponse: ...
    async def restore_cluster(self, request: pb.RestoreClusterRequest) -> pb.RestoreClusterResponse: ...
    async def restore_queues(self, request: pb.RestoreQueuesRequest) -> pb.RestoreQueuesResponse: ...


class BackupService:
    """One method per RPC."""

    def __init__(
        self, backups: Backups, host: Host, cluster_view: ClusterView, cluster_map: MapBackups | None, replication: int
    ) -> None:
        """`cluster_map`: None without etcd; then there are `replication` nodes."""
        self._backups = backups
        self._host = host
        self._cluster_view = cluster_view
        self._map = cluster_map
        self._replication = replication
        self._version = version()  # reads a file

    async def read_map(self, request: pb.ReadMapRequest) -> pb.ReadMapResponse:
        if self._map is not None:
            return await self._map.read_map(request)
        return pb.ReadMapResponse(shards=self._cluster_view.shard_count, replication=self._replication)

    # --- taking one -------------------------------------------------------------------------------------------

    async def begin_backup(self, request: pb.BeginBackupRequest) -> pb.BeginBackupResponse:
        await self._backups.begin(_shard(request.shard), _id(request.id))
        return pb.BeginBackupResponse()

    async def copy_shard(self, request: pb.CopyShardRequest) -> pb.CopyShardResponse:
        point = await self._backups.copy(_shard(request.shard), request.id)
        return pb.CopyShardResponse(
            index=point.index, term=point.term, shard_time_ms=point.shard_time_ms, incarnation=point.incarnation,
            node=point.node, format=FORMAT_VERSION, version=self._version,
        )  # fmt: skip

    async def resume_deliveries(self, request: pb.ResumeDeliveriesRequest) -> pb.ResumeDeliveriesResponse:
        return pb.ResumeDeliveriesResponse(were_held=await self._backups.resume(_shard(request.shard), request.id))

    async def list_backup_files(self, request: pb.ListBackupFilesRequest) -> pb.ListBackupFilesResponse:
        wait_ms = _number(request.wait_ms, "wait_ms", LIST_WAIT_MS_MAX)
        files = await self._backups.files(_shard(request.shard), request.id, wait_ms / 1000)
        response = pb.ListBackupFilesResponse(is_ready=files is not None)
        for file in files or ():
            response.files.add(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
        return response

    async def read_backup_file(self, request: pb.ReadBackupFileRequest) -> pb.ReadBackupFileResponse:
        offset = _number(request.offset, "offset", FILE_BYTES_MAX)
        length = _number(request.length, "length", CHUNK_BYTES_MAX)
        data, crc32 = await self._backups.read(_shard(request.shard), request.id, request.name, offset, length)
        return pb.ReadBackupFileResponse(data=data, crc32=crc32)

    async def end_backup(self, request: pb.EndBackupRequest) -> pb.EndBackupResponse:
        await self._backups.end(_shard(request.shard), request.id)
        return pb.EndBackupResponse()

    # --- restoring one ----------------------------------------------------------------------------------------

    async def restore_cluster(self, request: pb.RestoreClusterRequest) -> pb.RestoreClusterResponse:
        if self._map is None:
            raise no_cluster()
        return await self._map.restore_cluster(request)

    async def restore_queues(self, request: pb.RestoreQueuesRequest) -> pb.RestoreQueuesResponse:
        if self._map is None:
            raise no_cluster()
        return await self._map.restore_queues(request)

    async def restore_shard(self, request: pb.RestoreShardRequest) -> pb.RestoreShardResponse:
        """The state comes as a snapshot does, from an operator instead of a leader."""
        transfers, founders = self._awaiting(_shard(request.shard), request.backup_id)
        message = _chunk(request) if request.WhichOneof("what") == "chunk" else _begin(request, founders)
        if self._host.find(request.shard).raft.configuration.version:
            return pb.RestoreShardResponse(is_installed=True)  # it has members, so it is founded
        try:
            async with asyncio.timeout(TAKE_SECONDS_MAX):
                said = await transfers.take(message)
        except TimeoutError:
            raise RefusedError(
                OVERLOADED, "The state was not stored in time; send it again.", retry_after_ms=500
            ) from None
        if not isinstance(said, SnapshotDone):
            return pb.RestoreShardResponse(file_number=said.file_number, offset=said.offset)
        if said.outcome is not Outcome.INSTALLED:
            raise restore_refused(
                said.outcome.name,
                f"Expected to take the state of shard {request.shard}, but it could not be ({said.outcome.name}); the "
                "log of this node says why.",
            )
        return pb.RestoreShardResponse(is_installed=True)

    def _awaiting(self, shard: int, backup_id: str) -> tuple[SnapshotTransfers, tuple[str, ...]]:
        """The empty replica that waits for its state, and all voters that the shard begins with."""
        if not isinstance(self._cluster_view, MapClusterView):
            raise no_cluster()
        known = self._cluster_view.map
        record = known.shards.get(shard)
        if known.cluster is None or not known.cluster.is_restored_from(backup_id) or record is None:
            sentence = f"Expected a cluster that is restored from {backup_id!r}, but it is not."
            raise restore_refused("NO_RESTORE", sentence)
        if record.founders[0] != self._host.me:
            raise restore_refused("NOT_FOUNDER", f"Expected to found shard {shard}, but {record.founders[0]} does.")
        replica = self._host.replicas.get(shard)
        if self._host.has_had(shard, record.group) or (replica is not None and replica.group != record.group):
            raise restore_refused("NOT_BLANK", f"Expected no replica of shard {shard} here, but there is or was one.")
        return self._host.await_state(shard, record.group), record.founders


def _begin(request: pb.RestoreShardRequest, founders: Sequence[str]) -> SnapshotBegin:
    index, term = _number(request.index, "index", _NUMBER_MAX), _number(request.term, "term", _NUMBER_MAX)
    configuration = Configuration.of(_CONFIGURATION_VERSION, founders)
    return SnapshotBegin(term, _id(request.id), index, term, configuration, _files(request.files))


def _chunk(request: pb.RestoreShardRequest) -> SnapshotChunk:
    chunk, term = request.chunk, _number(request.term, "term", _NUMBER_MAX)
    number = _number(chunk.file_number, "chunk.file_number", FILES_MAX - 1)
    offset = _number(chunk.offset, "chunk.offset", FILE_BYTES_MAX)
    if not 0 < len(chunk.data) <= CHUNK_BYTES_MAX:
        raise RefusedError(
            TOO_LARGE, f"Expected {{field}} of 1 to {CHUNK_BYTES_MAX} bytes.", "chunk.data", str(CHUNK_BYTES_MAX)
        )  # fmt: skip
    return SnapshotChunk(term, _id(request.id), number, offset, chunk.crc32, chunk.data)


def _files(message: pb.RestoreFiles) -> tuple[SnapshotFile, ...]:
    names = {file.name for file in message.files}
    if not names or len(names) != len(message.files) or not all(map(is_snapshot_file, names)):
        raise RefusedError(
            INVALID_FIELD, "Expected {field} to be those of a state, each once, but they are not.", "files"
        )
    return tuple(
        SnapshotFile(file.name, _number(file.size_bytes, "size_bytes", FILE_BYTES_MAX), file.crc32)
        for file in message.files
    )


def _shard(value: int) -> int:
    return _number(value, "shard", SHARD_MAX)


def _id(value: int) -> int:
    return _number(value, "id", _NUMBER_MAX)


def _number(value: int, field: str, high: int) -> int:
    if not 0 <= value <= high:
        raise RefusedError(OUT_OF_RANGE, f"Expected {{field}} from 0 to {high}, but got {value}.", field, f"0..{high}")
    return value
