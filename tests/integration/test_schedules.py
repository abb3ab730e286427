"""Schedules on real brokers: each tick is one task, also while leaders die."""

from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.client import (
    Accepted,
    CatchUp,
    Client,
    Conflict,
    InvalidArgument,
    NewTask,
    NotFound,
    RequestIdConflict,
    Schedule,
    TaskState,
)
from tests.integration.cluster import Cluster
from tests.integration.server import wait_until

QUEUE = "beats"
EACH_SECOND = "* * * * * *"
SECOND_MS = 1000
YEARLY = "0 3 1 1 *"  # so that no tick comes in between


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.address, timeout_s=30) as client:
        yield client


def ticks_of_tasks(client: Client, queue: str) -> Counter[int]:
    """Claims everything that is there: how many tasks each tick has."""
    found: Counter[int] = Counter()
    while claims := client.reserve([queue], max_tasks=100, lease_ms=600_000, worker="w"):
        found.update(int(claim.headers["holdfast-tick-ms"]) for claim in claims)
    return found


def wait_for_ticks(client: Client, name: str, more: int) -> None:
    """Returns once it has made so many tasks more."""
    wanted = client.get_schedule(QUEUE, name).fired_total + more
    wait_until(lambda: client.get_schedule(QUEUE, name).fired_total >= wanted, "ticks")


def test_each_tick_is_one_task_although_the_leader_dies_twice(cluster: Cluster, client: Client) -> None:
    # NONE: what a fail-over delays comes all the same.
    client.put_schedule(Schedule("beat", EACH_SECOND, NewTask(QUEUE, "beat"), catch_up=CatchUp.NONE))
    for _ in range(2):
        wait_for_ticks(client, "beat", 1)
        leader = cluster.wait_for_leader()
        cluster.kill(leader)
        wait_for_ticks(client, "beat", 2)  # at the next leader
        cluster.start_node(leader)
    paused = client.pause_schedule(QUEUE, "beat")
    ticks = ticks_of_tasks(client, QUEUE)
    assert paused.last_at_ms == max(ticks)
    assert ticks == Counter(range(min(ticks), max(ticks) + 1, SECOND_MS))
    assert paused.fired_total == len(ticks) >= 5


def test_a_schedule_from_the_first_call_to_the_last(client: Client) -> None:
    made = client.put_schedule(Schedule("nightly", YEARLY, NewTask("reports", "sales", b"p")), must_be_new=True)
    assert client.get_schedule("reports", "nightly") == made
    with pytest.raises(Conflict):
        client.put_schedule(Schedule("nightly", "0 4 * * *", NewTask("reports", "sales")), must_be_new=True)
    with pytest.raises(InvalidArgument, match="Mars"):
        client.put_schedule(Schedule("nightly", "0 3 * * *", NewTask("reports", "sales"), time_zone="Mars/Base"))
    triggered = client.trigger_schedule("reports", "nightly", request_id="now")
    again = client.trigger_schedule("reports", "nightly", request_id="now")
    assert again == Accepted(triggered.task_id, True, TaskState.READY)
    with pytest.raises(RequestIdConflict):
        client.enqueue(NewTask("reports", "sales", b"p", request_id="now"))
    client.enqueue(NewTask("reports", "sales", b"p", request_id="enqueued", delay_ms=3_600_000))
    with pytest.raises(RequestIdConflict) as refused:
        client.trigger_schedule("reports", "nightly", request_id="enqueued")
    assert refused.value.field == "request_id"
    [claim] = client.reserve(["reports"], worker="w")
    assert (claim.task_id, claim.payload, claim.headers) == (triggered.task_id, b"p", {"holdfast-schedule": "nightly"})
    assert client.pause_schedule("reports", "nightly").next_at_ms is None
    assert client.resume_schedule("reports", "nightly").next_at_ms == made.next_at_ms
    assert [info.name for info in client.list_schedules("reports").schedules] == ["nightly"]
    client.delete_schedule("reports", "nightly")
    with pytest.raises(NotFound):
        client.get_schedule("reports", "nightly")
