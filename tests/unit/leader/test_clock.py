"""Shard time of a node alone: follows drift, ignores jumps, never goes back."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.broker.leader.clock import (
    FAST_PPM,
    NEVER_HEARD,
    SAME_MS,
    STEP_MS,
    Continued,
    ShardClock,
    SystemTime,
    carried_on,
    slewed_ms,
)
from tests.unit.leader.clock_fakes import DAY_MS, MINUTE_MS, START_MS, FakeTime


@pytest.fixture
def source() -> FakeTime:
    return FakeTime()


@pytest.fixture
def clock(source: FakeTime) -> ShardClock:
    return ShardClock(source, 0)


def test_starts_at_the_wall_clock_and_counts_with_it(clock: ShardClock, source: FakeTime) -> None:
    assert clock.now_ms() == START_MS
    source.pass_ms(1234)
    assert clock.now_ms() == START_MS + 1234
    assert not clock.jumped


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS, STEP_MS + 1, -STEP_MS - 1])
def test_a_jump_is_not_followed(clock: ShardClock, source: FakeTime, jump_ms: int) -> None:
    source.wall += jump_ms
    for seconds in range(1, 121):
        source.pass_ms(1000)
        assert clock.now_ms() == START_MS + 1000 * seconds
    assert clock.jumped
    assert clock.wall_offset_ms == pytest.approx(jump_ms)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_jump_that_is_undone_is_forgotten(clock: ShardClock, source: FakeTime, jump_ms: int) -> None:
    source.wall += jump_ms
    clock.now_ms()
    source.wall -= jump_ms
    source.pass_ms(10)
    assert clock.now_ms() == START_MS + 10
    assert not clock.jumped


@pytest.mark.parametrize(
    ("drift_ms", "first_s", "followed_ms"), [(STEP_MS, 60, 60_000 * FAST_PPM // 1_000_000), (-STEP_MS, 1, -100)]
)
def test_the_largest_drift_is_followed_slowly(source: FakeTime, drift_ms: int, first_s: int, followed_ms: int) -> None:
    """Backwards in ten seconds, forwards in half an hour."""
    clock = ShardClock(source, 0)
    source.wall += drift_ms
    assert clock.now_ms() == START_MS
    source.pass_ms(1000 * first_s)
    assert clock.now_ms() == START_MS + 1000 * first_s + followed_ms
    source.pass_ms(34 * MINUTE_MS)
    assert clock.now_ms() == source.wall
    assert not clock.jumped


@pytest.mark.parametrize("drift_ms", [0, STEP_MS, -STEP_MS])
def test_no_duration_is_shorter_than_clocks_drift(clock: ShardClock, source: FakeTime, drift_ms: int) -> None:
    """What is to take a minute of the shard takes a minute of a worker."""
    source.wall += drift_ms
    ends_ms = clock.now_ms() + MINUTE_MS
    source.pass_ms(MINUTE_MS / (1 + FAST_PPM / 1e6) - 1)
    assert clock.now_ms() < ends_ms


def test_starts_at_the_last_applied_time_if_the_wall_clock_is_behind(source: FakeTime) -> None:
    clock = ShardClock(source, START_MS + DAY_MS)
    assert clock.now_ms() == START_MS + DAY_MS
    assert not clock.started_by_step
    source.pass_ms(1000)
    assert clock.now_ms() == START_MS + DAY_MS + 900  # slower, until the wall clock has caught up


@pytest.mark.parametrize(
    ("last_applied_ms", "stepped"),
    [(0, False), (START_MS - STEP_MS - 1, True), (START_MS - STEP_MS, False), (START_MS, False), (START_MS + 1, False)],
)
def test_a_start_says_whether_time_was_stepped(source: FakeTime, last_applied_ms: int, stepped: bool) -> None:
    clock = ShardClock(source, last_applied_ms)
    assert clock.started_by_step == stepped
    assert clock.now_ms() == max(last_applied_ms, START_MS)


def test_a_jump_is_adopted_at_the_next_start(clock: ShardClock, source: FakeTime) -> None:
    source.wall += DAY_MS
    last_ms = clock.now_ms()
    restarted = ShardClock(source, last_ms)
    assert restarted.started_by_step
    assert restarted.now_ms() == START_MS + DAY_MS


steps = st.tuples(st.floats(0, 10_000), st.one_of(st.floats(-STEP_MS, STEP_MS), st.sampled_from((DAY_MS, -DAY_MS))))


@given(st.lists(steps, max_size=30), st.integers(START_MS - DAY_MS, START_MS + DAY_MS))
def test_whatever_the_wall_clock_does_time_runs_forward_at_its_pace(
    moves: list[tuple[float, float]], last_applied_ms: int
) -> None:
    source = FakeTime()
    clock = ShardClock(source, last_applied_ms)
    now_ms = clock.now_ms()
    assert now_ms >= last_applied_ms
    for elapsed_ms, wall_off_ms in moves:
        source.pass_ms(elapsed_ms, wall_ms=elapsed_ms + wall_off_ms)
        before_ms, now_ms = now_ms, clock.now_ms()
        most_ms = (1 + FAST_PPM / 1e6) * elapsed_ms
        assert 0.9 * elapsed_ms - 1.01 <= now_ms - before_ms <= most_ms + SAME_MS + 1.01  # whole milliseconds
        assert now_ms >= before_ms


def test_a_monotonic_clock_that_fails_its_promise_does_not_take_time_back(clock: ShardClock, source: FakeTime) -> None:
    source.monotonic -= 1000
    assert clock.now_ms() == START_MS


def test_a_suspended_machine_counts_the_time_it_slept(clock: ShardClock, source: FakeTime) -> None:
    source.pass_ms(DAY_MS)
    assert clock.now_ms() == START_MS + DAY_MS
    assert not clock.jumped


def test_time_is_not_before_what_was_applied(clock: ShardClock, source: FakeTime) -> None:
    clock.not_before(START_MS + 400)
    assert clock.now_ms() == START_MS + 400
    clock.not_before(START_MS + 100)
    assert clock.now_ms() == START_MS + 400


def test_a_node_alone_never_steps_while_it_leads(clock: ShardClock, source: FakeTime) -> None:
    source.wall += DAY_MS
    for _ in range(60):
        source.pass_ms(1000)
        assert clock.step_wanted_ms() is None


@pytest.mark.parametrize(("gap_ms", "moved_ms"), [(0, 1000), (0.3, 1000.3), (-30, 970), (5000, 1000.5), (-5000, 900)])
def test_a_gap_is_closed_slowly(gap_ms: float, moved_ms: float) -> None:
    assert slewed_ms(1000, gap_ms) == moved_ms


def test_what_a_leader_said_is_carried_on_between_the_slowest_pace_and_real_time() -> None:
    assert carried_on(START_MS, 1000) == Continued(START_MS + 900, START_MS + 1000)
    assert carried_on(0, 1000) == NEVER_HEARD


def test_the_clocks_of_this_machine() -> None:
    system = SystemTime()
    assert system.wall_ms() > START_MS
    assert system.monotonic_ms() <= system.monotonic_ms()
