"""When replicas have something to do next."""

import math

from holdfast.broker.replica.deadlines import Deadlines


def test_who_is_due_is_taken_once() -> None:
    deadlines = Deadlines()
    for number in range(4):
        deadlines.put(number, float(number))
    assert deadlines.take_due(-1.0) == []
    assert deadlines.take_due(1.0) == [0, 1]
    assert deadlines.take_due(1.0) == []
    assert deadlines.earliest_s == 2.0
    deadlines.put(0, 5.0)
    assert deadlines.take_due(9.0) == [2, 3, 0]
    assert deadlines.earliest_s == math.inf


def test_a_deadline_that_moved_away_or_was_dropped_is_found_out_when_its_time_comes() -> None:
    deadlines = Deadlines()
    deadlines.put(0, 1.0)
    deadlines.put(0, 3.0)
    deadlines.put(1, 2.0)
    deadlines.drop(1)
    assert deadlines.earliest_s == 1.0
    assert deadlines.take_due(2.5) == []
    assert deadlines.earliest_s == 3.0
    deadlines.put(0, 4.0)
    assert (deadlines.earliest_s, deadlines.look()) == (3.0, 4.0)
