"""What may be written while the disk runs full."""

from pathlib import Path

import pytest

from holdfast.machine.entries import Ack, Cancel, Claim, Enqueue, Entry, Purge, RetryDead
from holdfast.machine.operator_entries import FireSchedule, PutSchedule
from holdfast.machine.run_entries import EnqueueRuns
from holdfast.serving.refusals import DISK_LOW, RefusedError
from holdfast.storage.disk_guard import DiskGuard, free_bytes

MIN = 1000
GROWING: list[Entry] = [
    Enqueue(1, []),
    EnqueueRuns(1, []),
    RetryDead(1, []),
    FireSchedule(1, b"q", b"s", 1, 0, 1, 1, [], []),
    PutSchedule(1, b"q", b"s", 0, 0, 0, 0, b""),
]
FINISHING: list[Entry] = [Ack(1, 1, []), Claim(1, 1, b"", b"", 1, [], []), Cancel(1, 1, []), Purge(1, [])]


class Disk:
    def __init__(self, free: int) -> None:
        self.free = free
        self.guard = DiskGuard(lambda: self.free, MIN)

    def becomes(self, free: int) -> bool:
        self.free = free
        return self.guard.poll()

    def allows(self, entry: Entry) -> bool:
        try:
            self.guard.check(entry)
        except RefusedError as refused:
            assert (refused.reason, refused.limit, refused.retry_after_ms) == (DISK_LOW, str(MIN), 5000)
            return False
        return True


@pytest.mark.parametrize(
    ("free", "growing", "finishing"),
    [
        (MIN + 1, True, True),
        (MIN, True, True),
        (MIN - 1, False, True),
        (MIN // 2, False, True),
        (MIN // 2 - 1, False, False),
        (0, False, False),
    ],
)
def test_each_watermark(free: int, growing: bool, finishing: bool) -> None:
    disk = Disk(free)
    assert [disk.allows(entry) for entry in GROWING] == [growing] * len(GROWING)
    assert [disk.allows(entry) for entry in FINISHING] == [finishing] * len(FINISHING)
    assert disk.guard.refusing == (not growing)
    assert disk.guard.critical == (not finishing)


def test_only_a_look_changes_the_mind() -> None:
    disk = Disk(MIN)
    disk.free = 0
    assert disk.allows(GROWING[0])
    disk.guard.poll()
    assert not disk.allows(GROWING[0])


def test_a_look_says_when_service_is_back() -> None:
    disk = Disk(MIN)
    assert not disk.becomes(0)
    assert not disk.becomes(0)
    assert disk.becomes(MIN)
    assert not disk.becomes(MIN)


def test_a_look_says_when_claims_are_allowed_again() -> None:
    disk = Disk(0)
    claim = Claim(1, 1, b"", b"", 1, [], [])
    assert not disk.allows(claim)
    assert disk.becomes(MIN - 1), "those who wait for a task could be served now"
    assert disk.allows(claim)


def test_a_write_that_found_no_room_is_believed_over_the_numbers() -> None:
    disk = Disk(MIN * 10)
    disk.free = MIN // 2
    refused = disk.guard.found_full()
    assert refused.reason == DISK_LOW
    assert str(MIN // 2) in refused.message
    assert disk.guard.free_bytes == MIN // 2
    assert not any(disk.allows(entry) for entry in GROWING + FINISHING)
    disk.becomes(MIN // 2)
    assert not disk.allows(FINISHING[0])
    disk.becomes(MIN // 2 + 1)
    assert disk.allows(FINISHING[0])
    assert not disk.allows(GROWING[0])
    assert disk.becomes(MIN)
    assert disk.allows(GROWING[0])


def test_without_a_watermark_only_a_full_disk_refuses() -> None:
    free = 0
    guard = DiskGuard(lambda: free, 0)
    guard.check(GROWING[0])
    guard.found_full()
    with pytest.raises(RefusedError):
        guard.check(FINISHING[0])
    free = 1
    assert guard.poll()
    guard.check(GROWING[0])


def test_the_space_of_a_directory(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
