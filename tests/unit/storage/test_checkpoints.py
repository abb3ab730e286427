"""Where the logs of several shards may begin: they share one, and each of them can keep it from being cut."""

import random
from collections.abc import Callable

import pytest

from holdfast.storage import checkpoints
from holdfast.storage.checkpoints import Checkpointer, Flushable
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk

SEGMENT_BYTES = 64 * 1024
KEEP_BYTES = 256 * 1024
FLUSH_BYTES = 128 * 1024
ENTRY_BYTES = 4000
# What is kept, the file that it begins in, and what comes between two looks.
LOG_BYTES_MAX = KEEP_BYTES + 2 * SEGMENT_BYTES


class CheckpointSource:
    """A replica of a group whose rounds are durable at once, and its state in one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_alone = False
        self.applied_index = self.durable_base_index = self.flushes = 0
        self.has_room = True  # for the round with the new beginning of the log
        self.state: Flushable = self

    def flush(self) -> None:
        self.flushes += 1

    def compact(self, index: int) -> None:
        if self.has_room:
            self.durable_base_index = index


class Node:
    def __init__(self) -> None:
        self.log = NodeLog.open(FakeDisk(random.Random(0)), segment_bytes=SEGMENT_BYTES)
        self.idle, self.busy = CheckpointSource(0), CheckpointSource(1)
        self.now_s = 0.0
        self.checkpointer = Checkpointer(
            self.log, lambda: [self.idle, self.busy], log_bytes_max=FLUSH_BYTES, age_seconds_max=1e9,
            keep_bytes=KEEP_BYTES, run_blocking=_at_once, monotonic=lambda: self.now_s,
        )  # fmt: skip

    def write(self, kept: CheckpointSource, size_bytes: int = 10) -> None:
        kept.applied_index += 1
        self.log.stage_entry(kept.number, kept.applied_index, 1, bytes(size_bytes))
        flush = self.log.begin_flush()
        assert flush is not None
        flush.run()
        flush.done()

    async def work(self, written_bytes: int) -> None:
        for _ in range(written_bytes // (10 * ENTRY_BYTES)):
            for _ in range(10):
                self.write(self.busy, ENTRY_BYTES)
            await self.checkpointer.poll()


async def _at_once(work: Callable[[], None]) -> None:
    work()


@pytest.fixture
def node() -> Node:
    node = Node()
    node.write(node.idle)
    node.write(node.busy)
    return node


async def test_a_shard_that_became_idle_does_not_pin_the_log(node: Node) -> None:
    await node.checkpointer.flush(node.idle)  # when next to nothing follows what it has in the log
    assert node.idle.durable_base_index == 0
    for _ in range(5):
        await node.work(KEEP_BYTES)
        assert node.log.size_bytes <= LOG_BYTES_MAX
    assert (node.idle.durable_base_index, node.idle.flushes) == (1, 1)


async def test_an_idle_shard_keeps_what_others_may_need(node: Node) -> None:
    await node.checkpointer.flush(node.idle)
    await node.work(KEEP_BYTES // 2)
    assert node.idle.durable_base_index == 0


async def test_only_what_was_flushed_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.checkpointer.flush(node.idle)
    node.write(node.idle)
    monkeypatch.setattr(
        node.checkpointer, "is_due", lambda replica: replica is node.busy
    )  # the other cannot be flushed
    await node.work(3 * KEEP_BYTES)
    assert node.idle.durable_base_index == 1
    assert node.log.first_index(0) <= 2


async def test_a_beginning_that_found_no_room_is_tried_again(node: Node) -> None:
    node.idle.has_room = False
    await node.work(3 * KEEP_BYTES)
    assert node.log.size_bytes > 2 * KEEP_BYTES
    node.idle.has_room = True
    await node.checkpointer.poll()
    assert node.log.size_bytes <= LOG_BYTES_MAX


async def test_who_is_left_alone_keeps_nothing_for_others(node: Node) -> None:
    await node.checkpointer.flush(node.idle)
    node.idle.is_alone = True
    await node.checkpointer.poll()
    assert node.idle.durable_base_index == 1


async def test_what_nobody_writes_to_any_more_is_flushed_before_it_is_old(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "QUIET_BYTES_MIN", 1)
    node.write(node.idle)
    await node.checkpointer.poll()
    assert node.idle.flushes == 0
    node.now_s += checkpoints.QUIET_SECONDS
    await node.checkpointer.poll()
    assert node.idle.flushes == 1
    await node.checkpointer.poll()
    assert node.idle.flushes == 1


async def test_what_was_flushed_of_another_state_does_not_count(node: Node) -> None:
    node.idle.is_alone = True
    before, node.idle.state = node.idle.state, CheckpointSource(0)  # a snapshot came
    await node.checkpointer.flush(node.idle)
    assert node.idle.durable_base_index == 1
    node.write(node.idle)
    await node.checkpointer.flush(node.idle)
    node.idle.state, node.idle.durable_base_index = before, 0  # and was taken back, with its place in the log
    await node.checkpointer.poll()
    assert node.idle.durable_base_index == 0
    await node.checkpointer.flush(node.idle)
    assert node.idle.durable_base_index == 2


async def test_a_shard_whose_log_begins_where_it_may_costs_a_comparison(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.checkpointer.flush(node.idle)
    await node.work(3 * KEEP_BYTES)
    await node.checkpointer.flush(node.busy)
    asked: list[int] = []

    def ask(shard: int, _bytes_or_index: int) -> int:
        asked.append(shard)
        return 0

    monkeypatch.setattr(node.log, "index_with_bytes_after", ask)
    monkeypatch.setattr(node.log, "bytes_after", ask)
    await node.checkpointer.poll()
    assert 0 not in asked
