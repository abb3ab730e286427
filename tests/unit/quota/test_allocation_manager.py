"""Shares of limits of spread queues: what all shards use is never above the limit, and all of it is used."""

import asyncio

import pytest

from holdfast.broker.quota.allocation_manager import ASK_SECONDS, SAID_SECONDS
from holdfast.broker.quota.coordinator import CONCURRENCY, LEASE_MS
from holdfast.broker.scheduler.limiter import OWN_LIMITS
from holdfast.limits.allocation import HELD_PERCENT
from holdfast.limits.buckets import Rate
from holdfast.limits.reports import LimitGrant
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.quota.allocation_stage import HOME, Stage, ledger_rows, report
from tests.unit.replica.small_shard import settle

HELD_MS = LEASE_MS * HELD_PERCENT // 100


# --- all together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_a_cap_is_never_exceeded_and_all_tasks_are_done(seed: int) -> None:
    """Calls are lost, clocks drift, leaders change, on the home too, and a write may fail."""
    cap = 3 + seed % 3
    stage = Stage(4, seed, lost=0.3, drift=True, concurrency_max=cap)
    chance = stage.chance
    for member in stage.members:
        member.enqueue(chance.randrange(20, 40))
    most = 0
    for _ in range(2000):
        for member in stage.members:
            member.finish(chance.randrange(3))
            if chance.random() < 0.01:
                await member.manager.stop()
                member.lead()
        stage.members[HOME].writes_fail = chance.random() < 0.05
        await stage.poll(chance.randrange(10, 400))
        most = max(most, stage.claimed)
        assert stage.claimed <= cap
        if not any(member.ready or member.held for member in stage.members):
            break
    assert most == cap, "all of the cap is used at some time"
    assert not any(member.ready or member.held for member in stage.members)


async def test_one_busy_shard_gets_all_of_a_cap() -> None:
    stage = Stage(4, concurrency_max=2)
    stage.members[2].enqueue(10)
    await stage.pass_time(1000)
    assert stage.allowed == [0, 0, 2, 0]
    assert stage.members[2].row.claimed == 2


async def test_what_a_shard_does_not_need_any_more_goes_to_others_soon() -> None:
    stage = Stage(2, concurrency_max=2)
    first, second = stage.members
    first.enqueue(2)
    await stage.poll(500)
    assert first.row.claimed == 2
    second.enqueue(2)
    await stage.pass_time(2000)
    assert second.row.claimed == 0
    first.finish(2)
    await stage.pass_time(4000)
    assert second.row.claimed == 2


async def test_who_needs_much_less_than_it_has_says_so_soon() -> None:
    stage = Stage(2, concurrency_max=20)
    first, second = stage.members
    first.enqueue(30)
    await stage.poll(500)
    assert first.row.claimed == 20
    await stage.pass_time(3500)  # it has just renewed all of it
    first.ready, ready = [], first.ready
    for task_id in ready:
        first.shard.cancel(task_id)
    first.finish(17)
    second.enqueue(30)
    await stage.pass_time(2500)
    assert second.row.claimed >= 14


async def test_a_shard_without_tasks_asks_for_nothing() -> None:
    stage = Stage(2, concurrency_max=2, rate_per_second=5.0)
    other = stage.members[1]
    other.enqueue(1)
    await stage.poll(500)
    other.finish()
    await stage.pass_time(6000)
    asked, writes = stage.asked, stage.members[HOME].writes
    await stage.pass_time(60_000)
    assert (stage.asked, stage.members[HOME].writes) == (asked, writes)


async def test_a_shard_that_is_given_less_than_it_could_use_does_not_ask_all_the_time() -> None:
    stage = Stage(2, concurrency_max=2)
    for member in stage.members:
        member.enqueue(50)
    await stage.pass_time(2000)
    asked = stage.asked
    await stage.pass_time(10_000, 20)
    assert stage.asked - asked <= 11


