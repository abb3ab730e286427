"""When memory is given back: after much was received, and once more when all of it is surely freed."""

from holdfast.serving.memory import AGAIN_SECONDS, BUSY_SECONDS, TRIM_BYTES_MIN, TrimTimes

MUCH = TRIM_BYTES_MIN


def test_little_is_not_worth_it() -> None:
    times = TrimTimes()
    assert not any(times.is_due(MUCH - 1, 0, now_s) for now_s in range(1000))


def test_after_much_it_is_due_twice() -> None:
    times = TrimTimes()
    assert times.is_due(MUCH, 0, 100.0)
    assert not times.is_due(MUCH, 0, 100.0 + AGAIN_SECONDS - 1)
    assert times.is_due(MUCH, 0, 100.0 + AGAIN_SECONDS)
    assert not times.is_due(2 * MUCH - 1, 0, 1000.0)
    assert times.is_due(2 * MUCH, 0, 1001.0)


def test_while_more_comes_it_is_due_now_and_then_and_when_that_is_over() -> None:
    times = TrimTimes()
    assert times.is_due(MUCH, MUCH, 100.0)
    assert not times.is_due(9 * MUCH, MUCH, 100.0 + BUSY_SECONDS - 1)
    assert times.is_due(9 * MUCH, MUCH, 100.0 + BUSY_SECONDS)
    assert times.is_due(9 * MUCH, 0, 101.0 + BUSY_SECONDS)
    assert not times.is_due(9 * MUCH, 0, 102.0 + BUSY_SECONDS)
