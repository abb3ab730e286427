"""Which shard a task is on, as its id says: the same answer as that of the shard that made the id."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from holdfast.machine import ids
from holdfast.routing.task_ids import later_task_ids, shard_of_task, task_number

thorough = settings(max_examples=200, deadline=None, print_blob=True)

RUN_TASKS_MAX = 9000


def ids_up_to(sequence_max: int) -> st.SearchStrategy[str]:
    return st.builds(
        lambda time_ms, shard, sequence: ids.format_task_id(ids.make_task_id(time_ms, shard, sequence)),
        st.integers(0, ids.TIME_MS_MAX), st.integers(0, ids.SHARD_MAX), st.integers(0, sequence_max),
    )  # fmt: skip


made_ids = ids_up_to(ids.SEQUENCE_MAX)


def shard_as_the_machine_reads_it(text: str) -> int | None:
    task_id = ids.parse_task_id(text)
    return None if task_id is None else ids.task_id_shard(task_id)


@thorough
@given(st.integers(0, ids.TIME_MS_MAX), st.integers(0, ids.SHARD_MAX), st.integers(0, ids.SEQUENCE_MAX))
@example(0, 0, 0)
@example(ids.TIME_MS_MAX, ids.SHARD_MAX, ids.SEQUENCE_MAX)
def test_the_shard_that_made_an_id_is_found(time_ms: int, shard: int, sequence: int) -> None:
    text = ids.format_task_id(ids.make_task_id(time_ms, shard, sequence))
    assert shard_of_task(text) == shard_of_task(text.upper()) == shard


@thorough
@given(st.uuids().map(str) | st.text(max_size=40) | st.text(alphabet="0123456789abcdefAB-8 ", min_size=36, max_size=36))
def test_any_text_means_the_same_as_to_the_machine(text: str) -> None:
    assert shard_of_task(text) == shard_as_the_machine_reads_it(text)


@thorough
@given(made_ids, st.integers(0, 35), st.sampled_from("0789abcfABCg- \n_x٣é"))
def test_an_id_with_one_character_changed_means_the_same_as_to_the_machine(
    text: str, position: int, character: str
) -> None:
    changed = text[:position] + character + text[position + 1 :]
    assert shard_of_task(changed) == shard_as_the_machine_reads_it(changed)


@pytest.mark.parametrize(
    "text", ["", "x", "01234567-89ab-8cde-8123-0123456789ab\n", "01234567-89ab-4cde-8123-0123456789ab"]
)
def test_what_no_shard_could_have_made_has_no_shard(text: str) -> None:
    assert shard_of_task(text) is None


@thorough
@given(ids_up_to(ids.SEQUENCE_MAX - RUN_TASKS_MAX), st.integers(0, RUN_TASKS_MAX))
@example("0198f3c2-7a1b-8000-8000-000000000ffe", 3)
def test_ids_of_a_run_are_those_that_the_machine_gives(first: str, count: int) -> None:
    task_id = ids.parse_task_id(first)
    assert task_id is not None
    places = sorted({0, 1, count // 2, count - 1} & set(range(count)))
    found = later_task_ids(first, count)
    assert len(found) == count
    assert [found[index] for index in places] == [
        ids.format_task_id(ids.later_task_id(task_id, index)) for index in places
    ]
    assert [task_number(found[index]) - task_number(first) for index in places] == places


def test_a_single_claim_may_have_any_id() -> None:
    """Nobody reads it."""
    assert later_task_ids("the-id", 1) == ["the-id"]
    with pytest.raises(ValueError, match="no task id"):
        later_task_ids("the-id", 2)
