"""Parts of a call of which one is not answered, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.routing.patience import PART_S, UNHEALTHY_PART_MEMORY_S, UNHEALTHY_PART_S
from holdfast.transport import parts
from holdfast.transport.giving_up import GivingUp
from holdfast.transport.parts import Parts
from tests.simulation.virtual_time import run

LOST = 1  # the shard that does not answer


class Shards:
    """Each answers after its time. A result is True for an answer, False for none, None for other."""

    def __init__(self) -> None:
        self.leaders = {0: ("a:1", 1), LOST: ("b:1", 1)}
        self.takes_s = {0: 0.1, LOST: float("inf")}
        self.results: dict[int, bool | None] = {}
        self.parts: Parts[bool | None] = Parts(self.leaders.get, lambda result: result)

    async def send(self, shard: int, giving_up: GivingUp) -> bool | None:
        await giving_up.pause(self.takes_s[shard])
        return False if giving_up.is_over else self.results.get(shard, True)

    async def ask(self, *, is_impatient: bool = True) -> tuple[dict[int, bool | None], float]:
        """What came of it, and how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        results = await self.parts.send((0, LOST), self.send, is_impatient=is_impatient)
        return results, round(loop.time() - began_s, 6)


@pytest.fixture
def on_virtual_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Shards], Coroutine[Any, Any, None]]], None]:
    def play(scene: Callable[[Shards], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))
            await scene(Shards())

        for seed in range(5):
            run(main, seed)

    return play


Play = Callable[[Callable[[Shards], Coroutine[Any, Any, None]]], None]


def test_a_silent_part_is_given_up_some_time_after_the_first_answer(on_virtual_time: Play) -> None:
    async def scene(shards: Shards) -> None:
        shards.takes_s[0] = 3.0
        assert await shards.ask() == ({0: True, LOST: False}, 3.0 + PART_S)

    on_virtual_time(scene)


def test_a_slow_part_is_waited_for(on_virtual_time: Play) -> None:
    async def scene(shards: Shards) -> None:
        shards.takes_s[LOST] = PART_S
        assert await shards.ask() == ({0: True, LOST: True}, PART_S)

    on_virtual_time(scene)


def test_nobody_is_given_up_before_somebody_has_answered_nor_where_parts_wait_for_tasks(on_virtual_time: Play) -> None:
    async def scene(shards: Shards) -> None:
        shards.takes_s[LOST] = 10 * PART_S
        assert await shards.ask(is_impatient=False) == ({0: True, LOST: True}, 10 * PART_S)
        shards.results[0] = False
        assert await shards.ask() == ({0: False, LOST: True}, 10 * PART_S)
        shards.results[0] = None
        assert await shards.ask() == ({0: None, LOST: True}, 10 * PART_S)

    on_virtual_time(scene)


def test_a_shard_that_was_given_up_has_less_time_for_a_while(on_virtual_time: Play) -> None:
    async def scene(shards: Shards) -> None:
        await shards.ask()
        assert await shards.ask() == ({0: True, LOST: False}, 0.1 + UNHEALTHY_PART_S)
        await asyncio.sleep(UNHEALTHY_PART_MEMORY_S)
        assert await shards.ask() == ({0: True, LOST: False}, 0.1 + PART_S)

    on_virtual_time(scene)


@pytest.mark.parametrize("what", ["it answers", "another one leads it"])
def test_and_all_of_it_again_when(on_virtual_time: Play, what: str) -> None:
    async def scene(shards: Shards) -> None:
        await shards.ask()
        if what == "it answers":
            shards.takes_s[LOST] = UNHEALTHY_PART_S
            assert (await shards.ask())[0][LOST]
        else:
            shards.leaders[LOST] = ("c:1", 2)
        shards.takes_s[LOST] = PART_S
        assert (await shards.ask())[0][LOST]

    on_virtual_time(scene)


def test_a_refusal_says_nothing_about_the_health_of_a_shard(on_virtual_time: Play) -> None:
    async def scene(shards: Shards) -> None:
        shards.takes_s[LOST], shards.results[LOST] = 0.2, None
        assert await shards.ask() == ({0: True, LOST: None}, 0.2)
        shards.takes_s[LOST], shards.results[LOST] = PART_S, True
        assert (await shards.ask())[0][LOST]

    on_virtual_time(scene)
