"""Makes a backup of shards that go on working.

All shards are copied between two moments at which every one of them keeps the tasks that it has for others: so a task
on its way from one shard to another is in the copy of the first, of the second, or of both, and then known by its
number. If a leader changes meanwhile, all of them are copied anew; what was fetched already is not fetched again.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from holdfast.backup.errors import NOT_TAKEN, BackupError
from holdfast.backup.manifest import Manifest, ShardCopy, StoredFile
from holdfast.backup.store import CREATE, PRUNE, Store
from holdfast.client._backups import CHUNK_BYTES, BackupClient, ClusterCopy, Point, SourceFile
from holdfast.client.errors import HoldfastError, Rejected
from holdfast.common.backoff import Backoff
from holdfast.common.service import end_tasks

ATTEMPTS_MAX = 3
BACKOFF = Backoff(1.0, 2.0)
SHARDS_AT_ONCE = 16
KEEP_SECONDS = 60.0  # between signs that the copies are still needed, and that somebody is at work

_BACKUP_NOT_FOUND = "BACKUP_NOT_FOUND"
_ID_BITS = 62

T = TypeVar("T")
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # what is done, and how many bytes


@dataclass(frozen=True, slots=True)
class Created:
    manifest: Manifest
    fetched_bytes: int  # the rest was there already
    fetched_files: int
    seconds: float


class _CopiesLostError(Exception):
    """A leader has changed, or forgot: the copies are not all of one moment, or not there any more."""


def new_id(now: datetime) -> str:
    """They sort by time, also those of the same second."""
    return f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03}Z-{secrets.token_hex(4)}"


async def create(
    client: BackupClient, store: Store, *, progress: Progress, bytes_per_s: float | None = None
) -> Created:  # fmt: skip
    """A new backup in the store. Raises BackupError, or what the client raises; then there is none."""
    id = new_id(datetime.now(UTC))
    await asyncio.to_thread(store.announce, CREATE, id)
    try:
        await asyncio.to_thread(store.check_nobody, PRUNE, "Old backups are being deleted there at the moment")
        known = await asyncio.to_thread(store.places)
        began_s, began_ms = time.monotonic(), int(time.time() * 1000)
        creation = _Creation(client, store, id, known, bytes_per_s)
        for attempt in range(ATTEMPTS_MAX):
            try:
                manifest = await creation.attempt(began_ms, progress)
                return Created(
                    manifest, creation.fetched_bytes, creation.fetched_files, time.monotonic() - began_s
                )  # fmt: skip
            except _CopiesLostError as error:
                cause = str(error)
                await asyncio.sleep(BACKOFF.longest_s(attempt))  # a new leader may be on its way
        raise BackupError(
            NOT_TAKEN, f"The shards could not be copied together in {ATTEMPTS_MAX} attempts: {cause}.",
            "Leaders change: see `holdfast cluster status`, and try again when the cluster is at rest.",
        )  # fmt: skip
    finally:
        await asyncio.to_thread(store.retire, CREATE, id)


class _Creation:
    def __init__(
        self, client: BackupClient, store: Store, id: str, known: set[str], bytes_per_s: float | None
    ) -> None:  # fmt: skip
        self._client = client
        self._store = store
        self._id = id
        self._known = known  # files that are in the store
        self._pace = _Pace(bytes_per_s)
        self.fetched_bytes = 0
        self.fetched_files = 0

    async def attempt(self, began_ms: int, progress: Progress) -> Manifest:
        cluster_map = await self._client.read_map()
        copy_id = secrets.randbits(_ID_BITS)
        shards = range(cluster_map.shards)
        keeping = asyncio.create_task(self._keep(shards, copy_id))
        try:
            points = await self._take_points(shards, copy_id)
            cluster_map = await self._client.read_map()  # what is set counts from before the copies at the latest
            files = await self._each(shards, lambda shard: self._client.backup_files(shard, copy_id))
            copies = await self._fetch_all(copy_id, points, files, progress)
            return await self._state(cluster_map, copies, points[0], began_ms)
        except Rejected as error:
            if error.reason == _BACKUP_NOT_FOUND:
                raise _CopiesLostError(str(error).rstrip(".")) from error
            raise
        finally:
            await end_tasks([keeping])
            await self._each(shards, lambda shard: self._end(shard, copy_id))

    async def _take_points(self, shards: Sequence[int], copy_id: int) -> list[Point]:
        await self._each(shards, lambda shard: self._client.begin_backup(shard, copy_id))
        points = await self._each(shards, lambda shard: self._client.copy_shard(shard, copy_id))
        were_held = await self._each(shards, lambda shard: self._client.resume_deliveries(shard, copy_id))
        if not all(were_held):
            raise _CopiesLostError(f"the leader of shard {were_held.index(False)} changed, or took too long")
        if len({point.format for point in points}) > 1:
            raise BackupError(NOT_TAKEN, "The nodes have states of different formats: they are being upgraded.")
        return points

    async def _fetch_all(
        self, copy_id: int, points: Sequence[Point], files: Sequence[Sequence[SourceFile]], progress: Progress
    ) -> list[ShardCopy]:
        missing = {
            file.sha256: file.size_bytes
            for of_shard in files
            for file in of_shard
            if self._store.place(file.sha256) not in self._known
        }
        copies = []
        with progress("Copying", sum(missing.values())) as advance:
            for shard, (point, of_shard) in enumerate(zip(points, files, strict=True)):
                for file in of_shard:
                    if self._store.place(file.sha256) not in self._known:
                        await self._fetch(shard, copy_id, file, advance)
                stored = tuple(StoredFile(file.name, file.size_bytes, file.sha256) for file in of_shard)
                copies.append(
                    ShardCopy(
                        shard, point.index, point.term, point.shard_time_ms, point.incarnation, point.node, stored
                    )
                )
        return copies

    async def _fetch(self, shard: int, copy_id: int, file: SourceFile, advance: Callable[[int], None]) -> None:
        writer = await asyncio.to_thread(self._store.writer)
        try:
            for offset in range(0, file.size_bytes, CHUNK_BYTES):
                length = min(CHUNK_BYTES, file.size_bytes - offset)
                await self._pace.take(length)
                data = await self._client.read_backup_file(shard, copy_id, file.name, offset, length)
                await asyncio.to_thread(writer.write, data)
                advance(length)
        except BaseException:
            writer.drop()
            raise
        await asyncio.to_thread(writer.finish, file.name, file.sha256)
        self._known.add(self._store.place(file.sha256))
        self.fetched_bytes += file.size_bytes
        self.fetched_files += 1

    async def _state(
        self, cluster_map: ClusterCopy, copies: Sequence[ShardCopy], point: Point, began_ms: int
    ) -> Manifest:
        """Writes the manifest, last of all, and only if everything that it names is there."""
        queues = json.dumps({name: json.loads(record) for name, record in sorted(cluster_map.queues.items())}).encode()
        manifest = Manifest(
            id=self._id,
            began_ms=began_ms,
            finished_ms=int(time.time() * 1000),
            cluster_id=cluster_map.cluster_id,
            cluster_name=cluster_map.name,
            replication=cluster_map.replication,
            version=point.version,
            state_format=point.format,
            shards=tuple(copies),
            queues=await asyncio.to_thread(self._store.put_content, "queues.json", queues),
            queues_count=len(cluster_map.queues),
            key_id=self._store.key_id,
        )
        there = await asyncio.to_thread(self._store.places)
        if any(self._store.place(digest) not in there for digest in manifest.digests):
            self._known = there
            raise _CopiesLostError("files were deleted from the target meanwhile")
        await asyncio.to_thread(self._store.write, manifest)
        return manifest

    async def _keep(self, shards: Sequence[int], copy_id: int) -> None:
        """Until it is cancelled. That a copy is lost is noticed by whoever needs it."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            await asyncio.to_thread(self._store.announce, CREATE, self._id)
            for shard in shards:
                with suppress(HoldfastError):
                    await self._client.keep_backup(shard, copy_id)

    async def _end(self, shard: int, copy_id: int) -> None:
        with suppress(HoldfastError):  # it ends by itself, a little later
            await self._client.end_backup(shard, copy_id)

    async def _each(self, shards: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> list[T]:
        slots = asyncio.Semaphore(SHARDS_AT_ONCE)

        async def one(shard: int) -> T:
            async with slots:
                return await ask(shard)

        asked = [asyncio.create_task(one(shard)) for shard in shards]
        try:
            return await asyncio.gather(*asked)
        finally:
            await end_tasks(asked)


class _Pace:
    """So many bytes in a second, and no more in one go than were saved up in one."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_s = time.monotonic()

    async def take(self, size_bytes: int) -> None:
        if self._bytes_per_s is None:
            return
        now_s = time.monotonic()
        await asyncio.sleep(max(0.0, self._due_s - now_s))
        self._due_s = max(self._due_s, now_s - 1.0) + size_bytes / self._bytes_per_s
