"""Small file systems of the test's own, to be filled up or cut off from power. They need root; without it: skipped."""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

# Stop the file system at once and throw away what it has not written: EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH.
_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_CHUNK_BYTES = 64 * 1024


def _run(*command: str) -> None:
    """Skips the test if this machine does not allow it."""
    if os.geteuid() != 0 or shutil.which(command[0]) is None:
        pytest.skip(f"needs root and {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")


class SmallDisk:
    """A mounted file system in memory, and a file that takes up its space."""

    def __init__(self, mount_point: Path, size_bytes: int) -> None:
        self.path = mount_point
        mount_point.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "holdfast-test", str(mount_point))
        self._ballast = mount_point / "ballast"

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def leave_free(self, free_bytes: int) -> None:
        """Fills or empties it so that this much is left."""
        with self._ballast.open("ab") as file:
            while (missing := self.free_bytes - free_bytes) > 0:
                try:
                    file.write(bytes(min(missing, _CHUNK_BYTES)))
                    file.flush()
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
            if missing < 0:
                file.truncate(max(0, file.tell() + missing))

    def remove_ballast(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


class PowerDisk:
    """A mounted ext4 in a file, whose power can be cut: then what was not synced is gone."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.path = directory / "power-disk"
        self.path.mkdir()
        self._image = directory / "power-disk.img"
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def cut_power(self) -> None:
        """Nothing that is only in memory reaches the image any more."""
        directory_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory_fd, _IOC_SHUTDOWN, struct.pack("=I", _NO_LOG_FLUSH))
        finally:
            os.close(directory_fd)

    def power_on(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
        self._mount()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)
