"""Shard time in a group: what a majority says is followed, what a single clock says is not."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.broker.leader.clock import (
    AGREEMENT_MS,
    FAST_PPM,
    NEVER_HEARD,
    STEP_MS,
    STEP_PATIENCE_MS,
    BelievedWall,
    Continued,
    MedianRange,
    ShardClock,
)
from holdfast.broker.leader.clock_evidence import BUCKET_MS, ClockEvidence, GroupEvidence
from tests.unit.leader.clock_fakes import DAY_MS, MINUTE_MS, START_MS, YEAR_MS, FakeTime

HOUR_MS = 60 * MINUTE_MS


class Group:
    """A leader and its peers, each with a wall clock of its own; `heard` says whose frames arrive."""

    def __init__(self, peers: int, *, off_ms: float = 0.0) -> None:
        self.source = FakeTime(off_ms=off_ms)
        self.true_ms = float(START_MS)
        self.names = ["me", *(f"p{number}" for number in range(peers))]
        self.off_ms = dict.fromkeys(self.names[1:], 0.0)
        self.delay_ms = dict.fromkeys(self.names[1:], 0.0)
        self.heard = set(self.names[1:])
        self.evidence = ClockEvidence(self.source)
        self.witnesses = GroupEvidence(self.evidence, lambda: self.names, "me")

    def clock(self, last_applied_ms: int = 0, continued: Continued = NEVER_HEARD) -> ShardClock:
        self.hear()
        return ShardClock(self.source, last_applied_ms, continued=continued, witnesses=self.witnesses)

    def hear(self) -> None:
        for name in self.heard:
            self.evidence.note(name, self.true_ms + self.off_ms[name] - self.delay_ms[name])

    def pass_ms(self, elapsed_ms: float) -> None:
        self.true_ms += elapsed_ms
        self.source.pass_ms(elapsed_ms)
        self.hear()

    def run(self, clock: ShardClock, for_ms: int, every_ms: int = 100) -> None:
        """Time passes; shard time must not go back, nor leave its pace."""
        before_ms = clock.now_ms()
        for _ in range(for_ms // every_ms):
            self.pass_ms(every_ms)
            now_ms = clock.now_ms()
            assert 0.9 * every_ms - 1.01 <= now_ms - before_ms <= (1 + FAST_PPM / 1e6) * every_ms + 1.01
            before_ms = now_ms


# --- how a leadership starts --------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Group:
    return Group(2)


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS])
def test_a_new_shard_starts_at_the_time_of_the_majority(off_ms: int) -> None:
    clock = Group(2, off_ms=off_ms).clock()
    assert clock.now_ms() == START_MS
    assert not clock.started_by_step
    assert clock.jumped
    assert clock.wall_offset_ms == off_ms


def test_a_majority_that_is_far_ahead_is_a_step() -> None:
    clock = Group(2).clock(START_MS - HOUR_MS)
    assert clock.started_by_step
    assert clock.now_ms() == START_MS
    assert clock.step_wanted_ms() is None


@pytest.mark.parametrize(("behind_ms", "stepped"), [(STEP_MS, False), (STEP_MS + 1, True)])
def test_a_majority_that_is_a_little_ahead_is_approached_slowly(group: Group, behind_ms: int, stepped: bool) -> None:
    known_ms = START_MS - behind_ms
    clock = group.clock(known_ms, continued=Continued(known_ms, known_ms))
    assert clock.started_by_step is stepped
    assert clock.now_ms() == START_MS - (0 if stepped else behind_ms)
    group.run(clock, MINUTE_MS)
    made_up_ms = MINUTE_MS * FAST_PPM // 1_000_000
    assert clock.now_ms() == group.true_ms - (0 if stepped else behind_ms - made_up_ms)


def test_who_has_heard_of_no_time_begins_with_that_of_the_majority() -> None:
    """Its last entry is older than the shard's time was: beginning with it, time would be late for half an hour."""
    clock = Group(2).clock(START_MS - STEP_MS)
    assert not clock.started_by_step
    assert clock.now_ms() == START_MS


