"""What is remembered on the home of a queue is taken nowhere else."""

import asyncio
from copy import deepcopy

import pytest

from holdfast.broker.api.home_guard import HomeGuard
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.queues import Home, Pin, QueueChange
from holdfast.proto.v1 import schedules_pb2, tasks_pb2
from holdfast.routing.homes import home_shard
from holdfast.serving.refusals import STALE_MAP, WRONG_SHARD, RefusedError
from tests.unit.cluster.cluster_stage import NAME, add_nodes, make_store, node, read_map
from tests.unit.replica.small_shard import SmallShard

AT_ONCE_S = 5.0  # what is taken would wait for a round that nobody makes
SHARDS = 4
HOME = home_shard("mail", SHARDS)
ELSEWHERE = (HOME + 1) % SHARDS


async def map_of(shards: int) -> PartitionMap:
    etcd = FakeEtcd()
    await add_nodes(etcd, "a", "b", "c")
    await make_store(etcd).init_cluster(shards, 3)
    return await read_map(etcd)


async def serve(number: int, known: PartitionMap) -> tuple[SmallShard, TaskService]:
    small = SmallShard()
    small.machine.meta.shard = number
    cluster_view = MapClusterView(node("a").identity, known)
    return small, TaskService(small.shard, small.config, small.metrics, cluster_view=cluster_view)


@pytest.fixture
async def elsewhere() -> TaskService:
    return (await serve(ELSEWHERE, await map_of(SHARDS)))[1]


def task(request_id: str = "", unique_key: str = "", limit_key: str = "") -> tasks_pb2.TaskSpec:
    return tasks_pb2.TaskSpec(
        queue="mail", type="t", request_id=request_id, unique_key=unique_key, limit_key=limit_key
    )  # fmt: skip


OWN = [
    task("order-17"), task("~odd"), task(unique_key="u"), task("~1.key.0", unique_key="u"), task("o", "", "l"),
    task("~1.key.1", limit_key="l"), task(limit_key="l"), task("~0.key.0"),
]  # fmt: skip
OTHERS = [task("~1.key.1"), task("~2.key.1")]  # the shard may not have heard of their sets


@pytest.mark.parametrize("own", OWN, ids=str)
async def test_a_call_with_an_own_id_or_a_key_is_refused_as_a_whole(
    elsewhere: TaskService, own: tasks_pb2.TaskSpec
) -> None:
    with pytest.raises(RefusedError) as refused:
        async with asyncio.timeout(AT_ONCE_S):
            await elsewhere.enqueue(tasks_pb2.EnqueueRequest(tasks=deepcopy([*OTHERS, own])))
    assert refused.value.reason == WRONG_SHARD
    assert refused.value.metadata == {"queue": "mail", "shard": str(ELSEWHERE), "home": str(HOME)}
    assert elsewhere.shard.queue(b"mail") is None, "nothing was done"


@pytest.mark.parametrize(
    ("number", "shards", "tasks"),
    [(HOME, SHARDS, OWN + OTHERS), (ELSEWHERE, SHARDS, OTHERS), (0, 1, OWN + OTHERS), (3, 0, OWN + OTHERS)],
    ids=["at home", "without own ids", "the only shard", "without a map"],
)
async def test_everything_else_is_taken(number: int, shards: int, tasks: list[tasks_pb2.TaskSpec]) -> None:
    known = await map_of(shards) if shards else PartitionMap(cluster_name=NAME)
    small, service = await serve(number, known)
    guard = HomeGuard(small.shard, MapClusterView(node("a").identity, known))
    new_tasks = [service.validator.new_task(item, 0) for item in deepcopy(tasks)]  # which takes the ids out
    for _ in range(2):  # the second time from memory
        guard.check_tasks(new_tasks)


async def test_a_task_that_could_be_anywhere_is_taken_only_on_shards_of_its_queue(elsewhere: TaskService) -> None:
    """Nobody would look for it on another one: it would be accepted, and never claimed."""
    with pytest.raises(RefusedError) as refused:
        async with asyncio.timeout(AT_ONCE_S):
            await elsewhere.enqueue(tasks_pb2.EnqueueRequest(tasks=[task()]))
    assert (refused.value.reason, refused.value.retry_after_ms) == (STALE_MAP, 100)
    assert elsewhere.shard.queue(b"mail") is None, "nothing was done"


async def test_a_shard_of_an_older_set_takes_it_too() -> None:
    etcd = FakeEtcd()
    await add_nodes(etcd, "a", "b", "c")
    store = make_store(etcd)
    await store.init_cluster(SHARDS, 3)
    for placement in (Pin((ELSEWHERE,)), Home()):
        await store.set_queue("mail", QueueChange(placement))
    small, service = await serve(ELSEWHERE, await read_map(etcd))
    await small.rounds_until(service.enqueue(tasks_pb2.EnqueueRequest(tasks=[task()])))


async def test_a_schedule_is_put_on_the_home_alone() -> None:
    known = await map_of(SHARDS)
    spec = schedules_pb2.ScheduleSpec(expression="* * * * *", task=tasks_pb2.TaskSpec(type="t"))
    request = schedules_pb2.PutScheduleRequest(queue="mail", name="n", spec=spec)
    small, service = await serve(ELSEWHERE, known)
    with pytest.raises(RefusedError) as refused:
        await small.rounds_until(service.schedules.put_schedule(request))
    assert refused.value.reason == WRONG_SHARD
    assert refused.value.metadata == {"queue": "mail", "shard": str(ELSEWHERE), "home": str(HOME)}
    listed = await small.rounds_until(service.schedules.list_schedules(schedules_pb2.ListSchedulesRequest()))
    assert not listed.schedules, "nothing was done"
    small, service = await serve(HOME, known)
    put = await small.rounds_until(service.schedules.put_schedule(request))
    assert put.schedule.name == "n"
