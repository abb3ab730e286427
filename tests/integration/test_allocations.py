"""Limits of a queue that is spread over shards on several nodes: kept over all of them together."""

import threading
import time
from dataclasses import replace

from holdfast.client import ClaimedTask, Client, HoldfastError, NewTask, QueuePolicy
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.task_ids import shard_of_task
from tests.integration.cluster_tools import raw_call
from tests.integration.map_cluster import MapCluster, map_cluster, until
from tests.integration.server import DEADLINE_S

SHARDS = 2
CAP = 3
TASKS = 60
WORKERS = 8
WORK_S = 0.02  # long enough for others to be handed out meanwhile

RATED = "rated"
RATE = 25  # per second
BURST = 5
RATED_TASKS = 125
CLOCKS_S = 0.1  # by so much the times of two shards may differ


cluster = map_cluster(size=3, shards=SHARDS)


class Workers:
    """Many who work at the same time, and count how many do."""

    def __init__(self, address: str, queue: str) -> None:
        self._address = address
        self._queue = queue
        self._lock = threading.Lock()
        self._working = 0
        self.most = 0
        self.done: list[str] = []
        self.threads = [threading.Thread(target=self._work, args=(f"worker-{number}",)) for number in range(WORKERS)]

    def _work(self, name: str) -> None:
        with Client(self._address, timeout_s=DEADLINE_S) as client:
            while len(self.done) < TASKS:
                for claim in client.reserve([self._queue], worker=name, wait_ms=500, lease_ms=60_000):
                    with self._lock:
                        self._working += 1
                        self.most = max(self.most, self._working)
                    time.sleep(WORK_S)
                    with self._lock:
                        self._working -= 1
                    client.ack(claim)
                    self.done.append(claim.task_id)


def is_paused(cluster: MapCluster, queue: str, shard: int) -> bool:
    """Whether the settings of the queue are in the log of a shard."""
    address = cluster.nodes[cluster.wait_for_leader(shard)].address
    answer = raw_call(address, "Tasks/QueueStats", pb.QueueStatsRequest(queues=[queue]), shard=shard)
    return isinstance(answer, bytes) and pb.QueueStatsResponse.FromString(answer).outcomes[0].counts.paused


def enqueue_while_paused(
    cluster: MapCluster, client: Client, queue: str, policy: QueuePolicy, tasks: int, **options: str
) -> list[str]:
    """Tasks of a queue that is paused and spread over all shards, with its policy on each; their ids."""
    client.set_queue(queue, policy=replace(policy, paused=True), spread=SHARDS)
    until(lambda: client.topology([queue]).routes[0].generation == 1, "the queue to be spread")
    accepted = [client.enqueue(NewTask(queue, "t", **options)).task_id for _ in range(tasks)]  # type: ignore[arg-type]
    assert {shard_of_task(task_id) for task_id in accepted} == set(range(SHARDS))
    until(lambda: all(is_paused(cluster, queue, shard) for shard in range(SHARDS)), "the policy on both shards")
    return accepted


def test_a_cap_is_kept_over_all_shards_together(cluster: MapCluster, queue: str) -> None:
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        policy = QueuePolicy(concurrency_max=CAP, rate_per_second=500.0)
        accepted = enqueue_while_paused(cluster, client, queue, policy, TASKS)
        workers = Workers(cluster.address, queue)
        for thread in workers.threads:
            thread.start()
        client.resume_queue(queue)
        for thread in workers.threads:
            thread.join()
        assert sorted(workers.done) == sorted(accepted)
        assert workers.most == CAP
        stats = client.queue_stats(queue)
        assert (stats.ready, stats.claimed, stats.succeeded_total) == (0, 0, TASKS)


def test_a_cap_of_tenants_is_kept_over_all_shards_together(cluster: MapCluster, queue: str) -> None:
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        policy = QueuePolicy(tenant_concurrency_max=CAP)
        enqueue_while_paused(cluster, client, queue, policy, 20, tenant="acme")
        client.resume_queue(queue)
        claims: list[ClaimedTask] = []

        def claim_more() -> bool:
            claims.extend(client.reserve([queue], max_tasks=20, wait_ms=500, lease_ms=600_000))
            return len(claims) >= CAP

        until(claim_more, "as many as the tenant may have")
        assert client.reserve([queue], max_tasks=20, wait_ms=500, lease_ms=600_000) == []
        assert len(claims) == CAP


def claim_on(address: str, ends: threading.Event) -> None:
    """Claims, and keeps what it got: when a task was claimed is in its state then, also if nobody heard of it."""
    with Client(address, timeout_s=DEADLINE_S) as client:
        while not ends.is_set():
            try:
                client.reserve([RATED], max_tasks=20, wait_ms=200, lease_ms=600_000)
            except HoldfastError:  # nobody leads for a moment
                time.sleep(0.05)


def test_a_rate_is_kept_over_all_shards_whoever_leads_them(cluster: MapCluster) -> None:
    """The leader of the home, which allocates, is killed, and another shard is handed to another node, while all that
    may be handed out is. In any stretch of time no more is than the rate, the burst, and one task for each shard."""
    home = home_shard(RATED, SHARDS)
    other = 1 - home
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.transfer(home, "n1")
        client.transfer(other, "n2")
        policy = QueuePolicy(concurrency_max=1000, rate_per_second=RATE, rate_burst=BURST)
        accepted = enqueue_while_paused(cluster, client, RATED, policy, RATED_TASKS)
        ends = threading.Event()
        threads = [threading.Thread(target=claim_on, args=(cluster.address, ends)) for _ in range(4)]
        for thread in threads:
            thread.start()
        client.resume_queue(RATED)

        def has_claimed(part: float) -> bool:
            return client.queue_stats(RATED).claimed >= part * RATED_TASKS

        until(lambda: has_claimed(0.25), "a quarter of all to be claimed")
        cluster.nodes["n1"].kill()
        until(lambda: has_claimed(0.5), "half of all to be claimed, with another coordinator")
        client.transfer(other, "n3")
        until(lambda: has_claimed(1), "all to be claimed")
        ends.set()
        for thread in threads:
            thread.join()
        times_s = sorted(client.get_task(task_id).changed_at_ms / 1000 for task_id in accepted)
    most = max(
        (index - since + 1) - RATE * (times_s[index] - times_s[since])
        for since in range(RATED_TASKS)
        for index in range(since, RATED_TASKS)
    )
    assert most <= BURST + SHARDS + RATE * CLOCKS_S
    assert times_s[-1] - times_s[0] < 3 * RATED_TASKS / RATE, "and it is used"
