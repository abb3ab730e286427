"""A server on a disk that ceases to answer: `python -m tests.integration.hanging_disk DIRECTORY WHAT …`, with the
arguments of `holdfast` behind. From when DIRECTORY/broken is there on, WHAT hangs for ever: `sync`, that of the log; or
`flush`, that of the state, and then the next sync of the log fails. Bounds that are long in earnest are short. With
`stall` a sync of the log hangs until that file is gone; with `stall-in-line` too, and until then the disk counts as
fast."""

import errno
import os
import sys
import threading
import time
from pathlib import Path

from holdfast.broker import node
from holdfast.broker.replica import host, sync_mode
from holdfast.cli.main import main
from holdfast.storage import disk_watch
from holdfast.storage.rocksdb import RocksState
from holdfast.wal.disk import RealDisk


def _hang() -> None:
    threading.Event().wait()


def _break(directory: Path, what: str) -> None:
    broken, hangs = directory / "broken", threading.Event()

    class BrokenDisk(RealDisk):
        def fdatasync(self, handle: int) -> None:
            if what == "sync" and broken.exists():
                _hang()
            while what.startswith("stall") and broken.exists():
                time.sleep(0.05)
            if hangs.is_set():
                with self._must_not_fail("fdatasync", "the log"):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fdatasync(handle)

    class BrokenState(RocksState):
        def _flush(self) -> None:
            if what == "flush" and broken.exists():
                hangs.set()
                _hang()
            super()._flush()

    setattr(node, "RealDisk", BrokenDisk)  # noqa: B010 - as mypy sees it, a class is for ever
    setattr(host, "RocksState", BrokenState)  # noqa: B010
    if what == "stall-in-line":
        sync_mode.TRIAL_SYNCS = 1
        sync_mode.QUICK_SECONDS = sync_mode.AVERAGE_SECONDS_MAX = sync_mode.SLOW_SECONDS = 1.0
    if not what.startswith("stall"):
        disk_watch.SYNC_SECONDS_MAX = disk_watch.END_SECONDS_MAX = 1.0


if __name__ == "__main__":
    _break(Path(sys.argv[1]), sys.argv[2])
    sys.exit(main(sys.argv[3:]))
