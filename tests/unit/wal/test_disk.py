"""RealDisk on a real directory, and that the fake one behaves as it does."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.wal.disk import Disk, DiskFailedError, DiskFullError, RealDisk
from tests.simulation.fake_disk import FakeDisk


def _raise(code: int) -> Callable[..., NoReturn]:
    def fail(*arguments: object, **options: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture(params=["real", "fake"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "log") if request.param == "real" else FakeDisk(random.Random(0))


def test_a_file_is_created_with_zeros_written_and_read_back(disk: Disk) -> None:
    handle = disk.create("a", 10_000)
    disk.fsync_directory()
    assert disk.list_files() == ["a"]
    assert disk.size(handle) == 10_000
    disk.pwrite(handle, [b"one", b"", b"two"], 5000)
    disk.fdatasync(handle)
    disk.close(handle)
    handle = disk.open("a")
    assert disk.read(handle, 4999, 8) == b"\0onetwo\0"
    assert disk.read(handle, 9_990, 100) == bytes(10)
    assert disk.read(handle, 20_000, 1) == b""
    disk.close(handle)


def test_a_file_grows_and_shrinks(disk: Disk) -> None:
    handle = disk.create("a", 4096)
    disk.pwrite(handle, [b"x" * 4096], 0)
    disk.extend(handle, 8192)
    disk.extend(handle, 100)
    assert disk.size(handle) == 8192
    disk.truncate(handle, 1000)
    disk.extend(handle, 4096)
    assert disk.read(handle, 0, 5000) == b"x" * 1000 + bytes(3096)
    disk.close(handle)


def test_an_unlinked_file_stays_readable_while_it_is_open(disk: Disk) -> None:
    handle = disk.create("a", 100)
    disk.pwrite(handle, [b"here"], 0)
    disk.unlink("a")
    assert disk.list_files() == []
    assert disk.read(handle, 0, 4) == b"here"
    disk.close(handle)


def test_what_cannot_be_done_is_a_failed_disk(disk: Disk) -> None:
    with pytest.raises(DiskFailedError):
        disk.open("missing")
    with pytest.raises(DiskFailedError):
        disk.unlink("missing")
    disk.close(disk.create("a", 100))
    with pytest.raises(DiskFailedError):
        disk.create("a", 100)


def test_free_bytes(disk: Disk) -> None:
    assert disk.free_bytes() > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    disk = RealDisk(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", _raise(code))
    with pytest.raises(DiskFullError, match="a, but there is no room"):
        disk.create("a", 4096)
    assert list(tmp_path.iterdir()) == []


def test_no_file_descriptor_left_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", _raise(errno.EMFILE))
        with pytest.raises(DiskFullError):
            disk.create("a", 4096)


def test_another_failure_to_reserve_is_a_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", _raise(errno.EIO))
    with pytest.raises(DiskFailedError):
        disk.create("a", 4096)


@pytest.mark.parametrize("call", ["fdatasync", "pwritev", "pread"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_sync_or_read_is_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    disk = RealDisk(tmp_path)
    handle = disk.create("a", 4096)
    operations: dict[str, Callable[[], object]] = {
        "fdatasync": lambda: disk.fdatasync(handle),
        "pwritev": lambda: disk.pwrite(handle, [b"x"], 0),
        "pread": lambda: disk.read(handle, 0, 1),
    }
    with monkeypatch.context() as patched:
        patched.setattr(os, call, _raise(code))
        with pytest.raises(DiskFailedError, match=f"{tmp_path / 'a'}, but the disk failed"):
            operations[call]()
    disk.close(handle)


def test_short_writes_and_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    handle = disk.create("a", 4096)
    real_pwrite, real_pread = os.pwrite, os.pread

    def short_pwritev(fd: int, buffers: list[bytes | memoryview], offset: int) -> int:
        return real_pwrite(fd, b"".join(buffers)[:7], offset)

    def short_pread(fd: int, length: int, offset: int) -> bytes:
        return real_pread(fd, min(length, 5), offset)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pread", short_pread)
    buffers = [b"abc", b"", b"defghijklmnopq", b"r", b"stuvwxyz"]
    disk.pwrite(handle, buffers, 100)
    assert disk.read(handle, 100, 26) == b"abcdefghijklmnopqrstuvwxyz"
    assert disk.read(handle, 4090, 26) == bytes(6)
    disk.close(handle)


def test_a_write_that_makes_no_progress_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    handle = disk.create("a", 4096)

    def no_progress(fd: int, buffers: list[bytes], offset: int) -> int:
        return 0

    monkeypatch.setattr(os, "pwritev", no_progress)
    with pytest.raises(DiskFailedError):
        disk.pwrite(handle, [b"abc"], 0)
    disk.close(handle)


def test_more_buffers_than_the_kernel_takes_at_once(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    handle = disk.create("a", 1 << 16)
    buffers = [bytes([number % 256]) * 7 for number in range(3000)]
    disk.pwrite(handle, buffers, 1)
    assert disk.read(handle, 1, 21_000) == b"".join(buffers)
    disk.close(handle)


def test_files_that_somebody_else_deletes_or_replaces_are_lost(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x")
    disk = RealDisk(tmp_path)
    disk.create("new", 10)
    disk.create("cut", 10)
    names = ["old", "new", "cut"]
    assert disk.lost_file(names) is None
    disk.unlink("cut")
    assert disk.lost_file(names) is None, "it was unlinked here, a moment before the index says so"
    for name in ("old", "new"):
        (tmp_path / name).rename(tmp_path / f"{name}.away")  # so that nothing new gets its number
        assert disk.lost_file(names) == tmp_path / name
        (tmp_path / name).write_bytes(b"x")
        assert disk.lost_file(names) == tmp_path / name
        (tmp_path / f"{name}.away").rename(tmp_path / name)
        assert disk.lost_file(names) is None
