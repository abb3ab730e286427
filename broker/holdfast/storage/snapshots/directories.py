"""Where the states of one shard live, and what a start does with what a crash has left there.

    <data_dir>/state/<shard>/
        s-<index>-<random>/           a state; the name of the current one is in the log, nowhere else
        incoming-<snapshot id>/       files of a snapshot on its way here, with TRANSFER: what was announced
        outgoing-<snapshot id>/       a checkpoint on its way to other replicas

A directory gets its name as a state only once everything in it is on disk, and the log names it only after that. So
whatever the log names is whole, and everything else may be removed.
"""

import re
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path

from holdfast.raft.codec import FrameError
from holdfast.storage.snapshots.codec import decode, encode
from holdfast.storage.snapshots.files import Files, RealFiles
from holdfast.storage.snapshots.messages import SnapshotBegin

_STATE = re.compile(r"s-[0-9]{1,20}-[0-9a-f]{16}")
_INCOMING = re.compile(r"incoming-([0-9]{1,20})")
_OUTGOING = re.compile(r"outgoing-[0-9]{1,20}(?:\.tmp)?")  # RocksDB fills a checkpoint under this name first
_RANDOM_BYTES = 8

_TRANSFER = "TRANSFER"
_TRANSFER_NEW = "TRANSFER.tmp"
_CRC_BYTES = 4
_TRANSFER_BYTES_MAX = 8 * 1024 * 1024  # more than the largest that codec.py lets through


class StateMissingError(RuntimeError):
    """The log names a state that is not there."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a start found besides the current state."""

    removed: tuple[str, ...]
    resumable: SnapshotBegin | None  # a transfer that can go on where it was
    foreign: tuple[str, ...]  # nothing of ours: left alone


class StateDirectories:
    """The directories of one shard. Every method that touches the disk blocks, and raises OSError."""

    def __init__(self, state_dir: Path, shard: int, files: Files | None = None) -> None:
        self.files: Files = files if files is not None else RealFiles()
        self.path = state_dir / str(shard)

    # --- names ------------------------------------------------------------------------------------------------

    @staticmethod
    def new_name(index: int) -> str:
        """For a state that begins at this index; never the same twice."""
        return f"s-{index}-{secrets.token_hex(_RANDOM_BYTES)}"

    def state(self, name: str) -> Path:
        if _STATE.fullmatch(name) is None:
            raise ValueError(f"Expected the name of a state, but got {name!r}.")
        return self.path / name

    def incoming(self, snapshot_id: int) -> Path:
        return self.path / f"incoming-{snapshot_id}"

    def outgoing(self, snapshot_id: int) -> Path:
        return self.path / f"outgoing-{snapshot_id}"

    # --- states -----------------------------------------------------------------------------------------------

    def create(self, name: str) -> Path:
        """An empty directory for a new state, durable: then the log may name it."""
        path = self.state(name)
        self.files.make_directory(path)
        self.files.sync_directory(self.path)
        return path

    def adopt(self, incoming: Path, name: str) -> Path:
        """Makes a whole incoming directory a state. When this returns it survives a power cut, and the log may name it.

        A crash before the log does leaves a state that nobody names: the next start removes it.
        """
        path = self.state(name)
        for file in sorted(self.files.list_directory(incoming)):
            if file not in (_TRANSFER, _TRANSFER_NEW):
                self.files.sync_file(incoming / file)
        self.files.remove_file(incoming / _TRANSFER)
        self.files.remove_file(incoming / _TRANSFER_NEW)
        self.files.sync_directory(incoming)
        self.files.rename(incoming, path)
        self.files.sync_directory(self.path)
        return path

    def states(self) -> list[str]:
        """Names of all states that are there, current or not."""
        return sorted(name for name in self.files.list_directory(self.path) if _STATE.fullmatch(name))

    # --- transfers --------------------------------------------------------------------------------------------

    def incoming_paths(self) -> list[Path]:
        names = sorted(self.files.list_directory(self.path))
        return [self.path / name for name in names if _INCOMING.fullmatch(name)]

    def begin(self, begin: SnapshotBegin) -> Path:
        """A directory for a transfer, with a durable note of what was announced: then it can be resumed."""
        path = self.incoming(begin.id)
        self.files.make_directory(path)
        announced = encode(begin)
        self.files.truncate(path / _TRANSFER_NEW, 0)
        self.files.write(path / _TRANSFER_NEW, 0, zlib.crc32(announced).to_bytes(_CRC_BYTES, "big") + announced)
        self.files.sync_file(path / _TRANSFER_NEW)
        self.files.rename(path / _TRANSFER_NEW, path / _TRANSFER)
        self.files.sync_directory(path)
        return path

    def announced(self, snapshot_id: int) -> SnapshotBegin | None:
        """What the transfer in this directory was announced as; None if it cannot be resumed."""
        note = self.incoming(snapshot_id) / _TRANSFER
        if self.files.size(note) is None:
            return None
        data = self.files.read(note, 0, _TRANSFER_BYTES_MAX)
        announced = data[_CRC_BYTES:]
        if zlib.crc32(announced).to_bytes(_CRC_BYTES, "big") != data[:_CRC_BYTES]:
            return None
        try:
            begin = decode(announced)
        except FrameError:  # of a version with other messages
            return None
        return begin if isinstance(begin, SnapshotBegin) and begin.id == snapshot_id else None

    def transfers(self) -> list[SnapshotBegin]:
        """All that can be resumed, oldest first."""
        matches = map(_INCOMING.fullmatch, (path.name for path in self.incoming_paths()))
        begins = [self.announced(int(match[1])) for match in matches if match]
        return sorted((begin for begin in begins if begin is not None), key=lambda begin: (begin.term, begin.id))

    def remove(self, path: Path) -> None:
        """A transfer or a state that is no more needed."""
        self.files.remove_tree(path)

    # --- start ------------------------------------------------------------------------------------------------

    def clean(self, current: str | None) -> Leftovers:
        """Removes everything that is not the current state, except the newest transfer that can go on.

        `current` is what the log names, None if it has never named one: whoever calls must know that the log is whole.
        """
        if current is not None and self.state(current).name not in self.states():
            raise StateMissingError(
                f"Expected the state in {self.state(current)}, which the log names, but it is not there."
            )
        transfers = self.transfers()
        resumable = transfers[-1] if transfers else None
        kept = {current, self.incoming(resumable.id).name if resumable else None}
        removed: list[str] = []
        foreign: list[str] = []
        for name in sorted(self.files.list_directory(self.path)):
            if name in kept:
                continue
            if any(form.fullmatch(name) for form in (_STATE, _INCOMING, _OUTGOING)):
                self.files.remove_tree(self.path / name)
                removed.append(name)
            else:
                foreign.append(name)
        return Leftovers(tuple(removed), resumable, tuple(foreign))
