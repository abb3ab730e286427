"""The app of the demo. A handler writes the number of its task into a file of its worker process, and that is all.

The files are the demo's own evidence: the server has no part in them.
"""

import asyncio
import os
from pathlib import Path

from holdfast.client import Holdfast

QUEUE = "demo"
RECORD_VARIABLE = "DEMO_RECORD_DIR"  # where the files are
LEASE_S = 3.0  # short: what a killed worker held comes back this much later
WORK_S = 0.05  # how long each task takes

app = Holdfast()


def _open_record() -> int:
    directory = os.environ.get(RECORD_VARIABLE)
    if directory is None:
        return -1  # imported by the producer, which runs no handlers
    path = Path(directory) / f"worker-{os.getpid()}"
    # Appending is one step of the kernel: a line that was written stays, also if the process is killed right after.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


_record = _open_record()


@app.task(queue=QUEUE, lease=LEASE_S)
async def work(number: int) -> None:
    await asyncio.sleep(WORK_S)
    os.write(_record, b"%d\n" % number)
