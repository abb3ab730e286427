"""The one seam between the log and a disk: a Protocol and its implementation on a real directory.

The in-memory twin that loses everything not synced is in tests/simulation/fake_disk.py.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from holdfast.wal.errors import DiskFailedError, DiskFullError

__all__ = ["Disk", "DiskFailedError", "DiskFullError", "RealDisk"]

# Reserving space may fail with these and nothing is lost by it. Too few file descriptors are the same case: the
# round is refused before it was begun and a later one may find room.
NO_ROOM_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})

# The kernel takes at most this many buffers per call (IOV_MAX on Linux).
BUFFERS_PER_WRITE_MAX = 1024


class Disk(Protocol):
    """One flat directory of preallocated files. A handle is whatever `create` and `open` return.

    Every method blocks. `create` and `extend` raise DiskFullError and then leave nothing behind that matters;
    every other failure is a DiskFailedError.
    """

    def list_files(self) -> list[str]:
        """Names of the files, in no particular order."""

    def create(self, name: str, size_bytes: int) -> int:
        """Creates a file of zeros whose space is reserved. The name is durable only after fsync_directory."""

    def open(self, name: str) -> int:
        """Opens an existing file for reading and writing."""

    def close(self, handle: int) -> None:
        """Gives the handle back. Does not sync."""

    def size(self, handle: int) -> int:
        """Length of the file."""

    def extend(self, handle: int, size_bytes: int) -> None:
        """Reserves space up to this length; new bytes read as zeros. Never shortens the file."""

    def truncate(self, handle: int, size_bytes: int) -> None:
        """Shortens the file. What was behind the new end is gone for good once this is synced."""

    def read(self, handle: int, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        """Writes all buffers one after the other. Durable only after fdatasync."""

    def fdatasync(self, handle: int) -> None:
        """Makes the content and length of the file durable."""

    def fsync_directory(self) -> None:
        """Makes creations and unlinks durable."""

    def unlink(self, name: str) -> None:
        """Removes a file; handles that are open stay readable."""

    def free_bytes(self) -> int:
        """Space that this process may still reserve."""


class RealDisk:
    """A directory of a local file system. All blocking calls release the interpreter lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict[int, str] = {}
        with self._must_not_fail("open", "."):
            if not directory.is_dir():
                directory.mkdir(parents=True)
                _fsync_path(directory.parent)
            self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            # Of the files that were there or were created, and were not unlinked here.
            self._identities = {
                entry.name: _identity(entry.stat(follow_symlinks=False)) for entry in os.scandir(directory)
            }
        weakref.finalize(self, os.close, self._directory_fd)

    def list_files(self) -> list[str]:
        with self._must_not_fail("list", "."):
            return os.listdir(self._directory_fd)

    def create(self, name: str, size_bytes: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with self._may_be_full("create", name):
            handle = os.open(name, flags, 0o600, dir_fd=self._directory_fd)
            self._identities[name] = _identity(os.fstat(handle))
        self._names[handle] = name
        try:
            self.extend(handle, size_bytes)
        except BaseException:
            self.close(handle)
            self.unlink(name)
            raise
        return handle

    def open(self, name: str) -> int:
        with self._must_not_fail("open", name):
            handle = os.open(name, os.O_RDWR, dir_fd=self._directory_fd)
        self._names[handle] = name
        return handle

    def close(self, handle: int) -> None:
        with self._must_not_fail("close", self._names.pop(handle)):
            os.close(handle)

    def size(self, handle: int) -> int:
        with self._must_not_fail("stat", self._names[handle]):
            return os.fstat(handle).st_size

    def extend(self, handle: int, size_bytes: int) -> None:
        with self._may_be_full("reserve space for", self._names[handle]):
            os.posix_fallocate(handle, 0, size_bytes)

    def truncate(self, handle: int, size_bytes: int) -> None:
        with self._must_not_fail("truncate", self._names[handle]):
            os.ftruncate(handle, size_bytes)

    def read(self, handle: int, offset: int, length: int) -> bytes:
        with self._must_not_fail("read", self._names[handle]):
            data = os.pread(handle, length, offset)
            if len(data) == length or not data:
                return data
            parts = [data]
            missing = length - len(data)
            while missing and (data := os.pread(handle, missing, offset + length - missing)):
                parts.append(data)
                missing -= len(data)
            return b"".join(parts)

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        missing = sum(map(len, buffers))
        pending: list[bytes | memoryview] = list(buffers)
        try:
            while missing:
                written = os.pwritev(handle, pending[:BUFFERS_PER_WRITE_MAX], offset)
                if not written:
                    raise OSError(errno.EIO, "the file system accepted no bytes")
                missing -= written
                offset += written
                if missing:
                    pending = without_beginning(pending, written)
        except OSError as error:
            raise self._failed("write", self._names[handle], error) from error

    def fdatasync(self, handle: int) -> None:
        try:
            os.fdatasync(handle)
        except OSError as error:
            raise self._failed("fdatasync", self._names[handle], error) from error

    def fsync_directory(self) -> None:
        with self._must_not_fail("fsync", "."):
            os.fsync(self._directory_fd)

    def unlink(self, name: str) -> None:
        self._identities.pop(name, None)
        with self._must_not_fail("unlink", name):
            os.unlink(name, dir_fd=self._directory_fd)

    def lost_file(self, names: Iterable[str]) -> Path | None:
        """One of these that somebody else has deleted or replaced; None if all are in place."""
        for name in names:
            now = None
            with self._must_not_fail("stat", name), suppress(FileNotFoundError):
                now = _identity(os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False))
            if now != self._identities.get(name, now):  # those that another thread unlinks meanwhile are not in there
                return self._directory / name
        return None

    def free_bytes(self) -> int:
        with self._must_not_fail("statvfs", "."):
            status = os.fstatvfs(self._directory_fd)
        return status.f_bavail * status.f_frsize

    @contextmanager
    def _must_not_fail(self, operation: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed(operation, name, error) from error

    def _failed(self, operation: str, name: str, error: OSError) -> DiskFailedError:
        path = self._directory / name
        return DiskFailedError(f"Expected to {operation} {path}, but the disk failed: {error.strerror}.")

    @contextmanager
    def _may_be_full(self, operation: str, name: str) -> Iterator[None]:
        with self._must_not_fail(operation, name):
            try:
                yield
            except OSError as error:
                if error.errno not in NO_ROOM_ERRNOS:
                    raise
                path = self._directory / name
                raise DiskFullError(
                    f"Expected to {operation} {path}, but there is no room: {error.strerror}."
                ) from error


def without_beginning(buffers: Sequence[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """What is left of the buffers after their first `count` bytes."""
    for position, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[position + 1 :]]
        count -= len(buffer)
    return []


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _fsync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
