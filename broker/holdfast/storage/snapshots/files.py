"""The seam between snapshots and a file system: a Protocol and its implementation on a real one.

The in-memory twin that loses what was not synced is in tests/simulation/snapshot_files.py. Files are opened for each
call: with chunks of 256 KiB that costs nothing, and nothing is left open whatever ends a transfer.
"""

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

Result = TypeVar("Result")

_PIECE_BYTES = 1024 * 1024
_SYNC_BYTES = 4 * 1024 * 1024


class Files(Protocol):
    """Every method blocks, and raises OSError. What was changed is durable only after the sync that is named."""

    def list_directory(self, path: Path) -> list[str]:
        """Names in it, in no particular order; none if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """With its missing parents, all of them durable; existing is fine."""

    def rename(self, old: Path, new: Path) -> None:
        """In one directory. Durable after sync_directory of it."""

    def remove_file(self, path: Path) -> None:
        """Missing is fine. Durable after sync_directory of its directory."""

    def remove_tree(self, path: Path) -> None:
        """A directory with everything in it; missing is fine. May be interrupted half-way."""

    def size(self, path: Path) -> int | None:
        """None if it does not exist."""

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Fewer bytes only at the end of the file."""

    def write(self, path: Path, offset: int, data: bytes) -> None:
        """Creates the file if it is missing. Durable after sync_file and, if it is new, sync_directory."""

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Creates the file if it is missing."""

    def sync_file(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


class RunBlocking(Protocol):
    """How this package has blocking work done: in a thread, as by `asyncio.to_thread`, or in a test at once."""

    def __call__(self, function: Callable[[], Result], /) -> Awaitable[Result]: ...


class RealFiles:
    """A local file system. All blocking calls release the interpreter lock."""

    def list_directory(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove_file(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def read(self, path: Path, offset: int, length: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            parts = []
            while length and (part := file.read(length)):
                parts.append(part)
                length -= len(part)
            return b"".join(parts)

    def write(self, path: Path, offset: int, data: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            rest, began = memoryview(data), offset
            while rest:
                written = os.pwrite(handle, rest, offset)
                offset += written
                rest = rest[written:]
            # Now and then, or the sync at the end has so much to write that those of the log wait for it.
            if offset // _SYNC_BYTES != began // _SYNC_BYTES:
                os.fdatasync(handle)
        finally:
            os.close(handle)

    def truncate(self, path: Path, size_bytes: int) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(handle, size_bytes)
        finally:
            os.close(handle)

    def sync_file(self, path: Path) -> None:
        _sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def crc32_of(files: Files, path: Path, size_bytes: int) -> int:
    """Of the first `size_bytes` of a file. Blocks."""
    crc = 0
    for piece in _pieces(files, path, size_bytes):
        crc = zlib.crc32(piece, crc)
    return crc


def sha256_of(files: Files, path: Path, size_bytes: int) -> bytes:
    """The same, of what nobody must be able to change unnoticed."""
    digest = hashlib.sha256()
    for piece in _pieces(files, path, size_bytes):
        digest.update(piece)
    return digest.digest()


def _pieces(files: Files, path: Path, size_bytes: int) -> Iterator[bytes]:
    """Rests after each piece for as long as it took, because the log needs disk and processor more."""
    for offset in range(0, size_bytes, _PIECE_BYTES):
        began_s = time.perf_counter()
        yield files.read(path, offset, min(_PIECE_BYTES, size_bytes - offset))
        time.sleep(time.perf_counter() - began_s)
