"""A copy of a shard's state that says itself how far the log is applied in it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.machine import keys
from holdfast.machine.rows import Meta
from holdfast.storage.rocksdb import read_row
from holdfast.storage.snapshots.codec import is_snapshot_file
from holdfast.storage.snapshots.files import Files, crc32_of
from holdfast.storage.snapshots.messages import SnapshotFile


class Copyable(Protocol):
    def checkpoint(self, directory: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckpointPoint:
    """The newest entry that is in a checkpoint."""

    index: int
    term: int


def take_checkpoint(state: Copyable, directory: Path) -> CheckpointPoint:
    """Blocks. Writes go on meanwhile, so only the copy itself knows what is in it."""
    state.checkpoint(directory)
    meta = meta_of(directory)
    return CheckpointPoint(meta.applied_index, meta.applied_term)


def meta_of(directory: Path) -> Meta:
    """Blocks. What a state that nobody has open says of itself."""
    row = read_row(directory, keys.META_KEY)
    return Meta.decode(row) if row is not None else Meta()


def files_of(
    files: Files, directory: Path, *, may_go_on: Callable[[], bool] = lambda: True
) -> tuple[SnapshotFile, ...]:
    """What a checkpoint consists of, in a fixed order. Blocks for as long as it takes to read all of it, or until it
    may not go on."""
    found: list[SnapshotFile] = []
    for name in sorted(filter(is_snapshot_file, files.list_directory(directory))):
        if not may_go_on():
            raise InterruptedError(f"The checkpoint in {directory} is no more needed.")
        size_bytes = files.size(directory / name) or 0
        found.append(SnapshotFile(name, size_bytes, crc32_of(files, directory / name, size_bytes)))
    return tuple(found)
