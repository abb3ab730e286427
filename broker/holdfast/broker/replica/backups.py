"""Backups of the shards that this node leads: copies of their states, kept until they were read.

A copy is a checkpoint, as the snapshots for other replicas are: hard links, made while work goes on. Its files never
change, and most of them are in the next copy too: their digests are remembered, so that a backup that has a file
already need not be sent it, nor this node read it again.
"""

import asyncio
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.broker.leader.leader import OutboxHold
from holdfast.broker.peers.identities import name_of
from holdfast.broker.replica.host import Host
from holdfast.common.service import Service, end_tasks, report_bug
from holdfast.machine.rows import Meta
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import backup_not_found, overloaded
from holdfast.storage.rocksdb import RocksState
from holdfast.storage.snapshots.checkpoint import meta_of, take_checkpoint
from holdfast.storage.snapshots.codec import is_snapshot_file
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.files import sha256_of

BACKUPS_MAX = 4  # of one shard at the same time
HOLD_SECONDS_MAX = 120.0  # for which follow-ups wait in the outbox, if whoever makes the backup dies
IDLE_SECONDS_MAX = 600.0  # for which a copy is kept although nobody asks for it
DIGESTS_MAX = 200_000

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CopiedFile:
    name: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """How far the log is applied in a copy, and of which incarnation of the shard it is."""

    index: int
    term: int
    shard_time_ms: int
    incarnation: int
    node: str


class Digests:
    """Of files that never change, by what tells one from all others on this disk."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], bytes] = {}

    def of(self, directories: StateDirectories, path: Path) -> bytes:
        """Blocks for as long as it takes to read a file that was not seen before."""
        found = os.stat(path)
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        digest = self._known.get(key)
        if digest is None:
            digest = sha256_of(directories.files, path, found.st_size)
            while len(self._known) >= DIGESTS_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = digest
        return digest


class _Backup:
    """One shard's part of a backup that is under way."""

    def __init__(self, id: int, shard: int, hold: OutboxHold, directories: StateDirectories) -> None:
        self.id = id
        self.shard = shard
        self.hold = hold
        self.directories = directories
        self.path = directories.outgoing(id)
        self.copying: asyncio.Task[CopyPoint] | None = None
        self.listing: asyncio.Task[Sequence[CopiedFile]] | None = None
        self.hold_ends: asyncio.TimerHandle | None = None
        self.idle_ends: asyncio.TimerHandle | None = None


