"""Readings of processes and of the machine, from Linux: CPU time, memory, and who else is busy."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_CPU_CLOCK_OF_PROCESS = 2  # the kernel's number for "CPU time of the whole process, exact"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

LOOP = "event loop"
ROCKSDB = "rocksdb"
OTHER = "other threads"  # the log's sync thread and gRPC's


def process_cpu_s(pid: int) -> float:
    """CPU time of a process, all threads that it ever had included."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU time of the threads that a server has now, by what they do."""
    spent_s = {LOOP: 0.0, ROCKSDB: 0.0, OTHER: 0.0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text()
            ran_s = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        kind = LOOP if task.name == str(pid) else ROCKSDB if name.startswith("rocksdb") else OTHER
        spent_s[kind] += ran_s
    return spent_s


@dataclass(frozen=True, slots=True)
class Memory:
    rss_mb: float
    peak_rss_mb: float  # since the process began


def memory(pid: int) -> Memory:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Memory(int(fields["VmRSS"].split()[0]) * 1024 / 1e6, int(fields["VmHWM"].split()[0]) * 1024 / 1e6)


@dataclass(frozen=True, slots=True)
class MachineCpu:
    """What all cores together have spent since boot."""

    busy_s: float
    stolen_s: float  # taken by other guests of the host


def machine_cpu() -> MachineCpu:
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (
        int(ticks) / _TICKS_PER_S for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return MachineCpu(user + nice + system + irq + softirq, steal)


CALIBRATION_TURNS = 100_000


def calibration_ms() -> float:
    """CPU time of a fixed piece of work in Python. It differs from run to run only by how fast the machine is then:
    a virtual machine's neighbours slow it down without being seen in any other way."""
    began_s = time.process_time()
    kept: dict[int, tuple[int, str]] = {}
    for turn in range(CALIBRATION_TURNS):
        kept[turn & 1023] = (turn, str(turn))
    return (time.process_time() - began_s) * 1000


class NoiseMeter:
    """How much of the machine others used while a measurement ran."""

    def __init__(self) -> None:
        self._before = machine_cpu()
        self._started_s = time.monotonic()
        self._own_cpu_s = time.process_time()

    @property
    def seconds(self) -> float:
        """Since this was made."""
        return time.monotonic() - self._started_s

    def others_percent(self, measured_s: float) -> float:
        """Share of all cores since this was made, given the CPU time of the processes that were measured."""
        now = machine_cpu()
        spent_s = now.busy_s - self._before.busy_s + now.stolen_s - self._before.stolen_s
        ours_s = measured_s + time.process_time() - self._own_cpu_s
        available_s = self.seconds * (os.cpu_count() or 1)
        return max(0.0, 100 * (spent_s - ours_s) / available_s) if available_s else 0.0
