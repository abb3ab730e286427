"""What a harness that crashed has left behind. Where there are namespaces the kernel cleans up. Elsewhere each run
writes down whose it is and which processes it started, and the next one ends those of owners that are dead."""

import json
import os
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path

_DIRECTORY = Path(tempfile.gettempdir()) / f"holdfast-chaos-owners-{os.getuid()}"


class OwnerFile:
    """Of this run."""

    def __init__(self, directory: Path = _DIRECTORY) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = directory / f"{os.getpid()}-{_started(os.getpid())}.json"

    def write(self, pids: Iterable[int]) -> None:
        """The processes that run now."""
        self._path.write_text(json.dumps({str(pid): _started(pid) for pid in pids}), encoding="utf-8")

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def end_what_was_left(directory: Path = _DIRECTORY) -> list[int]:
    """Ends the processes of owners that are dead; their ids."""
    ended: list[int] = []
    for path in directory.glob("*-*.json"):
        owner, _, started = path.stem.partition("-")
        if _started(int(owner)) == started:
            continue
        try:
            left = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            left = {}
        for pid, pid_started in left.items():
            if pid_started and _started(int(pid)) == pid_started:  # not another one that was given its number since
                os.kill(int(pid), signal.SIGKILL)
                ended.append(int(pid))
        path.unlink(missing_ok=True)
    return ended


def _started(pid: int) -> str:
    """When a process was started, in ticks since boot: tells it from another one with its number. Empty: it is dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