class Backups:
    """All that are under way on this node. Every method refuses with BACKUP_NOT_FOUND what it does not know."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._digests = Digests()
        self._backups: dict[tuple[int, int], _Backup] = {}  # by shard and id: that of a whole cluster is one id
        self._removing = Service(on_error=report_bug)

    async def begin(self, shard: int, id: int) -> None:
        """Holds the outbox of a shard that this node leads. Again: nothing, if it is held still."""
        if (shard, id) in self._backups:
            if not self._find(shard, id).hold.is_intact:
                raise backup_not_found(shard)
            return
        if sum(backup.shard == shard for backup in self._backups.values()) >= BACKUPS_MAX:
            raise overloaded(f"backups of shard {shard}", BACKUPS_MAX)
        hold = await self._host.find_leading(shard).shard.hold_outbox()
        if (shard, id) in self._backups:  # the same call came twice
            hold.release()
            return
        backup = self._backups[shard, id] = _Backup(id, shard, hold, self._host.directories_of(shard))
        backup.hold_ends = asyncio.get_running_loop().call_later(HOLD_SECONDS_MAX, hold.release)
        self._touch(backup)
        _log.info("backup_begun", shard=shard, backup=id)

    async def copy(self, shard: int, id: int) -> CopyPoint:
        """Copies the state with all that was acknowledged before the call. Again: the same copy."""
        backup = self._find(shard, id)
        if backup.copying is None or _has_failed(backup.copying):
            backup.copying = asyncio.create_task(self._copy(backup))
        return await asyncio.shield(backup.copying)

    async def resume(self, shard: int, id: int) -> bool:
        """Lets the outbox go; whether it was held all the time."""
        backup = self._find(shard, id)
        was_held = backup.hold.is_intact
        backup.hold.release()
        return was_held

    async def files(self, shard: int, id: int, wait_s: float) -> Sequence[CopiedFile] | None:
        """What the copy consists of; None if that is not known yet."""
        backup = self._find(shard, id)
        if backup.copying is None or _has_failed(backup.copying):
            raise backup_not_found(shard)
        if backup.listing is None or _has_failed(backup.listing):
            backup.listing = asyncio.create_task(self._list(backup, backup.copying))
        done, _ = await asyncio.wait([backup.listing], timeout=wait_s)
        return backup.listing.result() if done else None

    async def read(self, shard: int, id: int, name: str, offset: int, length: int) -> tuple[bytes, int]:
        """A piece of a file, and its checksum; less than was asked for only at its end."""
        backup = self._find(shard, id)
        if not length:
            return b"", 0
        if not is_snapshot_file(name) or backup.copying is None or not backup.copying.done():
            raise backup_not_found(shard)
        await self._host.throttle.take(length)
        files = backup.directories.files
        try:
            data = await asyncio.to_thread(files.read, backup.path / name, offset, length)
        except FileNotFoundError:  # the replica was deleted, and all of it
            raise backup_not_found(shard) from None
        return data, zlib.crc32(data)

    async def end(self, shard: int, id: int) -> None:
        """Deletes the copy. Again: nothing."""
        backup = self._backups.get((shard, id))
        if backup is not None:
            self._end(backup)

    async def close(self) -> None:
        for backup in list(self._backups.values()):
            self._end(backup)
        await self._removing.ended()

    # --- work -------------------------------------------------------------------------------------------------

    def _find(self, shard: int, id: int) -> _Backup:
        backup = self._backups.get((shard, id))
        if backup is None:
            raise backup_not_found(shard)
        self._touch(backup)
        return backup

    def _touch(self, backup: _Backup) -> None:
        if backup.idle_ends is not None:
            backup.idle_ends.cancel()
        backup.idle_ends = asyncio.get_running_loop().call_later(IDLE_SECONDS_MAX, self._end, backup)

    async def _copy(self, backup: _Backup) -> CopyPoint:
        replica = self._host.find_leading(backup.shard)
        await replica.shard.read_barrier()
        state = replica.state
        assert isinstance(state, RocksState)
        meta = await asyncio.to_thread(_checkpoint, state, backup)
        point = CopyPoint(
            meta.applied_index, meta.applied_term, meta.now_ms, meta.incarnation, name_of(self._host.me)
        )  # fmt: skip
        _log.info("backup_copied", shard=backup.shard, backup=backup.id, index=point.index)
        return point

    async def _list(self, backup: _Backup, copying: "asyncio.Task[CopyPoint]") -> Sequence[CopiedFile]:
        await asyncio.shield(copying)
        names = sorted(filter(is_snapshot_file, backup.directories.files.list_directory(backup.path)))
        found = []
        for name in names:
            path = backup.path / name
            try:
                digest = await asyncio.to_thread(self._digests.of, backup.directories, path)
            except FileNotFoundError:  # the replica was deleted, and all of it
                raise backup_not_found(backup.shard) from None
            found.append(CopiedFile(name, backup.directories.files.size(path) or 0, digest))
        return found

    def _end(self, backup: _Backup) -> None:
        self._backups.pop((backup.shard, backup.id), None)
        backup.hold.release()
        for timer in (backup.hold_ends, backup.idle_ends):
            if timer is not None:
                timer.cancel()
        self._removing.spawn(self._remove(backup))

    async def _remove(self, backup: _Backup) -> None:
        await end_tasks([task for task in (backup.listing,) if task is not None])
        if backup.copying is not None:
            await asyncio.gather(backup.copying, return_exceptions=True)  # a checkpoint cannot be interrupted
        try:
            await asyncio.to_thread(backup.directories.remove, backup.path)
        except OSError as error:
            _log.warning("backup_not_removed", path=str(backup.path), error=str(error))  # the next start will
        _log.info("backup_ended", shard=backup.shard, backup=backup.id)


def _checkpoint(state: RocksState, backup: _Backup) -> Meta:
    """Blocks."""
    backup.directories.remove(backup.path)  # what an attempt that failed has left
    take_checkpoint(state, backup.path)
    return meta_of(backup.path)


def _has_failed(task: "asyncio.Task[object]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
