"""The loop on which the simulations run."""

import asyncio

import pytest

from tests.simulation import virtual_time
from tests.simulation.virtual_time import LivelockError, StalledError


async def rounds_of_five() -> list[tuple[int, float]]:
    loop = asyncio.get_running_loop()
    seen: list[tuple[int, float]] = []

    async def walker(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0.25)
            seen.append((number, loop.time()))

    await asyncio.gather(*(walker(number) for number in range(5)))
    return seen


def test_a_seed_is_one_order() -> None:
    histories = [virtual_time.run(rounds_of_five, seed) for seed in (1, 1, 2)]
    assert histories[0] == histories[1] != histories[2]


def test_time_passes_only_by_timers() -> None:
    seen = virtual_time.run(rounds_of_five, 3)
    assert sorted({time for _, time in seen}) == [0.25, 0.5, 0.75, 1.0, 1.25]


def test_an_hour_takes_no_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main, 0) == 3600


def test_waiting_for_nothing_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledError, match="no timer"):
        virtual_time.run(main, 0)


def test_waiting_behind_a_watch_is_an_error() -> None:
    async def main() -> None:
        async def watch() -> None:
            while True:
                await asyncio.sleep(60)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())

    with pytest.raises(StalledError, match="still running"):
        virtual_time.run(main, 0)


def test_time_that_stands_still_is_an_error() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LivelockError):
        virtual_time.run(main, 0)


def test_an_error_that_nobody_handles_is_raised() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        virtual_time.run(main, 0)
