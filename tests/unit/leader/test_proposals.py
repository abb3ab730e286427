"""Writes waiting for a round, and those that are in the log and not applied yet."""

import pytest

from holdfast.broker.leader.proposals import Proposal, ProposalQueue
from holdfast.broker.round_budget import SHARD_BYTES_MAX, SHARD_ENTRIES_MAX, SHARD_HOUSEKEEPING_MAX
from holdfast.machine.entries import Enqueue, Entry, LeaderStarted, Purge, decode
from holdfast.machine.outcomes import Accepted
from holdfast.serving.refusals import OVERLOADED, RefusedError
from tests.unit.machine.machine_shard import new_task

ENTRY = LeaderStarted(1, False)


def proposal(size_bytes: int = 0) -> Proposal:
    entry: Entry = Enqueue(1, [new_task(envelope=bytes(size_bytes))]) if size_bytes else ENTRY
    return Proposal(entry)


def queue(proposals_max: int = 10_000, bytes_max: int = 1 << 30) -> ProposalQueue:
    return ProposalQueue(proposals_max, bytes_max)


def stage_round(waiting: ProposalQueue, first_index: int = 1) -> list[Proposal]:
    taken = waiting.take_round()
    for index, one in enumerate(taken, first_index):
        waiting.stage(index, one)
    return taken


def has_room(waiting: ProposalQueue) -> bool:
    try:
        waiting.check_room()
    except RefusedError:
        return False
    return True


async def test_the_payload_is_the_entry() -> None:
    assert decode(proposal(5).payload) == proposal(5).entry


async def test_a_proposal_is_settled_once() -> None:
    accepted = Accepted(bytes(16), False)
    first, second = proposal(), proposal()
    first.resolve([accepted])
    first.reject(RuntimeError())
    second.reject(RuntimeError("late"))
    second.resolve([accepted])
    assert await first.future == [accepted]
    with pytest.raises(RuntimeError, match="late"):
        await second.future


async def test_a_caller_that_has_gone_is_no_trouble() -> None:
    gone, other = proposal(), proposal()
    gone.future.cancel()
    other.future.cancel()
    gone.resolve([])
    other.reject(RuntimeError())
    assert gone.future.cancelled()
    assert other.future.cancelled()


async def test_a_round_takes_in_order_up_to_its_count() -> None:
    waiting = queue()
    added = [proposal() for _ in range(SHARD_ENTRIES_MAX + 3)]
    for one in added:
        waiting.add(one)
    assert waiting.take_round() == added[:SHARD_ENTRIES_MAX]
    assert waiting.waiting == 3
    assert waiting.take_round() == added[SHARD_ENTRIES_MAX:]
    assert waiting.take_round() == []


async def test_a_round_stops_at_its_bytes() -> None:
    waiting = queue()
    added = [proposal(SHARD_BYTES_MAX // 2) for _ in range(5)]
    for one in added:
        waiting.add(one)
    assert waiting.take_round() == added[:2]
    assert waiting.take_round() == added[2:4]
    assert waiting.take_round() == added[4:]


async def test_a_proposal_larger_than_a_round_goes_alone() -> None:
    waiting = queue()
    large, small = proposal(SHARD_BYTES_MAX + 1), proposal()
    waiting.add(large)
    waiting.add(small)
    assert waiting.take_round() == [large]
    assert waiting.take_round() == [small]


async def test_a_little_housekeeping_rides_behind_the_callers() -> None:
    waiting = queue()
    few = SHARD_HOUSEKEEPING_MAX
    chores = [Proposal(Purge(1, [])) for _ in range(2 * few + 1)]
    for chore in chores:
        waiting.add_housekeeping(chore)
    calls = [proposal(), proposal()]
    for call in calls:
        waiting.add(call)
    assert waiting.take_round() == [*calls, *chores[:few]]
    assert waiting.take_round() == chores[few:-1]
    assert waiting.take_round() == chores[-1:]


async def test_housekeeping_gets_its_turn_behind_a_full_round() -> None:
    waiting = queue()
    chore = Proposal(Purge(1, []))
    waiting.add_housekeeping(chore)
    for _ in range(SHARD_ENTRIES_MAX + 1):
        waiting.add(proposal())
    assert waiting.take_round()[-1] is chore


async def test_room_is_bounded_by_count() -> None:
    waiting = queue(proposals_max=2)
    waiting.add(proposal())
    waiting.check_room()
    waiting.add(proposal())
    with pytest.raises(RefusedError) as refused:
        waiting.check_room()
    assert (refused.value.reason, refused.value.limit) == (OVERLOADED, "2")
    assert refused.value.retry_after_ms > 0


async def test_room_is_bounded_by_bytes() -> None:
    size = len(proposal(100).payload)
    waiting = queue(bytes_max=2 * size)
    waiting.add(proposal(100))
    waiting.check_room()
    waiting.add(proposal(100))
    with pytest.raises(RefusedError, match="bytes waiting") as refused:
        waiting.check_room()
    assert (refused.value.reason, refused.value.limit) == (OVERLOADED, str(2 * size))


async def test_what_is_in_the_log_takes_room_until_it_is_applied() -> None:
    waiting = queue(proposals_max=3)
    for _ in range(3):
        waiting.add(proposal())
    stage_round(waiting)
    assert not has_room(waiting)
    waiting.applied(1)
    assert has_room(waiting)
    waiting.add(proposal())
    assert not has_room(waiting), "two in the log and one that waits for it"
    waiting.applied(3)
    assert (waiting.waiting, waiting.staged) == (1, 0)
    assert has_room(waiting)


async def test_bytes_in_the_log_take_room_until_they_are_applied() -> None:
    waiting = queue(bytes_max=2 * len(proposal(100).payload))
    for _ in range(2):
        waiting.add(proposal(100))
    stage_round(waiting)
    assert not has_room(waiting)
    waiting.applied(1)
    assert has_room(waiting)


async def test_what_is_dropped_gives_its_room_back() -> None:
    waiting = queue(proposals_max=4, bytes_max=4 * len(proposal(100).payload))
    calls = [proposal(100) for _ in range(4)]
    for call in calls[:3]:
        waiting.add(call)
    stage_round(waiting)
    waiting.add(calls[3])
    assert not has_room(waiting)
    assert waiting.drop_staged(last_index=1) == calls[1:3]
    assert waiting.staged_at(1) is calls[0]
    assert waiting.drop_waiting() == calls[3:]
    assert waiting.drop_staged() == calls[:1]
    for _ in range(3):
        waiting.add(proposal(100))
    assert has_room(waiting)
    waiting.add(proposal(100))
    assert not has_room(waiting)


async def test_housekeeping_takes_no_room_from_callers() -> None:
    waiting = queue(proposals_max=1)
    waiting.add_housekeeping(proposal())
    waiting.check_room()
    stage_round(waiting)
    waiting.check_room()
    waiting.add(proposal())
    waiting.applied(1)
    assert not has_room(waiting), "nor does it give any back"


async def test_drop_waiting_hands_over_everything() -> None:
    waiting = queue(proposals_max=1)
    call, chore = proposal(10), Proposal(Purge(1, []))
    waiting.add(call)
    waiting.add_housekeeping(chore)
    assert waiting.drop_waiting() == [call, chore]
    assert waiting.waiting == 0
    waiting.check_room()
    assert waiting.drop_waiting() == []