def test_the_former_leader_is_carried_on(group: Group) -> None:
    clock = group.clock(START_MS - HOUR_MS, continued=Continued(START_MS - 400, START_MS - 300))
    assert not clock.started_by_step, "an idle shard has old entries, but its time was known all along"
    assert clock.now_ms() == START_MS - 300


@pytest.mark.parametrize(
    ("least_ms", "most_ms", "begins_ms"),
    [
        (-400, -300, -300),  # behind the wall clock, so it was not slowed down
        (-100, 50, 0),  # it was slowed down, if at all, to meet the wall clock
        (100, 200, 100),  # still ahead: it was slowed down all the time, perhaps
    ],
)
def test_a_former_leader_is_carried_on_so_that_nothing_is_early(least_ms: int, most_ms: int, begins_ms: int) -> None:
    clock = Group(2).clock(START_MS - HOUR_MS, continued=Continued(START_MS + least_ms, START_MS + most_ms))
    assert clock.now_ms() == START_MS + begins_ms


def test_without_a_majority_a_former_leader_is_carried_on_at_its_slowest(group: Group) -> None:
    group.heard = set()
    assert group.clock(0, continued=Continued(START_MS - 400, START_MS - 300)).now_ms() == START_MS - 400


def test_shard_time_that_is_ahead_of_the_majority_waits_for_it(group: Group) -> None:
    clock = group.clock(START_MS + HOUR_MS)
    assert clock.now_ms() == START_MS + HOUR_MS
    group.pass_ms(1000)
    assert clock.now_ms() == START_MS + HOUR_MS + 900
    assert clock.step_wanted_ms() is None


def test_nobody_to_ask_means_that_time_goes_on_from_where_it_was() -> None:
    group = Group(2, off_ms=YEAR_MS)
    group.heard = set()
    clock = group.clock(START_MS - HOUR_MS)
    assert not clock.started_by_step
    assert clock.now_ms() == START_MS - HOUR_MS
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == START_MS - HOUR_MS + MINUTE_MS
    assert clock.step_wanted_ms() is None


def test_where_time_was_is_learned_from_the_log_as_well() -> None:
    group = Group(2, off_ms=YEAR_MS)
    group.heard = {"p0"}
    clock = group.clock(START_MS - HOUR_MS)
    clock.not_before(START_MS)
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == START_MS + MINUTE_MS, "it does not wait for a time that was only old"
    clock = Group(2).clock(START_MS)
    clock.not_before(START_MS + 300)
    assert clock.now_ms() == START_MS + 300


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS])
def test_two_of_three_that_contradict_each_other_leave_time_as_it_goes(off_ms: int) -> None:
    group = Group(2, off_ms=off_ms)
    group.heard = {"p0"}
    clock = group.clock(START_MS)
    assert not clock.started_by_step
    group.run(clock, HOUR_MS, every_ms=1000)
    assert clock.now_ms() == START_MS + HOUR_MS
    assert clock.step_wanted_ms() is None


# --- while leading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS, STEP_MS + 1, -STEP_MS, 700])
@pytest.mark.parametrize("peers", [2, 4])
def test_the_own_clock_counts_for_nothing_against_a_majority(peers: int, jump_ms: int) -> None:
    group = Group(peers)
    clock = group.clock()
    group.source.wall += jump_ms
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == START_MS + MINUTE_MS
    assert clock.jumped == (abs(jump_ms) > STEP_MS)
    assert clock.step_wanted_ms() is None


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
def test_nor_does_it_once_the_evidence_is_lost(group: Group, jump_ms: int) -> None:
    clock = group.clock()
    group.source.wall += jump_ms
    group.run(clock, 1000)
    group.heard = set()
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == START_MS + 1000 + MINUTE_MS
    assert clock.jumped


