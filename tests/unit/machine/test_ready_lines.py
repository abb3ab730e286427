"""Sub-queues whose first tasks are in their row, pages of ages, and how both are read."""

from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.machine import keys
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV
from holdfast.machine.ready_lines import read_ages, read_oldest, read_rows, read_subqueue
from holdfast.machine.ready_rows import (
    AGE_PAGE_PLACES,
    SUBQUEUE_TASKS_MAX,
    AgePage,
    ReadySlice,
    SubqueueRow,
    aged_tasks,
    ready_row,
)
from holdfast.machine.rows import READY
from tests.unit.machine.machine_shard import QUEUE, Shard

LINE = keys.ready_subqueue(QUEUE, 4, b"blue", b"disk")
SUBQUEUE = keys.subqueue(QUEUE, 4, b"blue", b"disk")


class Line:
    """A sub-queue as the machine keeps it, and what should be in it."""

    def __init__(self) -> None:
        self.kv = MemoryKV()
        self.subqueue = SubqueueRow()
        self.tasks: dict[int, ReadySlice] = {}

    def join(self, sequence: int) -> None:
        task_id = sequence.to_bytes(8, "big") * 2  # looks like a sequence itself
        self.tasks[sequence] = (sequence, task_id, sequence, 1)
        has_row = not self.subqueue.join(sequence, task_id, sequence)
        self.write({keys.ready_at(LINE, sequence): ready_row(task_id, sequence)} if has_row else {})

    def leave(self, sequence: int) -> None:
        del self.tasks[sequence]
        has_row = not self.subqueue.leave(sequence)
        self.write({keys.ready_at(LINE, sequence): None} if has_row else {})

    def write(self, rows: dict[bytes, bytes | None]) -> None:
        self.kv.write({**rows, SUBQUEUE: self.subqueue.encode() if self.subqueue.ready else None})
        row = self.kv.get(SUBQUEUE)
        self.subqueue = SubqueueRow() if row is None else SubqueueRow.decode(row)

    def rows(self) -> list[ReadySlice]:
        return read_rows(self.kv, LINE, 0, 1000)


@pytest.fixture
def line() -> Line:
    return Line()


def test_the_first_tasks_are_in_the_row_and_further_ones_have_rows(line: Line) -> None:
    for sequence in range(SUBQUEUE_TASKS_MAX):
        line.join(sequence)
    assert not line.rows()
    line.join(100)
    assert [place[0] for place in line.rows()] == [100]


def test_no_task_goes_into_the_row_while_another_has_one_of_its_own(line: Line) -> None:
    """Otherwise a line would be in two orders."""
    for sequence in range(SUBQUEUE_TASKS_MAX + 1):
        line.join(sequence)
    line.leave(0)
    line.join(100)
    assert [place[0] for place in line.rows()] == [SUBQUEUE_TASKS_MAX, 100]
    line.leave(SUBQUEUE_TASKS_MAX)
    line.leave(100)
    line.join(101)
    assert not line.rows()
    assert [place[0] for place in line.subqueue.ready_slices()] == [*range(1, SUBQUEUE_TASKS_MAX), 101]


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60)


@given(steps, st.integers(0, 41), st.integers(1, 5))
def test_a_subqueue_is_read_in_order_wherever_its_tasks_are(
    steps: list[tuple[bool, int]], start: int, limit: int
) -> None:
    line = Line()
    for joins, sequence in steps:
        if joins and sequence not in line.tasks:
            line.join(sequence)
        elif not joins and sequence in line.tasks:
            line.leave(sequence)
    expected = [line.tasks[sequence] for sequence in sorted(line.tasks) if sequence >= start]
    found, is_all = read_subqueue(line.kv, LINE, start, limit)
    assert found == expected[: len(found)]
    assert len(found) == len(expected) if is_all else len(found) >= limit
    pages = list(found)
    while not is_all:
        found, is_all = read_subqueue(line.kv, LINE, pages[-1][0] + 1, limit)
        pages += found
    assert pages == expected
    assert line.subqueue.ready == len(line.tasks)


