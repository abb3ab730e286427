"""The directory that holds everything a node must not lose, and the lock that keeps a second process out.

    LOCK      exclusively locked while a process uses the directory; holds its pid
    FORMAT    version of this layout; written last, so a directory without it was never in use
    NODE_ID   random identity of this node on this disk
    LOG_BEGUN there once something was promised that only the log has: a log that is empty since was lost
    log/      segment files
    state/    state databases, one per shard

Errors
    DataDirError               the directory cannot be used
    ├── DataDirLockedError     another process uses it
    ├── DataDirFormatError     its layout is not one this version reads
    └── DataDirDamagedError    something that belongs there is damaged or gone
"""

import contextlib
import fcntl
import os
import re
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

FORMAT_VERSION = 10

_LOCK = "LOCK"
_FORMAT = "FORMAT"
_NODE_ID = "NODE_ID"
_LOG_BEGUN = "LOG_BEGUN"
_LOG = "log"
_STATE = "state"
_TMP_SUFFIX = ".tmp"

_FORMAT_TEXT = re.compile(rb"holdfast-data ([0-9]{1,9})\n")
_NODE_ID_TEXT = re.compile(rb"([0-9a-f]{32})\n")
_NODE_ID_BYTES = 16
# Our small files are far below this; reading no more keeps a wrong file out of memory and out of error messages.
_READ_BYTES_MAX = 128

# What an interrupted first start can leave behind, plus what file systems put into the root of a fresh volume.
_BEFORE_FORMAT = {_LOCK, _NODE_ID, _LOG, _STATE, _FORMAT + _TMP_SUFFIX, _NODE_ID + _TMP_SUFFIX, "lost+found"}


class DataDirError(Exception):
    """The data directory cannot be used."""


class DataDirLockedError(DataDirError):
    """Another process uses the data directory."""


class DataDirFormatError(DataDirError):
    """The data directory's layout is not one this version reads."""


class DataDirDamagedError(DataDirError):
    """Something that belongs into the data directory is damaged or gone."""


