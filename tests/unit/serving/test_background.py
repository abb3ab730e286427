"""Work in the background: it ends when it is told to, and its owner learns of a bug that has ended it."""

import asyncio

import pytest

from holdfast.serving.background import Background, end_tasks, failure_of


class Work:
    """Waits to be let go on; knows how it ended."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_go_on = asyncio.Event()
        self.has_ended = False
        self._error = error

    async def run(self) -> None:
        try:
            await self.may_go_on.wait()
            if self._error is not None:
                raise self._error
        finally:
            await asyncio.sleep(0)  # an end that takes a turn: who stops it waits for that, too
            self.has_ended = True


async def test_it_runs_from_start_to_stop() -> None:
    works = [Work(), Work()]
    background = Background(*(work.run for work in works))
    await background.stop()  # nothing is there to be stopped
    background.start()
    await asyncio.sleep(0)
    assert [work.has_ended for work in works] == [False, False]
    await background.stop()
    assert [work.has_ended for work in works] == [True, True]
    assert background.failed() is None, "to be stopped is no failure"


async def test_a_cancelled_one_ends_soon_without_anybody_waiting() -> None:
    work = Work()
    background = Background(work.run)
    background.start()
    await asyncio.sleep(0)
    background.cancel()
    assert not work.has_ended
    await background.stop()
    assert work.has_ended


async def test_its_owner_learns_of_an_error_while_others_go_on() -> None:
    bug, fine = Work(ValueError("a bug")), Work()
    background = Background(fine.run, bug.run)
    background.start()
    assert background.failed() is None
    bug.may_go_on.set()
    await asyncio.wait(background._tasks, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(background.failed(), ValueError)
    assert not fine.has_ended
    await background.stop()
    assert isinstance(background.failed(), ValueError), "it is not forgotten by stopping the rest"


async def test_ending_tasks_raises_nothing_of_theirs() -> None:
    broken, waiting = Work(ValueError("a bug")), Work()
    broken.may_go_on.set()
    tasks = [asyncio.create_task(work.run()) for work in (broken, waiting)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await end_tasks(tasks)
    assert waiting.has_ended
    assert isinstance(failure_of(tasks), ValueError)
    with pytest.raises(ValueError, match="a bug"):
        tasks[0].result()
