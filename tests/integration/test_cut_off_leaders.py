"""A leader that is cut off from etcd while the settings of its queues change, and others are not."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.client import Ack, ClaimedTask, Client, NewTask, QueuePolicy
from holdfast.routing.homes import home_shard
from holdfast.routing.task_ids import shard_of_task
from tests.integration.map_cluster import MapCluster, until
from tests.integration.proxy import Proxy
from tests.integration.server import DEADLINE_S

SHARDS, TASKS, CAP = 4, 30, 2


class Cluster(MapCluster):
    """Each node has a way of its own to etcd."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, size=3, shards=SHARDS)
        self._proxies = ExitStack()
        self.ways: dict[str, Proxy] = {}

    def endpoints_of(self, name: str) -> str:
        self.ways[name] = self._proxies.enter_context(Proxy(int(self.etcd.endpoint.rpartition(":")[2])))
        return self.ways[name].address

    def cut_off(self, name: str) -> None:
        self.ways[name].set(refuses=True)
        self.ways[name].reset()

    def close(self) -> None:
        super().close()
        self._proxies.close()

    def mend(self, name: str) -> None:
        self.ways[name].reset()
        self.ways[name].set()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cut-off")) as running:
        running.start()
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        yield client


def leaders_of(client: Client) -> dict[int, str]:
    return {leader.shard: leader.node for leader in client.topology([]).leaders}


def claim_all(client: Client, queue: str) -> list[ClaimedTask]:
    """A claim is made at one shard, so more than once."""
    return [claim for _ in range(SHARDS) for claim in client.reserve([queue], max_tasks=TASKS)]


@pytest.mark.parametrize("spread", [1, SHARDS])
def test_a_home_that_is_cut_off_does_not_hand_out_a_queue_that_was_capped_meanwhile(
    cluster: Cluster, client: Client, spread: int
) -> None:
    """Any other node tells it, whether that has a shard of the queue or not."""
    queue = f"at-home-{spread}"
    home = leaders_of(client)[home_shard(queue, SHARDS)]
    client.enqueue_many([NewTask(queue, "t") for _ in range(TASKS)])
    said = len(cluster.nodes[home].events("settings_are_behind"))
    cluster.cut_off(home)
    client.set_queue(queue, spread=spread, policy=QueuePolicy(concurrency_max=CAP))
    until(
        lambda: len(cluster.nodes[home].events("settings_are_behind")) > said,
        "the home to hear that it knows too little",
    )
    assert not claim_all(client, queue), "nothing is better than all of it"
    cluster.mend(home)
    claims = client.reserve([queue], max_tasks=TASKS, wait_ms=20_000) + claim_all(client, queue)
    assert 1 <= len(claims) <= CAP


def test_another_shard_that_is_cut_off_does_not_either(cluster: Cluster, client: Client) -> None:
    leaders = leaders_of(client)
    name = next(node for node in sorted(cluster.nodes) if node != leaders[home_shard("elsewhere", SHARDS)])
    client.set_queue("elsewhere", spread=SHARDS)
    until(lambda: client.topology(["elsewhere"]).routes[0].generation == 1, "the queue to be spread")
    assert name in work_through(client, leaders, tasks_max=TASKS)
    said = len(cluster.nodes[name].events("settings_are_behind"))
    cluster.cut_off(name)
    client.set_queue("elsewhere", policy=QueuePolicy(concurrency_max=CAP))
    until(
        lambda: len(cluster.nodes[name].events("settings_are_behind")) > said,
        "a shard that does not hear from etcd to ask the home",
    )
    assert name not in work_through(client, leaders, tasks_max=CAP)
    cluster.mend(name)


def work_through(client: Client, leaders: dict[int, str], *, tasks_max: int) -> set[str]:
    """Enqueues many and claims what it gets, so many at most; the nodes that it was claimed from."""
    for _ in range(TASKS):
        client.enqueue(NewTask("elsewhere", "t"))
    claims = client.reserve(["elsewhere"], max_tasks=TASKS, wait_ms=20_000) + claim_all(client, "elsewhere")
    assert 1 <= len(claims) <= tasks_max
    client.ack_many([Ack(claim) for claim in claims])
    return {leaders[shard_of_task(claim.task_id) or 0] for claim in claims}
