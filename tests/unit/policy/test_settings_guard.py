"""A leader that is cut off from etcd does not go on for long with settings that others know to be old."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.broker.policy import settings_guard
from holdfast.broker.policy.settings_guard import (
    BEHIND_SECONDS,
    CONFIRMED_SECONDS,
    FRESH_SECONDS,
    QUEUES_MAX,
    RENEW_SECONDS,
    REPORTS_MAX,
    SETTINGS,
    SettingsGuard,
)
from holdfast.limits.reports import LimitGrant, LimitReport
from tests.unit.replica.small_shard import settle

HOME, ELSEWHERE = 1, 2
QUEUE = b"q"


class Known:
    """What one node knows."""

    def __init__(self) -> None:
        self.version = 5
        self.age: float | None = 0.0

    def home_of(self, queue: bytes) -> int | None:
        return None if queue == b"anywhere" else HOME

    def settings_version(self, queue: bytes) -> int:
        return self.version

    def age_s(self) -> float | None:
        return self.age


class Place:
    """One shard of the queue, and how its leader reaches the home: not at all, unless a home is given."""

    def __init__(self, shard: int, home: "Place | None" = None) -> None:
        self.now_s = 1000.0
        self.known = Known()
        self.home = home
        self.asked: list[list[tuple[bytes, int]]] = []
        self.changed: list[bytes] = []
        self.guard = SettingsGuard(shard, self.known, self, self.changed.append, lambda: self.now_s)

    async def allocate(self, home: int, source: int, reports: Sequence[LimitReport]) -> list[LimitGrant]:
        assert (home, source) == (HOME, ELSEWHERE)
        assert {report.what for report in reports} == {SETTINGS}
        self.asked.append([(report.queue, report.version) for report in reports])
        if self.home is None:
            raise ConnectionError("nobody is there")
        reported = self.home.guard.reported
        return [
            LimitGrant(report.queue, SETTINGS, version=reported(report.queue, report.version)) for report in reports
        ]

    async def poll(self) -> None:
        self.guard.poll()
        await settle()

    async def passes(self, seconds: float, *, is_cut_off: bool = True) -> None:
        """Time, in the steps in which it looks."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            if is_cut_off and self.known.age is not None:
                self.known.age += 0.5
            await self.poll()

    def may(self) -> bool:
        return self.guard.may_hand_out(QUEUE)


@pytest.fixture
def home() -> Place:
    return Place(HOME)


@pytest.fixture
def elsewhere(home: Place) -> Place:
    return Place(ELSEWHERE, home)


async def test_who_hears_from_etcd_asks_nobody(elsewhere: Place) -> None:
    assert elsewhere.may()
    await elsewhere.passes(60, is_cut_off=False)
    assert elsewhere.may()
    assert not elsewhere.asked


async def test_without_etcd_all_go_on_as_long_as_all_know_the_same(home: Place, elsewhere: Place) -> None:
    assert elsewhere.may()
    for _ in range(60):
        await elsewhere.passes(0.5)
        assert elsewhere.may()
    assert home.may()
    assert len(elsewhere.asked) <= 30 / RENEW_SECONDS + 1
    assert not elsewhere.changed


async def test_a_shard_that_is_cut_off_hands_out_nothing_once_the_home_knows_more(
    home: Place, elsewhere: Place
) -> None:
    assert elsewhere.may()
    await elsewhere.passes(FRESH_SECONDS + 2)
    home.known.version = 6
    await elsewhere.passes(CONFIRMED_SECONDS)
    assert not elsewhere.may()
    assert elsewhere.changed
    assert home.may()
    elsewhere.known.version, elsewhere.known.age = 6, 0.0  # it hears from etcd again
    elsewhere.changed.clear()
    await elsewhere.poll()
    assert set(elsewhere.changed) == {QUEUE}
    assert elsewhere.may()


async def test_a_shard_that_reaches_neither_etcd_nor_the_home_hands_out_nothing(elsewhere: Place) -> None:
    elsewhere.home = None
    assert elsewhere.may()
    await elsewhere.passes(FRESH_SECONDS)
    assert elsewhere.may()
    await elsewhere.passes(0.5)
    assert not elsewhere.may()
    assert elsewhere.changed == [QUEUE]


async def test_a_node_that_has_not_heard_from_etcd_since_its_start_asks_before_it_hands_out(elsewhere: Place) -> None:
    elsewhere.known.age = None
    assert not elsewhere.may()
    await elsewhere.poll()
    assert elsewhere.changed == [QUEUE]
    assert elsewhere.may()


async def test_who_knows_less_than_others_hands_out_nothing_until_it_has_heard_of_it(home: Place) -> None:
    home.guard.reported(QUEUE, 6)
    assert home.changed == [QUEUE]
    assert not home.may()
    assert home.guard.is_behind(QUEUE)
    for _ in range(20):  # and it is told again and again
        await home.passes(1)
        home.guard.reported(QUEUE, 6)
        assert not home.may()
    home.known.version = 6
    await home.poll()
    assert home.changed == [QUEUE] * 2
    assert home.may()


async def test_a_version_that_nobody_speaks_of_any_more_is_forgotten(home: Place) -> None:
    """An etcd that was set back has it no more."""
    assert home.guard.reported(QUEUE, 6) == 6
    for _ in range(int(BEHIND_SECONDS)):
        assert home.guard.reported(QUEUE, 5) == 6, "who asks hears of it too"
        await home.passes(1)
    assert home.may()
    assert home.guard.reported(QUEUE, 5) == 5


async def test_nobody_is_asked_about_what_is_home_here_or_nowhere(home: Place) -> None:
    place = Place(ELSEWHERE)
    assert place.guard.may_hand_out(b"anywhere")
    assert home.may()
    for item in (home, place):
        await item.passes(5)
        assert not item.asked


async def test_everything_is_bounded(home: Place, elsewhere: Place) -> None:
    elsewhere.known.age = None
    for n in range(QUEUES_MAX + 10):
        name = b"q%d" % n
        elsewhere.guard.may_hand_out(name)
        home.guard.reported(name, 9)
    for memory in (elsewhere.guard.shown, home.guard.newer):
        assert len(memory) == QUEUES_MAX
    await elsewhere.poll()
    assert [len(item) for item in elsewhere.asked] == [REPORTS_MAX]


async def test_it_looks_by_itself_and_ends(elsewhere: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_guard, "POLL_SECONDS", 0.01)
    elsewhere.known.age = None
    elsewhere.guard.start()
    assert not elsewhere.may()
    while not elsewhere.may():
        await asyncio.sleep(0)
    await elsewhere.guard.stop()
    assert elsewhere.guard.failed() is None
