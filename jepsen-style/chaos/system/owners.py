"""What a harness that crashed has left behind. Where there are namespaces the kernel cleans up. Elsewhere each process
has in its environment whose it is, and the next harness ends those whose owner is dead."""

import os
import signal
from pathlib import Path

VARIABLE = "CHAOS_OWNER"
INSIDE = "CHAOS_INSIDE"  # set in the environment of a harness that has namespaces of its own
_PROC = Path("/proc")


def owner() -> str:
    """This process: its number, and when it was started, because numbers are given again. Nobody where the kernel
    cleans up: there it has a number that means another process outside."""
    return "" if os.environ.get(INSIDE) else f"{os.getpid()}-{_started(os.getpid())}"


def end_what_was_left() -> list[int]:
    """Ends the processes of this user whose owner is dead; their ids."""
    ended = []
    for directory in _PROC.glob("[0-9]*"):
        whose = _owner_of(directory)
        pid, _, started = whose.partition("-")
        if whose and _started(int(pid)) != started:
            os.kill(int(directory.name), signal.SIGKILL)
            ended.append(int(directory.name))
    return ended


def _owner_of(directory: Path) -> str:
    """Empty if it is nobody's of ours."""
    try:
        environment = (directory / "environ").read_bytes()
    except OSError:  # of another user, or gone
        return ""
    prefix = f"{VARIABLE}=".encode()
    found = [entry for entry in environment.split(b"\0") if entry.startswith(prefix)]
    return found[0].removeprefix(prefix).decode() if found else ""


def _started(pid: int) -> str:
    """In ticks since boot; empty if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
