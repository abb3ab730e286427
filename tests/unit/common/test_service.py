"""Work in the background: it ends when it is told to, and its owner learns of a bug that has ended it."""

import asyncio

import pytest

from holdfast.common.service import Service, end_tasks


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
    works = [Work(), Work(), Work()]
    service = Service(*(work.run for work in works[:2]))
    await service.stop()  # nothing is there to be stopped
    service.start()
    service.spawn(works[2].run())
    await asyncio.sleep(0)
    assert [work.has_ended for work in works] == [False, False, False]
    await service.stop()
    assert [work.has_ended for work in works] == [True, True, True]
    assert service.failed() is None, "to be stopped is no failure"


async def test_a_cancelled_one_ends_soon_without_anybody_waiting() -> None:
    work = Work()
    service = Service(work.run)
    service.start()
    await asyncio.sleep(0)
    service.cancel()
    assert not work.has_ended
    await service.stop()
    assert work.has_ended


async def test_its_owner_learns_of_an_error_while_others_go_on() -> None:
    bug, later, fine = Work(ValueError("a bug")), Work(OSError("another")), Work()
    service = Service(fine.run, bug.run, later.run)
    service.start()
    assert service.failed() is None
    bug.may_go_on.set()
    await service.wait()
    assert isinstance(service.failed(), ValueError)
    assert not fine.has_ended
    later.may_go_on.set()
    await service.stop()
    assert isinstance(service.failed(), ValueError), "the first is not forgotten, by another or by stopping the rest"


async def test_one_that_ends_well_or_is_cancelled_by_itself_ends_nothing_else() -> None:
    good, cancelled, fine = Work(), Work(), Work()
    service = Service(fine.run)
    service.start()
    tasks = [service.spawn(work.run()) for work in (good, cancelled)]
    await asyncio.sleep(0)
    good.may_go_on.set()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await service.wait(timeout_s=0)
    assert service.failed() is None
    assert not fine.has_ended
    await service.stop()


async def test_what_is_spawned_at_the_end_is_ended_too() -> None:
    last = Work()
    service = Service()

    async def spawns_at_its_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            service.spawn(last.run())
            await asyncio.sleep(0)

    service.spawn(spawns_at_its_end())
    await asyncio.sleep(0)
    await service.stop()
    assert last.has_ended


async def test_waiting_for_a_failure_ends_with_something_else_or_in_time() -> None:
    other, slower = Work(), Work()
    service = Service()
    other.may_go_on.set()
    await service.wait(other.run(), slower.run())
    assert other.has_ended
    assert slower.has_ended, "it does not outlive the wait"
    await service.wait(asyncio.sleep(60), timeout_s=0.001)


async def test_whoever_runs_it_is_ended_by_the_first_failure_and_leaves_nothing_behind() -> None:
    bug, fine = Work(ValueError("a bug")), Work()
    service = Service(fine.run)
    service.spawn(bug.run())
    running = asyncio.create_task(service.run())
    await asyncio.sleep(0)
    bug.may_go_on.set()
    with pytest.raises(ValueError, match="a bug"):
        await running
    assert fine.has_ended


async def test_to_cancel_whoever_runs_it_ends_it() -> None:
    work = Work()
    running = asyncio.create_task(Service(work.run).run())
    await asyncio.sleep(0.001)
    await end_tasks([running])
    assert running.cancelled()
    assert work.has_ended


async def test_errors_that_somebody_hears_of_end_nobody_else() -> None:
    bug, fine, heard = Work(ValueError("a bug")), Work(), list[BaseException]()
    service = Service(fine.run, on_error=heard.append)
    service.start()
    service.spawn(bug.run())
    bug.may_go_on.set()
    fine.may_go_on.set()
    await service.ended()
    assert [str(error) for error in heard] == ["a bug"]
    assert (service.failed(), service.under_way, fine.has_ended) == (None, 0, True)


async def test_ending_tasks_raises_nothing_of_theirs() -> None:
    broken, waiting = Work(ValueError("a bug")), Work()
    broken.may_go_on.set()
    tasks = [asyncio.create_task(work.run()) for work in (broken, waiting)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await end_tasks(tasks)
    assert waiting.has_ended
    with pytest.raises(ValueError, match="a bug"):
        tasks[0].result()
