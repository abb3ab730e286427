"""One timer for many deadlines."""

import asyncio
import math

from holdfast.common.earliest import EarliestTimer

FOREVER_S = 1000.0


class Deadlines:
    """What is over by a moment leaves."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.timer = EarliestTimer(self.loop, self.loop.time, self.go_off)
        self.open: dict[str, float] = {}
        self.ended: list[str] = []
        self.looks = 0

    def add(self, name: str, after_s: float) -> None:
        self.open[name] = self.loop.time() + after_s
        self.timer.note(self.open[name])

    def go_off(self, now_s: float) -> float:
        self.looks += 1
        for name in [name for name, ends_s in self.open.items() if ends_s <= now_s]:
            del self.open[name]
            self.ended.append(name)
        return min(self.open.values(), default=math.inf)

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(20):
            while self.ended != [*names]:
                await asyncio.sleep(0.001)


async def test_each_deadline_comes_in_its_turn_whenever_it_was_noted() -> None:
    deadlines = Deadlines()
    deadlines.add("never", FOREVER_S)
    deadlines.add("second", 0.03)
    deadlines.add("first", 0.01)
    await deadlines.until("first", "second")
    deadlines.add("third", 0.001)
    await deadlines.until("first", "second", "third")
    deadlines.timer.stop()


async def test_one_that_has_passed_already_ends_soon() -> None:
    deadlines = Deadlines()
    deadlines.add("late", -5.0)
    await deadlines.until("late")
    assert deadlines.timer.at_s == math.inf


async def test_deadlines_that_were_met_cost_no_look_of_their_own() -> None:
    deadlines = Deadlines()
    for number in range(100):
        deadlines.add(f"met {number}", 0.005)
        deadlines.open.clear()
    deadlines.add("last", 0.02)
    await deadlines.until("last")
    assert deadlines.looks <= 5


async def test_nothing_goes_off_once_it_is_stopped() -> None:
    deadlines = Deadlines()
    deadlines.add("never", 0.005)
    deadlines.timer.stop()
    await asyncio.sleep(0.03)
    assert not deadlines.looks
