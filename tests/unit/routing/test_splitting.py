"""A batch over several shards, and the answers joined in the order of the batch."""

from collections.abc import Sequence
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.splitting import join, join_parts, outcomes_of, split, split_request

quick = settings(max_examples=100, deadline=None, print_blob=True)


def test_each_shard_gets_its_items_in_order() -> None:
    assert split([4, 1, 4, 4, 1, 9]) == {4: [0, 2, 3], 1: [1, 4], 9: [5]}
    assert split([]) == {}


@quick
@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=3))), st.randoms())
def test_every_item_gets_its_own_answer(batch: list[tuple[int, str]], random: Random) -> None:
    """Whichever shard answers first."""
    parts = split([shard for shard, _ in batch])
    assert all(positions == sorted(positions) for positions in parts.values())
    assert all(batch[position][0] == shard for shard, positions in parts.items() for position in positions)
    answered = [(positions, [batch[position] for position in positions]) for positions in parts.values()]
    random.shuffle(answered)
    assert join(answered, len(batch)) == batch


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([([0, 1], ["a"])], "2 answers from a shard, but got 1"),
        ([([0], ["a", "b"]), ([1], [])], "1 answers from a shard, but got 2"),
        ([([0], ["a"])], "each of 2 items, but got 1"),
        ([([0, 1], ["a", "b"]), ([1], ["c"])], "each of 2 items, but got 3"),
        ([([0, 0], ["a", "b"])], "each of 2 items"),
        ([([0, 2], ["a", "b"])], "answer for item 1"),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit_the_batch_are_never_given_to_the_wrong_item(
    parts: Sequence[tuple[list[int], list[str]]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        join(parts, 2)


def test_each_part_says_what_the_whole_request_says() -> None:
    request = pb.WaitTasksRequest(task_ids=["a", "b", "c"], wait_ms=700)
    assert split_request(request, "task_ids", {4: [0, 2], 1: [1]}) == {
        4: pb.WaitTasksRequest(task_ids=["a", "c"], wait_ms=700),
        1: pb.WaitTasksRequest(task_ids=["b"], wait_ms=700),
    }


def test_a_joined_response_has_an_outcome_for_each_item_and_all_generations() -> None:
    answered = pb.EnqueueResponse(outcomes=[{"accepted": {"task_id": "a"}}, {"accepted": {"task_id": "c"}}])
    answered.generations["q"] = 4
    refused = pb.Rejection(reason="NOT_LEADER", message="Nobody leads.")
    assert join_parts(pb.EnqueueResponse, [([0, 2], answered), ([3, 1], refused)]) == pb.EnqueueResponse(
        outcomes=[
            {"accepted": {"task_id": "a"}}, {"rejection": refused}, {"accepted": {"task_id": "c"}},
            {"rejection": refused},
        ],
        generations={"q": 4},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("tasks[1].headers[0]", "tasks[7].headers[0]"),
        ("tasks[9]", "tasks[9]"),
        ("lease_ms", "lease_ms"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_rejections_name_items_as_the_caller_counts_them(field: str, expected: str, is_whole: bool) -> None:
    rejection = pb.Rejection(field=field, message=f"Expected {field} to be less.")
    answer = rejection if is_whole else pb.AckResponse(outcomes=[{}, {"rejection": rejection}])
    last = outcomes_of(pb.AckResponse, answer, [4, 7])[-1]
    assert last.rejection == pb.Rejection(field=expected, message=f"Expected {expected} to be less.")
