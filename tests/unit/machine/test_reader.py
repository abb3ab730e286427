"""Looks at a shard's state that are bounded before they are read."""

import pytest

from holdfast.machine import keys
from holdfast.machine.kv import MemoryKV
from holdfast.machine.reader import Reader
from holdfast.machine.rows import REPORT_RESULT, Queue, TaskReport
from tests.unit.machine.machine_shard import KEEP_MS, START_MS, Shard


def reports(*sizes: int | None) -> tuple[MemoryKV, list[bytes]]:
    ids = [bytes([index]) * 16 for index in range(len(sizes))]
    rows = {
        keys.report(task_id): TaskReport(REPORT_RESULT, bytes(size - 1)).encode()
        for task_id, size in zip(ids, sizes, strict=True)
        if size is not None
    }
    return MemoryKV(rows), ids


def read(bytes_max: int, *sizes: int | None) -> list[int | str | None]:
    """What becomes of reports of these sizes: the size, None where there is none, or that it is left out."""
    kv, ids = reports(*sizes)
    reader = Reader(kv).reports(bytes_max)
    found = [reader.read(task_id) for task_id in ids]
    return ["omitted" if omitted else report and len(report.encode()) for report, omitted in found]


def test_reports_are_read_until_they_are_too_much() -> None:
    assert read(10, 4, None, 6) == [4, None, 6]
    assert read(10, 4, 7, 1) == [4, "omitted", "omitted"], "after the first that does not fit nothing more is read"
    assert read(10, 10, None) == [10, "omitted"], "nor after the one that filled it: whether there is one is not known"


def test_the_first_report_is_read_whatever_its_size() -> None:
    """Or a caller that asks again for what was left out would never get it."""
    assert read(10, None, 25, 1) == [None, 25, "omitted"]


def test_a_result_is_shown_for_its_time_only() -> None:
    """Also if the row is still there: the sweep may be late, and waits after a step of the clock."""
    shard = Shard()
    for ttl_ms in (50, 3 * KEEP_MS):
        task_id = shard.enqueue(result_ttl_ms=ttl_ms)
        shard.ack(task_id, shard.claim(task_id), b"42")
        shown = [shard.machine.reader.task(task_id, START_MS + ttl_ms - left_ms) for left_ms in (1, 0)]
        assert [view and view.result for view in shown] == [b"42", None]


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_result_that_is_gone_is_told_from_none(*, is_swept: bool) -> None:
    shard = Shard()
    for ttl_ms, result, expired_ms in ((50, b"42", START_MS + 50), (50, None, 0), (0, b"42", 0)):
        task_id = shard.enqueue(result_ttl_ms=ttl_ms)
        shard.ack(task_id, shard.claim(task_id), result)
        if is_swept:
            shard.kv.write({keys.report(task_id): None})
        shown = [shard.machine.reader.task(task_id, START_MS + now_ms) for now_ms in (49, 50)]
        assert [view and view.result_expired_ms for view in shown] == [0, expired_ms]


def test_an_error_is_shown_for_as_long_as_its_task() -> None:
    shard = Shard()
    task_id = shard.enqueue(result_ttl_ms=50)
    shard.fail(task_id, shard.claim(task_id))
    view = shard.machine.reader.task(task_id, START_MS + 1_000_000)
    assert view is not None
    assert (view.error, view.result) == (b"error", None)


def test_queues_are_read_by_name_from_a_place() -> None:
    shard = Shard()
    for name in (b"b", b"a.b", b"a", b"ab"):
        shard.enqueue(queue=name)

    def names(after: bytes, limit: int) -> tuple[list[bytes], bool]:
        queues, more = shard.machine.reader.queues(after, limit)
        assert all(isinstance(queue, Queue) and queue.ready == 1 for _, queue in queues)
        return [name for name, _ in queues], more

    assert names(b"", 2) == ([b"a", b"a.b"], True)
    assert names(b"a.b", 2) == ([b"ab", b"b"], False)
    assert names(b"aa", 9) == ([b"ab", b"b"], False), "the place need not exist any more"
    assert names(b"b", 9) == ([], False)
    assert Reader(MemoryKV()).queues(b"", 5) == ([], False)
