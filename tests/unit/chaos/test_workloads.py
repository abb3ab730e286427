"""What the workloads of the chaos harness send: queues that are said to be spread get tasks that can be spread."""

import random
from collections import Counter

import pytest

from chaos.history import FAIL, INFO, OK, History
from chaos.workloads import lifecycle, limited
from chaos.workloads.base import Setting, Workload, handler_task, to_send_again
from chaos.workloads.calls import PLAIN_QUEUES, Calls
from chaos.workloads.catalogue import IN_ALL, WORKLOADS
from holdfast.client import NewTask
from holdfast.routing.sets import QueueRoute, shard_for_task

DRAWN = 200


def setting(shards: int = 8) -> Setting:
    return Setting(History(), ["127.0.0.1:1"], 1, shards)


def shards_of(tasks: list[NewTask]) -> Counter[int]:
    """Where a router would put them if each came with a call of its own."""
    route = QueueRoute("q", home=0, sets=((1, (0, 1, 2)),))
    return Counter(
        shard_for_task(route, task.request_id or "", task.unique_key, task.limit_key, pick)
        for pick, task in enumerate(tasks)
    )


def drawn(queue: str) -> list[NewTask]:
    draw = random.Random(1)
    if queue in PLAIN_QUEUES:
        calls = Calls(setting())
        return [task for task in (calls.draw_task(draw, "p") for _ in range(DRAWN * 4)) if task.queue == queue]
    if queue in limited.QUEUES:
        return [limited.Limited.draw_task(draw, queue, f"v{number}") for number in range(DRAWN)]
    tasks = [
        lifecycle.draw_task(draw, f"v{number}", lifecycle.Guilt()) for number in range(DRAWN * len(lifecycle.QUEUES))
    ]
    return [task for task in tasks if task.queue == queue]


@pytest.mark.parametrize("queue", [*limited.QUEUES, *lifecycle.SPREAD, *PLAIN_QUEUES])
def test_tasks_of_a_spread_queue_go_to_all_of_its_shards(queue: str) -> None:
    tasks = drawn(queue)
    by_shard = shards_of(tasks)
    assert set(by_shard) == {0, 1, 2}
    assert min(by_shard.values()) > len(tasks) / 30
    assert any(task.request_id for task in tasks), "some with ids of their own, as users have them"


def test_other_queues_keep_their_request_ids() -> None:
    assert all(task.request_id for task in drawn(lifecycle.QUEUES[-1]))


@pytest.mark.parametrize("name", IN_ALL)
def test_what_is_to_be_spread_is_of_the_workload(name: str) -> None:
    workload: Workload = WORKLOADS[name](setting())
    assert set(workload.expected().spread) <= set(workload.queues)
    assert bool(workload.expected().spread) == (name != "storms"), "of which all tasks are at home"
    assert workload.spreadable, "or else the operation does nothing"
    alone: Workload = WORKLOADS[name](setting(shards=1))
    assert alone.expected().spread == (), "with one shard nothing can be"


def test_only_what_has_an_id_of_its_own_is_sent_again() -> None:
    tasks = [
        handler_task("quick", "q", "a"),
        handler_task("quick", "q", "b", request_id=""),
        handler_task("quick", "q", "c"),
    ]
    assert to_send_again(tasks, [INFO, INFO, OK]) == tasks[:1]
    assert to_send_again(tasks, [FAIL, OK, INFO]) == tasks[2:]
