"""A small filesystem of a host's own: an ext4 in a file, which can be filled, frozen, and cut off from its power."""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

# Stop the filesystem at once and throw away what it has not written: EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH.
_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_CHUNK_BYTES = 256 * 1024


class Disk:
    """Mounted at `path` for as long as it exists."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.path = directory / "disk"
        self.path.mkdir(parents=True)
        self._image = directory / "disk.img"
        self._ballast = self.path / "ballast"
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def fill(self) -> None:
        """Nothing more can be written."""
        with self._ballast.open("ab") as file:
            while (free := shutil.disk_usage(self.path).free) > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), max(_CHUNK_BYTES, free - _CHUNK_BYTES))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Whoever writes waits, and cannot even be killed."""
        _run("fsfreeze", "-f", str(self.path))

    def thaw(self) -> None:
        _run("fsfreeze", "-u", str(self.path))

    def cut_power(self) -> None:
        """Nothing that is only in memory reaches the image any more. Whoever used it must be dead."""
        directory_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory_fd, _IOC_SHUTDOWN, struct.pack("=I", _NO_LOG_FLUSH))
        finally:
            os.close(directory_fd)

    def power_on(self) -> None:
        _run("umount", str(self.path))
        self._mount()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)
        self._image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"Expected `{' '.join(command)}` to succeed, but: {done.stderr.strip()}")
