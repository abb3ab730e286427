"""Pauses between attempts grow up to a cap, and differ from one caller to the next."""

import random

from holdfast.common.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.05, 1.0)
    assert [backoff.longest_s(failures) for failures in range(1, 8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.longest_s(10**9) == 1.0, "however often it fails"
    assert Backoff(0.05, float("inf")).longest_s(10**9) < float("inf")


def test_there_is_none_before_the_first_failure() -> None:
    assert Backoff(0.05, 1.0).longest_s(0) == 0.0
    assert Backoff(0.05, 1.0).pause_s(0, random.random) == 0.0


def test_a_pause_is_drawn_between_half_of_it_and_all_of_it() -> None:
    backoff = Backoff(0.05, 1.0)
    assert backoff.pause_s(1, lambda: 0.0) == 0.025
    assert backoff.pause_s(3, lambda: 1.0) == 0.2
    pauses = [backoff.pause_s(100, random.random) for _ in range(50)]
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
    assert len(set(pauses)) > 1
