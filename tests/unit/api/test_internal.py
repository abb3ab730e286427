"""What a broker does for other brokers: for those who may ask, and whatever they send."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.broker.api.internal import ALLOCATE, RECEIVE_TASKS, SETTINGS_NEWS, InternalService
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.proto.v1 import broker_calls_pb2, tasks_pb2
from holdfast.serving.refusals import (
    BATCH_TOO_LARGE,
    INVALID_FIELD,
    MALFORMED_REQUEST,
    OUTCOME_UNKNOWN,
    OutcomeUnknownError,
    RefusedError,
)
from holdfast.storage.rocksdb import StateDamagedError
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.replica.small_shard import SmallShard

CLUSTER = "c1"


class Stage(SmallShard):
    """A shard whose rounds run by themselves, and the calls of other brokers to it. n1 has shard 3, and nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.machine.meta.machine_level = 2
        config, metrics = self.config, self.metrics
        view = StaticClusterView(config)
        view.cluster_id = CLUSTER
        self.service = TaskService(self.shard, config, metrics, cluster_view=view)
        self.damages: list[Exception] = []
        self.trouble: Exception | None = None
        self.internal = InternalService(self, self, metrics, batch_bytes_max=config.batch_bytes_max)

    def find(self, number: int) -> TaskService:
        if self.trouble is not None:
            raise self.trouble
        return self.service

    def default_shard(self) -> int:
        raise AssertionError("each of these calls names one")

    def note_damage(self, error: Exception) -> None:
        self.damages.append(error)

    def may_speak_for(self, node: str, shard: int, incarnation: int) -> bool:
        return (node, shard) == ("n1", 3) and incarnation <= 1

    def settings_news(self, cluster_id: str, after_version: int) -> list[tuple[str, int]]:
        assert cluster_id == CLUSTER
        return [("q", after_version + 1)]

    async def run(self) -> None:
        while True:
            await self.round()

    async def refusal(self, *call: str | int | bytes) -> str:
        entries = self.machine.meta.applied_index
        with pytest.raises(RefusedError) as refused:
            await self.internal.answer(*call)  # type: ignore[arg-type]
        assert self.machine.meta.applied_index == entries, "nothing was written"
        return refused.value.reason


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()


def messages(first: int = 1, source: int = 3, incarnation: int = 1) -> bytes:
    task = tasks_pb2.TaskSpec(queue=QUEUE.decode(), type="t")
    return broker_calls_pb2.ReceiveTasksRequest(
        cluster_id=CLUSTER, destination_shard=0, source_shard=source, source_incarnation=incarnation,
        first_sequence=first, messages=[broker_calls_pb2.OutboxMessage(task=task)],
    ).SerializeToString()  # fmt: skip


async def test_messages_of_a_node_that_has_the_shard_are_taken_in(stage: Stage) -> None:
    answer = await stage.internal.answer("n1", RECEIVE_TASKS, 0, messages())
    assert broker_calls_pb2.ReceiveTasksResponse.FromString(answer).received == 1
    queue = stage.shard.queue(QUEUE)
    assert queue is not None
    assert queue.ready == 1
    reports = broker_calls_pb2.AllocateRequest(cluster_id=CLUSTER, source_shard=3)
    reports.reports.add(queue="q", what="rate", number=1)
    allocated = await stage.internal.answer("n1", ALLOCATE, 0, reports.SerializeToString())
    assert [grant.unlimited for grant in broker_calls_pb2.AllocateResponse.FromString(allocated).grants] == [True]


async def test_every_node_is_told_of_settings(stage: Stage) -> None:
    asked = broker_calls_pb2.SettingsNewsRequest(cluster_id=CLUSTER, after_version=7).SerializeToString()
    stage.trouble = OutcomeUnknownError()  # no shard is asked
    answer = broker_calls_pb2.SettingsNewsResponse.FromString(
        await stage.internal.answer("n2", SETTINGS_NEWS, 0, asked)
    )
    assert [(queue.queue, queue.version) for queue in answer.queues] == [("q", 8)]


async def test_who_may_not_speak_for_a_shard_is_refused(stage: Stage) -> None:
    assert await stage.refusal("n2", RECEIVE_TASKS, 0, messages()) == INVALID_FIELD
    assert await stage.refusal("n1", RECEIVE_TASKS, 0, messages(source=4)) == INVALID_FIELD
    assert await stage.refusal("n1", RECEIVE_TASKS, 0, messages(incarnation=2)) == INVALID_FIELD
    forged = broker_calls_pb2.AllocateRequest(cluster_id=CLUSTER, source_shard=3)
    assert await stage.refusal("n2", ALLOCATE, 0, forged.SerializeToString()) == INVALID_FIELD


async def test_whatever_is_sent_is_counted_before_it_is_parsed(stage: Stage) -> None:
    assert await stage.refusal("n1", 9, 0, messages()) == INVALID_FIELD
    assert await stage.refusal("n1", RECEIVE_TASKS, 0, b"\xff\xff") == MALFORMED_REQUEST
    assert await stage.refusal("n1", RECEIVE_TASKS, 0, b"\x32\x00" * 5000) == BATCH_TOO_LARGE


async def test_what_nobody_knows_is_said_so(stage: Stage) -> None:
    stage.trouble = OutcomeUnknownError()
    assert await stage.refusal("n1", RECEIVE_TASKS, 0, messages()) == OUTCOME_UNKNOWN
    stage.trouble = StateDamagedError("bits", None)
    assert await stage.refusal("n1", RECEIVE_TASKS, 0, messages()) == OUTCOME_UNKNOWN
    assert stage.damages == [stage.trouble]
