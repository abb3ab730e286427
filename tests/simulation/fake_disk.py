"""An in-memory disk that forgets everything it was not told to keep.

It holds two images: what a running process sees (the page cache) and what survives a power failure. `crash()` turns
the second into the first, after letting any subset of the unsynced sectors, lengths and names through.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from holdfast.wal.disk import DiskFailedError, DiskFullError

SECTOR_BYTES = 512


class SimulatedCrash(BaseException):
    """The power failed. Not an Exception: no handler may swallow it and go on."""


class _File:
    """Content as the process sees it and as the platter holds it."""

    def __init__(self, size_bytes: int) -> None:
        self.seen = bytearray(size_bytes)
        self.kept = bytearray()
        self.dirty: set[int] = set()

    def keep_size(self) -> None:
        del self.kept[len(self.seen) :]
        self.kept.extend(bytes(len(self.seen) - len(self.kept)))

    def keep_sector(self, sector: int) -> None:
        start = sector * SECTOR_BYTES
        end = min(start + SECTOR_BYTES, len(self.kept))
        if start < end:
            self.kept[start:end] = self.seen[start:end].ljust(end - start, b"\0")


class FakeDisk:
    """Implements holdfast.wal.disk.Disk. Every choice comes from `rng`, so a seed is a history."""

    def __init__(self, rng: random.Random, *, capacity_bytes: int = 1 << 40) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.sync_count = 0
        self.fail_next_sync = False
        self.fail_next_write = False
        self._operations_left: int | None = None
        self._powered = True
        self._names: dict[str, _File] = {}
        self._kept_names: dict[str, _File] = {}
        # Every state that an unsynced name went through: any of them may be the one that survives.
        self._name_history: dict[str, list[_File | None]] = {}
        self._handles: dict[int, _File] = {}
        self._next_handle = 1

    # Faults.

    def crash_after(self, operations: int) -> None:
        """The power fails in the middle of the operation that follows this many more changing operations."""
        self._operations_left = operations

    def crash(self) -> None:
        """Power failure and return of the power: only what was synced is certain to be there."""
        likely = self.rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for name, history in self._name_history.items():
            survivor = self.rng.choice([self._kept_names.get(name), *history])
            if survivor is None:
                self._kept_names.pop(name, None)
            else:
                self._kept_names[name] = survivor
        for file in self._kept_names.values():
            if self.rng.random() < likely:
                file.keep_size()
            for sector in sorted(file.dirty):
                if self.rng.random() < likely:
                    file.keep_sector(sector)
            file.seen = bytearray(file.kept)
            file.dirty.clear()
        self._names = dict(self._kept_names)
        self._name_history.clear()
        self.restart()

    def restart(self) -> None:
        """Only the process dies: handles are gone, what it wrote is still seen, unsynced or not."""
        self._handles.clear()
        self._operations_left = None
        self._powered = True
        self.fail_next_sync = self.fail_next_write = False

    def flip_bit(self, name: str, offset: int, bit: int = 0) -> None:
        """Damage on the platter itself."""
        file = self._names[name]
        for image in (file.seen, file.kept):
            if offset < len(image):
                image[offset] ^= 1 << bit

    def content(self, name: str) -> bytes:
        return bytes(self._names[name].seen)

    def copy(self) -> FakeDisk:
        """The same files, all synced, on another disk."""
        other = FakeDisk(random.Random(0))
        for name, file in self._names.items():
            twin = _File(0)
            twin.seen, twin.kept = bytearray(file.seen), bytearray(file.seen)
            other._names[name] = other._kept_names[name] = twin
        return other

    # The Disk protocol.

    def list_files(self) -> list[str]:
        self._check_power()
        names = list(self._names)
        self.rng.shuffle(names)
        return names

    def create(self, name: str, size_bytes: int) -> int:
        if name in self._names:
            raise DiskFailedError(f"{name} exists")
        self._reserve(size_bytes)
        self._change()
        self._set_name(name, _File(size_bytes))
        return self.open(name)

    def open(self, name: str) -> int:
        self._check_power()
        if name not in self._names:
            raise DiskFailedError(f"{name} does not exist")
        self._next_handle += 1
        self._handles[self._next_handle] = self._names[name]
        return self._next_handle

    def close(self, handle: int) -> None:
        # Also without power: `finally` blocks run while a simulated crash passes through.
        self._handles.pop(handle, None)

    def size(self, handle: int) -> int:
        self._check_power()
        return len(self._handles[handle].seen)

    def extend(self, handle: int, size_bytes: int) -> None:
        file = self._handles[handle]
        more = max(size_bytes - len(file.seen), 0)
        self._reserve(more)
        self._change()
        file.seen.extend(bytes(more))

    def truncate(self, handle: int, size_bytes: int) -> None:
        file = self._handles[handle]
        if size_bytes > len(file.seen):
            raise AssertionError("the log meant to shorten the file")
        self._change()
        end = max(len(file.seen), len(file.kept))
        del file.seen[size_bytes:]
        # Any of the old sectors may come back until the next sync.
        file.dirty.update(range(size_bytes // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def read(self, handle: int, offset: int, length: int) -> bytes:
        self._check_power()
        return bytes(self._handles[handle].seen[offset : offset + length])

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        file = self._handles[handle]
        data = b"".join(buffers)
        if offset + len(data) > len(file.seen):
            raise AssertionError("the log wrote outside the space it had reserved")
        try:
            self._change()
        except SimulatedCrash:
            self._write(file, self._torn(data), offset)
            raise
        if self.fail_next_write:
            self.fail_next_write = False
            self._write(file, self._torn(data), offset)
            raise DiskFailedError("input/output error on the fake disk")
        self._write(file, data, offset)

    def fdatasync(self, handle: int) -> None:
        file = self._handles[handle]
        self._change()
        if self.fail_next_sync:
            self._fail_sync(file)
        self.sync_count += 1
        file.keep_size()
        for sector in file.dirty:
            file.keep_sector(sector)
        file.dirty.clear()

    def fsync_directory(self) -> None:
        self._change()
        self._kept_names = dict(self._names)
        self._name_history.clear()

    def unlink(self, name: str) -> None:
        self._change()
        if name not in self._names:
            raise DiskFailedError(f"{name} does not exist")
        self._set_name(name, None)

    def free_bytes(self) -> int:
        return self.capacity_bytes - sum(len(file.seen) for file in self._names.values())

    # How it works.

    def _check_power(self) -> None:
        if not self._powered:
            raise SimulatedCrash

    def _change(self) -> None:
        """Counts an operation that changes something; its effect is left out when the power fails now."""
        self._check_power()
        if self._operations_left is None:
            return
        if self._operations_left == 0:
            self._powered = False
            raise SimulatedCrash
        self._operations_left -= 1

    def _reserve(self, size_bytes: int) -> None:
        self._check_power()
        if size_bytes > self.free_bytes():
            raise DiskFullError("no space left on the fake disk")

    def _set_name(self, name: str, file: _File | None) -> None:
        if file is None:
            del self._names[name]
        else:
            self._names[name] = file
        self._name_history.setdefault(name, []).append(file)

    def _torn(self, data: bytes) -> bytes:
        """The beginning of it. Zeros at its end were there before: to lose some of them is no loss."""
        return data[: self.rng.randrange(len(data.rstrip(b"\0")) + 1)]

    def _write(self, file: _File, data: bytes, offset: int) -> None:
        if not data:
            return
        file.seen[offset : offset + len(data)] = data
        file.dirty.update(range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1))

    def _fail_sync(self, file: _File) -> None:
        """As kernels do it: the error is told once, the pages count as clean, and some never reached the platter."""
        self.fail_next_sync = False
        for sector in sorted(file.dirty):
            if self.rng.random() < 0.5:
                file.keep_size()
                file.keep_sector(sector)
        file.dirty.clear()
        raise DiskFailedError("input/output error on the fake disk")
