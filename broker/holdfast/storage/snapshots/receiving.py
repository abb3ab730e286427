"""The receiving side of snapshots of one shard: stores chunks, checks them, and has the whole installed.

One transfer at a time, and one worker that takes what arrives in order; what does not fit the place that is wanted is
dropped, because its sender goes back to that place by itself. What was stored survives a restart: files are filled from
their start, so their sizes say where to go on, and their checksums are looked at before anything is installed.
"""

import asyncio
import errno
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from holdfast.common.service import Service
from holdfast.raft.messages import Configuration
from holdfast.serving.logs import get_logger
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.files import RunBlocking, crc32_of
from holdfast.storage.snapshots.messages import (
    Outcome,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotDone,
    SnapshotMessage,
    SnapshotWants,
)

_NO_ROOM_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = get_logger(__name__)


class SnapshotTarget(Protocol):
    """The replica that may need a snapshot, and its way to the others."""

    @property
    def term(self) -> int:
        """The newest that it knows."""
        ...

    def is_needed(self, index: int, term: int) -> bool:
        """Whether it lacks that entry."""
        ...

    def may_take(self, size_bytes: int) -> bool:
        """Whether the disk has room for so many bytes more and stays above its watermark."""
        ...

    async def install(self, directory: Path, index: int, index_term: int, configuration: Configuration) -> bool:
        """Adopts the directory as the state (`StateDirectories.adopt`) and resets the log, or returns False if that
        is not needed any more. Whatever it raises refuses the transfer."""
        ...

    def send(self, to: str, message: SnapshotMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class ReceiveSettings:
    inbox_max: int = 16  # messages that wait to be stored; more are dropped and come again
    ack_chunks: int = 2  # a sender that has more to say hears after this many
    repeat_ack_s: float = 0.1  # messages that do not fit are answered no more often than this
    damaged_files_max: int = 3  # of one transfer; then something is wrong that repeating does not cure


@dataclass(slots=True)
class _Transfer:
    """One snapshot on its way here."""

    begin: SnapshotBegin
    sender: str
    path: Path
    have_bytes: list[int]  # of each file
    verified: set[int]  # numbers of the files whose checksum was looked at
    damaged_files: int = 0
    unacked_chunks: int = 0
    repeat_acked_s: float = -1e9
    is_whole: bool = False  # everything is here and being installed

    @property
    def place(self) -> tuple[int, int]:
        """What is wanted next: file number and offset."""
        for number, file in enumerate(self.begin.files):
            if self.have_bytes[number] < file.size_bytes:
                return number, self.have_bytes[number]
        return len(self.begin.files), 0

    @property
    def missing_bytes(self) -> int:
        return sum(file.size_bytes for file in self.begin.files) - sum(self.have_bytes)


class SnapshotReceiver:
    """Give it what arrives with `handle`; it answers through its target."""

    def __init__(
        self,
        directories: StateDirectories,
        target: SnapshotTarget,
        *,
        run_blocking: RunBlocking = asyncio.to_thread,
        settings: ReceiveSettings | None = None,
    ) -> None:
        self._directories = directories
        self._target = target
        self._run_blocking = run_blocking
        self._settings = settings if settings is not None else ReceiveSettings()
        self._inbox: asyncio.Queue[tuple[str, SnapshotBegin | SnapshotChunk]] = asyncio.Queue(self._settings.inbox_max)
        self._background = Service(on_error=self._failed)
        self._is_working = False
        self._transfer: _Transfer | None = None
        self._is_closed = False

    def handle(self, sender: str, message: SnapshotMessage) -> None:
        """Never blocks and never raises: what cannot be taken now is dropped, and will come again."""
        if self._is_closed or not isinstance(message, SnapshotBegin | SnapshotChunk):
            return
        if message.term < self._target.term:
            return
        transfer = self._transfer
        if transfer is not None and transfer.is_whole and message.id == transfer.begin.id:
            # The worker is busy with checking and installing; the sender must hear that somebody is alive.
            if isinstance(message, SnapshotBegin):
                if message.term > transfer.begin.term:  # the leader was elected again meanwhile
                    transfer.begin, transfer.sender = replace(transfer.begin, term=message.term), sender
                self._say_wants(transfer)
            return
        if not self._is_working:
            self._is_working = True
            self._background.spawn(self._run(), "snapshot-receiver")
        with suppress(asyncio.QueueFull):
            self._inbox.put_nowait((sender, message))

    @property
    def origin(self) -> tuple[str, int] | None:
        """Who sends the transfer that is under way, and in which term."""
        return None if self._transfer is None else (self._transfer.sender, self._transfer.begin.term)

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes that are here and bytes in all, of the transfer that is under way."""
        if self._transfer is None:
            return None
        whole = sum(file.size_bytes for file in self._transfer.begin.files)
        return whole - self._transfer.missing_bytes, whole

    async def close(self) -> None:
        """Stops; what was stored so far is resumed after the next start."""
        self._is_closed = True
        await self._background.stop()

    def _failed(self, error: BaseException) -> None:
        """A bug: the next message begins another worker."""
        _log.error("snapshot_receiver_failed", error=f"{type(error).__name__}: {error}")
        self._is_working = False
        self._transfer = None

    # --- the worker -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            sender, message = await self._inbox.get()
            try:
                if isinstance(message, SnapshotBegin):
                    await self._take_begin(sender, message)
                else:
                    await self._take_chunk(message)
            except OSError as error:
                _log.warning("snapshot_not_stored", snapshot=message.id, error=str(error))
                full = error.errno in _NO_ROOM_ERRNOS
                await self._refuse(sender, message, Outcome.DISK_LOW if full else Outcome.FAILED)

    async def _take_begin(self, sender: str, begin: SnapshotBegin) -> None:
        transfer = self._transfer
        if not self._target.is_needed(begin.index, begin.index_term):
            self._say_done(sender, begin, Outcome.INSTALLED)
            if transfer is not None and transfer.begin.id == begin.id:
                await self._drop_transfer()
            return
        if transfer is not None:
            if (begin.term, begin.id) < (transfer.begin.term, transfer.begin.id):
                return  # of a leader, or from a time, that is past
            if replace(begin, term=transfer.begin.term) == transfer.begin:
                transfer.begin, transfer.sender = begin, sender
                self._say_wants(transfer)
                return
        self._transfer = None
        transfer = await self._run_blocking(lambda: self._open(sender, begin))
        if not self._target.may_take(transfer.missing_bytes):
            await self._refuse(sender, begin, Outcome.DISK_LOW)
            return
        self._transfer = transfer
        _log.info(
            "snapshot_receiving", sender=sender, snapshot=begin.id, index=begin.index,
            missing_bytes=transfer.missing_bytes,
        )  # fmt: skip
        await self._go_on(transfer)

    async def _take_chunk(self, chunk: SnapshotChunk) -> None:
        transfer = self._transfer
        if transfer is None or chunk.id != transfer.begin.id:
            return  # its sender will begin again when it hears nothing
        if (chunk.file_number, chunk.offset) != transfer.place or zlib.crc32(chunk.data) != chunk.crc32:
            self._say_wants_again(transfer)
            return
        file = transfer.begin.files[chunk.file_number]
        if chunk.offset + len(chunk.data) > file.size_bytes:
            self._say_wants_again(transfer)
            return
        if not self._target.may_take(len(chunk.data)):
            await self._refuse(transfer.sender, transfer.begin, Outcome.DISK_LOW)
            return
        path = transfer.path / file.name
        await self._run_blocking(lambda: self._directories.files.write(path, chunk.offset, chunk.data))
        transfer.have_bytes[chunk.file_number] += len(chunk.data)
        if transfer.have_bytes[chunk.file_number] == file.size_bytes:
            await self.verify(transfer, chunk.file_number)
        transfer.unacked_chunks += 1
        await self._go_on(transfer)

    async def _go_on(self, transfer: _Transfer) -> None:
        """Asks for more, or finishes."""
        if transfer.damaged_files > self._settings.damaged_files_max:
            await self._refuse(transfer.sender, transfer.begin, Outcome.DAMAGED)
        elif transfer.missing_bytes:
            if self._inbox.empty() or transfer.unacked_chunks >= self._settings.ack_chunks:
                self._say_wants(transfer)
        else:
            await self._finish(transfer)

    async def _finish(self, transfer: _Transfer) -> None:
        """Everything is here: looks once more at what an earlier run has left, then has it installed."""
        transfer.is_whole = True
        self._say_wants(transfer)
        for number in range(len(transfer.begin.files)):
            if number not in transfer.verified:
                await self.verify(transfer, number)
        if transfer.missing_bytes:
            transfer.is_whole = False
            await self._go_on(transfer)
            return
        begin = transfer.begin
        try:
            installed = await self._target.install(transfer.path, begin.index, begin.index_term, begin.configuration)
        except Exception as error:  # noqa: BLE001 - whatever it is, the transfer is over and the replica as it was
            _log.warning("snapshot_not_installed", snapshot=begin.id, error=f"{type(error).__name__}: {error}")
            await self._refuse(transfer.sender, begin, Outcome.FAILED)
            return
        if not installed and self._target.is_needed(begin.index, begin.index_term):
            await self._refuse(transfer.sender, begin, Outcome.FAILED)
            return
        _log.info(
            "snapshot_installed" if installed else "snapshot_not_needed", sender=transfer.sender, snapshot=begin.id,
            index=begin.index,
        )  # fmt: skip
        self._say_done(transfer.sender, begin, Outcome.INSTALLED)
        await self._drop_transfer()

    # --- storing ----------------------------------------------------------------------------------------------

    def _open(self, sender: str, begin: SnapshotBegin) -> _Transfer:
        """Blocks. A directory for this transfer, with what an earlier run has stored of it; all others are removed."""
        directories, files = self._directories, self._directories.files
        path = directories.incoming(begin.id)
        for other in directories.incoming_paths():
            if other != path:
                directories.remove(other)
        earlier = directories.announced(begin.id)
        if earlier is None or replace(earlier, term=begin.term) != begin:
            directories.remove(path)
        directories.begin(begin)
        have_bytes: list[int] = []
        for file in begin.files:
            size_bytes = files.size(path / file.name)
            if size_bytes is None or size_bytes > file.size_bytes:
                files.truncate(path / file.name, 0)
                size_bytes = 0
            have_bytes.append(size_bytes)
        return _Transfer(begin, sender, path, have_bytes, set())

    async def verify(self, transfer: _Transfer, number: int) -> None:
        """Looks at the checksum of a file that is complete. A damaged one is emptied, so that it is wanted again."""
        file = transfer.begin.files[number]
        path = transfer.path / file.name
        files = self._directories.files

        def check() -> bool:
            if crc32_of(files, path, file.size_bytes) == file.crc32:
                files.sync_file(path)
                return True
            files.truncate(path, 0)
            return False

        if await self._run_blocking(check):
            transfer.verified.add(number)
            return
        _log.warning("snapshot_file_damaged", snapshot=transfer.begin.id, file=file.name)
        transfer.have_bytes[number] = 0
        transfer.damaged_files += 1

    async def _drop_transfer(self) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            await self._run_blocking(lambda: self._directories.remove(transfer.path))

    # --- answers ----------------------------------------------------------------------------------------------

    def _say_wants(self, transfer: _Transfer) -> None:
        transfer.unacked_chunks = 0
        self._target.send(transfer.sender, SnapshotWants(transfer.begin.term, transfer.begin.id, *transfer.place))

    def _say_wants_again(self, transfer: _Transfer) -> None:
        """To a message that did not fit: often enough for its sender to find the place, and no answer to a flood."""
        now_s = asyncio.get_running_loop().time()
        if transfer.unacked_chunks or now_s - transfer.repeat_acked_s >= self._settings.repeat_ack_s:
            transfer.repeat_acked_s = now_s
            self._say_wants(transfer)

    def _say_done(self, sender: str, begin: SnapshotBegin, outcome: Outcome) -> None:
        self._target.send(sender, SnapshotDone(begin.term, begin.id, begin.index, outcome))

    async def _refuse(self, sender: str, message: SnapshotBegin | SnapshotChunk, outcome: Outcome) -> None:
        """Ends this transfer and frees its space; the sender may try again later."""
        index = message.index if isinstance(message, SnapshotBegin) else 0
        if self._transfer is not None and self._transfer.begin.id == message.id:
            index = self._transfer.begin.index
            self._transfer = None
        _log.warning("snapshot_refused", sender=sender, snapshot=message.id, outcome=outcome.name)
        self._target.send(sender, SnapshotDone(message.term, message.id, index, outcome))
        path = self._directories.incoming(message.id)
        await self._run_blocking(lambda: self._directories.remove(path))
