"""A run against a list of tasks: whatever stretches do, each task is in the state that it was brought into last."""

from itertools import pairwise
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.machine import runs
from holdfast.machine.ids import later_task_id, later_token, make_task_id, make_token
from holdfast.machine.kv import MemoryKV
from holdfast.machine.new_runs import NewRun, pack_sizes
from holdfast.machine.rows import CLAIMED, READY, SUCCEEDED
from holdfast.machine.run_rows import (
    DEPARTED,
    PART_BYTES_MAX,
    Run,
    RunPayloads,
    Stretch,
    envelope_bytes,
    envelope_of,
    parts_of,
    stretch_count,
    stretch_row,
)
from holdfast.machine.runs import Runs, Writes
from holdfast.proto.v1 import tasks_pb2 as pb

FIRST_ID = make_task_id(1_000_000, 7, 500)
quick = settings(max_examples=60, deadline=None, print_blob=True)


def a_run(payloads: list[bytes]) -> NewRun:
    sizes = pack_sizes([len(payload) for payload in payloads])
    return NewRun(b"mail", 4, b"", 0, 3, 5, 0, b"send", 0, 0, b"header", sizes, b"".join(payloads))


def stretches_of(run: Run) -> list[tuple[int, int, bytes]]:
    """State, token and worker of each task."""
    found = []
    for start, stretch in run.spans():
        for place in range(start, stretch.end):
            token = later_token(stretch.token, place - start) if stretch.token else 0
            found.append((stretch.state, token, stretch.worker))
    return found


@quick
@given(st.integers(1, 24), st.integers(0, 2**32))
def test_each_task_is_in_the_state_it_was_brought_into(count: int, seed: int) -> None:
    rng = Random(seed)
    run = Run.make(a_run([b"x"] * count), FIRST_ID)
    model = [(READY, 0, b"")] * count
    for step in range(30):
        start = rng.randrange(count)
        stretch_start, stretch = run.stretch_at(start)
        if stretch.state == DEPARTED:
            continue
        end = rng.randint(start + 1, stretch.end)
        if stretch.state == READY:
            worker = rng.choice((b"ann", b"bob"))
            new = Stretch(end, CLAIMED, make_token(1, 100 * step + 1, 9), step, step + 5, worker)
        elif stretch.state == CLAIMED and rng.random() < 0.7:
            token = later_token(stretch.token, start - stretch_start)
            new = Stretch(end, SUCCEEDED, token, 50, 60 + rng.randrange(2), stretch.worker)
        else:
            new = Stretch(end, DEPARTED)
        before = set(run.spans())
        went, came = run.replace(start, new)
        assert before - set(run.spans()) <= set(went)
        assert set(run.spans()) - before <= set(came)
        for place in range(start, end):
            token = later_token(new.token, place - start) if new.token else 0
            model[place] = new.state, token, new.worker
        assert stretches_of(run) == model
        assert not any(
            stretch.continues(earlier, begin, earlier_begin)
            for (earlier_begin, earlier), (begin, stretch) in zip(
                list(run.spans())[:-1], list(run.spans())[1:], strict=True
            )
        )
        read_back = Run.decode(run.encode())
        assert stretches_of(read_back) == model
        assert read_back.encode() == run.encode()
        for known in (run, read_back):
            assert known.there == sum(state != DEPARTED for state, _, _ in model)
            assert known.unfinished == sum(state in (READY, CLAIMED) for state, _, _ in model)


@quick
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=9))
def test_payloads_are_read_back_as_they_came(payloads: list[bytes]) -> None:
    new = a_run(payloads)
    row = RunPayloads(RunPayloads.encode(new.header, new.sizes, new.payloads))
    assert row.header == b"header"
    for start in range(len(payloads)):
        assert row.slice(start, 3) == payloads[start : start + 3]
    run = Run.make(new, FIRST_ID)
    assert [run.size_at(place) for place in range(len(payloads))] == [len(payload) for payload in payloads]
    assert run.largest_bytes == max(envelope_bytes(6, len(payload)) for payload in payloads)


@quick
@given(st.lists(st.integers(0, 20_000) | st.integers(0, 100_000), min_size=1, max_size=128))
def test_payloads_are_cut_into_rows_of_bounded_size(sizes: list[int]) -> None:
    parts = parts_of(pack_sizes(sizes))
    ends = [end for end, _ in parts]
    assert ends[-1] == len(sizes)
    for start, (end, end_offset) in zip([0, *ends], parts, strict=False):
        assert start < end
        assert end_offset == sum(sizes[:end])
        assert end == start + 1 or sum(sizes[start:end]) <= PART_BYTES_MAX
        assert end == len(sizes) or sum(sizes[start : end + 1]) > PART_BYTES_MAX, "there was room for one more"
    run = Run.make(a_run([bytes(size) for size in sizes]), FIRST_ID)
    assert [run.part_at(place) for place in range(len(sizes))] == [
        (start, end) for start, end in zip([0, *ends], ends, strict=False) for _ in range(start, end)
    ]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_header_and_payload_are_the_task_that_was_handed_over(size: int) -> None:
    header = pb.TaskSpec(queue="mail", type="send", headers={"k": "v"}, priority=3)
    envelope = envelope_of(header.SerializeToString(), b"p" * size)
    expected = pb.TaskSpec(payload=b"p" * size)
    expected.MergeFrom(header)
    assert pb.TaskSpec.FromString(envelope) == expected
    assert envelope_bytes(header.ByteSize(), size) == len(envelope)


def test_places_are_found_by_ids() -> None:
    run = Run.make(a_run([b"x"] * 5), FIRST_ID)
    assert [run.place(later_task_id(FIRST_ID, index)) for index in range(-1, 6)] == [None, 0, 1, 2, 3, 4, None]
    assert run.place(make_task_id(1_000_001, 7, 502)) is None  # of another time: this shard never made it


@pytest.mark.parametrize(
    ("row", "tasks"),
    [(stretch_row(1), 1), (stretch_row(128), 128), (b"\0mail\0blue\0disk", 1), (b"17\0mail\0blue\0disk", 17)],
)
def test_an_index_row_says_for_how_many_tasks_it_stands(row: bytes, tasks: int) -> None:
    assert stretch_count(row) == tasks


def test_runs_at_hand_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of which each task does something else takes many times as much as another."""
    monkeypatch.setattr(runs, "RUNS_CACHED_BYTES_MAX", 100_000)
    at_hand, first_ids, kept = Runs(MemoryKV()), list[bytes](), list[int]()
    for number in range(100):
        writes: Writes = {}
        first_ids.append(make_task_id(1_000_000, 7, 1_000 * (number + 1)))
        new = a_run([b"x"] * 100)
        run = Run.make(new, first_ids[-1])
        at_hand.add(run, new.header, new.payloads, writes)
        for place in range(100 if number % 3 == 0 else 0):
            departs = number % 2 or place % 2
            at_hand.change(run, place, Stretch(place + 1, DEPARTED if departs else SUCCEEDED, place), writes)
        at_hand.were_written()
        kept.append(at_hand.kept_bytes)
        found = filter(None, map(at_hand.at_hand, first_ids))
        assert at_hand.kept_bytes == sum(run.kept_bytes for run in found) <= 100_000
    assert max(kept) > 50_000
    assert sum(later < earlier for earlier, later in pairwise(kept)) > 3
