"""What can be known from the clocks of other nodes, and who may lead."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.broker.leader.clock import AGREEMENT_MS, MedianRange
from holdfast.broker.leader.clock_evidence import (
    BACK_AFTER_MS,
    BACK_MS_MAX,
    BUCKET_MS,
    HEARD_MS,
    OFF_AFTER_MS,
    OFF_MS_MAX,
    ClockEvidence,
    ClockFitness,
    GroupEvidence,
    median_range,
)
from tests.unit.leader.clock_fakes import DAY_MS, START_MS, YEAR_MS, FakeTime

THREE = ("a", "b", "c")
FIVE = ("a", "b", "c", "d", "e")


def median_wall_ms(evidence: ClockEvidence, source: FakeTime, voters: Sequence[str], me: str) -> float | None:
    """The median of the voters' wall clocks at this moment; None unless a majority agrees on it."""
    found = evidence.median_range(voters, me)
    return found.low_ms + source.monotonic_ms() if found is not None and found.agreed else None


@pytest.fixture
def source() -> FakeTime:
    return FakeTime()


@pytest.fixture
def evidence(source: FakeTime) -> ClockEvidence:
    return ClockEvidence(source)


# --- the median ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clocks", "voters", "low_high"),
    [
        ([1.0], 1, None),  # alone
        ([1.0, 2.0], 2, (1, 2)),
        ([1.0], 2, None),
        ([3.0, 1.0, 2.0], 3, (2, 2)),
        ([3.0, 1.0], 3, (1, 3)),
        ([3.0], 3, None),
        ([4.0, 1.0, 3.0, 2.0], 4, (2, 3)),
        ([3.0, 1.0, 2.0], 4, (1, 3)),
        ([3.0, 1.0], 4, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 5, (3, 3)),
        ([4.0, 3.0, 2.0, 1.0], 5, (2, 3)),
        ([3.0, 2.0, 1.0], 5, (1, 3)),
        ([2.0, 1.0], 5, None),
        ([], 0, None),
    ],
)
def test_the_median_is_known_as_far_as_the_silent_leave_it_open(
    clocks: list[float], voters: int, low_high: tuple[float, float] | None
) -> None:
    assert median_range(clocks, voters) == low_high


clock_readings = st.floats(-YEAR_MS, YEAR_MS)


