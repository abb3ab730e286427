"""The sending side of snapshots of one shard: one checkpoint, sent to every replica that is behind the log's start.

A transfer asks (SnapshotBegin) until it is told a place, then streams chunks from there, a few ahead of what was
acknowledged. When nothing is heard for a while it asks again and goes on from what the answer says: that one rule
covers lost, repeated and overtaken messages, a receiver that was restarted, and files that have to be sent again.
"""

import asyncio
import secrets
import zlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from holdfast.common.backoff import Backoff
from holdfast.common.service import Service
from holdfast.raft.messages import NO_CONFIGURATION, Configuration
from holdfast.serving.logs import get_logger
from holdfast.storage.rocksdb import StateError
from holdfast.storage.snapshots.checkpoint import CheckpointPoint, files_of
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.files import RunBlocking
from holdfast.storage.snapshots.messages import (
    Outcome,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotDone,
    SnapshotMessage,
    SnapshotWants,
)
from holdfast.storage.snapshots.throttle import Throttle

_BACKOFF = Backoff(first_s=10.0, max_s=300.0)
_COUNTER_BITS = 31  # of a snapshot id; the random number of the process is above it

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SendSettings:
    chunk_bytes: int = 256 * 1024
    window_chunks: int = 4  # on their way at once; a peer's buffer must have room for them
    ask_again_s: float = 1.0  # after hearing nothing for so long
    patience_s: float = 60.0  # without any progress; then the transfer is given up
    backoff: Backoff = _BACKOFF  # after transfers that were refused or given up
    settle_s: float = 2.0  # after one that was installed: how long its receiver may take to show that in its replies
    linger_s: float = 15.0  # how long a checkpoint waits for others who need it


class _Checkpoint:
    """A copy of the state that serves every transfer that begins while it is there."""

    def __init__(self, snapshot_id: int, path: Path, index: int) -> None:
        self.id = snapshot_id
        self.path = path
        self.held_index = index  # the log must be kept after this index for whoever gets this copy
        self.begin = SnapshotBegin(0, snapshot_id, 0, 0, NO_CONFIGURATION, ())  # known once it is made
        self.making: asyncio.Task[None]
        self.transfers = 0  # that use it now
        self.expiry: asyncio.TimerHandle | None = None


class SnapshotSource(Protocol):
    """The replica whose state is sent, and its way to the others."""

    @property
    def applied_index(self) -> int:
        """The newest entry that is in the state."""
        ...

    @property
    def base_index(self) -> int:
        """The log begins after this entry."""
        ...

    def configuration_at(self, index: int) -> Configuration:
        """Asked for indexes from `held_index` on."""
        ...

    def checkpoint(self, directory: Path) -> CheckpointPoint:
        """Copies the state into a directory. Called in a thread."""
        ...

    def send(self, to: str, message: SnapshotMessage) -> None: ...


