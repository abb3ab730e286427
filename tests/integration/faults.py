"""Faults inside a running server: a wrong wall clock, a slow or failing disk. See faults.c, which is preloaded."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.integration.server import wait_until

_SOURCE: Final = Path(__file__).with_name("faults.c")
_NAMES: Final = (
    "wall_offset_ns",
    "sync_delay_us",
    "sync_fails",
    "syncs",
    "syncs_failed",
    "writes_failing",
    "syncs_waiting",
    "syncs_passing",
)
_WORD: Final = struct.Struct("=q")


def compile_faults(directory: Path) -> Path:
    """The library to preload; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    library = directory / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Faults:
    """What one server suffers. Give `env` to its process; changes take effect at once."""

    def __init__(self, library: Path, directory: Path) -> None:
        path = directory / "faults"
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.env = {"LD_PRELOAD": str(library), "FAULTS_FILE": str(path)}

    def jump_wall_clock(self, seconds: float) -> None:
        """The wall clock is wrong by this much from now on."""
        self._put("wall_offset_ns", int(seconds * 1_000_000_000))

    def slow_disk(self, seconds: float, *, after: int = 0) -> None:
        """Each sync of the log takes this long, but for so many that come first; 0 also ends one under way."""
        self._put("syncs_passing", self.syncs + after)
        self._put("sync_delay_us", int(seconds * 1_000_000))

    def wait_for_slow_sync(self) -> None:
        """Returns once a sync is under way and being held up."""
        wait_until(lambda: self._get("syncs_waiting"), "a sync of the log to be under way")

    def fail_next_sync(self) -> None:
        """The next sync of the log fails, and what was written last is not on the disk."""
        self._put("sync_fails", 1)

    @property
    def syncs(self) -> int:
        return self._get("syncs")

    @property
    def syncs_failed(self) -> int:
        return self._get("syncs_failed")

    @property
    def writes_after_failure(self) -> int:
        return self._get("writes_failing")

    def close(self) -> None:
        self._page.close()

    def _get(self, name: str) -> int:
        (value,) = _WORD.unpack_from(self._page, _NAMES.index(name) * _WORD.size)
        return int(value)

    def _put(self, name: str, value: int) -> None:
        _WORD.pack_into(self._page, _NAMES.index(name) * _WORD.size, value)
