"""Calls whose server is silent, on virtual time: whom the watch asks, and which calls it gives up when."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.routing.silence import InFlightCall
from holdfast.transport import sending
from holdfast.transport.sending import SilenceWatch
from tests.simulation.virtual_time import run
from tests.unit.routing.test_leaders import A, B, C, Leader

Scene = Callable[["Stage"], Coroutine[Any, Any, None]]
FOREVER = float("inf")


class Stage:
    """A watch over calls, and servers that say who leads."""

    def __init__(self) -> None:
        self.says: tuple[str, int] | None = None
        self.looks_at: set[str] = set()  # where calls may wait for a leader
        self.asked: list[tuple[str, ...]] = []
        self.leader = Leader()
        self.watch = SilenceWatch(self)

    async def who_leads(self, addresses: Sequence[str], shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        self.asked.append(tuple(addresses))
        return self.says

    async def waits_for_leader(self, address: str, shard: int | None, timeout_s: float) -> bool:
        return address in self.looks_at

    async def call(
        self, address: str = A, *, takes_s: float = FOREVER, wait_s: float = 0.0, timeout_s: float = 60.0,
        may_give_up: bool = True,
    ) -> float | None:  # fmt: skip
        """When it was given up, in seconds; None if it was answered."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answer = asyncio.ensure_future(asyncio.sleep(min(takes_s, 1_000)))
        in_flight = InFlightCall(
            self.leader, 0, address, answer, wait_s=wait_s, timeout_s=timeout_s, now_s=began_s,
            may_give_up=lambda: may_give_up,
        )  # fmt: skip
        self.watch.begin(in_flight)
        try:
            await answer
        except asyncio.CancelledError:
            assert in_flight.gave_up
            return loop.time() - began_s
        finally:
            self.watch.end(in_flight)
        return None


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], None]:
    def play(scene: Scene) -> None:
        async def main() -> None:
            monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))
            stage = Stage()
            await scene(stage)
            await asyncio.sleep(1.0)
            assert len(asyncio.all_tasks()) == 1, "the watch rests while there are no calls"

        for seed in range(5):
            run(main, seed)

    return play


Play = Callable[[Scene], None]


def test_a_call_moves_when_others_name_another_leader(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.leader.name(A, 1, 0.0)
        stage.says = (B, 2)
        assert await stage.call() == 0.5
        assert (stage.asked, stage.leader.named) == ([(B, C)], B)

    play(scene)


def test_nobody_is_asked_when_it_is_known_already_that_another_one_leads(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.leader.name(B, 1, 0.0)
        assert await stage.call() == 0.5
        assert stage.asked == []

    play(scene)


def test_a_slow_leader_keeps_its_calls_while_others_say_that_it_leads(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.says = (A, 1)
        assert await stage.call(takes_s=20.0) is None
        assert len(stage.asked) > 20

    play(scene)


@pytest.mark.parametrize(("timeout_s", "given_up_s"), [(60.0, 2.0), (4.5, 1.5), (0.9, 0.5)])
def test_without_anybody_who_could_say_it_is_given_up_after_a_while(
    play: Play, timeout_s: float, given_up_s: float
) -> None:
    async def scene(stage: Stage) -> None:
        stage.leader.name(A, 1, 0.0)
        assert await stage.call(timeout_s=timeout_s) == given_up_s
        assert stage.leader.named is None
        assert not stage.leader.name(A, 1, asyncio.get_running_loop().time()), "it is a suspect"

    play(scene)


def test_a_call_that_waits_is_looked_after_less_often_and_has_the_time_of_its_wait(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.call(wait_s=30.0, timeout_s=36.0) == 32.0
        assert len(stage.asked) == 16
        assert await stage.call(wait_s=FOREVER, takes_s=100.0) is None
        stage.says = (B, 2)
        assert await stage.call(wait_s=FOREVER) == 2.0

    play(scene)


def test_what_must_not_be_repeated_is_not_given_up_but_the_next_call_goes_elsewhere(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.says = (B, 2)
        assert await stage.call(takes_s=5.0, may_give_up=False) is None
        assert stage.leader.named == B

    play(scene)


def test_calls_stay_at_a_server_that_looks_for_the_leader_itself(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.looks_at = {B}
        at_a, at_b = await asyncio.gather(stage.call(A), stage.call(B, takes_s=20.0))
        assert (at_a, at_b) == (2.0, None)

    play(scene)


def test_news_of_another_leader_end_waiting_calls_at_once(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        calls = asyncio.gather(stage.call(), stage.call(B, takes_s=1.0), stage.call(may_give_up=False, takes_s=5.0))
        await asyncio.sleep(0.1)
        stage.leader.name(B, 2, 0.1)
        stage.watch.leaders_changed([Leader()])
        await asyncio.sleep(0.1)
        stage.watch.leaders_changed([stage.leader])
        first, *others = await calls
        assert first == pytest.approx(0.2)
        assert others == [None, None]

    play(scene)


def test_a_watch_that_is_closed_gives_up_nothing(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        call = asyncio.create_task(stage.call(takes_s=5.0))
        await asyncio.sleep(0.1)
        await stage.watch.close()
        assert await call is None
        assert stage.asked == []

    play(scene)
