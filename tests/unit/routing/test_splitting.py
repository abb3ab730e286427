"""A batch over several shards, and the answers joined in the order of the batch."""

from collections.abc import Sequence
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.calls import ENQUEUED
from holdfast.routing.splitting import join, join_parts, outcomes_of, split, split_lists, split_request

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
    assert split_request(request, {4: {"task_ids": [0, 2]}, 1: {"task_ids": [1]}}) == {
        4: pb.WaitTasksRequest(task_ids=["a", "c"], wait_ms=700),
        1: pb.WaitTasksRequest(task_ids=["b"], wait_ms=700),
    }


def test_a_joined_response_has_an_outcome_for_each_item_and_all_generations() -> None:
    answered = pb.EnqueueResponse(outcomes=[{"accepted": {"task_id": "a"}}, {"accepted": {"task_id": "c"}}])
    answered.generations["q"] = 4
    refused = pb.Rejection(reason="NOT_LEADER", message="Nobody leads.")
    parts = [({"tasks": [0, 2]}, answered), ({"tasks": [3, 1]}, refused)]
    assert join_parts(pb.EnqueueResponse, parts) == pb.EnqueueResponse(
        outcomes=[
            {"accepted": {"task_id": "a"}}, {"rejection": refused}, {"accepted": {"task_id": "c"}},
            {"rejection": refused},
        ],
        generations={"q": 4},
    )  # fmt: skip


def batch_of_two_lists() -> pb.EnqueueRequest:
    return pb.EnqueueRequest(
        tasks=[{"queue": "a"}, {"queue": "b"}, {"queue": "c"}],
        runs=[{"task": {"queue": "d"}, "payloads": [b"1", b"2"]}, {"task": {"queue": "e"}, "payloads": [b"3"]}],
    )  # fmt: skip


def test_each_list_of_a_batch_is_split_in_its_own_order() -> None:
    request = batch_of_two_lists()
    parts = split_lists(request, ENQUEUED, [7, 1, 7, 1, 2])
    assert parts == {7: {"tasks": [0, 2]}, 1: {"tasks": [1], "runs": [0]}, 2: {"runs": [1]}}
    assert split_request(request, parts) == {
        7: pb.EnqueueRequest(tasks=[request.tasks[0], request.tasks[2]]),
        1: pb.EnqueueRequest(tasks=[request.tasks[1]], runs=[request.runs[0]]),
        2: pb.EnqueueRequest(runs=[request.runs[1]]),
    }


def test_each_list_of_a_batch_is_answered_in_its_own_order() -> None:
    """A part that failed refuses its tasks, and its runs as a whole."""
    refused = pb.Rejection(reason="NOT_LEADER", message="Nobody leads.")
    last = pb.RefusedItem(at=1, rejection=pb.Rejection(field="runs[0].payloads[1]", message="runs[0].payloads[1]: no."))
    first = pb.EnqueueResponse(
        outcomes=[{"accepted": {"task_id": "b"}}], runs=[{"first_task_id": "x", "refused": [last]}]
    )
    second = pb.EnqueueResponse(runs=[{"first_task_id": "y", "duplicate": True}])
    parts = [({"tasks": [1], "runs": [2]}, first), ({"tasks": [0], "runs": [1]}, refused), ({"runs": [0]}, second)]
    joined = join_parts(pb.EnqueueResponse, parts)
    assert [outcome.accepted.task_id or outcome.rejection.reason for outcome in joined.outcomes] == ["NOT_LEADER", "b"]
    assert list(joined.runs[:2]) == [second.runs[0], pb.RunOutcome(rejection=refused)]
    assert joined.runs[2].first_task_id == "x"
    assert [item.at for item in joined.runs[2].refused] == [1]
    assert joined.runs[2].refused[0].rejection.message == "runs[2].payloads[1]: no."


def test_acks_of_ranges_are_joined_as_acks_of_items() -> None:
    answered = pb.AckResponse(outcomes=[{"acked": {}}], ranges=[{}])
    refused = pb.Rejection(reason="OUTCOME_UNKNOWN")
    parts = [({"items": [1], "ranges": [0]}, answered), ({"items": [0], "ranges": [1]}, refused)]
    assert join_parts(pb.AckResponse, parts) == pb.AckResponse(
        outcomes=[{"rejection": refused}, {"acked": {}}], ranges=[{}, {"rejection": refused}]
    )


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


def test_each_part_counts_the_tasks_before_a_run_by_itself() -> None:
    tasks = [pb.TaskSpec(payload=b"%d" % number) for number in range(4)]
    runs = [pb.TaskRun(behind=behind) for behind in (0, 2, 3, 9)]
    request = pb.EnqueueRequest(tasks=tasks, runs=[*runs, pb.TaskRun()])
    keys = [1, 2, 1, 2, *(1, 2, 1, 2, 1)]
    parts = split_request(request, split_lists(request, ENQUEUED, keys))
    assert [run.behind for run in parts[1].runs[:2]] == [0, 2]
    assert not parts[1].runs[2].HasField("behind")
    assert [run.behind for run in parts[2].runs] == [1, 2]
    alone = split_request(request, {3: {"runs": [1]}})
    assert [run.behind for run in alone[3].runs] == [0]
    assert [run.behind for run in request.runs[:4]] == [0, 2, 3, 9], "the caller's request stays as it was"
