"""A shard's state in RocksDB: a cache of its log. The only file that knows rocksdict.

The write-ahead log is off: RocksDB writes its memory tables in order, and every batch carries the applied index, so
after a crash the state is a consistent prefix and the log replays the rest.

Errors
    StateError                the state could not be opened, read or written
    ├── StateFullError        the disk has no room
    └── StateDamagedError     a file of the state is not what was written
"""

import os
import re
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from holdfast.serving.logs import get_logger

_NEVER = 1 << 30
_BLOCK_BYTES = 8 * 1024
_BLOOM_BITS = 10
_WRITE_BUFFERS_MAX = 4
_READ_ALL_ROWS = 1000
_WRITE_BUFFER_BYTES_MIN = 1024 * 1024
# RocksDB counts whole arena blocks. With its own choice, up to 1 MiB each, 64 shards that were written to a little
# would fill the budget of all and have every further write flushed at once.
_ARENA_BLOCK_BYTES = 64 * 1024
OPEN_FILES_MAX = 512  # of one state; of each its index is in memory
# A file is synced at its end, and deleted, in one go, and until then the log's syncs wait: small files, short waits.
# Large states have larger ones, so that as a rule all of them can be open.
_TABLE_BYTES_MIN = 8 * 1024 * 1024
_TABLE_BYTES_MAX = 64 * 1024 * 1024
TABLES_WANTED = 384
_COMPACTING_THREAD = b"rocksdb:low"
_COMPACTING_NICENESS = 5  # above that of the process: a third of its share, where there is not enough for all

_NO_ROOM = ("No space left", "Disk quota exceeded")
_DAMAGE = ("Corruption", "Input/output error")
_TABLE_NAME = re.compile(r"\b[0-9]{6,20}\.(?:sst|blob)\b")
_OTHER_NAME = re.compile(r"\b(?:MANIFEST-[0-9]+|CURRENT|[0-9]{6,20}\.log)\b")

_log = get_logger(__name__)


class StateError(RuntimeError):
    """The state could not be opened, read or written."""


class StateFullError(StateError):
    """The disk has no room. RocksDB goes on reading, and takes writes again by itself once there is some."""


class StateDamagedError(StateError):
    """A file of the state is not what was written: the state can be trusted no more and must be replaced."""

    def __init__(self, message: str, file: Path | None) -> None:
        super().__init__(message)
        self.file = file  # None where RocksDB does not say


def _error(directory: Path, what: str, error: Exception) -> StateError:
    text = " ".join(str(error).split())
    if any(word in text for word in _NO_ROOM):
        return StateFullError(f"The state in {directory} could not be {what}: {text}")
    if any(word in text for word in _DAMAGE):
        # A damaged table is reported together with the manifest that names it: the table is what is meant.
        name = _TABLE_NAME.search(text) or _OTHER_NAME.search(text)
        file = directory / name[0] if name else None
        which = f"file {file}" if file else f"a file in {directory}"
        return StateDamagedError(f"The state could not be {what}: {which} is damaged: {text}", file)
    return StateError(f"The state in {directory} could not be {what}: {text}")


