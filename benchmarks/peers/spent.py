"""What the processes of a row have used, from /proc: a server may be one process or many that come and go."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/<pid>/stat, counted after the name, which may have blanks in it.
_PARENT = 1
_CPU_TICKS = slice(11, 15)  # user and system time: its own, and that of children that ended and were waited for


@dataclass(frozen=True, slots=True)
class Process:
    parent: int
    cpu_s: float  # with that of its children that have ended


@dataclass(frozen=True, slots=True)
class Spent:
    cpu_s: float
    written_bytes: int  # to the disk, or to be written to it

    def __sub__(self, earlier: "Spent") -> "Spent":
        return Spent(self.cpu_s - earlier.cpu_s, self.written_bytes - earlier.written_bytes)


def parse_stat(text: str) -> Process:
    fields = text.rpartition(")")[2].split()
    return Process(int(fields[_PARENT]), sum(map(int, fields[_CPU_TICKS])) / _TICKS_PER_S)


def tree_of(roots: Collection[int], processes: Mapping[int, Process]) -> set[int]:
    """The roots that are there and all their descendants."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def spent_by(roots: Collection[int]) -> Spent:
    """By these processes and all that descend from them, so far."""
    processes = _read_processes()
    tree = tree_of(roots, processes)
    return Spent(sum(processes[pid].cpu_s for pid in tree), sum(_written_bytes(tree)))


def _read_processes() -> dict[int, Process]:
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            found[int(path.name)] = parse_stat((path / "stat").read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return found


def _written_bytes(pids: Iterable[int]) -> Iterable[int]:
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        fields = dict(line.split(": ") for line in lines)
        yield int(fields["write_bytes"])