async def test_a_rate_is_allocated_to_those_who_can_use_it() -> None:
    stage = Stage(3, rate_per_second=10.0, rate_burst=10)
    stage.members[0].enqueue(50)
    await stage.poll(500, work=False)
    assert [member.reported.rate for member in stage.members] == [Rate(10_000, 10), Rate(0, 0), Rate(0, 0)]
    stage.members[1].enqueue(50)
    await stage.pass_time(8000, work=False)
    rates = [member.reported.rate for member in stage.members]
    assert rates == [Rate(5000, 5), Rate(5000, 5), Rate(0, 0)]


async def test_a_shard_whose_tasks_come_one_by_one_keeps_some_of_a_rate() -> None:
    stage = Stage(2, rate_per_second=10.0)
    member = stage.members[1]
    for _ in range(20):
        member.enqueue(1)
        await stage.poll(100)  # claims it at once
        member.finish()
        await stage.poll(400)
        assert member.reported.rate is not None
        assert member.reported.rate.per_second_milli >= 1000
    await stage.pass_time(6000)
    assert member.reported.rate == Rate(0, 0)


# --- out of touch ---------------------------------------------------------------------------------------------


async def test_a_share_runs_out_and_the_scheduler_is_told_while_nobody_answers() -> None:
    stage = Stage(2, concurrency_max=4)
    member = stage.members[1]
    member.enqueue(20)
    await stage.poll(500)
    assert member.reported.concurrency == 4
    began_ms = stage.time.now_ms
    stage.deaf.add(1)
    while stage.time.now_ms - began_ms < HELD_MS - 100:
        await stage.poll(100)
        assert member.reported.concurrency == 4
    await stage.poll(100)
    assert member.reported.concurrency == 0
    member.finish(4)
    await stage.pass_time(1000)
    assert member.row.claimed == 0
    stage.deaf.clear()
    await stage.pass_time(1000)
    assert member.row.claimed == 4


