"""Facts about the machine that the figures depend on."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from harness.numbers import percentile

FSYNC_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    cpu: str
    memory_gb: float
    kernel: str
    python: str
    file_system: str
    load_average: float  # one minute, before the run
    fdatasync_ms: dict[str, dict[str, float]]  # by bytes written: p50 and p99


def look_at_machine(directory: Path, *, syncs: int) -> Machine:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=_cpu_name(),
        memory_gb=round(pages * page_bytes / 1e9, 1),
        kernel=platform.release().partition("-")[0],  # the rest names a build of it
        python=platform.python_version(),
        file_system=file_system_of(directory),
        load_average=os.getloadavg()[0],
        fdatasync_ms={
            "4 KB": _fdatasync_ms(directory, 4 * 1024, syncs),
            "100 KB": _fdatasync_ms(directory, 100 * 1024, syncs),
        },
    )


def file_system_of(directory: Path) -> str:
    """The type of the file system that a directory is on, e.g. ext4."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == wanted:
            return rest.split()[0]
    return "unknown"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _fdatasync_ms(directory: Path, size_bytes: int, count: int) -> dict[str, float]:
    """How long one write and fdatasync takes, appended to reserved space as the log does it."""
    path = directory / "fdatasync.probe"
    data = os.urandom(size_bytes)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, FSYNC_FILE_BYTES)
        os.fsync(handle)
        took_ms = []
        for turn in range(count):
            offset = turn * size_bytes % (FSYNC_FILE_BYTES - size_bytes)
            started_s = time.perf_counter()
            os.pwrite(handle, data, offset)
            os.fdatasync(handle)
            took_ms.append((time.perf_counter() - started_s) * 1000)
    finally:
        os.close(handle)
        path.unlink()
    return {"p50": percentile(took_ms, 50), "p99": percentile(took_ms, 99)}
