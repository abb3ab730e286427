"""Ticks that were missed, and what is made of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.cron.expressions import parse
from holdfast.cron.ticks import CATCH_UP_POLICIES, CatchUp, DueTicks, catch_up, missed, upcoming
from holdfast.cron.timetables import Timetable

NOW_MS = 1_711_850_400_000  # 2024-03-31 02:00 in UTC, an hour after the clocks in Berlin went ahead
MINUTE_MS = 60_000
YEAR_MS = 365 * 86_400_000
ANY_MS = 10**15


class Counted:
    """A timetable that counts how often it is asked."""

    def __init__(self, timetable: Timetable) -> None:
        self.timetable = timetable
        self.calls = 0

    def next_after_ms(self, after_ms: int) -> int | None:
        self.calls += 1
        return self.timetable.next_after_ms(after_ms)

    def latest_at_ms(self, at_ms: int) -> int | None:
        self.calls += 1
        return self.timetable.latest_at_ms(at_ms)


def decide(policy: CatchUp, last_ms: int, *, limit: int = 100, grace_ms: int = 2 * MINUTE_MS) -> DueTicks:
    return catch_up(policy, parse("* * * * *"), last_ms, NOW_MS, limit, grace_ms)


def minutes_ago(*minutes: int) -> tuple[int, ...]:
    return tuple(NOW_MS - minute * MINUTE_MS for minute in minutes)


@pytest.mark.parametrize("policy", CATCH_UP_POLICIES)
def test_while_none_is_older_than_the_grace_none_was_missed(policy: CatchUp) -> None:
    """A fail-over is no outage: whatever the policy, each tick comes."""
    assert decide(policy, NOW_MS - 3 * MINUTE_MS) == DueTicks(minutes_ago(2, 1, 0), NOW_MS + MINUTE_MS)
    assert decide(policy, NOW_MS - MINUTE_MS) == DueTicks(minutes_ago(0), NOW_MS + MINUTE_MS)
    assert decide(policy, NOW_MS).fire == ()
    assert decide(policy, NOW_MS - 3 * MINUTE_MS, limit=2).fire == minutes_ago(1, 0)
    outage = {"none": (), "one": minutes_ago(0), "all": minutes_ago(2, 1, 0)}
    assert decide(policy, NOW_MS - 3 * MINUTE_MS, grace_ms=2 * MINUTE_MS - 1).fire == outage[policy]


@pytest.mark.parametrize("outage_ms", [4 * MINUTE_MS, YEAR_MS])
@pytest.mark.parametrize("grace_ms", [0, 2 * MINUTE_MS])
def test_none_makes_up_for_nothing_after_an_outage(outage_ms: int, grace_ms: int) -> None:
    """Not for what came in the last moments of the outage, either: that would be more than `one` makes."""
    assert decide("none", NOW_MS - outage_ms, grace_ms=grace_ms) == DueTicks((), NOW_MS + MINUTE_MS)


def test_after_an_outage_none_makes_less_than_one_and_one_less_than_all() -> None:
    def made(policy: CatchUp, gap_ms: int) -> int:
        return len(catch_up(policy, parse("@every 5s"), NOW_MS - gap_ms, NOW_MS, 1000, MINUTE_MS).fire)

    assert (made("none", 90_000), made("one", 90_000), made("all", 90_000)) == (0, 1, 18)
    assert (made("none", MINUTE_MS), made("one", MINUTE_MS), made("all", MINUTE_MS)) == (12, 12, 12), "that is lateness"


def test_one_is_the_newest_however_old() -> None:
    assert decide("one", NOW_MS - YEAR_MS) == DueTicks((NOW_MS,), NOW_MS + MINUTE_MS)
    assert decide("one", NOW_MS).fire == ()
    yearly = parse("@yearly")
    [tick_ms] = catch_up("one", yearly, 0, NOW_MS, 1, 0).fire
    assert tick_ms == 1_704_067_200_000  # 2024-01-01


def test_all_are_the_newest_up_to_the_limit_the_oldest_first() -> None:
    assert decide("all", NOW_MS - 4 * MINUTE_MS).fire == minutes_ago(3, 2, 1, 0)
    assert decide("all", NOW_MS - YEAR_MS, limit=2).fire == minutes_ago(1, 0)
    assert len(decide("all", NOW_MS - YEAR_MS, limit=5000).fire) == 1000


@pytest.mark.parametrize("policy", CATCH_UP_POLICIES)
def test_a_clock_that_went_back_repeats_nothing(policy: CatchUp) -> None:
    last_ms = NOW_MS + 10 * MINUTE_MS
    assert decide(policy, last_ms) == DueTicks((), last_ms + MINUTE_MS)


@pytest.mark.parametrize("policy", CATCH_UP_POLICIES)
@pytest.mark.parametrize("expression", ["* * * * * *", "* * 4-5 1 1 *", "@every 1s"])
def test_years_of_missed_seconds_cost_no_more_than_what_is_fired(policy: CatchUp, expression: str) -> None:
    counted = Counted(parse(expression, "Europe/Berlin"))
    decision = catch_up(policy, counted, NOW_MS - 20 * YEAR_MS, NOW_MS, 50, 19 * YEAR_MS)
    assert len(decision.fire) == {"none": 0, "one": 1, "all": 50}[policy]
    assert counted.calls <= len(decision.fire) + 3


@pytest.mark.parametrize(
    ("policy", "limit", "grace_ms", "words"),
    [
        ("some", 1, 0, "catch-up policy of none, one, all, but got 'some'"),
        ("all", 0, 0, "limit of at least 1 tick, but got 0"),
        ("none", 1, -1, "grace of at least 0 ms, but got -1"),
    ],
)
def test_bad_arguments_are_refused(policy: CatchUp, limit: int, grace_ms: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decide(policy, 0, limit=limit, grace_ms=grace_ms)


def test_upcoming_and_missed_are_bounded_and_may_be_empty() -> None:
    timetable = parse("* * * * * *")
    assert len(upcoming(timetable, NOW_MS, 10**9)) == 1000
    assert upcoming(timetable, NOW_MS, 2) == [NOW_MS + 1000, NOW_MS + 2000]
    assert upcoming(timetable, NOW_MS, 0) == upcoming(timetable, ANY_MS, 3) == []
    assert missed(timetable, NOW_MS - 3000, NOW_MS, 2) == [NOW_MS - 1000, NOW_MS]
    assert missed(timetable, NOW_MS, NOW_MS, 5) == missed(timetable, NOW_MS + 1, NOW_MS, 5) == []
    assert missed(timetable, NOW_MS - 3000, NOW_MS, 0) == missed(timetable, -5000, -1, 5) == []


@settings(max_examples=80)
@given(
    policy=st.sampled_from(CATCH_UP_POLICIES),
    expression=st.sampled_from(["*/7 * * * *", "30 2 * * *", "*/5 1-3 * * *", "0 0 * * MON", "@every 17m", "@hourly"]),
    steps_ms=st.lists(st.integers(-(10**7), 3 * 10**7), min_size=1, max_size=6),
    limit=st.integers(1, 30), grace_ms=st.integers(0, 10**7),
)  # fmt: skip
def test_whatever_is_decided_in_steps(
    policy: CatchUp, expression: str, steps_ms: list[int], limit: int, grace_ms: int
) -> None:
    """A leader that decides now and then, with a clock that jumps: no tick twice, none early, none lost but by rule."""
    timetable = parse(expression, "Europe/Berlin")
    last_ms = now_ms = NOW_MS - 3 * 10**7
    fired: list[int] = []
    for step_ms in steps_ms:
        now_ms += step_ms
        decision = catch_up(policy, timetable, last_ms, now_ms, limit, grace_ms)
        due: list[int] = []
        while (tick_ms := timetable.next_after_ms(due[-1] if due else last_ms)) is not None and tick_ms <= now_ms:
            due.append(tick_ms)
        is_outage = bool(due) and now_ms - due[0] > grace_ms
        kept = {"none": [], "one": due[-1:], "all": due}[policy] if is_outage else due
        assert list(decision.fire) == kept[-limit:]
        assert decision.next_ms == timetable.next_after_ms(max(now_ms, last_ms))
        fired += decision.fire
        last_ms = max(last_ms, now_ms)
    assert fired == sorted(set(fired))