@pytest.mark.parametrize("creep_ms", [200, -200])
def test_a_clock_that_creeps_away_is_not_followed_while_nobody_can_contradict_it(group: Group, creep_ms: int) -> None:
    clock = group.clock()
    group.heard = set()
    for _ in range(60):
        group.source.wall += creep_ms
        group.run(clock, 1000)
    assert clock.now_ms() == START_MS + MINUTE_MS
    assert clock.jumped


def test_a_group_that_shrinks_to_one_goes_on_from_what_was_believed(group: Group) -> None:
    clock = group.clock()
    group.names = ["me"]
    group.run(clock, 1000)
    group.source.wall += 20  # drift, or a little of a difference to the others
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == group.source.wall
    group.source.wall += DAY_MS
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == group.source.wall - DAY_MS


def test_a_majority_that_drifts_is_followed_slowly(group: Group) -> None:
    clock = group.clock()
    group.off_ms.update(p0=900, p1=900)
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == group.true_ms + MINUTE_MS * FAST_PPM // 1_000_000
    assert clock.step_wanted_ms() is None
    group.run(clock, HOUR_MS, every_ms=1000)
    assert clock.now_ms() == group.true_ms + 900
    group.off_ms.update(p0=-900, p1=-900)
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == group.true_ms - 900


def test_a_majority_that_stays_ahead_asks_for_a_step(group: Group) -> None:
    clock = group.clock()
    group.off_ms.update(p0=DAY_MS, p1=DAY_MS + 5)
    group.run(clock, STEP_PATIENCE_MS)
    assert clock.step_wanted_ms() is None, "it has not lasted long enough"
    assert clock.now_ms() <= group.true_ms + STEP_PATIENCE_MS // 10
    group.run(clock, 200)
    wanted_ms = clock.step_wanted_ms()
    assert wanted_ms == group.true_ms + DAY_MS
    assert clock.now_ms() < START_MS + HOUR_MS, "nothing moves before the entry is applied"
    group.pass_ms(20)
    clock.stepped(wanted_ms)
    assert clock.now_ms() >= wanted_ms
    assert clock.step_wanted_ms() is None
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == group.true_ms + DAY_MS
    assert clock.step_wanted_ms() is None


def test_a_majority_that_was_ahead_for_a_moment_asks_for_nothing(group: Group) -> None:
    clock = group.clock()
    for _ in range(10):
        group.off_ms.update(p0=DAY_MS, p1=DAY_MS)
        group.run(clock, STEP_PATIENCE_MS - 2 * BUCKET_MS - 500)  # old frames are remembered for a while
        assert clock.step_wanted_ms() is None
        group.off_ms.update(p0=0, p1=0)
        group.run(clock, 2 * BUCKET_MS + 200)
        assert clock.step_wanted_ms() is None


def test_a_step_needs_the_majority_to_the_end(group: Group) -> None:
    clock = group.clock()
    group.off_ms.update(p0=DAY_MS, p1=DAY_MS)
    group.run(clock, STEP_PATIENCE_MS - 1000)
    group.heard = {"p0"}
    group.run(clock, MINUTE_MS)
    assert clock.step_wanted_ms() is None


def test_a_group_that_grows_is_asked(group: Group) -> None:
    everyone = group.names
    group.names = ["me"]
    clock = group.clock(START_MS - HOUR_MS)
    assert clock.started_by_step, "alone: its own clock is all there is"
    group.source.wall += DAY_MS
    group.run(clock, MINUTE_MS)
    group.names = everyone
    group.off_ms.update(p0=-400, p1=-400)
    group.run(clock, MINUTE_MS)
    assert clock.now_ms() == group.true_ms - 400


