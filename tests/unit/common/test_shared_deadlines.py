"""Many deadlines with one timer: each item goes off once, not before its time, and not at all once it was removed."""

import asyncio
import random
from functools import partial

from holdfast.common.shared_deadlines import STEP_S, SharedDeadlines
from tests.simulation.virtual_time import run

LATE_S = STEP_S + 0.002


def test_items_go_off_at_their_time_and_others_not_at_all() -> None:
    """Added, removed and due in any order; virtual time makes moments exact."""

    async def scenario(draw: random.Random) -> None:
        loop = asyncio.get_running_loop()
        went_off: dict[int, float] = {}

        def go_off(item: int) -> None:
            assert item not in went_off
            went_off[item] = loop.time()

        deadlines: SharedDeadlines[int] = SharedDeadlines(go_off)
        due_s: dict[int, float] = {}
        there: dict[int, int] = {}
        for item in range(200):
            wait_s = draw.choice([0.0, 0.003, 0.5, 30.0]) * draw.random()
            due_s[item] = loop.time() + wait_s
            there[item] = deadlines.add(item, wait_s)
            if draw.random() < 0.6:
                gone = draw.choice(list(there))
                deadlines.remove(gone, there.pop(gone))
                if gone not in went_off:
                    del due_s[gone]
            await asyncio.sleep(draw.choice([0.0, 0.001, 0.2]))
        await asyncio.sleep(40)
        assert went_off.keys() == due_s.keys()
        assert all(due_s[item] <= moment <= due_s[item] + LATE_S for item, moment in went_off.items())
        assert not len(deadlines)

    for seed in range(20):
        run(partial(scenario, random.Random(seed)), seed)


async def test_what_is_added_while_others_go_off_has_its_own_time() -> None:
    ended = asyncio.Event()
    left = [3]

    def go_off(item: str) -> None:
        left[0] -= 1
        if left[0]:
            deadlines.add(item, 0.0)
        else:
            ended.set()

    deadlines: SharedDeadlines[str] = SharedDeadlines(go_off)
    deadlines.add("again", 0.0)
    async with asyncio.timeout(10):
        await ended.wait()
    assert not len(deadlines)


async def test_one_that_has_gone_off_or_was_removed_may_be_removed_again() -> None:
    went_off: list[int] = []
    deadlines: SharedDeadlines[int] = SharedDeadlines(went_off.append)
    steps = [deadlines.add(item, 0.0 if item == 0 else 1000.0) for item in range(3)]
    async with asyncio.timeout(10):
        while not went_off:
            await asyncio.sleep(0.001)
    for _ in range(2):
        for item, step in enumerate(steps):
            deadlines.remove(item, step)
    assert (went_off, len(deadlines)) == ([0], 0)