def test_a_task_that_comes_back_is_read_in_its_old_place() -> None:
    shard = Shard()
    tasks = [shard.enqueue(tenant=b"blue") for _ in range(SUBQUEUE_TASKS_MAX + 3)]
    token = shard.claim(tasks[0])
    assert shard.line(tenant=b"blue") == tasks[1:]
    shard.release(tasks[0], token)
    assert shard.state(tasks[0]) == READY
    assert shard.line(tenant=b"blue") == tasks
    assert violations(shard.kv) == []


def test_a_task_that_is_in_the_row_and_has_one_too_is_a_violation() -> None:
    shard = Shard()
    task_id = shard.enqueue(tenant=b"blue")
    place = keys.ready(QUEUE, 4, shard.task(task_id).sequence, b"blue")
    shard.kv.write({place: ready_row(task_id, shard.task(task_id).size_bytes)})
    assert any("twice" in violation for violation in violations(shard.kv))


# --- Ages ------------------------------------------------------------------------------------------------------------


def id_of(sequence: int) -> bytes:
    return bytes([sequence % 256]) * 16


places_of_ages = st.integers(0, 4 * AGE_PAGE_PLACES)


class Pages:
    """What is remembered of pages, their rows, and who is ready in truth."""

    def __init__(self) -> None:
        self.kv = MemoryKV()
        self.pages: dict[int, AgePage] = {}
        self.ready: set[int] = set()

    def page(self, number: int) -> AgePage:
        if number not in self.pages:
            row = self.kv.get(keys.ready_age(QUEUE, number))
            listed = [sequence for sequence, _ in aged_tasks(row or b"", number)]
            self.pages[number] = AgePage(bits(listed), bits(self.ready.intersection(listed)))
        return self.pages[number]

    def change(self, sequence: int) -> None:
        """Who is ready leaves, who is not joins."""
        page = self.page(sequence // AGE_PAGE_PLACES)
        if sequence in self.ready:
            page.leave(sequence)
        else:
            page.join(sequence, id_of(sequence))
        self.ready ^= {sequence}

    def commit(self, *, forget: bool) -> None:
        for number, page in self.pages.items():
            key = keys.ready_age(QUEUE, number)
            is_changed, row = page.row(lambda key=key: self.kv.get(key))  # type: ignore[misc]
            if is_changed:
                self.kv.write({key: row})
            page.was_written()
        if forget:
            self.pages = {}


def bits(sequences: Iterable[int]) -> int:
    return sum(1 << sequence % AGE_PAGE_PLACES for sequence in sequences)


steps_of_ages = st.lists(st.tuples(places_of_ages, st.sampled_from(["", "", "commit", "forget"])), max_size=80)


@given(steps_of_ages, places_of_ages, st.integers(1, 3))
def test_ages_are_read_in_order(steps: list[tuple[int, str]], start: int, pages: int) -> None:
    """Whenever rows are written, and whatever is remembered of them."""
    ages, eager = Pages(), Pages()
    for sequence, then in steps:
        ages.change(sequence)
        eager.change(sequence)
        eager.commit(forget=True)
        if then:
            ages.commit(forget=then == "forget")
    ages.commit(forget=False)
    assert ages.kv.rows() == eager.kv.rows(), "rows depend on when they were written"
    expected = [(sequence, id_of(sequence)) for sequence in sorted(ages.ready) if sequence >= start]

    def ready_in(_queue: bytes, number: int) -> int:
        return ages.page(number).ready

    assert read_oldest(ages.kv, ready_in, QUEUE, start) == (expected[0] if expected else None)
    found: list[tuple[int, bytes]] = []
    position: int | None = start
    while position is not None:
        read, position = read_ages(ages.kv, ready_in, QUEUE, position, pages)
        found += read
    assert found == expected


def test_who_leaves_a_page_costs_no_write_until_the_last_one() -> None:
    ages = Pages()
    for sequence in range(3):
        ages.change(sequence)
    ages.commit(forget=True)
    rows = ages.kv.rows()
    assert rows
    ages.change(1)
    ages.change(2)
    ages.commit(forget=True)
    assert ages.kv.rows() == rows
    ages.change(0)
    ages.commit(forget=True)
    assert not ages.kv.rows()