async def test_a_share_runs_out_by_a_timer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look may be late; whoever holds must stop in time."""
    stage = Stage(1, concurrency_max=4)
    member = stage.members[0]
    member.enqueue(20)
    await stage.poll(500)
    limit = member.manager.queues[QUEUE].limits[CONCURRENCY]
    assert limit.timer is not None
    loop = asyncio.get_running_loop()
    left_s, now_s = limit.timer.when() - loop.time(), loop.time
    assert HELD_MS / 1000 - 1 < left_s <= HELD_MS / 1000 + 0.01
    stage.time.now_ms += HELD_MS
    monkeypatch.setattr(loop, "time", lambda: now_s() + left_s)
    await settle()
    assert member.reported.concurrency == 0
    member.manager.cancel()
    assert limit.timer.cancelled()


async def test_a_home_that_does_not_answer_is_said_once_and_holds_up_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.broker.quota.allocation_manager.ASK_SECONDS", 0.01)
    stage = Stage(2, concurrency_max=2)
    member = stage.members[1]
    hangs = asyncio.Event()

    async def hang(_home: int, _source: int, _reports: object) -> list[LimitGrant]:
        await hangs.wait()
        raise AssertionError

    monkeypatch.setattr(stage, "allocate", hang)
    stage.members[0].enqueue(5)
    member.enqueue(5)
    for _ in range(int(2 * SAID_SECONDS)):
        await stage.poll(1000)
    assert stage.members[0].row.claimed == 2, "the home's own share does not depend on others"
    assert capsys.readouterr().out.count("no_allocation") == 1
    assert ASK_SECONDS < HELD_MS / 1000


async def test_asks_of_a_manager_that_stops_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(2, concurrency_max=2)
    manager = stage.members[1].manager
    asked = asyncio.Event()

    async def hang(_home: int, _source: int, _reports: object) -> list[LimitGrant]:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(stage, "allocate", hang)
    stage.members[1].enqueue(5)
    manager.start()
    await asked.wait()
    await manager.stop()
    assert manager.failed() is None


async def test_new_tasks_wake_a_manager_that_has_nothing() -> None:
    stage = Stage(2, concurrency_max=2)
    member = stage.members[1]
    member.manager.start()
    await asyncio.sleep(0)
    member.manager.woken.clear()
    member.enqueue(1)
    member.manager.follow([b"another", QUEUE])
    assert member.manager.woken.is_set()
    await member.manager.stop()


async def test_what_it_has_is_enough_so_nobody_is_woken() -> None:
    stage = Stage(2, concurrency_max=10)
    member = stage.members[1]
    member.enqueue(2)
    await stage.poll(500, work=False)
    member.manager.woken.clear()
    member.manager.follow([QUEUE])
    assert not member.manager.woken.is_set()


# --- spread and not spread ------------------------------------------------------------------------------------


async def test_a_queue_that_is_spread_no_more_has_its_own_limits_again() -> None:
    stage = Stage(2, concurrency_max=2)
    member = stage.members[0]
    member.enqueue(9)
    await stage.poll(500)
    member.is_home_known = False
    await stage.pass_time(4000)
    assert member.reported == OWN_LIMITS
    member.is_home_known = True
    await stage.pass_time(4000)
    assert member.reported.concurrency == 2, "the numbers of its reports went on, so the ledger heeds them"


async def test_a_home_that_has_not_heard_of_the_spread_deals_nothing() -> None:
    stage = Stage(2, concurrency_max=2)
    home, other = stage.members
    home.is_home_known = False
    other.enqueue(5)
    await stage.pass_time(3000)
    assert (other.reported.concurrency, ledger_rows(home)) == (0, 0)
    home.is_home_known = True
    await stage.pass_time(3000)
    assert other.reported.concurrency == 2


async def test_what_the_home_uses_already_is_not_allocated_to_others() -> None:
    """A queue is spread while its home holds all of the cap."""
    stage = Stage(2, concurrency_max=3)
    home, other = stage.members
    home.is_home_known = False
    home.limits_changed(QUEUE)
    home.enqueue(5)
    home.reported = home.reported._replace(concurrency=2)
    home.claim()
    home.on_their_way = 1
    home.is_home_known = True
    other.enqueue(5)
    (grant,) = await home.allocate(1, [report(1, demand=5)])
    assert grant.amount == 0
    assert home.reported.concurrency == 0, "and the home keeps to a share from that moment"


async def test_a_limit_that_the_home_has_not_heard_of_lets_nothing_through() -> None:
    stage = Stage(2, concurrency_max=3)
    home, other = stage.members
    home.set_policy()
    other.enqueue(2)
    await stage.pass_time(2000)
    assert other.reported.concurrency == 0
    home.set_policy(concurrency_max=1)
    await stage.pass_time(4000)
    assert other.reported.concurrency == 1


async def test_a_queue_without_such_limits_is_left_alone() -> None:
    stage = Stage(2, max_attempts=3)
    stage.members[1].enqueue(2)
    await stage.pass_time(2000)
    assert stage.members[1].reported == OWN_LIMITS
    assert stage.asked == 0


async def test_claims_on_their_way_count_as_used() -> None:
    stage = Stage(3, concurrency_max=4)
    _, first, second = stage.members
    first.enqueue(9)
    await stage.poll(500, work=False)
    assert first.reported.concurrency == 4
    first.on_their_way = 4  # picked, and not yet in the log
    second.enqueue(9)
    await stage.pass_time(6000, work=False)
    assert first.reported.concurrency is not None
    assert first.reported.concurrency < 4
    assert second.reported.concurrency == 0
    first.on_their_way = 0
    await stage.pass_time(3000, work=False)
    assert second.reported.concurrency is not None
    assert second.reported.concurrency > 0


async def test_what_ends_above_the_share_is_told_at_once() -> None:
    """Others wait for it, and get it only by the ledger."""
    stage = Stage(3, concurrency_max=4)
    _, first, second = stage.members
    first.enqueue(9)
    await stage.poll(500)
    second.enqueue(9)
    await stage.pass_time(6000)
    limit = first.manager.queues[QUEUE].limits[CONCURRENCY]
    assert (first.reported.concurrency, first.row.claimed, limit.booked) == (2, 4, 4)
    first.finish()
    await stage.poll(20)
    assert limit.booked == 3
