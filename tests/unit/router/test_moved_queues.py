"""Queues that are spread or pinned while a worker waits at a router for their tasks: it waits at the new shards too."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import ClusterRecord, QueueRecord
from holdfast.common.service import end_tasks
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.routes import moved_queues
from holdfast.routing.homes import home_shard
from tests.unit.router.test_reserving import Shop

WAIT_MS = 60_000
LONG_S = 90.0  # more than a test has
pytestmark = pytest.mark.timeout(40)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop() as built:
        built.table.at_home("q", 1)
        yield built


def pin(shop: Shop, *shards: int) -> None:
    shop.table.pin("q", *shards)
    shop.gateway.routes_changed(["q"])


@pytest.mark.parametrize("request_id", ["", "mine"])
async def test_a_worker_that_waits_at_the_home_hears_of_new_shards(shop: Shop, request_id: str) -> None:
    call = asyncio.create_task(shop.reserve(WAIT_MS, request_id, timeout_s=LONG_S))
    await shop.brokers[1].wait_for("AwaitTasks")
    pin(shop, 1, 2)
    shop.fake_shards[2].put("new")
    assert await call == ["new"]
    await shop.brokers[1].wait_for_hang_up("AwaitTasks")


async def test_it_goes_on_waiting_there_too(shop: Shop) -> None:
    call = asyncio.create_task(shop.reserve(WAIT_MS, "mine", timeout_s=LONG_S))
    await shop.brokers[1].wait_for("AwaitTasks")
    pin(shop, 1, 2)
    await shop.brokers[2].wait_for("AwaitTasks")
    assert len(shop.brokers[1].requests("AwaitTasks")) == 1, "nothing has changed there"
    shop.fake_shards[1].put("at home")
    assert await call == ["at home"]


async def test_a_worker_that_waits_at_several_shards_hears_of_another_one(shop: Shop) -> None:
    shop.table.pin("q", 0, 1)
    call = asyncio.create_task(shop.reserve(WAIT_MS, timeout_s=LONG_S))
    for broker in shop.brokers[:2]:
        await broker.wait_for("AwaitTasks")
    pin(shop, 0, 2)
    await shop.brokers[1].wait_for_hang_up("AwaitTasks")
    shop.fake_shards[2].put("new")
    assert await call == ["new"]
    assert len(shop.brokers[1].requests("AwaitTasks")) == 1, "nothing is left there"


@pytest.mark.parametrize("before", [(1,), (0, 1)])
async def test_so_does_a_wait_that_claims_nothing(shop: Shop, before: tuple[int, ...]) -> None:
    shop.table.pin("q", *before)
    request = pb.AwaitTasksRequest(queues=["q", "q"], wait_ms=WAIT_MS)
    call = asyncio.create_task(shop.call("AwaitTasks", request, timeout_s=LONG_S))
    await shop.brokers[1].wait_for("AwaitTasks", 2)  # what is there, and then the wait
    pin(shop, 1, 2)
    shop.fake_shards[2].put("new")
    assert (await call).ready


async def test_other_queues_do_not_disturb_a_wait(shop: Shop) -> None:
    call = asyncio.create_task(shop.reserve(WAIT_MS, timeout_s=LONG_S))
    await shop.brokers[1].wait_for("AwaitTasks")
    shop.gateway.routes_changed(["another", "one"])
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.done()
    assert shop.count("AwaitTasks") == 1
    await end_tasks([call])
    while shop.admission.calls:
        await asyncio.sleep(0.01)
    assert shop.gateway.broker_waits == 0


def test_queues_move_when_they_are_visible_elsewhere() -> None:
    home = home_shard("q", 4)
    other = (home + 1) % 4
    empty = PartitionMap(cluster_name="c", revision=1, cluster=ClusterRecord("c" * 32, 4, 3))
    record = QueueRecord(generation=1, sets=((1, (other,)),))
    pinned = replace(empty, queues={"q": record})
    assert moved_queues(empty, pinned) == ["q"]
    assert moved_queues(pinned, empty) == ["q"]
    assert moved_queues(pinned, replace(pinned, queues={"q": record, "r": QueueRecord()})) == []
    draining = replace(pinned, queues={"q": replace(record, draining=((home + 2) % 4,))})
    assert moved_queues(pinned, draining) == ["q"]
    assert moved_queues(PartitionMap(cluster_name="c"), pinned) == []
