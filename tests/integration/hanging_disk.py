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
from typing import Any

from rocksdict import Rdict

from holdfast.broker import node
from holdfast.broker.replica import sync_mode
from holdfast.cli.main import main
from holdfast.storage import disk_watch, rocksdb
from holdfast.wal.disk import RealDisk


def _hang() -> None:
    threading.Event().wait()


def _fail(_handle: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _break(directory: Path, what: str) -> None:
    broken, hangs = directory / "broken", threading.Event()

    class BrokenDisk(RealDisk):
        def fdatasync(self, handle: int) -> None:
            if what == "sync" and broken.exists():
                _hang()
            while what.startswith("stall") and broken.exists():
                time.sleep(0.05)
            if hangs.is_set():
                setattr(os, "fdatasync", _fail)  # noqa: B010
            super().fdatasync(handle)

    class BrokenDatabase:
        """One of RocksDB, whose class has no subclasses."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            self._db = Rdict(*arguments, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._db, name)

        def flush(self) -> None:
            if what == "flush" and broken.exists():
                hangs.set()
                _hang()
            self._db.flush()

    setattr(node, "RealDisk", BrokenDisk)  # noqa: B010 - as mypy sees it, a class is for ever
    setattr(rocksdb, "Rdict", BrokenDatabase)  # noqa: B010
    if what == "stall-in-line":
        sync_mode.TRIAL_SYNCS = 1
        sync_mode.QUICK_SECONDS = sync_mode.AVERAGE_SECONDS_MAX = sync_mode.SLOW_SECONDS = 1.0
    if not what.startswith("stall"):
        disk_watch.SYNC_SECONDS_MAX = disk_watch.END_SECONDS_MAX = 1.0


if __name__ == "__main__":
    _break(Path(sys.argv[1]), sys.argv[2])
    sys.exit(main(sys.argv[3:]))
