"""Entries that cannot be applied: refused before they are in the log, and passed over only if somebody says so."""

import pytest

from holdfast.broker.replica import decoded_entries
from holdfast.broker.replica.decoded_entries import DecodedEntries, EntryError, skip_name
from holdfast.machine.entries import LeaderStarted, encode
from holdfast.raft.codec import FrameError
from holdfast.raft.messages import EntryKind, LogEntry
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.replica.small_shard import SmallShard

SHARD = 0
GOOD = encode(LeaderStarted(17, False))
BAD = [b"", b"\xff", b"\xff" * 50, GOOD[:-1], GOOD + b"x", b"\x02" + bytes(8)]


def record(index: int, command: bytes = GOOD, term: int = 1) -> LogEntry:
    return LogEntry(index, term, EntryKind.REGULAR, command)


@pytest.mark.parametrize("bad", BAD)
def test_one_that_cannot_be_read_has_all_of_them_refused(bad: bytes) -> None:
    decoded = DecodedEntries(SHARD, ())
    with pytest.raises(FrameError, match="entry 2, which cannot be applied"):
        decoded.check([record(1), record(2, bad), record(3)])
    assert not decoded._kept


def test_what_was_read_once_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = DecodedEntries(SHARD, ())
    decoded.check([record(1), LogEntry(2, 1, EntryKind.NO_OP), record(3)])
    read: list[bytes] = []

    def decode_now(data: bytes) -> LeaderStarted:
        read.append(data)
        return LeaderStarted(0, True)

    monkeypatch.setattr(decoded_entries, "decode", decode_now)
    decoded.check([record(3)])  # sent again
    assert [decoded.take(record(index)) for index in (1, 3)] == [LeaderStarted(17, False)] * 2
    assert (read, decoded._kept, decoded._bytes) == ([], {}, 0)
    assert decoded.take(record(4)) == LeaderStarted(0, True), "which came from the disk"


def test_only_the_very_entry_counts() -> None:
    """Another leader may have written something else in its place."""
    decoded = DecodedEntries(SHARD, ())
    other = encode(LeaderStarted(18, True))
    decoded.check([record(1), record(2), record(3)])
    decoded.check([record(2, other, term=2)])
    assert decoded.take(record(1)) == LeaderStarted(17, False)
    assert decoded.take(record(2, other, term=2)) == LeaderStarted(18, True)
    assert decoded.take(record(3, other, term=1)) == LeaderStarted(18, True), "whatever was kept under its name"
    assert (decoded._kept, decoded._bytes) == ({}, 0), "what is behind is forgotten"
    with pytest.raises(EntryError):
        decoded.take(record(4, BAD[1]))


def test_a_replica_that_lacks_an_entry_to_be_passed_over_takes_it() -> None:
    poison = record(2, BAD[1])
    decoded = DecodedEntries(SHARD, {skip_name(SHARD, poison)})
    decoded.check([record(1), poison, record(3)])
    assert [decoded.take(item) for item in (record(1), poison)] == [LeaderStarted(17, False), None]
    with pytest.raises(FrameError):
        decoded.check([record(3, BAD[1])])


def test_an_entry_that_is_named_is_passed_over_also_where_it_could_be_applied() -> None:
    """Another build cannot, and replicas must not differ."""
    decoded = DecodedEntries(SHARD, {skip_name(SHARD, record(2))})
    decoded.check([record(1), record(2)])
    assert [decoded.take(record(index)) for index in (1, 2)] == [LeaderStarted(17, False), None]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = DecodedEntries(SHARD, ())
    monkeypatch.setattr(decoded_entries, "ENTRIES_MAX", 3)
    decoded.check([record(index) for index in range(1, 9)])
    assert len(decoded._kept) == 3
    monkeypatch.setattr(decoded_entries, "ENTRIES_MAX", 100)
    monkeypatch.setattr(decoded_entries, "BYTES_MAX", 4 * len(GOOD))
    decoded.check([record(index) for index in range(1, 9)])
    assert len(decoded._kept) == 4
    assert [decoded.take(record(index)) for index in range(1, 9)] == [LeaderStarted(17, False)] * 8


async def test_one_in_the_log_stops_the_shard_and_says_how_to_pass_over_it() -> None:
    small = SmallShard()
    await small.enqueue(1)
    index = small.log.propose(b"\xff")
    small.log.flushed()
    poison = small.log._entries[-1]
    with pytest.raises(EntryError) as stopped:
        await small.shard.apply_committed()
    name = skip_name(0, poison)
    assert name.startswith(f"0:{index}:")
    for part in (f"entry {index} of shard 0", "--rebuild", f"set skip_entries to {name}"):
        assert part in str(stopped.value)


@pytest.mark.parametrize(("change", "passes"), [(lambda name: name, True), (lambda name: f"{name[:-1]}x", False)])
async def test_only_the_entry_that_is_named_is_passed_over(change: object, passes: bool) -> None:
    assert callable(change)
    poison = LogEntry(2, 1, EntryKind.REGULAR, b"\xff")
    small = SmallShard(skip_entries=f"7:7:abc, {change(skip_name(0, poison))}")
    await small.enqueue(1)
    small.log.propose(b"\xff")
    small.log.flushed()
    if not passes:
        with pytest.raises(EntryError):
            await small.shard.apply_committed()
        return
    await small.shard.apply_committed()
    assert small.machine.meta.applied_index == 2
    await small.enqueue(1)
    queue = small.shard.queue(QUEUE)
    assert queue is not None
    assert queue.ready == 2
