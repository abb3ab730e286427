"""Places at which tests let a process die, or halt, to see that what it was doing is finished whoever is gone.

HOLDFAST_FAILPOINT_FILE names a file. As soon as a process gets to the place whose name is written in it, it removes the
file and dies, as by SIGKILL. So one process dies at each place that a test asks for. With `halt ` before the name it
stops there instead, and leaves its process id in a file of the same name with `.halted`: whoever kills another process
meanwhile does so at that very step, and sends SIGCONT.
"""

import contextlib
import os
import signal
from pathlib import Path

HALT = "halt "
HALTED = ".halted"  # ends the name of the file

_FILE = os.environ.get("HOLDFAST_FAILPOINT_FILE", "")


def reached(place: str) -> None:
    """Costs nothing outside tests."""
    if not _FILE:
        return
    file = Path(_FILE)
    if _is_asked_for(file, place):
        os.kill(os.getpid(), signal.SIGKILL)
    if _is_asked_for(file, HALT + place):
        written = Path(f"{_FILE}.{os.getpid()}")
        written.write_text(str(os.getpid()))
        written.rename(_FILE + HALTED)
        os.kill(os.getpid(), signal.SIGSTOP)


def _is_asked_for(file: Path, text: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if file.read_text() == text:
            file.unlink()  # only one process can
            return True
    return False
