"""Small file systems of the test's own, to be filled up or cut off from power. They need root; without it: skipped."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from chaos.system.disks import Disk

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


def power_disk(directory: Path, size_bytes: int) -> Disk:
    """One whose power can be cut: then what was not synced is gone."""
    try:
        return Disk(directory, size_bytes)
    except OSError as error:
        pytest.skip(f"a file system of its own is not possible here: {error}")
