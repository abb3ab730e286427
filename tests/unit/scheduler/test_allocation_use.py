"""What tasks wait for is not always a share: what other limits hold up, or nobody asks for, takes none from others."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.broker.scheduler.allocation_use import EVERY_MS, SEEN, AllocationUse, Seen
from holdfast.limits.buckets import Rate
from tests.unit.leader.scheduled_member import ScheduledMember
from tests.unit.quota.allocation_stage import Stage

STEP_MS = 100


def stage_of(shards: int, seed: int = 0, *, lost: float = 0.0, **policy: Any) -> tuple[Stage, list[ScheduledMember]]:
    stage = Stage(shards, seed, lost=lost, member=ScheduledMember, **policy)
    members = [member for member in stage.members if isinstance(member, ScheduledMember)]
    return stage, members


async def run(stage: Stage, ms: int, *busy: ScheduledMember) -> None:
    """Some shards have as much work as they may do, each task takes a step."""
    for _ in range(ms // STEP_MS):
        for member in busy:
            member.enqueue(max(0, 200 - member.row.ready))
            member.finish(1000)
        await stage.poll(STEP_MS)


# --- all is blocked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked_by", ["key", "tenant"])
async def test_a_shard_whose_tasks_are_all_blocked_holds_nothing(blocked_by: str) -> None:
    policy = {f"{blocked_by}_concurrency_max": 1}
    stage, (busy, blocked) = stage_of(2, concurrency_max=10, rate_per_second=100.0, **policy)
    names = {"limit_key": b"k"} if blocked_by == "key" else {"tenant": b"t"}
    blocked.enqueue(50, **names)
    await stage.pass_time(2 * STEP_MS, STEP_MS)
    assert blocked.row.claimed == 1, "and it takes its time"
    await run(stage, 8000, busy)
    for _ in range(20):
        await run(stage, 500, busy)
        assert stage.allowed == [9, 1]
        assert blocked.reported.rate == Rate(0, 0)


async def test_all_of_a_rate_is_used_while_a_shard_is_blocked() -> None:
    stage, (busy, blocked) = stage_of(2, rate_per_second=100.0, key_concurrency_max=1)
    blocked.enqueue(50, b"k")
    await run(stage, 8000, busy)
    before = busy.handed_out
    await run(stage, 10_000, busy)
    assert 950 <= busy.handed_out - before <= 1000


async def test_what_opens_is_handed_out_at_once() -> None:
    stage, (busy, blocked) = stage_of(2, concurrency_max=10, rate_per_second=100.0, key_concurrency_max=1)
    blocked.enqueue(50, b"k")
    await run(stage, 8000, busy)
    assert blocked.reported.rate is not None
    assert blocked.reported.rate.per_second_milli == 0
    blocked.finish(1)
    began = blocked.handed_out
    await run(stage, 2000, busy)
    assert blocked.handed_out == began + 1
    blocked.enqueue(100, b"")  # and these nothing holds up
    await run(stage, 6000, busy, blocked)
    assert stage.allowed == [5, 5]
    assert blocked.reported.rate.per_second_milli >= 45_000


async def test_a_task_that_opens_wakes_the_manager() -> None:
    stage, (busy, blocked) = stage_of(2, rate_per_second=100.0, key_concurrency_max=1)
    blocked.enqueue(50, b"k")
    await run(stage, 8000, busy)
    blocked.manager.woken.clear()
    blocked.enqueue(1, b"k")
    assert not blocked.manager.woken.is_set(), "it is blocked as the others are"
    stage.time.now_ms += 100
    blocked.finish(1)
    assert blocked.manager.woken.is_set()


async def test_a_shard_that_is_blocked_does_not_ask_all_the_time() -> None:
    stage, (busy, blocked) = stage_of(2, concurrency_max=10, rate_per_second=100.0, key_concurrency_max=1)
    blocked.enqueue(50, b"k")
    await stage.pass_time(8000)
    asked = stage.asked
    await stage.pass_time(30_000)
    assert busy.reported.concurrency == 0
    assert stage.asked - asked <= 11, "it renews the slot that it uses"


# --- a part is blocked ----------------------------------------------------------------------------------------


async def test_slots_that_a_shard_cannot_use_go_to_others() -> None:
    stage, (busy, partly) = stage_of(2, concurrency_max=10, key_concurrency_max=1)
    for key in (b"a", b"b", b"c"):
        partly.enqueue(100, key)
    await run(stage, 8000, busy)
    for _ in range(100):
        partly.finish(1)  # in turn: at all times about three are at work, and three can be
        await run(stage, STEP_MS, busy)
        assert stage.claimed <= 10
        assert stage.allowed == [7, 3]
    assert partly.handed_out >= 100


async def test_a_rate_that_a_shard_cannot_use_goes_to_others() -> None:
    stage, (busy, partly) = stage_of(2, rate_per_second=100.0, key_rate_per_second=10.0, key_rate_burst=1)
    for key in (b"a", b"b", b"c"):
        partly.enqueue(1000, key)
    await run(stage, 10_000, busy)
    before = busy.handed_out, partly.handed_out
    shares = []
    for _ in range(200):
        partly.finish(100)
        await run(stage, STEP_MS, busy)
        assert partly.reported.rate is not None
        shares.append(partly.reported.rate.per_second_milli)
    assert partly.handed_out - before[1] >= 0.95 * 30 * 20, "it gets all that it can use"
    assert busy.handed_out + partly.handed_out - sum(before) >= 0.95 * 100 * 20
    assert max(shares) - min(shares) <= 5000, "and it does not go up and down"


async def test_where_nobody_asks_for_tasks_next_to_nothing_is_held() -> None:
    stage, (busy, unasked) = stage_of(2, concurrency_max=20, rate_per_second=100.0)
    unasked.workers = 0
    unasked.enqueue(100)
    await run(stage, 10_000, busy)
    assert stage.allowed == [19, 1]
    assert unasked.reported.rate is not None
    assert unasked.reported.rate.per_second_milli == 1000
    unasked.workers = 1000
    await run(stage, 8000, busy, unasked)
    assert unasked.reported.concurrency is not None
    assert unasked.reported.concurrency >= 5, "the rate does not let more at a time through"
    assert unasked.reported.rate == Rate(50_000, 50)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("shards", "pause_ms"), [(1, 3000), (2, 2000)])
async def test_who_asks_only_now_and_then_gets_a_part_of_a_rate_worth_asking_for(
    seed: int, shards: int, pause_ms: int
) -> None:
    """A busy worker comes by at one of the shards, takes what it may of four tasks, and goes on to other queues."""
    stage, members = stage_of(3, seed, rate_per_second=3.0, rate_burst=3)
    for member in members:
        member.workers = 0
    asks, next_ms = 0, 3000
    for _ in range(60_000 // STEP_MS):
        await stage.poll(STEP_MS)
        for member in members[:shards]:
            member.enqueue(max(0, 50 - member.row.ready))
        if stage.time.now_ms >= next_ms:
            next_ms += int(stage.chance.uniform(0.5, 1.5) * pause_ms)
            asks += 1
            member = stage.chance.choice(members[:shards])
            member.workers = 4
            member.claim()
            member.workers = 0
            member.finish(4)
    assert sum(member.handed_out for member in members) >= asks


async def test_two_that_can_use_all_have_equal_parts_all_the_time() -> None:
    """Whether the cap holds them up, or the rate."""
    for cap, used_per_s in ((8, 80), (40, 100)):
        stage, members = stage_of(2, concurrency_max=cap, rate_per_second=100.0)
        await run(stage, 8000, *members)
        before = [member.handed_out for member in members]
        shares = []
        for _ in range(20):
            await run(stage, 1000, *members)
            shares.append(tuple(stage.allowed))
        assert len(set(shares)) <= 2
        handed_out = [member.handed_out - count for member, count in zip(members, before, strict=True)]
        assert 0.97 * used_per_s * 20 <= sum(handed_out) <= 1.01 * used_per_s * 20
        assert max(handed_out) <= 1.05 * min(handed_out)


async def test_tasks_that_come_again_after_a_rest_get_a_share_at_once() -> None:
    stage, (_, member) = stage_of(2, concurrency_max=10)
    member.workers = 2
    member.enqueue(50)
    await stage.pass_time(5000)
    assert member.reported.concurrency == 2
    member.workers = 1000
    for _ in range(60):
        member.finish(10)
        await stage.poll(500)
    assert (member.row.ready, member.reported.concurrency) == (0, 0)
    member.enqueue(50)
    await stage.poll(STEP_MS)
    assert member.row.claimed == 10


# --- rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [{}, {"concurrency_max": 40}])
@pytest.mark.parametrize("seed", range(3))
async def test_a_rate_is_kept_over_all_shards_whoever_leads_them(seed: int, cap: dict[str, int]) -> None:
    """Calls are lost, leaders change and tasks come here and there: in any stretch of time no more is handed out than
    the rate, the burst, and one task for each shard."""
    rate, burst, shards = 20, 10, 3
    stage, members = stage_of(shards, seed, lost=0.2, rate_per_second=float(rate), rate_burst=burst, **cap)
    chance = stage.chance
    done = [(0, 0)]  # when, how many
    for _ in range(1500):
        for member in members:
            if chance.random() < 0.1 and member.row.ready < 50:
                member.enqueue(chance.randrange(1, 30))
            member.finish(100)
            if chance.random() < 0.01:
                await member.manager.stop()
                member.lead()
        await stage.poll(chance.randrange(10, 200))
        done.append((stage.time.now_ms, sum(member.handed_out for member in members)))
    low = 0.0
    for at_ms, total in done:
        level = total - rate * at_ms / 1000
        low = min(low, level)
        assert level - low <= burst + shards, f"at {at_ms} ms"
    assert done[-1][1] >= 0.9 * rate * done[-1][0] / 1000, "and it is used"


# --- any of it ------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.integers(2, 12))
async def test_whatever_opens_and_closes_the_cap_is_kept_and_all_is_done(seed: int, shards: int, cap: int) -> None:
    stage, members = stage_of(shards, concurrency_max=cap, key_concurrency_max=2, tenant_concurrency_max=3)
    chance = random.Random(seed)
    keys, tenants = (b"", b"k1", b"k2"), (b"", b"t1", b"t2")
    for step in range(1200):
        for member in members:
            if step < 100 and chance.random() < 0.2:
                member.enqueue(chance.randrange(1, 10), chance.choice(keys), chance.choice(tenants))
            if chance.random() < 0.4:
                member.finish(chance.randrange(1, 4))
            if step > 100 and chance.random() < 0.1:
                member.finish(100)
        await stage.poll(chance.randrange(20, 400))
        assert stage.claimed <= cap
        if step > 100 and not any(member.row.ready or member.row.claimed for member in members):
            return
    assert not any(member.row.ready for member in members), "nothing is left without a share for ever"


# --- what is enough -------------------------------------------------------------------------------------------


def seen_of(*moments: tuple[int, int, bool, bool]) -> AllocationUse:
    """Of (claimed_total, in_use, is_open, held up)."""
    use = AllocationUse()
    for place, (claimed, in_use, is_open, held_up) in enumerate(moments):
        use.note(Seen(place * 500, claimed, in_use, is_open, held_up, held_up))
    return use


def test_nothing_is_said_before_it_was_seen_for_long_enough() -> None:
    use = seen_of(*[(0, 0, False, False)] * (SEEN - 1))
    assert (use.slots(), use.rate_milli(1000, 1000)) == (None, None)
    assert not use.is_due((SEEN - 2) * 500 + EVERY_MS - 1)
    assert use.is_due((SEEN - 2) * 500 + EVERY_MS)


def test_what_is_enough() -> None:
    blocked = seen_of(*[(7, 2, False, False)] * SEEN)
    assert (blocked.slots(), blocked.rate_milli(10_000, 1000)) == (2, 0)
    unasked = seen_of(*[(7, 0, True, False)] * SEEN)
    assert (unasked.slots(), unasked.rate_milli(100_000, 1000), unasked.rate_milli(10_000, 1000)) == (1, 1000, 500)
    used = seen_of(*[(7 + n, n, False, False) for n in range(SEEN)])
    assert (used.slots(), used.rate_milli(100_000, 1000)) == (4, 2200)
    held_up = seen_of(*[(7, 2, True, n < 2) for n in range(SEEN)])
    assert (held_up.slots(), held_up.rate_milli(10_000, 1000)) == (None, None)