class SnapshotSender:
    """Tell it with `wanted` who needs a snapshot, and with `handle` what they answer."""

    def __init__(
        self,
        directories: StateDirectories,
        source: SnapshotSource,
        *,
        throttle: Throttle,
        slots: asyncio.Semaphore,
        run_blocking: RunBlocking = asyncio.to_thread,
        settings: SendSettings | None = None,
    ) -> None:
        """`throttle` and `slots` (transfers at once) are the node's, shared by its shards."""
        self._directories = directories
        self._source = source
        self._throttle = throttle
        self._slots = slots
        self._run_blocking = run_blocking
        self._settings = settings if settings is not None else SendSettings()
        self._term = 0
        self._next_id = (secrets.randbits(63 - _COUNTER_BITS) << _COUNTER_BITS) + 1
        self._transfers: dict[str, _Transfer] = {}
        self._not_before_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # of replicas, since the last that was installed
        self._newest: _Checkpoint | None = None
        self._checkpoints: set[_Checkpoint] = set()
        self._background = Service(on_error=_say_failed)
        self._is_closed = False

    # --- for the driver ---------------------------------------------------------------------------------------

    def wanted(self, replicas: Iterable[str], term: int) -> None:
        """Who needs a snapshot now; nobody once leadership is lost. Called often: it begins and gives up transfers."""
        if self._is_closed:
            return
        self._term = term
        replicas = set(replicas)
        for replica in self._transfers.keys() - replicas:
            self._transfers.pop(replica).task.cancel()
        now_s = asyncio.get_running_loop().time()
        if self._not_before_s:
            self._not_before_s = {replica: s for replica, s in self._not_before_s.items() if s > now_s}
        for replica in sorted(replicas - self._transfers.keys()):
            if replica not in self._not_before_s:
                transfer = _Transfer(replica, self)
                self._transfers[replica] = transfer
                transfer.task = self._background.spawn(self._serve(transfer))

    def handle(self, sender: str, message: SnapshotMessage) -> None:
        """Never blocks and never raises: an answer to nothing that is under way is ignored."""
        transfer = self._transfers.get(sender)
        if transfer is not None:
            transfer.hear(message)

    @property
    def held_index(self) -> int | None:
        """Entries after this index are still needed by those who get a snapshot; None: there is no snapshot."""
        return min((checkpoint.held_index for checkpoint in self._checkpoints), default=None)

    @property
    def progress(self) -> dict[str, tuple[int, int]]:
        """Per replica: bytes acknowledged and bytes in all."""
        return {replica: (transfer.acked, transfer.whole_bytes) for replica, transfer in self._transfers.items()}

    async def close(self) -> None:
        """Gives everything up and removes what was made for it."""
        self._is_closed = True
        for transfer in self._transfers.values():
            transfer.task.cancel()
        await self._background.ended()
        for checkpoint in list(self._checkpoints):
            self._expire(checkpoint)
        await self._background.ended()

    # --- transfers --------------------------------------------------------------------------------------------

    async def _serve(self, transfer: "_Transfer") -> None:
        """One transfer from its beginning to its end, whichever that is."""
        replica = transfer.replica
        is_installed = False
        try:
            async with self._slots:
                checkpoint = self._checkpoint_to_use()
                try:
                    await asyncio.shield(checkpoint.making)
                    outcome = await transfer.run(checkpoint.begin, checkpoint.path)
                finally:
                    self._release(checkpoint)
            is_installed = outcome is Outcome.INSTALLED
            _log.info("snapshot_sent", replica=replica, outcome=outcome.name if outcome is not None else "GIVEN_UP")
        except (OSError, StateError) as error:
            _log.warning("snapshot_not_sent", replica=replica, error=str(error))
        finally:
            if self._transfers.get(replica) is transfer:  # not if it was given up
                del self._transfers[replica]
                self._not_before_s[replica] = asyncio.get_running_loop().time() + self._pause_s(replica, is_installed)

    def _pause_s(self, replica: str, is_installed: bool) -> float:
        """How long to leave a replica alone: a checkpoint is not made every few seconds for one that takes none."""
        if is_installed:
            self._failures.pop(replica, None)
            return self._settings.settle_s
        self._failures[replica] = self._failures.get(replica, 0) + 1
        return self._settings.backoff.longest_s(self._failures[replica])

    @property
    def term(self) -> int:
        return self._term

    @property
    def settings(self) -> SendSettings:
        return self._settings

    def send(self, replica: str, message: SnapshotMessage) -> None:
        self._source.send(replica, message)

    async def read(self, path: Path, offset: int, length: int) -> tuple[bytes, int]:
        """A piece of a checkpoint and its checksum, when the throttle lets it pass."""
        await self._throttle.take(length)
        return await self._run_blocking(lambda: self._read(path, offset, length))

    def _read(self, path: Path, offset: int, length: int) -> tuple[bytes, int]:
        data = self._directories.files.read(path, offset, length)
        if len(data) != length:
            raise OSError(f"Expected {length} bytes at {offset} of {path}, but there are {len(data)}.")
        return data, zlib.crc32(data)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def _checkpoint_to_use(self) -> _Checkpoint:
        """The newest if the log still goes on from it, otherwise a new one. To be released."""
        checkpoint = self._newest
        if checkpoint is None or checkpoint.held_index < self._source.base_index:
            path = self._directories.outgoing(self._next_id)
            checkpoint = _Checkpoint(self._next_id, path, self._source.applied_index)
            self._next_id += 1
            self._newest = checkpoint
            self._checkpoints.add(checkpoint)
            checkpoint.making = self._background.spawn(self._make(checkpoint))
        if checkpoint.expiry is not None:
            checkpoint.expiry.cancel()
            checkpoint.expiry = None
        checkpoint.transfers += 1
        return checkpoint

    async def _make(self, checkpoint: _Checkpoint) -> None:
        path = checkpoint.path
        try:
            point = await self._run_blocking(lambda: self._source.checkpoint(path))
            configuration = self._source.configuration_at(point.index)
            files = await self._run_blocking(
                lambda: files_of(self._directories.files, path, may_go_on=lambda: not self._is_closed)
            )
        except BaseException:
            if self._newest is checkpoint:
                self._newest = None
            raise
        checkpoint.held_index = point.index
        checkpoint.begin = SnapshotBegin(0, checkpoint.id, point.index, point.term, configuration, files)

    def _release(self, checkpoint: _Checkpoint) -> None:
        checkpoint.transfers -= 1
        if checkpoint.transfers == 0:
            loop = asyncio.get_running_loop()
            checkpoint.expiry = loop.call_later(self._settings.linger_s, self._expire, checkpoint)

    def _expire(self, checkpoint: _Checkpoint) -> None:
        if checkpoint.expiry is not None:
            checkpoint.expiry.cancel()
        if self._newest is checkpoint:
            self._newest = None
        self._checkpoints.discard(checkpoint)
        self._background.spawn(self._remove(checkpoint))

    async def _remove(self, checkpoint: _Checkpoint) -> None:
        await asyncio.gather(checkpoint.making, return_exceptions=True)  # it may outlive those who wanted it
        try:
            await self._run_blocking(lambda: self._directories.remove(checkpoint.path))
        except OSError as error:
            _log.warning("snapshot_not_removed", path=checkpoint.path, error=str(error))  # the next start will


