"""Equal parts of the limits of tenants of a spread queue: together they are the limit, and nobody has nothing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.limits.buckets import Rate
from holdfast.limits.equal_parts import WHOLE, Part, cap_part, rate_part
from tests.unit.leader.scheduled_member import ScheduledMember
from tests.unit.quota.allocation_stage import Stage

SHARDS = 4


@given(st.integers(1, 1_000_000), st.integers(1, 1024))
def test_parts_of_a_cap_are_the_cap_or_one_each(cap: int, count: int) -> None:
    parts = [cap_part(cap, Part(place, count)) for place in range(count)]
    assert min(parts) >= 1
    assert sum(parts) == max(cap, count)
    assert max(parts) - min(parts) <= 1


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 64))
def test_parts_of_a_rate_are_the_rate_and_of_a_burst_one_more_for_each_at_most(
    milli: int, burst: int, count: int
) -> None:
    parts = [rate_part(Rate(milli, burst), Part(place, count)) for place in range(count)]
    rates = [part for part in parts if part is not None]
    assert len(rates) == count
    assert sum(rate.per_second_milli for rate in rates) == max(milli, count)
    assert min(rate.burst for rate in rates) >= 1
    if milli >= count:
        assert sum(rate.burst for rate in rates) < burst + count


def test_what_is_not_limited_and_what_is_on_one_shard_stays_as_it_is() -> None:
    assert (cap_part(0, Part(1, 4)), rate_part(None, Part(1, 4))) == (0, None)
    assert (cap_part(5, WHOLE), rate_part(Rate(500, 7), WHOLE)) == (5, Rate(500, 7))


async def spread(**policy: Any) -> tuple[Stage, list[ScheduledMember]]:
    stage = Stage(SHARDS, member=ScheduledMember, **policy)
    members = [member for member in stage.members if isinstance(member, ScheduledMember)]
    for member in members:
        member.part = Part(member.number, SHARDS)
    await stage.poll(500)
    return stage, members


async def test_a_cap_of_tenants_is_kept_over_all_shards() -> None:
    tenants = [{"tenant": "big", "concurrency_max": 9}]
    stage, members = await spread(tenant_concurrency_max=5, tenants=tenants)
    for member in members:
        member.enqueue(20, tenant=b"a")
        member.enqueue(20, tenant=b"big")
        member.enqueue(3)
    await stage.pass_time(2000)
    assert [member.row.claimed for member in members] == [2 + 3 + 3, 1 + 2 + 3, 1 + 2 + 3, 1 + 2 + 3]


async def test_a_cap_of_one_lets_tasks_through_on_every_shard() -> None:
    stage, members = await spread(tenant_concurrency_max=1)
    for member in members:
        member.enqueue(5, tenant=b"a")
    await stage.pass_time(1000)
    assert stage.claimed == SHARDS


async def test_a_rate_of_tenants_is_kept_over_all_shards() -> None:
    stage, members = await spread(tenant_rate_per_second=10.0, tenant_rate_burst=8)
    for member in members:
        member.enqueue(500, tenant=b"a")
    await stage.poll(0)
    assert stage.claimed == 8
    for second in range(1, 11):
        await stage.pass_time(1000, 50)
        assert stage.claimed <= 8 + SHARDS + 10 * second
    assert stage.claimed >= 100


async def test_a_queue_whose_shards_become_others_has_other_parts() -> None:
    """Nobody tells of it, and the queue has no limits of its own."""
    stage, (member, *others) = await spread(tenant_concurrency_max=8)
    for other in (member, *others):
        other.part = WHOLE
    member.enqueue(50, tenant=b"a")
    await stage.pass_time(1000)
    assert member.row.claimed == 8
    member.part = Part(0, 2)
    member.finish(8)
    await stage.pass_time(1000)
    member.finish(8)
    await stage.pass_time(500)
    assert member.row.claimed == 4


async def test_parts_are_looked_at_also_where_nothing_is_shared() -> None:
    stage, (member, *_) = await spread(tenant_concurrency_max=8)
    assert not member.manager.has_allocations
    assert member.reported.tenants == Part(0, SHARDS)
    assert stage.asked == 0
