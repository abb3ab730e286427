"""Acks that make many tasks: how many a call may make, and in entries of which size."""

import pytest

from holdfast.broker.api.tasks import ENTRY_TASKS_MAX, TaskService
from holdfast.broker.config import BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.machine.entries import Ack, Entry
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import RefusedError
from tests.unit.replica.small_shard import SmallShard


class Desk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.small = SmallShard()
        self.service = TaskService(self.small.shard, BrokerConfig(), Metrics())
        self.entries: list[Ack] = []
        check_open = self.small.shard.check_open

        def noted(entry: Entry, coming: int = 0) -> None:
            if isinstance(entry, Ack):
                self.entries.append(entry)
            check_open(entry, coming)

        monkeypatch.setattr(self.small.shard, "check_open", noted)

    async def claim(self, count: int) -> list[pb.ClaimRef]:
        tasks = [pb.TaskSpec(queue="q", type="t")] * count
        await self.small.rounds_until(self.service.enqueue(pb.EnqueueRequest(tasks=tasks)))
        request = pb.ReserveRequest(queues=["q"], max_tasks=count, lease_ms=60_000, worker="w")
        claims = (await self.small.rounds_until(self.service.reserve(request))).claims
        return [pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in claims]

    async def ack(self, items: list[pb.AckItem]) -> list[pb.AckOutcome]:
        return list((await self.small.rounds_until(self.service.ack(pb.AckRequest(items=items)))).outcomes)

    @property
    def made(self) -> int:
        queue = self.small.shard.queue(b"f")
        return 0 if queue is None else queue.ready


def follow_ups(count: int) -> list[pb.TaskSpec]:
    return [pb.TaskSpec(queue="f", type="next")] * count


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


async def test_more_follow_ups_than_a_batch_has_tasks_are_refused_and_change_nothing(desk: Desk) -> None:
    claims = await desk.claim(11)
    items = [pb.AckItem(claim=claim, follow_ups=follow_ups(100)) for claim in claims]
    with pytest.raises(RefusedError) as refused:
        await desk.ack(items)
    assert (refused.value.reason, refused.value.field, refused.value.limit) == (
        "BATCH_TOO_LARGE",
        "items.follow_ups",
        "1000",
    )
    assert "send the acks in several calls" in refused.value.message
    assert desk.made == 0
    assert all(outcome.HasField("acked") for outcome in await desk.ack(items[:10]))
    assert desk.made == 1000


async def test_acks_that_make_many_tasks_are_several_entries(desk: Desk) -> None:
    """One long entry would hold up all else that is to be applied. The answers are those of one."""
    claims = await desk.claim(40)
    items = [pb.AckItem(claim=claim, follow_ups=follow_ups(index % 50)) for index, claim in enumerate(claims)]
    items[7].claim.token += 1
    items[30].claim.task_id = "nonsense"
    outcomes = await desk.ack(items)
    assert [index for index, outcome in enumerate(outcomes) if outcome.HasField("rejection")] == [7, 30]
    acked = [index for index in range(40) if index not in (7, 30)]
    assert [len(outcomes[index].acked.follow_ups) for index in acked] == acked
    assert desk.made == sum(acked)
    sizes = [sum(len(item.follow_ups) for item in entry.items) for entry in desk.entries]
    assert len(sizes) == 4
    assert max(sizes) <= ENTRY_TASKS_MAX


async def test_acks_that_make_few_tasks_are_one_entry(desk: Desk) -> None:
    claims = await desk.claim(1000)
    await desk.ack(
        [pb.AckItem(claim=claim, follow_ups=follow_ups(index < ENTRY_TASKS_MAX)) for index, claim in enumerate(claims)]
    )
    assert len(desk.entries) == 1
