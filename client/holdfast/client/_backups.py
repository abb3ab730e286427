"""The calls that backups are made of. Not public: `holdfast backup` is the way to use them."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.client._fitting import fit
from holdfast.client._options import call_limit_s
from holdfast.client._rpc import Method, RequestT, ResponseT, method
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import UnexpectedAnswer
from holdfast.proto.v1 import backups_pb2 as pb

CHUNK_BYTES = 512 * 1024
QUEUES_PAGE = 500
_LIST_WAIT_MS = 5_000

_SERVICE = "Backups"
_READ_MAP = method(pb, _SERVICE, "ReadMap", pb.ReadMapRequest, pb.ReadMapResponse)
_BEGIN = method(pb, _SERVICE, "BeginBackup", pb.BeginBackupRequest, pb.BeginBackupResponse)
_COPY = method(pb, _SERVICE, "CopyShard", pb.CopyShardRequest, pb.CopyShardResponse)
_RESUME = method(pb, _SERVICE, "ResumeDeliveries", pb.ResumeDeliveriesRequest, pb.ResumeDeliveriesResponse)
_LIST = method(pb, _SERVICE, "ListBackupFiles", pb.ListBackupFilesRequest, pb.ListBackupFilesResponse)
_READ = method(pb, _SERVICE, "ReadBackupFile", pb.ReadBackupFileRequest, pb.ReadBackupFileResponse)
_END = method(pb, _SERVICE, "EndBackup", pb.EndBackupRequest, pb.EndBackupResponse)
_RESTORE_CLUSTER = method(pb, _SERVICE, "RestoreCluster", pb.RestoreClusterRequest, pb.RestoreClusterResponse)
_RESTORE_QUEUES = method(pb, _SERVICE, "RestoreQueues", pb.RestoreQueuesRequest, pb.RestoreQueuesResponse)
_RESTORE_SHARD = method(pb, _SERVICE, "RestoreShard", pb.RestoreShardRequest, pb.RestoreShardResponse)


@dataclass(frozen=True, slots=True)
class ClusterCopy:
    """What a cluster is, and what is set for its queues."""

    cluster_id: str
    name: str
    shards: int
    replication: int
    queues: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Point:
    """How far the log of a shard is applied in a copy of it."""

    index: int
    term: int
    shard_time_ms: int
    incarnation: int
    node: str
    format: int
    version: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StateFile:
    """Of a state that a shard is to begin with."""

    name: str
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Founder:
    shard: int
    node: str
    address: str
    is_founded: bool


class BackupClient(AsyncClient):
    """Each call may be repeated."""

    async def read_map(self) -> ClusterCopy:
        queues: dict[str, bytes] = {}
        token = ""
        while True:
            page = await self._ask(_READ_MAP, pb.ReadMapRequest(page_token=token), None)
            queues |= {copy.queue: copy.record for copy in page.queues}
            token = page.next_page_token
            if not token:
                return ClusterCopy(page.cluster_id, page.name, page.shards, page.replication, queues)

    async def begin_backup(self, shard: int, id: int) -> None:
        await self._at_leader(_BEGIN, fit(pb.BeginBackupRequest, shard=shard, id=id), shard)

    async def copy_shard(self, shard: int, id: int) -> Point:
        point = await self._at_leader(_COPY, fit(pb.CopyShardRequest, shard=shard, id=id), shard)
        return Point(
            point.index, point.term, point.shard_time_ms, point.incarnation, point.node, point.format, point.version
        )  # fmt: skip

    async def resume_deliveries(self, shard: int, id: int) -> bool:
        """Whether they were held all the time."""
        request = fit(pb.ResumeDeliveriesRequest, shard=shard, id=id)
        return (await self._at_leader(_RESUME, request, shard)).were_held

    async def backup_files(self, shard: int, id: int) -> Sequence[SourceFile]:
        """Waits until their checksums are known."""
        while True:
            request = fit(pb.ListBackupFilesRequest, shard=shard, id=id, wait_ms=_LIST_WAIT_MS)
            answer = await self._at_leader(_LIST, request, shard)
            if answer.is_ready:
                return [SourceFile(file.name, file.size_bytes, file.sha256.hex()) for file in answer.files]

    async def read_backup_file(self, shard: int, id: int, name: str, offset: int, length: int) -> bytes:
        request = fit(pb.ReadBackupFileRequest, shard=shard, id=id, name=name, offset=offset, length=length)
        answer = await self._at_leader(_READ, request, shard)
        if len(answer.data) != length or zlib.crc32(answer.data) != answer.crc32:
            raise UnexpectedAnswer(f"{len(answer.data)} of {length} bytes of {name}, or not those that were sent")
        return answer.data

    async def keep_backup(self, shard: int, id: int) -> None:
        """Says that it is still needed."""
        await self._at_leader(_READ, fit(pb.ReadBackupFileRequest, shard=shard, id=id), shard)

    async def end_backup(self, shard: int, id: int) -> None:
        await self._at_leader(_END, fit(pb.EndBackupRequest, shard=shard, id=id), shard)

    async def restore_cluster(self, backup_id: str, replication: int, incarnations: Sequence[int]) -> list[Founder]:
        """Makes a cluster whose shards are to be founded of a backup."""
        request = fit(
            pb.RestoreClusterRequest, backup_id=backup_id, replication=replication, incarnations=list(incarnations)
        )  # fmt: skip
        answer = await self._ask(_RESTORE_CLUSTER, request, None)
        return [Founder(shard.shard, shard.node, shard.address, shard.is_founded) for shard in answer.shards]

    async def restore_queues(self, backup_id: str, queues: dict[str, bytes]) -> None:
        names = sorted(queues)
        for start in range(0, len(names), QUEUES_PAGE):
            request = pb.RestoreQueuesRequest(backup_id=backup_id)
            for name in names[start : start + QUEUES_PAGE]:
                request.queues.add(queue=name, record=queues[name])
            await self._ask(_RESTORE_QUEUES, request, None)

    async def announce_state(
        self, founder: Founder, backup_id: str, id: int, index: int, term: int, files: Sequence[StateFile]
    ) -> tuple[int, int] | None:
        """Which file its founder wants next, and from where; None if the shard is founded."""
        request = pb.RestoreShardRequest(shard=founder.shard, backup_id=backup_id, id=id, index=index, term=term)
        request.files.files.extend(
            pb.RestoreFile(name=file.name, size_bytes=file.size_bytes, crc32=file.crc32) for file in files
        )
        return await self._bring(founder, request)

    async def bring_state(
        self, founder: Founder, backup_id: str, id: int, index: int, term: int, file_number: int, offset: int,
        data: bytes,
    ) -> tuple[int, int] | None:  # fmt: skip
        """A piece of the state; the same answer."""
        chunk = pb.RestoreChunk(file_number=file_number, offset=offset, crc32=zlib.crc32(data), data=data)
        request = pb.RestoreShardRequest(
            shard=founder.shard, backup_id=backup_id, id=id, index=index, term=term, chunk=chunk
        )  # fmt: skip
        return await self._bring(founder, request)

    async def _bring(self, founder: Founder, request: pb.RestoreShardRequest) -> tuple[int, int] | None:
        timeout_s = call_limit_s(None, self._timeout_s)
        answer = await self._connection.call_at(founder.address, _RESTORE_SHARD, request, timeout_s=timeout_s)
        return None if answer.is_installed else (answer.file_number, answer.offset)

    async def _at_leader(self, method: Method[RequestT, ResponseT], request: RequestT, shard: int) -> ResponseT:
        reply = await self._connection.call(
            method, request, timeout_s=self._timeout_s, repeatable=True, shard=shard
        )  # fmt: skip
        return reply.message
