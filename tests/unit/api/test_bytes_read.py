"""How much of the state is read to hand out tasks of runs: bounded by what is handed out, however long the runs are."""

import pytest

from holdfast.broker.api.tasks import TaskService
from holdfast.machine import entries, keys, runs
from holdfast.machine.ids import later_task_id, parse_task_id
from holdfast.machine.run_rows import PART_BYTES_MAX, RUN_BYTES_MAX, RUN_TASKS_MAX
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.replica import small_shard
from tests.unit.replica.small_shard import FillingKV, SmallShard

CLAIM_READS_MAX = 256 * 1024  # to hand out one task, but for itself
OTHER_READS = 24 * 1024  # for a task: what its run is doing, its place in the line, what all of the run share


class CountingKV(FillingKV):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self.payload_rows = 0

    def get(self, key: bytes) -> bytes | None:
        row = super().get(key)
        self.read_bytes += len(row or b"")
        self.payload_rows += key[0] == keys.RUN_PAYLOADS
        return row

    def get_many(self, wanted: list[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in wanted]

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows = super().scan(start, stop, limit)
        self.read_bytes += sum(len(key) + len(row) for key, row in rows)
        return rows


class Broker:
    def __init__(self) -> None:
        self.kv = CountingKV()
        self.small = SmallShard(kv=self.kv)
        self.service = TaskService(self.small.shard, self.small.config, self.small.metrics)

    async def enqueue(self, payloads: list[bytes]) -> bytes:
        """The id of the first one."""
        run = pb.TaskRun(task=pb.TaskSpec(queue="mail", type="send", headers={"h": "x" * 1000}), payloads=payloads)
        answer = await self.small.rounds_until(self.service.enqueue(pb.EnqueueRequest(runs=[run])))
        first_id = parse_task_id(answer.runs[0].first_task_id)
        assert first_id is not None
        return first_id

    async def reserve(self, tasks_max: int) -> tuple[list[bytes], int]:
        """The payloads, and how many bytes were read for them."""
        self.kv.read_bytes = 0
        request = pb.ReserveRequest(queues=["mail"], max_tasks=tasks_max, lease_ms=60_000, takes_runs=True)
        response = await self.small.rounds_until(self.service.reserve(request))
        return [payload for run in response.runs for payload in run.payloads], self.kv.read_bytes


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(runs, "RUNS_CACHED_BYTES_MAX", 0)  # nothing is at hand
    # It reads everything, and what it looks for is looked for by other tests.
    monkeypatch.setattr(small_shard, "violations", lambda _kv: [])
    return Broker()


def numbered(count: int, size_bytes: int) -> list[bytes]:
    return [b"%06d" % number + bytes(size_bytes - 6) for number in range(count)]


@pytest.mark.parametrize("size_bytes", [100, 1_000, 2_048, 30_000, 130_000])
async def test_one_task_costs_no_more_than_a_part_of_its_run(broker: Broker, size_bytes: int) -> None:
    payloads = numbered(min(RUN_TASKS_MAX, RUN_BYTES_MAX // size_bytes), size_bytes)
    await broker.enqueue(payloads)
    for payload in payloads:
        found, read_bytes = await broker.reserve(1)
        assert found == [payload]
        assert read_bytes <= max(PART_BYTES_MAX, size_bytes) + OTHER_READS <= CLAIM_READS_MAX


async def test_one_of_each_of_many_runs_costs_no_more_than_a_part_of_each(broker: Broker) -> None:
    count, size_bytes = 40, 2_000
    for _ in range(count):
        first_id = await broker.enqueue(numbered(RUN_TASKS_MAX, size_bytes))
        others = [later_task_id(first_id, place) for place in range(RUN_TASKS_MAX) if place != 77]
        await broker.small.submit(entries.Cancel(broker.small.time.now_ms, 10**6, others))
    found, read_bytes = await broker.reserve(count)
    assert found == [numbered(78, size_bytes)[77]] * count
    assert count * size_bytes < read_bytes <= count * (PART_BYTES_MAX + OTHER_READS)


async def test_who_takes_one_after_the_other_reads_each_row_of_payloads_once(broker: Broker) -> None:
    payloads = numbered(100, 1_000)
    await broker.enqueue(payloads)
    claims = [await broker.reserve(1) for _ in payloads]
    assert [found for found, _ in claims] == [[payload] for payload in payloads]
    assert broker.kv.payload_rows == -(-100 // (PART_BYTES_MAX // 1_000))
