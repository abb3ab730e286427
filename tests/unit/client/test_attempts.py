"""When a call that failed is tried again, and when there is no time left for that."""

import pytest

from holdfast.client._attempts import ATTEMPT_S_MIN, OneCall
from holdfast.proto.v1 import tasks_pb2 as pb


@pytest.mark.parametrize("left_s", [ATTEMPT_S_MIN / 2, 60.0])
def test_an_attempt_that_would_only_be_cut_off_is_not_made(left_s: float) -> None:
    for attempts in (
        OneCall(pb.ReserveRequest(), left_s),
        OneCall(pb.ReserveRequest(), left_s / 2, wait_ms=int(left_s * 500)),
    ):
        for pause_s in (0.0, 0.01):
            assert attempts.pause_s(pause_s) == (pause_s if left_s > 1 else None)


@pytest.mark.parametrize("repeats_s", [0.0, 60.0])
def test_late_repetitions_are_left_out_if_that_is_wanted(repeats_s: float) -> None:
    attempts = OneCall(pb.ReserveRequest(), 60.0, repeats_s=repeats_s)
    for pause_s in (0.0, 0.01):
        assert attempts.pause_s(pause_s) == (pause_s if repeats_s else None)
