"""When memory is given back: after much was received, and once more when all of it is surely freed."""

import asyncio
import os
import platform
from pathlib import Path

import pytest

from holdfast.serving import memory
from holdfast.serving.intake import Intake
from holdfast.serving.memory import AGAIN_SECONDS, BUSY_SECONDS, TRIM_BYTES_MIN, TrimTimes, give_back_memory

MUCH = TRIM_BYTES_MIN
MIB = 1024 * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left alone")
async def test_what_was_freed_is_the_systems_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "POLL_SECONDS", 0.01)
    intake = Intake(bytes_max=MUCH, message_bytes_max=MIB, waiting_max=1)
    pieces = [bytearray(b"x" * 60_000) for _ in range(2000)]
    del pieces[1::2], pieces[:-1]  # all but the last, behind which the allocator keeps the others
    freed = resident_bytes()
    giving = asyncio.create_task(give_back_memory(intake))
    await asyncio.sleep(0.1)
    assert resident_bytes() > freed - 20 * MIB, "nothing has been received yet"
    intake.received_bytes = MUCH
    async with asyncio.timeout(10):
        while resident_bytes() > freed - 60 * MIB:
            await asyncio.sleep(0.01)
    giving.cancel()
    assert len(pieces) == 1


def test_little_is_not_worth_it() -> None:
    times = TrimTimes()
    assert not any(times.is_due(MUCH - 1, 0, now_s) for now_s in range(1000))


def test_after_much_it_is_due_twice() -> None:
    times = TrimTimes()
    assert times.is_due(MUCH, 0, 100.0)
    assert not times.is_due(MUCH, 0, 100.0 + AGAIN_SECONDS - 1)
    assert times.is_due(MUCH, 0, 100.0 + AGAIN_SECONDS)
    assert not times.is_due(2 * MUCH - 1, 0, 1000.0)
    assert times.is_due(2 * MUCH, 0, 1001.0)


def test_while_more_comes_it_is_due_now_and_then_and_when_that_is_over() -> None:
    times = TrimTimes()
    assert times.is_due(MUCH, MUCH, 100.0)
    assert not times.is_due(9 * MUCH, MUCH, 100.0 + BUSY_SECONDS - 1)
    assert times.is_due(9 * MUCH, MUCH, 100.0 + BUSY_SECONDS)
    assert times.is_due(9 * MUCH, 0, 101.0 + BUSY_SECONDS)
    assert not times.is_due(9 * MUCH, 0, 102.0 + BUSY_SECONDS)
