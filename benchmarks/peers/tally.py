"""What all processes of a row have sent and done so far, in one file that all of them have mapped.

A counter that is told to the parent over a pipe would be late, and a library's own workers have no pipe: a slot in
shared memory costs nothing, and the sums show at once whether a task was lost or came twice.
"""

import fcntl
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

SENT = 0
DONE = 1

SLOTS = 64  # per side; a process takes one
_MASK = 2**62 - 1  # sums of ids wrap, so that they always fit
_WORDS = 2  # of a slot: tasks, and the sum of their ids
_SIDE_WORDS = 1 + SLOTS * _WORDS  # the first counts slots that are taken


class Count(NamedTuple):
    tasks: int
    sum_of_ids: int
    active: int  # processes that have counted anything


class Tally:
    """Made with `create` by the parent, opened by all others."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path) -> "Tally":
        path.write_bytes(bytes(8 * _SIDE_WORDS * 2))
        path.chmod(0o666)  # workers may be another user's
        return cls(path)

    def read(self, side: int) -> Count:
        begin = side * _SIDE_WORDS
        words = self._words[begin + 1 : begin + 1 + self._words[begin] * _WORDS].tolist()
        tasks = words[::_WORDS]
        return Count(sum(tasks), sum(words[1::_WORDS]) & _MASK, sum(count > 0 for count in tasks))

    @property
    def unfinished(self) -> int:
        return self.read(SENT).tasks - self.read(DONE).tasks

    def counter(self, side: int) -> "Counter":
        """A slot of this process."""
        begin = side * _SIDE_WORDS
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            slot = self._words[begin]
            if slot == SLOTS:
                raise RuntimeError(f"expected at most {SLOTS} processes that count, but there is another")
            self._words[begin] = slot + 1
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return Counter(self._words, begin + 1 + slot * _WORDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.release()
        self._map.close()
        self._file.close()


class Counter:
    """Of one process; its threads may share it."""

    def __init__(self, words: memoryview, index: int) -> None:
        self._words = words
        self._index = index
        self._lock = threading.Lock()
        self.pid = os.getpid()

    def add(self, ids: Iterable[int]) -> None:
        added = list(ids)
        with self._lock:
            self._words[self._index + 1] = (self._words[self._index + 1] + sum(added)) & _MASK
            self._words[self._index] += len(added)