def _say_failed(error: BaseException) -> None:
    _log.warning("snapshot_failed", error=f"{type(error).__name__}: {error}")


class _Transfer:
    """One checkpoint on its way to one replica. Places are counted in bytes over all files, one after the other."""

    def __init__(self, replica: str, sender: SnapshotSender) -> None:
        self.replica = replica
        self.task: asyncio.Task[None]
        self._sender = sender
        self._settings = sender.settings
        self._begin: SnapshotBegin | None = None
        self._starts: list[int] = [0]  # of each file; the last is the end of all
        self._is_asking = True  # for the place to go on from
        self.acked = 0
        self._sent = 0
        self._done: SnapshotDone | None = None
        self._heard = asyncio.Event()
        self._progress_s = 0.0
        self._quiet_since_s = 0.0

    @property
    def whole_bytes(self) -> int:
        return self._starts[-1]

    async def run(self, begin: SnapshotBegin, path: Path) -> Outcome | None:
        """What the receiver said in the end; None: it was given up."""
        self._begin = begin
        self._starts = list(accumulate((file.size_bytes for file in begin.files), initial=0))
        self._progress_s = self._quiet_since_s = self._now_s()
        window_bytes = self._settings.window_chunks * self._settings.chunk_bytes
        while self._done is None:
            if self._now_s() - self._progress_s > self._settings.patience_s:
                return None
            if self._is_asking:
                self._sender.send(self.replica, replace(begin, term=self._sender.term))
                self._quiet_since_s = self._now_s()
                await self._listen()
            elif self._sent < self.whole_bytes and self._sent - self.acked < window_bytes:
                await self._send_chunk(begin, path)
            elif not await self._listen():
                self._is_asking = True
        return self._done.outcome

    def hear(self, message: SnapshotMessage) -> None:
        if self._begin is None or not isinstance(message, SnapshotWants | SnapshotDone) or message.id != self._begin.id:
            return
        if isinstance(message, SnapshotDone):
            self._done = message
        else:
            place = self._place(message)
            if place is None:
                return
            if place > self.acked or place == self.whole_bytes:  # at the end it is busy with installing
                self._progress_s = self._now_s()
            if self._is_asking or place > self.acked:
                # Only who was asked may send us back: otherwise it is an old message.
                self._sent = place if self._is_asking else max(place, self._sent)
                self.acked = place
                self._is_asking = False
                self._quiet_since_s = self._now_s()
        self._heard.set()

    def _place(self, wants: SnapshotWants) -> int | None:
        assert self._begin is not None
        files = self._begin.files
        if wants.file_number == len(files):
            return self.whole_bytes
        if wants.file_number > len(files) or wants.offset > files[wants.file_number].size_bytes:
            return None
        return self._starts[wants.file_number] + wants.offset

    async def _send_chunk(self, begin: SnapshotBegin, path: Path) -> None:
        place = self._sent
        number = bisect_right(self._starts, place) - 1  # the last that begins here: those before it are empty
        file = begin.files[number]
        offset = place - self._starts[number]
        length = min(self._settings.chunk_bytes, file.size_bytes - offset)
        asked_s = self._now_s()
        data, crc32 = await self._sender.read(path / file.name, offset, length)
        self._progress_s += self._now_s() - asked_s  # the throttle's time is not the receiver's
        if self._sent == place:  # nothing was heard meanwhile that makes another place the next
            chunk = SnapshotChunk(self._sender.term, begin.id, number, offset, crc32, data)
            self._sender.send(self.replica, chunk)
            self._sent = place + length
            self._quiet_since_s = self._now_s()

    async def _listen(self) -> bool:
        """Waits until something is heard; False if all is quiet for too long."""
        try:
            async with asyncio.timeout_at(self._quiet_since_s + self._settings.ask_again_s):
                await self._heard.wait()
        except TimeoutError:
            return False
        self._heard.clear()
        return True

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