class StateMemory:
    """What all states of a node share: one cache of blocks, and one budget for what is not on disk yet.

    The budget is kept by flushing, never by making a writer wait: that would hold the interpreter lock, and with it
    the node. Writers that are faster than the disk therefore go above it for a while.
    """

    def __init__(
        self, block_cache_bytes: int, write_buffer_bytes: int, *, open_files_max: int = OPEN_FILES_MAX
    ) -> None:
        """`open_files_max`: of each state."""
        self.open_files_max = open_files_max
        self.block_cache = Cache(block_cache_bytes)
        self.write_buffers = WriteBufferManager(write_buffer_bytes, False)
        # One state alone may use the whole budget, as the buffer being filled and those on their way to the disk.
        self.buffer_bytes = max(_WRITE_BUFFER_BYTES_MIN, write_buffer_bytes // _WRITE_BUFFERS_MAX)


def table_bytes_for(state_bytes: int) -> int:
    """How large a file of a state of this size may be."""
    size = _TABLE_BYTES_MIN
    while size < _TABLE_BYTES_MAX and state_bytes > TABLES_WANTED * size:
        size *= 2
    return size


def _options(memory: StateMemory, table_bytes: int = _TABLE_BYTES_MIN) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(memory.buffer_bytes)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    options.set_max_write_buffer_number(_WRITE_BUFFERS_MAX)
    options.set_max_background_jobs(2)
    options.set_target_file_size_base(table_bytes)
    # A stalled write would hold the interpreter lock and with it the whole node; the log bounds what piles up instead.
    # Only a disk so slow that four write buffers wait for it still stalls.
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_compression_type(DBCompressionType.none())  # payloads are opaque, often compressed already
    options.set_keep_log_file_num(2)
    options.set_max_open_files(memory.open_files_max)
    options.set_stats_dump_period_sec(0)  # nobody reads them, and many idle shards would write them
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(memory.block_cache)
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_block_size(_BLOCK_BYTES)
    options.set_block_based_table_factory(table)
    return options


def _lower_priority() -> None:
    """Has compactions give way to the thread that serves, where callers wait. Not flushes: a writer waits for them if
    too much is in memory. All states of a process share these threads; only Linux has a priority for each."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0) + _COMPACTING_NICENESS
    for thread in Path("/proc/self/task").glob("*"):
        try:
            if (thread / "comm").read_bytes().strip() == _COMPACTING_THREAD:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
        except OSError:
            continue  # it ended meanwhile, or may not be changed: it works all the same


def _rows(cursor: Any, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """Rows of an iterator, whether or not it has bounds of its own."""
    rows: list[tuple[bytes, bytes]] = []
    cursor.seek(start)
    while len(rows) < limit and cursor.valid():
        key: bytes = cursor.key()
        if key >= stop:
            break
        rows.append((key, cursor.value()))
        cursor.next()
    if not cursor.valid():
        # The end of the data and an unreadable block look the same; taking one for the other would hide tasks.
        cursor.status()
    return rows


class StateView:
    """The state as it was at one moment, for reading in a thread while writes go on. Close it: it pins files.

    This is one iterator, because an iterator keeps the moment at which it was made. The binding's own snapshots do
    not: what is scanned through one is the newest.
    """

    def __init__(self, cursor: Any, directory: Path) -> None:
        self._cursor: Any = cursor
        self._directory = directory
        self._lock = threading.Lock()  # an iterator has one place, and closing must not take it from under a reader

    def get(self, key: bytes) -> bytes | None:
        rows = self.scan(key, key + b"\0", 1)
        return rows[0][1] if rows else None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if self._cursor is None:
                raise StateError(f"The view of the state in {self._directory} is closed.")
            try:
                return _rows(self._cursor, start, stop, limit)
            except Exception as error:
                raise _error(self._directory, "read", error) from error

    def write(self, changes: Mapping[bytes, bytes | None]) -> NoReturn:
        raise StateError("A view of the state is for reading only.")

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            self._cursor = None

    def __enter__(self) -> "StateView":
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()


class RocksState:
    """An OrderedKV on disk."""

    def __init__(
        self,
        directory: Path,
        *,
        memory: StateMemory | None = None,
        write_buffer_bytes: int = 32 * 1024 * 1024,
        block_cache_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """`memory` is shared by the states of a node; without it this one has its own, of the given sizes."""
        if memory is None:
            memory = StateMemory(block_cache_bytes, _WRITE_BUFFERS_MAX * write_buffer_bytes)
        self.directory = directory
        self.table_bytes = table_bytes_for(sum(table.stat().st_size for table in directory.glob("*.sst")))
        try:
            self._db = Rdict(str(directory), _options(memory, self.table_bytes))
        except Exception as error:
            raise _error(directory, "opened", error) from error
        _lower_priority()
        no_wal: Any = WriteOptions()  # the published stub calls this property a method
        no_wal.disable_wal = True
        self._db.set_write_options(no_wal)
        self._views: weakref.WeakSet[StateView] = weakref.WeakSet()
        # What lets go of the interpreter lock, one at a time: closing meanwhile would fail and leave it all open.
        self._slow = threading.Lock()

    def lost_file(self) -> Path | None:
        """The file without which no start finds anything here, if somebody has deleted it; None if it is in place."""
        current = self.directory / "CURRENT"
        return None if current.exists() else current

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise _error(self.directory, "read", error) from error
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        wanted: list[Any] = list(keys)
        try:
            values: list[bytes | None] = self._db.get(wanted) or []
        except Exception as error:
            raise _error(self.directory, "read", error) from error
        return values

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        # Without a bound a seek into an empty range walks over all tombstones up to the next row, whoever's that is.
        # Only the upper one: in this binding setting the lower one sets the upper one too.
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        try:
            return _rows(self._db.iter(bounds), start, stop, limit)
        except Exception as error:
            raise _error(self.directory, "read", error) from error

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key in sorted(changes):  # neighbours find their places in the memory table sooner
            value = changes[key]
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._db.write(batch)
        except Exception as error:
            raise _error(self.directory, "written", error) from error

    def flush(self) -> None:
        """Makes all that was written durable. Releases the interpreter lock: call it in a thread."""
        with self._slow:
            self._flush()
            self._fit_tables()

    def _fit_tables(self) -> None:
        """From now on files are written as large as suits the state; those that are there stay until compacted."""
        table_bytes = table_bytes_for(self.size_bytes)
        if table_bytes == self.table_bytes:
            return
        try:
            self._db.set_options({"target_file_size_base": str(table_bytes)})
            self.table_bytes = table_bytes
        except Exception as error:  # noqa: BLE001 - the binding has no other; what was flushed is flushed all the same
            _log.warning("state_files_not_resized", error=str(_error(self.directory, "resized", error)))

    def _flush(self) -> None:
        try:
            self._db.flush()
        except Exception as error:
            raise _error(self.directory, "flushed", error) from error

    def read_all(self) -> None:
        """Looks at every block; raises StateDamagedError if one is not what was written. Blocks for long, and rests as
        long as it works: whoever serves has something else to do with disk and processor."""
        start, began_s = b"\x00", time.perf_counter()
        while rows := self.scan(start, b"\xff", _READ_ALL_ROWS):
            start = rows[-1][0] + b"\x00"
            time.sleep(time.perf_counter() - began_s)
            began_s = time.perf_counter()

    @property
    def size_bytes(self) -> int:
        """About what it takes on disk, and in memory on its way there."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def view(self) -> StateView:
        """The state as it is now, whatever is written later."""
        try:
            view = StateView(self._db.iter(), self.directory)
        except Exception as error:
            raise _error(self.directory, "read", error) from error
        self._views.add(view)
        return view

    def checkpoint(self, directory: Path) -> None:
        """Writes a copy of the state into a new directory, of hard links: it costs little time and no space at first.

        The copy is the state of one moment between call and return. Blocks: call it in a thread. RocksDB makes the
        copy with the interpreter lock held and flushes in it what is not on disk yet, so that is brought down first:
        once for the bulk, and once more for what came during that.
        """
        with self._slow:
            self._flush()
            self._flush()
            try:
                Checkpoint(self._db).create_checkpoint(str(directory))
            except Exception as error:
                raise _error(self.directory, f"copied to {directory}", error) from error

    def close(self) -> None:
        """Waits for a flush or a checkpoint that another thread is at. Raises StateError if what was not flushed yet
        could not be: the log still has it."""
        with self._slow:
            for view in list(self._views):
                view.close()  # an open iterator would keep the directory locked
            try:
                self._db.close()
            except Exception as error:
                raise _error(self.directory, "closed", error) from error


def read_row(directory: Path, key: bytes) -> bytes | None:
    """One row of a state that nobody has open, such as a checkpoint. Blocks, and changes nothing in it."""
    if not directory.is_dir():  # RocksDB would make it
        raise StateError(f"The state in {directory} could not be read: there is no such directory.")
    options = _options(StateMemory(_WRITE_BUFFER_BYTES_MIN, _WRITE_BUFFER_BYTES_MIN))
    options.create_if_missing(False)
    try:
        db = Rdict(str(directory), options, access_type=AccessType.read_only())
        try:
            value: bytes | None = db.get(key)
        finally:
            db.close()
    except Exception as error:
        raise _error(directory, "read", error) from error
    return value
