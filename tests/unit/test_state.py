"""The state on RocksDB: an OrderedKV, and honest about what it cannot read."""

from pathlib import Path

import pytest

from holdfast.broker.state import RocksState, StateError

ROWS = 2000


def open_state(directory: Path) -> RocksState:
    return RocksState(directory, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)


def key(number: int) -> bytes:
    return b"k%06d" % number


def test_rows_are_read_back_in_order_and_within_bounds(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.write({key(number): b"%d" % number for number in range(10)})
    state.write({key(3): None, key(4): b"four"})
    assert state.get(key(3)) is None
    assert state.get_many([key(9), key(3), key(4)]) == [b"9", None, b"four"]
    assert state.get_many([]) == []
    assert state.scan(key(2), key(6), 10) == [(key(2), b"2"), (key(4), b"four"), (key(5), b"5")]
    assert state.scan(key(2), key(6), 1) == [(key(2), b"2")]
    state.close()


def test_what_was_flushed_survives(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.write({key(1): b"one"})
    state.flush()
    state.close()
    again = open_state(tmp_path)
    assert again.get(key(1)) == b"one"
    again.close()


def test_a_block_that_cannot_be_read_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """Taken for the end of the ready line, it would hide every task behind it for good."""
    state = open_state(tmp_path)
    state.write({key(number): bytes(100) for number in range(ROWS)})
    state.flush()
    state.close()
    [table] = tmp_path.glob("*.sst")
    damaged = bytearray(table.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 64] = b"\xff" * 64
    table.write_bytes(damaged)
    state = open_state(tmp_path)
    with pytest.raises(StateError, match="could not be read"):
        state.scan(key(0), key(ROWS), ROWS + 1)
    state.close()
