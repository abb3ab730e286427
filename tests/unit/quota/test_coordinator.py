"""Allocating a queue-wide limit: what is granted is in the log, and never more than there is."""

import asyncio

import pytest

from holdfast.broker.policy.settings_guard import SETTINGS
from holdfast.broker.quota.coordinator import LEASE_MS, RATE, QuotaCoordinator
from holdfast.limits.reports import LimitReport
from tests.unit.quota.allocation_stage import HOME, LostError, Stage, ledger_rows, report


async def test_the_ledger_is_written_before_a_grant_is_told() -> None:
    stage = Stage(2, concurrency_max=3)
    home = stage.members[HOME]
    home.writes_fail = True
    with pytest.raises(LostError):
        await home.allocate(1, [report(1, demand=3)])
    assert ledger_rows(home) == 0
    home.writes_fail = False
    (grant,) = await home.allocate(1, [report(2, demand=3)])
    assert (grant.amount, ledger_rows(home)) == (3, 1)


async def test_a_new_leader_of_the_home_goes_on_with_the_ledger() -> None:
    stage = Stage(3, concurrency_max=3)
    home = stage.members[HOME]
    await home.allocate(1, [report(1, demand=2)])
    home.lead()
    (grant,) = await home.allocate(2, [report(1, demand=3)])
    assert grant.amount == 1


async def test_who_goes_away_lets_nobody_in_before_the_ledger_is_written() -> None:
    stage = Stage(3, concurrency_max=3)
    home = stage.members[HOME]
    may_write = asyncio.Event()

    async def submit(entry: object) -> list[object]:
        await may_write.wait()
        return home.shard.apply(entry)  # type: ignore[arg-type,return-value]

    coordinator = QuotaCoordinator(home.shard.machine, home.policies, now_ms=home.shard_ms, submit=submit)  # type: ignore[arg-type]
    first = asyncio.create_task(coordinator.allocate(1, [report(1, demand=2)]))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(coordinator.allocate(2, [report(1, demand=3)]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert first.cancelled()
    assert not second.done()
    may_write.set()
    (grant,) = await second
    assert grant.amount == 1


class Settings:
    """The home has heard of a newer version than it acts on."""

    def is_behind(self, queue: bytes) -> bool:
        return True

    def reported(self, queue: bytes, version: int) -> int:
        return max(6, version)


async def test_a_home_that_knows_less_than_others_allocates_nothing() -> None:
    stage = Stage(2, concurrency_max=3)
    home = stage.members[HOME]
    coordinator = QuotaCoordinator(
        home.shard.machine, home.policies, now_ms=home.shard_ms, submit=home.submit, settings=Settings()
    )
    before = home.writes
    (reported,) = await coordinator.allocate(1, [LimitReport(b"q", SETTINGS, version=7)])
    assert (reported.version, home.writes) == (7, before), "what is told of settings is in no ledger"
    (grant,) = await coordinator.allocate(1, [report(1, demand=2)])
    assert (grant.amount, grant.unlimited) == (0, False)


async def test_a_call_with_many_reports_is_one_write_for_each_limit() -> None:
    stage = Stage(2, concurrency_max=3, rate_per_second=1.0)
    home = stage.members[HOME]
    before = home.writes
    reports = [report(1, demand=1), report(1, demand=1000, what=RATE), report(2, holds=1, demand=2)]
    grants = await home.allocate(1, reports)
    assert [grant.amount for grant in grants] == [1, 1000, 2]
    assert home.writes - before == 2


async def test_an_overtaken_report_is_answered_with_nothing_that_counts() -> None:
    stage = Stage(2, concurrency_max=3)
    home = stage.members[HOME]
    await home.allocate(1, [report(5, demand=1)])
    (grant,) = await home.allocate(1, [report(4, demand=3)])
    assert (grant.number, grant.amount) == (0, 0)


async def test_after_a_step_of_the_clock_nothing_is_granted_for_a_lease() -> None:
    """The ledger would say that all leases are over, but by the holders' clocks they are not."""
    stage = Stage(3, concurrency_max=3)
    home, holder, other = stage.members
    holder.enqueue(9)
    await stage.poll(500)
    assert holder.row.claimed == 3
    stage.deaf.add(1)  # it goes on with what it has
    home.step_clock(3_600_000)
    other.enqueue(9)
    began_ms = stage.time.now_ms
    while stage.time.now_ms - began_ms < LEASE_MS - 500:
        await stage.poll(500)
        assert other.reported.concurrency == 0
    assert holder.reported.concurrency == 0
    await stage.pass_time(2000)
    assert other.reported.concurrency == 3


async def test_who_can_use_little_gets_it_whatever_the_others_could_use() -> None:
    """Up to an equal part of all."""
    stage = Stage(3, concurrency_max=12)
    home = stage.members[HOME]
    amounts: dict[int, int] = {}
    for number in range(1, 8):
        for shard, demand in ((0, 1000), (1, 3), (2, 100)):
            reported = report(number, holds=amounts.get(shard, 0), demand=demand)
            (grant,) = await home.allocate(shard, [reported])
            amounts[shard] = grant.amount
    assert amounts[1] == 3
    assert amounts[2] >= 4
    assert sum(amounts.values()) == 12
