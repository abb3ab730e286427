"""A shard's state in RocksDB: a cache of its log. The only file that knows rocksdict.

The write-ahead log is off: RocksDB writes its memory tables in order, and every batch carries the applied index, so
after a crash the state is a consistent prefix and the log replays the rest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

_NEVER = 1 << 30
_BLOCK_BYTES = 8 * 1024
_BLOOM_BITS = 10


class StateError(RuntimeError):
    """The state could not be opened or written."""


class StateFullError(StateError):
    """The disk has no room. RocksDB goes on reading, and takes writes again by itself once there is some."""


def _failed(what: str, error: Exception) -> StateError:
    is_full = any(text in str(error) for text in ("No space left", "Disk quota exceeded"))
    kind = StateFullError if is_full else StateError
    return kind(f"The state could not be {what}: {error}")


def _options(write_buffer_bytes: int, block_cache_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(4)
    options.set_max_background_jobs(2)
    # A stalled write would hold the interpreter lock and with it the whole node; the log bounds what piles up instead.
    # Only a disk so slow that four write buffers wait for it still stalls.
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_compression_type(DBCompressionType.none())  # payloads are opaque, often compressed already
    options.set_keep_log_file_num(2)
    options.set_max_open_files(512)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(block_cache_bytes))
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_block_size(_BLOCK_BYTES)
    options.set_block_based_table_factory(table)
    return options


class RocksState:
    """An OrderedKV on disk."""

    def __init__(self, directory: Path, *, write_buffer_bytes: int, block_cache_bytes: int) -> None:
        try:
            self._db = Rdict(str(directory), _options(write_buffer_bytes, block_cache_bytes))
        except Exception as error:
            raise StateError(f"The state in {directory} could not be opened: {error}") from error
        no_wal: Any = WriteOptions()  # the published stub calls this property a method
        no_wal.disable_wal = True
        self._db.set_write_options(no_wal)

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise _failed("read", error) from error
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        wanted: list[Any] = list(keys)
        try:
            values: list[bytes | None] = self._db.get(wanted) or []
        except Exception as error:
            raise _failed("read", error) from error
        return values

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = []
        # The iterator's own bounds are unreliable in this binding (one sets the other), so the end is checked here.
        cursor = self._db.iter()
        cursor.seek(start)
        while len(rows) < limit and cursor.valid():
            key: bytes = cursor.key()
            if key >= stop:
                break
            rows.append((key, cursor.value()))
            cursor.next()
        if not cursor.valid():
            # The end of the data and an unreadable block look the same; taking one for the other would hide tasks.
            try:
                cursor.status()
            except Exception as error:
                raise _failed("read", error) from error
        return rows

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in changes.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._db.write(batch)
        except Exception as error:
            raise _failed("written", error) from error

    def flush(self) -> None:
        """Makes all that was written durable. Releases the interpreter lock: call it in a thread."""
        try:
            self._db.flush()
        except Exception as error:
            raise _failed("flushed", error) from error

    def close(self) -> None:
        """Raises StateError if what was not flushed yet could not be: the log still has it."""
        try:
            self._db.close()
        except Exception as error:
            raise _failed("closed", error) from error
