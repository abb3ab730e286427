"""Whoever asks for metrics gets figures read after that, printed once for all who ask at the same time."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdfast.serving import scrapes
from holdfast.serving.scrapes import Scrapes


class Counted:
    """Counts how often it is read, and how many print it at the same time."""

    content_type = "text/plain"

    def __init__(self) -> None:
        self.reads = 0
        self.steps = 3
        self.printing = self.printing_most = 0
        self.may_print = threading.Event()
        self.may_print.set()

    def refresh(self) -> Iterator[None]:
        self.reads += 1
        for _ in range(self.steps):
            yield

    def format(self) -> bytes:
        self.printing += 1
        self.printing_most = max(self.printing_most, self.printing)
        assert self.may_print.wait(30)
        self.printing -= 1
        return b"%d" % self.reads


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes, "REST_FACTOR", 0.0)


async def test_those_who_ask_at_the_same_time_share_one(counted: Counted) -> None:
    shared = Scrapes(counted)
    assert await asyncio.gather(*(shared.text() for _ in range(8))) == [b"1"] * 8
    assert await shared.text() == b"2"


async def test_who_asks_while_one_is_made_shares_the_next(counted: Counted) -> None:
    shared = Scrapes(counted)
    counted.may_print.clear()
    first = asyncio.create_task(shared.text())
    while not counted.printing:
        await asyncio.sleep(0)
    later = [asyncio.create_task(shared.text()) for _ in range(8)]
    await asyncio.sleep(0)
    assert counted.reads == 1
    counted.may_print.set()
    assert await first == b"1"
    assert await asyncio.gather(*later) == [b"2"] * 8
    assert counted.printing_most == 1


async def test_one_who_goes_away_does_not_take_the_others_with_it(counted: Counted) -> None:
    shared = Scrapes(counted)
    gone, stays = asyncio.create_task(shared.text()), asyncio.create_task(shared.text())
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == b"1"


async def test_reading_lets_others_work(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes, "SLICE_SECONDS", 0.0)
    counted.steps = 100
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    await Scrapes(counted).text()
    other.cancel()
    assert turns >= 100


async def test_between_two_it_rests(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes, "REST_FACTOR", 1e9)
    shared = Scrapes(counted)
    await shared.text()
    second = asyncio.create_task(shared.text())
    await asyncio.sleep(0.05)
    assert counted.reads == 1
    second.cancel()
    shared.stop()