@given(st.lists(clock_readings, min_size=2, max_size=9), st.data())
def test_the_range_holds_every_median_that_the_silent_could_make(clocks: list[float], data: st.DataObject) -> None:
    voters = len(clocks)
    heard = data.draw(st.integers(0, voters))
    found = median_range(clocks[:heard], voters)
    if heard <= voters // 2:
        assert found is None
        return
    assert found is not None
    everyone = sorted(clocks)
    assert found.low_ms <= everyone[(voters - 1) // 2] <= everyone[voters // 2] <= found.high_ms
    assert found.low_ms in clocks[:heard]
    assert found.high_ms in clocks[:heard]


@given(st.integers(2, 7), st.data())
def test_a_range_that_is_agreed_is_right_whatever_the_liars_say_and_whoever_is_silent(
    voters: int, data: st.DataObject
) -> None:
    liars = data.draw(st.integers(0, (voters - 1) // 2))
    honest = data.draw(st.lists(st.floats(-300, 300), min_size=voters - liars, max_size=voters - liars))
    lies = data.draw(st.lists(st.one_of(clock_readings, st.floats(-900, 900)), min_size=liars, max_size=liars))
    heard = data.draw(st.permutations(honest + lies))[: data.draw(st.integers(voters // 2 + 1, voters))]
    found = median_range(heard, voters)
    assert found is not None
    if found.agreed:
        assert min(honest) - AGREEMENT_MS <= found.low_ms <= max(honest)
    if len(heard) == voters and voters % 2:
        assert found.agreed
        assert min(honest) <= found.low_ms <= max(honest), "one value of the right clocks, or between them"


# --- what was heard -----------------------------------------------------------------------------------------------


def test_a_majority_is_needed(source: FakeTime, evidence: ClockEvidence) -> None:
    assert median_wall_ms(evidence, source, FIVE, "a") is None
    evidence.note("b", source.wall)
    assert median_wall_ms(evidence, source, FIVE, "a") is None
    assert evidence.off_by_ms(FIVE, "a") is None
    evidence.note("x", source.wall)  # not of this group
    assert median_wall_ms(evidence, source, FIVE, "a") is None
    evidence.note("c", source.wall)
    assert median_wall_ms(evidence, source, FIVE, "a") == source.wall
    assert evidence.off_by_ms(FIVE, "a") == 0


def test_a_group_of_one_has_no_evidence(source: FakeTime, evidence: ClockEvidence) -> None:
    assert median_wall_ms(evidence, source, ("a",), "a") is None
    assert evidence.off_by_ms(("a",), "a") is None


def test_the_clock_of_a_node_that_does_not_vote_does_not_count(source: FakeTime, evidence: ClockEvidence) -> None:
    """A learner, or a leader of the log of which it is no longer a voter."""
    source.wall += DAY_MS
    for peer in THREE:
        evidence.note(peer, START_MS)
    assert median_wall_ms(evidence, source, THREE, "me") == START_MS
    assert evidence.off_by_ms(THREE, "me") == DAY_MS


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS])
def test_a_wrong_clock_is_known_to_its_own_node(source: FakeTime, evidence: ClockEvidence, off_ms: int) -> None:
    source.wall += off_ms
    for peer in ("b", "c"):
        evidence.note(peer, START_MS)
    assert median_wall_ms(evidence, source, THREE, "a") == START_MS
    assert evidence.off_by_ms(THREE, "a") == off_ms


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS])
def test_two_that_contradict_each_other_say_nothing(source: FakeTime, evidence: ClockEvidence, off_ms: int) -> None:
    evidence.note("b", START_MS + off_ms)
    assert median_wall_ms(evidence, source, THREE, "a") is None
    assert evidence.off_by_ms(THREE, "a") == 0, "either may be right, and one of them must lead"
    assert evidence.median_range(THREE, "a") == (
        MedianRange(*sorted((START_MS - source.monotonic, START_MS + off_ms - source.monotonic)))
    )


def test_of_two_clocks_that_agree_the_lower_one_counts(source: FakeTime, evidence: ClockEvidence) -> None:
    evidence.note("b", START_MS + 100)
    assert median_wall_ms(evidence, source, THREE, "a") == START_MS
    evidence = ClockEvidence(source)
    evidence.note("b", START_MS - 100)
    assert median_wall_ms(evidence, source, THREE, "a") == START_MS - 100


def test_evidence_stays_true_while_time_passes_and_while_the_own_clock_jumps(
    source: FakeTime, evidence: ClockEvidence
) -> None:
    for peer in ("b", "c"):
        evidence.note(peer, source.wall)
    source.pass_ms(700, wall_ms=700 - DAY_MS)
    assert median_wall_ms(evidence, source, THREE, "a") == START_MS + 700
    assert evidence.off_by_ms(THREE, "a") == -DAY_MS


def test_who_is_silent_is_not_asked(source: FakeTime, evidence: ClockEvidence) -> None:
    for peer in ("b", "c"):
        evidence.note(peer, source.wall)
    source.pass_ms(HEARD_MS)
    assert median_wall_ms(evidence, source, THREE, "a") is not None
    source.pass_ms(1)
    assert median_wall_ms(evidence, source, THREE, "a") is None
    evidence.note("b", source.wall)
    assert median_wall_ms(evidence, source, THREE, "a") == source.wall


def test_a_delay_makes_a_clock_seem_behind_only_until_a_faster_frame(source: FakeTime, evidence: ClockEvidence) -> None:
    for delay_ms in (300, 5, 250, 900):
        source.pass_ms(10)
        for peer in ("b", "c"):
            evidence.note(peer, source.wall - delay_ms)
        assert median_wall_ms(evidence, source, THREE, "a") == source.wall - min(
            delay_ms, 300 if delay_ms == 300 else 5
        )


@given(st.lists(st.tuples(st.floats(1, 1500), st.floats(0, 2000)), min_size=1, max_size=40))
def test_a_peer_is_judged_by_the_best_of_its_latest_frames(frames: list[tuple[float, float]]) -> None:
    source = FakeTime()
    evidence = ClockEvidence(source)
    heard: list[tuple[float, float]] = []  # when, offset
    for pause_ms, delay_ms in frames:
        source.pass_ms(pause_ms)
        evidence.note("b", source.wall - delay_ms)
        heard.append((source.monotonic, -delay_ms))
        found = evidence.median_range(("b",) * 2, "a")  # both voters are this peer: its offset, bare
        assert found is not None
        offset_ms = found.low_ms + source.monotonic - source.wall
        at_least_ms = max(offset for when, offset in heard if source.monotonic - when < BUCKET_MS)
        at_most_ms = max(offset for when, offset in heard if source.monotonic - when < 2 * BUCKET_MS + HEARD_MS)
        assert at_least_ms - 0.01 <= offset_ms <= at_most_ms + 0.01


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_peer_whose_clock_was_set_is_believed_anew_within_seconds(
    source: FakeTime, evidence: ClockEvidence, jump_ms: int
) -> None:
    for _ in range(50):
        source.pass_ms(100)
        evidence.note("b", source.wall)
    for _ in range(2 * BUCKET_MS // 100 + 1):
        source.pass_ms(100)
        evidence.note("b", source.wall + jump_ms)
    found = evidence.median_range(("b", "b"), "a")
    assert found is not None
    assert found.low_ms + source.monotonic == source.wall + jump_ms


def test_after_a_suspend_what_was_heard_before_is_not_believed(source: FakeTime, evidence: ClockEvidence) -> None:
    for peer in ("b", "c"):
        evidence.note(peer, source.wall)
    sent_before_ms = source.wall
    source.pass_ms(DAY_MS)
    assert median_wall_ms(evidence, source, THREE, "a") is None
    evidence.note("b", sent_before_ms)  # lay in a buffer for a day
    assert median_wall_ms(evidence, source, THREE, "a") is None
    evidence.note("b", source.wall)
    assert median_wall_ms(evidence, source, THREE, "a") == source.wall


def test_identities_that_are_gone_do_not_pile_up(source: FakeTime, evidence: ClockEvidence) -> None:
    for number in range(1000):
        source.pass_ms(1000)
        evidence.note(f"b/{number}", source.wall)
    assert len(evidence._peers) <= HEARD_MS // 1000 + 1


def test_a_group_is_asked_as_it_is_now(source: FakeTime, evidence: ClockEvidence) -> None:
    voters = ["a"]
    group = GroupEvidence(evidence, lambda: voters, "a")
    assert (group.alone, group.median_range(), group.off_by_ms()) == (True, None, None)
    voters.append("b")
    evidence.note("b", source.wall - 10)
    assert not group.alone
    offset_ms = source.wall - source.monotonic
    assert group.median_range() == (offset_ms - 10, offset_ms)
    assert group.off_by_ms() == 0


# --- who may lead -------------------------------------------------------------------------------------------------


def ask(fitness: ClockFitness, source: FakeTime, off_by_ms: float | None, for_ms: int) -> bool:
    answer = fitness.may_lead(off_by_ms)
    for _ in range(for_ms // 100):
        source.pass_ms(100)
        answer = fitness.may_lead(off_by_ms)
    return answer


@pytest.mark.parametrize("sign", [1, -1])
def test_a_node_that_is_off_may_not_lead_until_it_has_been_right_for_a_while(source: FakeTime, sign: int) -> None:
    fitness = ClockFitness(source)
    assert ask(fitness, source, sign * OFF_MS_MAX, 60_000), "just within"
    assert ask(fitness, source, sign * (OFF_MS_MAX + 1), OFF_AFTER_MS - 100), "a moment is not enough"
    assert not ask(fitness, source, sign * (OFF_MS_MAX + 1), 100)
    assert not ask(fitness, source, sign * (BACK_MS_MAX + 1), 60_000), "better, but not good"
    assert not ask(fitness, source, sign * BACK_MS_MAX, BACK_AFTER_MS - 100)
    assert ask(fitness, source, sign * BACK_MS_MAX, 100)


def test_without_evidence_a_node_may_lead(source: FakeTime) -> None:
    fitness = ClockFitness(source)
    assert fitness.may_lead(None)
    ask(fitness, source, YEAR_MS, OFF_AFTER_MS)
    assert not fitness.may_lead(None)
    assert ask(fitness, source, None, BACK_AFTER_MS), "what spoke against it was forgotten"


def test_a_clock_that_wavers_does_not_make_a_node_waver(source: FakeTime) -> None:
    fitness = ClockFitness(source)
    for _ in range(100):
        assert ask(fitness, source, OFF_MS_MAX + 200, OFF_AFTER_MS // 2)
        assert ask(fitness, source, OFF_MS_MAX - 200, 100)
    ask(fitness, source, YEAR_MS, OFF_AFTER_MS)
    for _ in range(100):
        assert not ask(fitness, source, 0, BACK_AFTER_MS // 2)
        assert not ask(fitness, source, OFF_MS_MAX + 200, 100)


@given(st.integers(2, 7), st.data())
def test_there_is_always_a_node_that_may_lead(voters: int, data: st.DataObject) -> None:
    names = [str(number) for number in range(voters)]
    clocks = data.draw(st.lists(clock_readings, min_size=voters, max_size=voters))
    alive = names[: data.draw(st.integers(voters // 2 + 1, voters))]
    off_by_ms = []
    for name in alive:
        source = FakeTime(off_ms=clocks[int(name)])
        evidence = ClockEvidence(source)
        for peer in alive:
            if peer != name:
                evidence.note(peer, START_MS + clocks[int(peer)])
        off_by_ms.append(evidence.off_by_ms(names, name))
    assert 0 in [off if off is None else round(off, 2) for off in off_by_ms]
