"""Current reads: one question at a time, shared by all that came before it was asked."""

import asyncio

import pytest

from holdfast.broker.replica.read_barrier import ReadBarrier
from holdfast.serving.refusals import OVERLOADED, RefusedError, not_leader
from tests.unit.replica.small_shard import MemoryLog, settle


class Questions(MemoryLog):
    """A Replicator whose heartbeats are answered when the test says so."""

    is_alone = False

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answered = 0

    def begin_read(self) -> int | None:  # type: ignore[override]  # the real one can refuse
        if not self.serves:
            return None
        self.asked += 1
        return self.asked

    def may_read(self, number: int) -> bool:
        return self.serves and self.answered >= number


@pytest.fixture
def log() -> Questions:
    return Questions()


@pytest.fixture
def reads() -> ReadBarrier:
    return ReadBarrier(10)


async def read(reads: ReadBarrier) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(reads.wait())
    await settle()
    return task


async def is_done(task: "asyncio.Task[None]") -> bool:
    await settle()
    return task.done()


async def test_a_read_waits_for_an_answer_to_a_question_asked_after_it_came(reads: ReadBarrier, log: Questions) -> None:
    first = await read(reads)
    assert reads.want_a_question
    reads.step(log, 0)
    assert (log.asked, reads.want_a_question) == (1, False)
    second = await read(reads)
    log.answered = 1
    reads.step(log, 0)
    assert await is_done(first)
    assert not await is_done(second), "the answer was on its way before it came"
    assert log.asked == 2, "its own question"
    log.answered = 2
    reads.step(log, 0)
    assert await is_done(second)


async def test_all_that_wait_share_a_question(reads: ReadBarrier, log: Questions) -> None:
    waiting = [await read(reads) for _ in range(5)]
    reads.step(log, 0)
    reads.step(log, 0)
    assert log.asked == 1
    log.answered = 1
    reads.step(log, 0)
    assert [await is_done(task) for task in waiting] == [True] * 5
    assert (len(reads), reads.want_a_question) == (0, False)


async def test_a_read_sees_everything_that_was_committed_when_it_asked(reads: ReadBarrier, log: Questions) -> None:
    log.commit_index = 7
    task = await read(reads)
    reads.step(log, 5)
    log.answered = 1
    log.commit_index = 9
    reads.step(log, 6)
    assert not await is_done(task)
    reads.step(log, 7)
    assert await is_done(task), "what was committed since need not be there"


async def test_nothing_is_asked_while_it_does_not_serve(reads: ReadBarrier, log: Questions) -> None:
    log.serves = False
    task = await read(reads)
    reads.step(log, 0)
    assert (log.asked, task.done()) == (0, False)


async def test_leadership_that_is_lost_ends_all_of_them(reads: ReadBarrier, log: Questions) -> None:
    asked = await read(reads)
    reads.step(log, 0)
    coming = await read(reads)
    gone = await read(reads)
    gone.cancel()
    await settle()
    log.serves = False
    reads.end(not_leader(0, 1, None))
    for task in (asked, coming):
        with pytest.raises(RefusedError, match="does not"):
            await task
    assert len(reads) == 0


async def test_an_answer_to_an_old_question_is_none_to_a_new_one(reads: ReadBarrier, log: Questions) -> None:
    first = await read(reads)
    reads.step(log, 0)
    reads.end(not_leader(0, 1, None))
    with pytest.raises(RefusedError):
        await first
    second = await read(reads)
    reads.step(log, 0)
    log.answered = 1
    reads.step(log, 0)
    assert not await is_done(second)
    log.answered = 2
    reads.step(log, 0)
    assert await is_done(second)


async def test_a_caller_that_goes_away_is_no_hindrance(reads: ReadBarrier, log: Questions) -> None:
    gone, there = await read(reads), await read(reads)
    gone.cancel()
    await settle()
    reads.step(log, 0)
    log.answered = 1
    reads.step(log, 0)
    assert await is_done(there)


async def test_too_many_are_refused(log: Questions) -> None:
    reads = ReadBarrier(2)
    waiting = [await read(reads)]
    reads.step(log, 0)
    waiting.append(await read(reads))
    with pytest.raises(RefusedError) as refused:
        await reads.wait()
    assert refused.value.reason == OVERLOADED
    for answered in (1, 2):
        log.answered = answered
        reads.step(log, 0)
    assert [await is_done(task) for task in waiting] == [True, True]
    await read(reads)
    reads.end(not_leader(0, 1, None))
    await settle()
