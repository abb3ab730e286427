"""The one small interface through which the machine reaches a shard's state, its in-memory twin, and the hash by which
the states of replicas are compared."""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Protocol

_PAGE_ROWS = 1000


class Rows(Protocol):
    """Bytes to bytes, ordered by key, for reading."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """The values in the order of `keys`."""
        ...

    def scan(self, start: bytes, stop: bytes, limit: int, /) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows with start <= key < stop, in order."""
        ...


class OrderedKV(Rows, Protocol):
    """The same, and the way to change them."""

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """All changes or none; None deletes."""
        ...


class MemoryKV:
    """The in-memory twin, for unit tests and simulation."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self._rows: dict[bytes, bytes] = dict(rows or {})
        self._order: list[bytes] = sorted(self._rows)

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        first = bisect_left(self._order, start)
        last = bisect_left(self._order, stop, lo=first)
        return [(key, self._rows[key]) for key in self._order[first : min(last, first + limit)]]

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is not None:
                if key not in self._rows:
                    insort(self._order, key)
                self._rows[key] = value
            elif self._rows.pop(key, None) is not None:
                del self._order[bisect_left(self._order, key)]

    def rows(self) -> dict[bytes, bytes]:
        """A copy of everything."""
        return dict(self._rows)


def rows_of(kv: Rows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All rows of a range, read in pages."""
    while page := kv.scan(start, stop, _PAGE_ROWS):
        yield from page
        start = page[-1][0] + b"\0"


def state_hash(kv: Rows) -> str:
    """Of a whole state: equal on every replica that has applied the same entries."""
    digest = hashlib.blake2b(digest_size=16)
    for key, row in rows_of(kv, b"\x00", b"\xff"):
        digest.update(len(key).to_bytes(4, "big") + key + len(row).to_bytes(4, "big") + row)
    return digest.hexdigest()
