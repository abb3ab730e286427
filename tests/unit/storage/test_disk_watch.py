"""Blocking work in a thread: waited for in line or beside the loop, never for longer than allowed, and seen to hang."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.storage.disk_watch import SYNC_SECONDS_MAX, WatchedThread
from holdfast.wal.errors import DiskFailedError, DiskFullError

LONG_S = 60.0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def thread(clock: Clock) -> Iterator[WatchedThread]:
    thread = WatchedThread("disk", clock)
    yield thread
    thread.close()


async def test_work_that_was_waited_for_in_line_needs_no_turn_of_the_loop(thread: WatchedThread, clock: Clock) -> None:
    def work() -> None:
        clock.now_s += 0.25

    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)
    began = thread.begin(work)
    began.wait(LONG_S)
    assert began.done()
    assert (await began, turns) == (0.25, [])


async def test_nobody_waits_in_line_for_longer_than_allowed(thread: WatchedThread) -> None:
    may_end = threading.Event()
    began = thread.begin(lambda: (may_end.wait(), None)[1])
    began.wait(0.005)
    assert not began.done()
    waiting = asyncio.ensure_future(asyncio.wait_for(began, LONG_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    assert await waiting == 0.0


@pytest.mark.parametrize("wait_s", [0.0, LONG_S])
async def test_what_work_raises_is_for_whoever_waits_and_the_next_work_is_done(
    thread: WatchedThread, wait_s: float
) -> None:
    def full() -> None:
        raise DiskFullError("there is no room")

    began = thread.begin(full)
    began.wait(wait_s)
    with pytest.raises(DiskFullError):
        await began
    await thread.begin(lambda: None)


async def test_a_hanging_disk_is_seen_while_nobody_waits_in_line(thread: WatchedThread, clock: Clock) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        may_end.wait()

    thread.check()
    began = thread.begin(hang)
    began.wait(0.001)
    assert begun.wait(LONG_S)
    clock.now_s += SYNC_SECONDS_MAX
    assert thread.busy_s == SYNC_SECONDS_MAX
    thread.check()
    clock.now_s += 1.0
    with pytest.raises(DiskFailedError, match="it has not answered"):
        thread.check()
    may_end.set()
    await began
    assert thread.busy_s == 0.0


async def test_what_has_not_begun_can_be_taken_back(thread: WatchedThread) -> None:
    may_end, done = threading.Event(), []
    first = thread.begin(lambda: (may_end.wait(), None)[1])
    second = thread.begin(lambda: done.append("second"))
    second.cancel()
    third = thread.begin(lambda: done.append("third"))
    may_end.set()
    await first
    await third
    assert done == ["third"]
    assert second.done()


def test_it_ends_once_what_was_begun_is_done() -> None:
    thread, done = WatchedThread("disk", time.monotonic), threading.Event()
    thread.begin(done.set)
    thread.close()
    assert done.is_set()
    thread.close()
