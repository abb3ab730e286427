"""Applies entries to a state on disk, flushes now and then as a node does, and is killed: for test_state_crashes.py."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.machine.entries import Entry, decode, encode
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.storage.rocksdb import RocksState

COMMIT_ENTRIES = 3
FLUSH_ENTRIES = 60
LENGTH_BYTES = 4
# When: between two flushes, as one begins in its thread, when it has begun a file, or when it has ended.
BETWEEN, BEGUN, HALF, ENDED = WHENS = ("between", "begun", "half", "ended")


def write_log(path: Path, entries: list[Entry]) -> None:
    data = [encode(entry) for entry in entries]
    path.write_bytes(b"".join(len(entry).to_bytes(LENGTH_BYTES, "big") + entry for entry in data))


def read_log(path: Path) -> list[Entry]:
    data, offset, entries = path.read_bytes(), 0, []
    while offset < len(data):
        end = offset + LENGTH_BYTES + int.from_bytes(data[offset : offset + LENGTH_BYTES], "big")
        entries.append(decode(data[offset + LENGTH_BYTES : end]))
        offset = end
    return entries


def replay(state: OrderedKV, entries: list[Entry]) -> int:
    """Applies what the state lacks; returns how many entries it had."""
    machine = Machine(state)
    had = machine.meta.applied_index
    for index, entry in enumerate(entries[had:], had + 1):
        machine.apply(index, 1, entry)
        machine.commit()
    return had


def main(directory: Path, log: Path, last_entry: int, when: str) -> None:
    state = RocksState(directory, write_buffer_bytes=64 * 1024)
    machine = Machine(state)
    flushing: threading.Thread | None = None
    for index, entry in enumerate(read_log(log)[:last_entry], 1):
        machine.apply(index, 1, entry)
        if index % COMMIT_ENTRIES == 0:
            machine.commit()
        if index % FLUSH_ENTRIES == 0:
            if flushing is not None:
                flushing.join()
            durable = machine.meta.applied_index // COMMIT_ENTRIES * COMMIT_ENTRIES
            flushing = threading.Thread(target=flush, args=(state, durable))
            flushing.start()
    if flushing is not None:
        flushing.join()
    if when != BETWEEN:
        tables = set(directory.glob("*.sst"))
        flushing = threading.Thread(target=state.flush)
        flushing.start()
        while when == HALF and flushing.is_alive() and set(directory.glob("*.sst")) == tables:
            time.sleep(0)
        if when == ENDED:
            flushing.join()
    os.kill(os.getpid(), signal.SIGKILL)


def flush(state: RocksState, durable: int) -> None:
    """Says what is durable once it is, as a node that then cuts its log."""
    state.flush()
    print(durable, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