class DataDir:
    """A locked, checked data directory. Open it with `DataDir.open`; use it as a context manager or close it."""

    def __init__(self, path: Path, node_id: str, lock_fd: int) -> None:
        self.path = path
        self.node_id = node_id  # 32 hexadecimal digits
        self.log_dir = path / _LOG
        self.state_dir = path / _STATE
        self._lock_fd: int | None = lock_fd
        self._in_place = {place: _identity(place) for place in (path, path / _LOCK, self.log_dir, self.state_dir)}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock the directory, creating and filling it if it is new."""
        path = path.absolute()
        try:
            _make_dirs(path)
            if not (path / _FORMAT).exists():
                _refuse_foreign(path)
            lock_fd = _lock(path)
            try:
                return cls(path, _prepare(path), lock_fd)
            except BaseException:
                os.close(lock_fd)
                raise
        except OSError as error:
            where = error.filename or path
            raise DataDirError(f"Cannot use data directory {path}: {where}: {error.strerror}.") from error

    def note_log_begun(self) -> None:
        """To be called when the log has its first round, before anybody is told of what is in it."""
        if not (self.path / _LOG_BEGUN).exists():
            _write_atomically(self.path / _LOG_BEGUN, b"")

    def check_log(self, *, is_empty: bool) -> None:
        """A node whose log is gone must not go on under its old identity: it has promised things that it forgot."""
        if not is_empty:
            self.note_log_begun()
        elif (self.path / _LOG_BEGUN).exists():
            raise DataDirDamagedError(
                f"Expected the log of this node in {self.log_dir}, but there is nothing: it was lost, or its volume is "
                "not mounted. If it is not lost, bring it back as it was."
            )

    def check_in_place(self) -> None:
        """Raises if the directory, or one of those in it, was deleted or replaced since it was opened: what is written
        then goes to files that nobody finds again."""
        for path, identity in self._in_place.items():
            if _identity(path) != identity:
                raise not_in_place(path)

    def close(self) -> None:
        """Let go of the lock. The LOCK file stays: removing it would let two processes lock two different files."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def not_in_place(path: Path) -> DataDirDamagedError:
    """Of something in the data directory that is no longer what the node opened there."""
    what = "was replaced by another one" if path.exists() else "is gone"
    return DataDirDamagedError(
        f"Expected {path} to stay in place while the node runs, but it {what}: nothing that is written from now on "
        "would be there at the next start."
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file or directory that has this name now; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def log_dir_of(path: Path) -> Path:
    """Of a data directory that may be damaged, and is not opened."""
    return path / _LOG


def node_id_of(path: Path) -> str:
    """Of a data directory that may be damaged, and is not opened. DataDirDamagedError if it cannot be read."""
    return _read_node_id(path)


def set_aside(path: Path, stamp: str) -> Path | None:
    """Moves a data directory out of the way, so that the node begins anew; returns where it is now, None if there was
    none. Nothing is deleted, and a directory in use is refused."""
    path = path.absolute()
    if not path.exists():
        return None
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    try:
        lock_fd = _lock(path)
        try:
            os.rename(path, aside)
            _fsync_dir(path.parent)
        finally:
            os.close(lock_fd)
    except OSError as error:
        raise DataDirError(f"Cannot set data directory {path} aside: {error.strerror}.") from error
    return aside


def _refuse_foreign(path: Path) -> None:
    """Without a FORMAT file only an empty directory, or one whose first start was interrupted, is ours to fill."""
    foreign = sorted(name for name in os.listdir(path) if name not in _BEFORE_FORMAT)
    for name in (_LOG, _STATE):
        if (path / name).is_dir() and os.listdir(path / name):
            foreign.append(name)
    if foreign:
        raise DataDirError(
            f"{path} is not a Holdfast data directory: it has no {_FORMAT} file but contains {foreign[0]!r}. "
            "Choose an empty or a new directory."
        )


def _lock(path: Path) -> int:
    """Take the lock and leave our pid in it; returns the descriptor that holds it."""
    lock_path = path / _LOCK
    is_new = not lock_path.exists()
    lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _leave_pid(lock_fd)
        if is_new:
            _fsync_dir(path)
    except BlockingIOError:
        holder = os.pread(lock_fd, _READ_BYTES_MAX, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock_fd)
        raise DataDirLockedError(
            f"Data directory {path} is in use by process {holder}. "
            "Stop that process first, or choose another data directory."
        ) from None
    except BaseException:
        os.close(lock_fd)
        raise
    return lock_fd


def _leave_pid(lock_fd: int) -> None:
    """For the message that a second process gets; a full disk is no reason not to start."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, b"%d\n" % os.getpid(), 0)
        os.fsync(lock_fd)


def _prepare(path: Path) -> str:
    """Check an existing directory or fill a new one; returns the node id. The lock is held."""
    is_new = not (path / _FORMAT).exists()
    if not is_new:
        _check_format(path)
    _make_dirs(path / _LOG)
    _make_dirs(path / _STATE)
    if is_new:
        if not (path / _NODE_ID).exists():
            _write_atomically(path / _NODE_ID, secrets.token_hex(_NODE_ID_BYTES).encode() + b"\n")
        node_id = _read_node_id(path)
        _write_atomically(path / _FORMAT, b"holdfast-data %d\n" % FORMAT_VERSION)
        return node_id
    return _read_node_id(path)


def _check_format(path: Path) -> None:
    text = _read_small(path / _FORMAT)
    match = _FORMAT_TEXT.fullmatch(text)
    if match is None:
        raise DataDirDamagedError(
            f"{path / _FORMAT} is damaged: it contains {text!r}. This version reads format {FORMAT_VERSION}."
        )
    version = int(match[1])
    if version != FORMAT_VERSION:
        if version > FORMAT_VERSION:
            advice = "Use the newer version that wrote it."
        else:
            advice = "Use the older version that wrote it, or choose a new data directory."
        raise DataDirFormatError(
            f"Data directory {path} has format {version}, but this version reads format {FORMAT_VERSION}. {advice}"
        )


def _read_node_id(path: Path) -> str:
    """A lost identity is never replaced by a new one: this disk may have promised things under the old one."""
    try:
        text = _read_small(path / _NODE_ID)
    except FileNotFoundError:
        raise DataDirDamagedError(f"Expected this node's identity in {path / _NODE_ID}, but it is missing.") from None
    match = _NODE_ID_TEXT.fullmatch(text)
    if match is None:
        raise DataDirDamagedError(f"{path / _NODE_ID} is damaged: it contains {text!r} instead of 32 hex digits.")
    return match[1].decode()


def _read_small(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_READ_BYTES_MAX)


def _write_atomically(path: Path, data: bytes) -> None:
    """After a crash the file is there whole or not at all."""
    tmp = path.with_name(path.name + _TMP_SUFFIX)
    with open(tmp, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(tmp, path)
    _fsync_dir(path.parent)


def _make_dirs(path: Path) -> None:
    """Create a directory and its missing parents so that they survive a power cut."""
    if path.is_dir():
        return
    _make_dirs(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    _fsync_dir(path.parent)


def _fsync_dir(path: Path) -> None:
    dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(dir_fd)
    finally:
        os.close(dir_fd)
