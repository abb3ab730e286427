"""Attempts that take too long: which end comes first, and what is left of it afterwards."""

import asyncio
from typing import cast

from holdfast.client import AsyncClient, ClaimedTask, Extended, Extension
from holdfast.client.worker.deadlines import Deadlines, time_out
from holdfast.client.worker.heartbeats import Heartbeats, end_if_over, lose
from holdfast.client.worker.jobs import Job, Phase, new_job
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.standstill import Standstill


def job(timeout_ms: int | None = 10_000, task_id: str = "1") -> Job:
    claim = ClaimedTask(
        task_id=task_id, token=1, queue="q", type="t", timeout_ms=timeout_ms, lease_ms=10_000, lease_ends_s=110.0
    )
    return new_job(claim, 30_000, 30_000)


def test_where_the_lease_ends_with_the_attempt_it_is_a_timeout_and_no_lost_lease() -> None:
    late = job()
    end_if_over(late, 109.9, "", Standstill(list, 1000))
    assert (late.timed_out, late.lease_lost, late.interrupted) == (False, False, False)
    end_if_over(late, 110.0, "", Standstill(list, 1000))
    assert (late.timed_out, late.lease_lost, late.interrupted) == (True, False, True)


def test_without_a_deadline_a_lease_that_has_run_out_is_lost() -> None:
    lost = job(timeout_ms=None)
    end_if_over(lost, 110.0, "", Standstill(list, 1000))
    assert (lost.timed_out, lost.lease_lost, lost.interrupted) == (False, True, True)


def test_the_first_end_is_the_only_one_and_there_is_none_after_the_handlers() -> None:
    late, lost, reported = job(), job(), job()
    time_out(late)
    lose(late, "")
    lose(lost, "")
    time_out(lost)
    reported.phase = Phase.REPORTING
    time_out(reported)
    assert [(item.timed_out, item.lease_lost) for item in (late, lost, reported)] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip


async def test_no_timer_outlives_its_job_or_its_deadline() -> None:
    deadlines = Deadlines(now_s=lambda: 109.99)
    passes, ends, moves = job(), job(), job()
    for item in (passes, ends, moves):
        deadlines.watch(item)
    deadlines.forget(ends)
    moves.deadline_s = 10_000.0
    deadlines.watch(moves)
    async with asyncio.timeout(20):
        while not passes.timed_out:
            await asyncio.sleep(0.005)
    assert not ends.timed_out
    assert not moves.timed_out
    deadlines.forget(moves)
    assert deadlines._timers == {}


async def test_leases_of_attempts_that_took_too_long_are_not_extended() -> None:
    asked: list[str] = []
    seen = asyncio.Event()

    class Calls:
        async def extend_many(self, items: list[Extension], *, timeout_s: float) -> list[Extended]:
            asked.extend(item.claim.task_id for item in items)
            seen.set()
            return [Extended(item.lease_ms, 10_000.0) for item in items]

    late, runs = job(timeout_ms=None, task_id="late"), job(timeout_ms=None, task_id="runs")
    time_out(late)
    deadlines = Deadlines(now_s=lambda: 105.0)
    beats = Heartbeats(
        cast(AsyncClient, Calls()), [late, runs], 100, deadlines, Standstill(list, 100), Meter([]), lambda: 105.0
    )
    running = asyncio.create_task(beats.run())
    try:
        await asyncio.wait_for(seen.wait(), 20)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert asked == ["runs"]
