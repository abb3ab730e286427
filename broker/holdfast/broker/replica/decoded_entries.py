"""Entries of other leaders are read before they enter the log: what cannot be applied later is refused now.

An entry stays for ever. One that a replica cannot read ends it, at every start again, and with a majority that has it
the shard. So a follower decodes what it is sent first, and keeps what it found until the entry is applied.
"""

import hashlib
from collections.abc import Collection, Iterable
from typing import Final

from holdfast.machine.entries import Entry, decode
from holdfast.machine.packing import DecodeError
from holdfast.raft.codec import FrameError, encode_payload
from holdfast.raft.messages import EntryKind, LogEntry
from holdfast.serving.logs import get_logger

ENTRIES_MAX: Final = 1024  # kept of one replica; what is more is decoded again
BYTES_MAX: Final = 1024 * 1024
DIGEST_CHARS: Final = 16

_log = get_logger(__name__)


class EntryError(RuntimeError):
    """The log has an entry that this version cannot apply."""

    def __init__(self, shard: int, record: LogEntry, why: Exception) -> None:
        name = skip_name(shard, record)
        super().__init__(
            f"Expected entry {record.index} of shard {shard} to be one that this version can apply, but it is not: "
            f"{why}. If only this node has it, start it with --rebuild. If a majority has it, and you have made sure "
            f"that nothing was acknowledged with it, set skip_entries to {name} on all nodes: see docs/clusters.md."
        )


def skip_name(shard: int, record: LogEntry) -> str:
    """Names exactly one entry, so that no other is skipped by mistake."""
    digest = hashlib.sha256(encode_payload(record)).hexdigest()[:DIGEST_CHARS]
    return f"{shard}:{record.index}:{digest}"


class DecodedEntries:
    """Of one replica. `skipped`: names of entries that an operator has said to pass over."""

    def __init__(self, shard: int, skipped: Collection[str]) -> None:
        self._shard = shard
        self._skipped = skipped
        self._kept: dict[tuple[int, int], tuple[bytes, Entry]] = {}  # by index and term
        self._bytes = 0

    def check(self, records: Iterable[LogEntry]) -> None:
        """Raises `FrameError` if one of these cannot be read; then nothing of them is to be taken."""
        found = [(record, self._read(record)) for record in records if record.kind == EntryKind.REGULAR]
        for record, entry in found:
            if entry is None:
                continue
            key, size = (record.index, record.term), len(record.command)
            if key not in self._kept and len(self._kept) < ENTRIES_MAX and self._bytes + size <= BYTES_MAX:
                self._kept[key] = record.command, entry
                self._bytes += size

    def _read(self, record: LogEntry) -> Entry | None:
        """None of one that is to be passed over: a replica that lacks it must get it, too."""
        kept = self._kept.get((record.index, record.term))
        if kept is not None and kept[0] == record.command:
            return kept[1]
        if self._is_skipped(record):
            return None
        try:
            return decode(record.command)
        except DecodeError as error:
            raise FrameError(f"entry {record.index}, which cannot be applied: {error}") from None

    def take(self, record: LogEntry) -> Entry | None:
        """Of the entry that is applied next; None if it is to be passed over. Raises `EntryError`."""
        kept = self._kept.get((record.index, record.term))
        self._forget(record.index)
        if kept is not None and kept[0] == record.command:
            return kept[1]
        if self._is_skipped(record):
            _log.error("entry_skipped", shard=self._shard, index=record.index)
            return None
        try:
            return decode(record.command)
        except DecodeError as error:
            raise EntryError(self._shard, record, error) from error

    def _is_skipped(self, record: LogEntry) -> bool:
        """Also where this version could apply it: all replicas must do the same, and another one cannot."""
        return bool(self._skipped) and skip_name(self._shard, record) in self._skipped

    def _forget(self, index: int) -> None:
        """Up to here: what others said of these places in the log counts no more."""
        while self._kept:
            oldest = next(iter(self._kept))
            if oldest[0] > index:
                return
            self._bytes -= len(self._kept.pop(oldest)[0])
