"""Writes an audit log: in a thread of its own, so that no disk holds up a call.

A server that is told more than it can write drops it and counts it: the next entry says how many are lost, and so does
a metric. Files are called by the number of their first entry; the oldest goes when there are too many.
"""

import os
import queue
import threading
import time
from pathlib import Path

from holdfast.audit.chain import (
    BEGINNING,
    TEXT_CHARS_MAX,
    BrokenChainError,
    Entry,
    file_name,
    first_number,
    line_of,
    read_line,
)
from holdfast.serving.logs import get_logger

WAITING_MAX = 10_000
BATCH_MAX = 500
FILE_BYTES_MAX = 16 * 1024 * 1024
FILES_MAX = 16
_CLOSE_S_MAX = 5.0

_log = get_logger(__name__)

_Note = tuple[int, str, str, str, str, str]  # when, who, from where, what, on what, with which result


class AuditLog:
    """The audit log of one server. `note` is called on the event loop, and returns at once."""

    def __init__(
        self, directory: Path, server: str, *, file_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
    ) -> None:
        self._directory = directory
        self._server = server
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._waiting: queue.Queue[_Note | None] = queue.Queue(WAITING_MAX)
        self._lock = threading.Lock()
        self.lost = 0  # since the start
        self._lost_before = 0  # the next entry
        self._number, self._before = 0, BEGINNING
        self._fd, self._size = -1, 0
        self._thread = threading.Thread(target=self._run, name="holdfast-audit", daemon=True)
        self._thread.start()

    def note(self, who: str, where: str, what: str, on: str, result: str) -> None:
        on = on[: TEXT_CHARS_MAX + 1]  # nothing longer waits; that it is cut is said where it is written
        try:
            self._waiting.put_nowait((int(time.time() * 1000), who, where, what, on, result))
        except queue.Full:
            self._lose(1, "more came than could be written")

    def close(self) -> None:
        """What was noted is written, unless the disk takes too long."""
        try:
            self._waiting.put(None, timeout=_CLOSE_S_MAX)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S_MAX)

    # ----------------------------------------------------------------------------------------------- its thread

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < BATCH_MAX and batch[-1] is not None:
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            self._write([note for note in batch if note is not None])
            if batch[-1] is None:
                if self._fd >= 0:
                    os.close(self._fd)
                return

    def _write(self, notes: list[_Note]) -> None:
        if not notes:
            return
        with self._lock:
            lost, self._lost_before = self._lost_before, 0
        try:
            if self._fd < 0:
                self._open_last()
            data, number, before = self._lines(notes, lost)
            if self._size and self._size + len(data) > self._file_bytes_max:
                self._begin_file()
            _write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError as error:
            self._take_back()
            self._lose(len(notes), f"they cannot be written: {error.strerror}", lost)
            return
        self._size += len(data)
        self._number, self._before = number, before

    def _lines(self, notes: list[_Note], lost: int) -> tuple[bytes, int, str]:
        """With the number and the hash of the last one."""
        lines: list[str] = []
        number, before = self._number, self._before
        for at_ms, who, where, what, on, result in notes:
            number += 1
            entry = Entry(number, at_ms, self._server, who, where, what, on, result, 0 if lines else lost)
            line, before = line_of(entry, before)
            lines.append(line + "\n")
        return "".join(lines).encode("ascii"), number, before

    def _lose(self, count: int, why: str, before: int = 0) -> None:
        """`before`: how many were lost already, and no entry has said so yet."""
        with self._lock:
            is_first = not self._lost_before + before
            self.lost += count
            self._lost_before += count + before
        if is_first:
            _log.error("audit_lost", entries=count, why=why)

    def _take_back(self) -> None:
        """Of a write that failed a part may be there; a line must not begin behind it."""
        if self._fd < 0:
            return
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            pass  # the next write finds out, or whoever opens the file

    # ------------------------------------------------------------------------------------------------- its files

    def _open_last(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = audit_files(self._directory)
        if not files:
            self._open(self._directory / file_name(1))
            return
        last = files[-1]
        self._open(last)
        data = last.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # the process ended within a write
            _log.warning("audit_repaired", file=last.name, bytes=len(data) - len(whole))
            os.ftruncate(self._fd, len(whole))
            self._size = len(whole)
        try:
            if whole:
                entry, _, self._before = read_line(whole[:-1].rpartition(b"\n")[2].decode("ascii"))
                self._number = entry.number
            else:
                self._continue_before(last, files[:-1])
        except (BrokenChainError, UnicodeDecodeError):
            # Left as it is, for those who look into it: `holdfast audit verify` finds it.
            _log.error("audit_damaged", file=last.name)
            os.close(self._fd)
            self._fd = -1
            self._number = _number_of(last) + whole.count(b"\n") - 1
            self._open(self._directory / file_name(self._number + 1))

    def _continue_before(self, empty: Path, files: list[Path]) -> None:
        """A file was begun and has nothing yet."""
        self._number = _number_of(empty) - 1
        if files:
            lines = files[-1].read_bytes()[:-1].rpartition(b"\n")[2]
            self._before = read_line(lines.decode("ascii"))[2]

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _begin_file(self) -> None:
        """The last hash of a file goes to the log of the server: whoever keeps that can prove later what was there."""
        former = self._fd
        self._open(self._directory / file_name(self._number + 1))
        os.close(former)
        _log.info("audit_rotated", entries=self._number, hash=self._before)
        for old in audit_files(self._directory)[: -self._files_max]:
            old.unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def audit_files(directory: Path) -> list[Path]:
    """In the order of their entries."""
    return sorted(filter(_number_of, directory.iterdir()), key=_number_of)


def _number_of(path: Path) -> int:
    return first_number(path.name)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
