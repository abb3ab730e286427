"""Whether a round waits for its sync in line: by what was measured, with hysteresis."""

import pytest

from holdfast.broker.replica.sync_mode import (
    AVERAGE_OF,
    AVERAGE_SECONDS_MAX,
    LARGE_BYTES,
    QUICK_SECONDS,
    REST_MAX,
    REST_MIN,
    SLOW_SECONDS,
    TRIAL_SYNCS,
    SyncMode,
)

SMALL_BYTES = 1000
FAST_SECONDS = QUICK_SECONDS / 2
BETWEEN_SECONDS = (QUICK_SECONDS + AVERAGE_SECONDS_MAX) / 2  # neither quick nor reason enough to leave the line


def are_synced(mode: SyncMode, count: int, seconds: float = FAST_SECONDS, size_bytes: int = SMALL_BYTES) -> None:
    for _ in range(count):
        mode.took(seconds, size_bytes)


def trial_of(mode: SyncMode) -> int:
    """After how many quick syncs it waits in line."""
    count = 0
    while not mode.is_in_line(SMALL_BYTES):
        are_synced(mode, 1)
        count += 1
    return count


def mode_in_line() -> SyncMode:
    mode = SyncMode()
    are_synced(mode, TRIAL_SYNCS)
    assert mode.is_in_line(SMALL_BYTES)
    return mode


def test_it_waits_in_line_after_a_trial_of_quick_syncs() -> None:
    assert trial_of(SyncMode()) == TRIAL_SYNCS


@pytest.mark.parametrize(("seconds", "is_quick"), [(SLOW_SECONDS, True), (10 * SLOW_SECONDS, False)])
def test_a_trial_goes_by_the_average(seconds: float, is_quick: bool) -> None:
    mode = SyncMode()
    are_synced(mode, TRIAL_SYNCS - 1)
    are_synced(mode, 1, seconds)
    assert mode.is_in_line(SMALL_BYTES) is is_quick
    are_synced(mode, TRIAL_SYNCS - 1)
    assert mode.is_in_line(SMALL_BYTES) is is_quick
    are_synced(mode, 1)
    assert mode.is_in_line(SMALL_BYTES), "the next trial is one of its own"


def test_a_disk_that_is_not_quite_quick_is_never_waited_for_and_need_not_be_left() -> None:
    beside, in_line = SyncMode(), mode_in_line()
    for mode in (beside, in_line):
        are_synced(mode, 10 * REST_MAX, BETWEEN_SECONDS)
    assert not beside.is_in_line(SMALL_BYTES)
    assert in_line.is_in_line(SMALL_BYTES)


def test_one_sync_that_is_very_slow_ends_it_at_once() -> None:
    mode = mode_in_line()
    are_synced(mode, 1, AVERAGE_OF * AVERAGE_SECONDS_MAX)
    assert not mode.is_in_line(SMALL_BYTES)


def test_a_slow_sync_now_and_then_does_not_end_it() -> None:
    mode = mode_in_line()
    for _ in range(100):
        are_synced(mode, 1, 2 * SLOW_SECONDS)
        are_synced(mode, 4 * AVERAGE_OF)
    assert mode.is_in_line(SMALL_BYTES)
    are_synced(mode, 3, 2 * SLOW_SECONDS)
    assert not mode.is_in_line(SMALL_BYTES)


def test_a_disk_that_becomes_slower_ends_it_on_average() -> None:
    mode, count = mode_in_line(), 0
    while mode.is_in_line(SMALL_BYTES):
        are_synced(mode, 1, 1.5 * AVERAGE_SECONDS_MAX)
        count += 1
    assert 1 < count < TRIAL_SYNCS


def test_a_disk_that_stalls_now_and_then_is_left_alone_for_longer_and_longer() -> None:
    mode, trials = mode_in_line(), []
    for _ in range(12):
        are_synced(mode, 1, 1.0)
        trials.append(trial_of(mode))
    assert trials[:4] == [TRIAL_SYNCS + rest for rest in (REST_MIN, 2 * REST_MIN, 4 * REST_MIN, 8 * REST_MIN)]
    assert trials[-1] == TRIAL_SYNCS + REST_MAX


def test_slow_syncs_of_a_rest_do_not_make_it_longer() -> None:
    mode = mode_in_line()
    are_synced(mode, 1 + REST_MIN, 1.0)
    assert trial_of(mode) == TRIAL_SYNCS


def test_a_long_time_without_a_slow_sync_makes_the_next_rest_short_again() -> None:
    mode = mode_in_line()
    for _ in range(12):
        are_synced(mode, 1, 1.0)
        trial_of(mode)
    are_synced(mode, REST_MAX)
    are_synced(mode, 1, 1.0)
    assert trial_of(mode) == TRIAL_SYNCS + REST_MIN


def test_a_large_round_is_never_waited_for_and_says_nothing_about_the_disk() -> None:
    mode = mode_in_line()
    assert not mode.is_in_line(LARGE_BYTES + 1)
    are_synced(mode, 1, 1.0, LARGE_BYTES + 1)
    assert mode.is_in_line(LARGE_BYTES)
    new = SyncMode()
    are_synced(new, 2 * TRIAL_SYNCS, FAST_SECONDS, LARGE_BYTES + 1)
    assert not new.is_in_line(SMALL_BYTES)