def test_delays_in_one_direction_do_not_hold_time_back_for_long() -> None:
    group = Group(2, off_ms=DAY_MS)
    group.delay_ms.update(p0=30, p1=40)
    clock = group.clock()
    assert clock.now_ms() == START_MS - 30, "the median of a day ahead, 30 and 40 ms behind"
    group.run(clock, 2000)
    group.delay_ms.update(p0=500, p1=800)
    group.run(clock, BUCKET_MS // 2)
    assert clock.now_ms() == group.true_ms - 30


def test_a_machine_that_was_suspended_goes_on_at_the_right_time(group: Group) -> None:
    clock = group.clock()
    group.run(clock, 1000)
    sent_before_ms = group.true_ms
    group.true_ms += DAY_MS
    group.source.pass_ms(DAY_MS)
    for peer in ("p0", "p1"):
        group.evidence.note(peer, sent_before_ms)  # lay in a buffer meanwhile
    assert clock.now_ms() <= START_MS + 1000 + DAY_MS
    group.pass_ms(100)
    group.run(clock, 1000)
    wanted_ms = clock.step_wanted_ms()
    assert wanted_ms is None


# --- whatever happens ---------------------------------------------------------------------------------------------

HONEST_MS = 150  # how far right clocks are from true time, at most
DELAY_MS_MAX = 200

offsets = st.one_of(st.floats(-1500, 1500), st.sampled_from((YEAR_MS, -YEAR_MS, DAY_MS, -DAY_MS)))


@st.composite
def histories(draw: st.DrawFn, voters: int) -> list[tuple[float, Sequence[float], Sequence[float], frozenset[int]]]:
    """Pauses, and for each what the liars show, how long frames take, and who is heard."""
    liars = (voters - 1) // 2
    moment = st.tuples(
        st.one_of(st.floats(1, 400), st.floats(1, 20_000)),
        st.lists(offsets, min_size=liars, max_size=liars),
        st.lists(st.floats(0, DELAY_MS_MAX), min_size=voters - 1, max_size=voters - 1),
        st.frozensets(st.integers(0, voters - 2)),
    )
    return draw(st.lists(moment, min_size=1, max_size=25))


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("leader_lies", [False, True])
@given(data=st.data())
def test_liars_move_shard_time_neither_out_of_the_honest_range_nor_out_of_its_pace(
    voters: int, leader_lies: bool, data: st.DataObject
) -> None:
    group = Group(voters - 1)
    liars = (voters - 1) // 2 - leader_lies
    for name in group.names[1 + liars :]:
        group.off_ms[name] = data.draw(st.floats(-HONEST_MS, HONEST_MS))
    if not leader_lies:
        group.source.wall += data.draw(st.floats(-HONEST_MS, HONEST_MS))
    clock = group.clock(START_MS)
    now_ms = clock.now_ms()
    for pause_ms, lies, delays, heard in data.draw(histories(voters)):
        for name, lie_ms in zip(group.names[1 : 1 + liars], lies, strict=False):
            group.off_ms[name] = lie_ms
        if leader_lies:
            group.source.wall = group.true_ms + lies[-1]
        group.delay_ms = dict(zip(group.names[1:], delays, strict=True))
        group.heard = {group.names[1 + number] for number in heard}
        group.pass_ms(pause_ms)
        before_ms, now_ms = now_ms, clock.now_ms()
        assert 0.9 * pause_ms - 1.01 <= now_ms - before_ms <= 1.1 * pause_ms + 1.01
        assert now_ms >= before_ms
        assert -HONEST_MS - AGREEMENT_MS - DELAY_MS_MAX - 2 <= now_ms - group.true_ms <= HONEST_MS + 2
        assert clock.step_wanted_ms() is None


@given(st.lists(st.none() | st.tuples(offsets, st.floats(0, 2000)), max_size=10))
def test_the_belief_moves_only_with_a_majority_that_agrees(seen: list[tuple[float, float] | None]) -> None:
    believed = BelievedWall(0.0)
    for said in seen:
        majority = None if said is None else MedianRange(said[0], said[0] + said[1])
        before_ms = believed.offset_ms
        believed.follow_majority(majority)
        assert believed.proven == (majority is not None and majority.agreed)
        assert believed.offset_ms == (majority.low_ms if majority is not None and majority.agreed else before_ms)
