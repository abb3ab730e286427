"""Lines of callers that wait at a router: who is woken, and in which order."""

import random

import pytest

from holdfast.router.ready_waiters import ReadyWaiters, Waiter


def waiting(waiters: ReadyWaiters, wants: int = 1, *queues: str) -> Waiter:
    waiter = Waiter(dict.fromkeys(queues or ("q",), wants))
    waiters.enter(waiter)
    return waiter


def woken(waiter: Waiter) -> int | None:
    return waiter.future.result() if waiter.future is not None and waiter.future.done() else None


@pytest.fixture
async def lines() -> ReadyWaiters:
    return ReadyWaiters()


async def test_as_many_are_woken_as_could_take_the_tasks_first_come_first_served(lines: ReadyWaiters) -> None:
    first, second, third = waiting(lines, 2), waiting(lines, 2), waiting(lines, 2)
    line = lines.lines["q"]
    assert (line.free, line.wanted) == (3, 6)
    assert lines.offer(line, 7, 3) == 2
    assert [woken(item) for item in (first, second, third)] == [7, 7, None]
    assert (line.free, line.wanted) == (1, 2)


async def test_a_suspect_is_for_the_first_that_holds_nothing(lines: ReadyWaiters) -> None:
    busy = waiting(lines, 5)
    idle = Waiter({"q": 5}, is_empty_handed=True)
    lines.enter(idle)
    line = lines.lines["q"]
    assert lines.offer(line, 7, 3, suspects=True) == 1
    assert (woken(busy), woken(idle)) == (None, 7)
    assert lines.offer(line, 7, 1, suspects=True) == 1
    assert woken(busy) == 7, "if there is none it may be asked to run dry"
    assert lines.offer(line, 7, 1, suspects=True) == 0


async def test_who_comes_back_with_nothing_is_in_its_old_place(lines: ReadyWaiters) -> None:
    first, second = waiting(lines), waiting(lines)
    line = lines.lines["q"]
    lines.offer(line, 0, 1)
    assert woken(first) == 0
    assert lines.enter(first) == []
    lines.offer(line, 1, 1)
    assert (woken(first), woken(second)) == (1, None)


async def test_who_claims_is_passed_over(lines: ReadyWaiters) -> None:
    first, second = waiting(lines), waiting(lines)
    line = lines.lines["q"]
    lines.offer(line, 0, 1)
    lines.offer(line, 1, 5)
    assert (woken(first), woken(second)) == (0, 1)
    assert lines.offer(line, 2, 1) == 0


async def test_a_caller_is_in_the_lines_of_all_its_queues_until_it_leaves(lines: ReadyWaiters) -> None:
    both, other = waiting(lines, 1, "a", "b"), waiting(lines, 1, "b")
    lines.offer(lines.lines["a"], 3, 1)
    assert woken(both) == 3
    lines.offer(lines.lines["b"], 4, 1)
    assert woken(other) == 4, "the first is busy with what it was woken for"
    assert [line.queue for line in lines.leave(both)] == ["a"]
    assert lines.leave(both) == []
    assert [line.queue for line in lines.leave(other)] == ["b"]
    assert (lines.lines, lines.count) == ({}, 0)


async def test_a_wait_that_is_over_is_not_woken(lines: ReadyWaiters) -> None:
    first, second = waiting(lines), waiting(lines)
    first.give_up()
    assert lines.offer(lines.lines["q"], 0, 1) == 1
    assert (woken(first), woken(second)) == (None, 0)
    lines.not_free(first)
    lines.not_free(first)
    assert (lines.lines["q"].free, lines.lines["q"].wanted) == (0, 0)


async def test_a_refusal_is_for_all_who_wait(lines: ReadyWaiters) -> None:
    first, second = waiting(lines), waiting(lines)
    lines.offer(lines.lines["q"], 0, 1)
    lines.refuse(lines.lines["q"], ValueError("bad queue"))
    assert woken(first) == 0
    assert second.future is not None
    assert isinstance(second.future.exception(), ValueError)
    assert lines.lines["q"].free == 0


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_the_counts_are_right_and_nobody_is_overtaken(lines: ReadyWaiters, seed: int) -> None:
    draw = random.Random(seed)
    waiters: list[Waiter] = []
    for _ in range(300):
        kind = draw.random()
        if kind < 0.4 or not waiters:
            queues = draw.sample(["a", "b", "c"], draw.randint(1, 3))
            waiters.append(waiting(lines, draw.randint(1, 3), *queues))
        elif kind < 0.7:
            line = draw.choice([*lines.lines.values()])
            before = [waiter for waiter in line.everyone() if waiter.is_free]
            count = lines.offer(line, 0, draw.randint(1, 6))
            assert [waiter.is_free for waiter in before] == [False] * count + [True] * (len(before) - count)
        elif kind < 0.85:
            waiter = draw.choice(waiters)
            if not waiter.is_free:
                lines.enter(waiter)
        else:
            lines.leave(waiters.pop(draw.randrange(len(waiters))))
        for line in lines.lines.values():
            free = [waiter for waiter in waiters if waiter.is_free and line.queue in waiter.wants]
            assert (line.free, line.wanted) == (len(free), sum(waiter.wants[line.queue] for waiter in free))
        assert lines.count == len(waiters)
