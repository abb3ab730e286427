"""The line of reserve calls that wait."""

import asyncio

import pytest

from holdfast.broker.leader.waiters import Waiter, Waiters
from holdfast.serving.refusals import OVERLOADED, RefusedError

A, B, C = b"a", b"b", b"c"


def waiter(*queues: bytes) -> Waiter:
    return Waiter(list(queues), 1, 1000, b"worker", b"")


async def test_the_first_to_come_is_the_first_in_each_of_its_queues() -> None:
    waiters: Waiters[Waiter] = Waiters(10)
    both, only_b = waiter(A, B), waiter(B)
    waiters.add(both)
    waiters.add(only_b)
    assert (waiters.first(A), waiters.first(B), waiters.first(C)) == (both, both, None)
    assert [waiters.waiting_for(queue) for queue in (A, B, C)] == [1, 2, 0]
    assert sorted(waiters.lines()) == [A, B]
    assert waiters.everyone() == [both, only_b]


async def test_leaving_leaves_every_queue() -> None:
    waiters: Waiters[Waiter] = Waiters(10)
    both, only_b = waiter(A, B), waiter(B)
    waiters.add(both)
    waiters.add(only_b)
    waiters.remove(both)
    assert (waiters.first(A), waiters.first(B)) == (None, only_b)
    assert waiters.lines() == [B], "a queue in which nobody waits takes no memory"
    waiters.remove(both)
    assert len(waiters) == 1
    waiters.remove(only_b)
    assert (len(waiters), waiters.lines(), waiters.everyone()) == (0, [], [])


async def test_one_that_was_never_added_can_be_removed() -> None:
    waiters: Waiters[Waiter] = Waiters(10)
    waiters.add(waiter(A))
    waiters.remove(waiter(A))
    assert len(waiters) == 1


async def test_the_line_is_bounded() -> None:
    waiters: Waiters[Waiter] = Waiters(2)
    first = waiter(A)
    waiters.add(first)
    waiters.add(waiter(B))
    with pytest.raises(RefusedError) as refused:
        waiters.add(waiter(C))
    assert (refused.value.reason, refused.value.limit) == (OVERLOADED, "2")
    assert waiters.first(C) is None
    waiters.remove(first)
    waiters.add(waiter(C))


async def test_giving_up_comes_too_late_for_one_that_is_served() -> None:
    one = waiter(A)
    one.give_up()
    one.give_up()
    assert await one.future is None
    other = waiter(A)
    other.future.cancel()
    other.give_up()
    with pytest.raises(asyncio.CancelledError):
        await other.future
