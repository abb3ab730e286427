"""Limits of a queue that is spread over shards on several nodes: kept over all of them together."""

import threading
import time
from pathlib import Path

from holdfast.client import ClaimedTask, Client, HoldfastError, NewTask, QueuePolicy
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.task_ids import shard_of_task
from tests.integration.cluster_tools import raw_call
from tests.integration.map_cluster import MapCluster, until
from tests.integration.server import DEADLINE_S

QUEUE = "capped"
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


class Workers:
    """Many who work at the same time, and count how many do."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._working = 0
        self.most = 0
        self.done: list[str] = []
        self.threads = [threading.Thread(target=self._work, args=(f"worker-{number}",)) for number in range(WORKERS)]

    def _work(self, name: str) -> None:
        with Client(self._address, timeout_s=DEADLINE_S) as client:
            while len(self.done) < TASKS:
                for claim in client.reserve([QUEUE], worker=name, wait_ms=500, lease_ms=60_000):
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


def test_a_cap_is_kept_over_all_shards_together(tmp_path: Path) -> None:
    with MapCluster(tmp_path, size=2, shards=SHARDS, replication=1) as cluster:
        cluster.start()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            policy = QueuePolicy(concurrency_max=CAP, rate_per_second=500.0, paused=True)
            client.set_queue(QUEUE, policy=policy, spread=SHARDS)
            until(lambda: client.topology([QUEUE]).routes[0].generation == 1, "the queue to be spread")
            accepted = [client.enqueue(NewTask(QUEUE, "t")).task_id for _ in range(TASKS)]
            assert {shard_of_task(task_id) for task_id in accepted} == set(range(SHARDS))
            until(lambda: all(is_paused(cluster, QUEUE, shard) for shard in range(SHARDS)), "the policy on both shards")
            workers = Workers(cluster.address)
            for thread in workers.threads:
                thread.start()
            client.resume_queue(QUEUE)
            for thread in workers.threads:
                thread.join()
            assert sorted(workers.done) == sorted(accepted)
            assert workers.most == CAP
            stats = client.queue_stats(QUEUE)
            assert (stats.ready, stats.claimed, stats.succeeded_total) == (0, 0, TASKS)


def claim_on(address: str, ends: threading.Event) -> None:
    """Claims, and keeps what it got: when a task was claimed is in its state then, also if nobody heard of it."""
    with Client(address, timeout_s=DEADLINE_S) as client:
        while not ends.is_set():
            try:
                client.reserve([RATED], max_tasks=20, wait_ms=200, lease_ms=600_000)
            except HoldfastError:  # nobody leads for a moment
                time.sleep(0.05)


def test_a_rate_is_kept_over_all_shards_whoever_leads_them(tmp_path: Path) -> None:
    """The leader of the home, which allocates, is killed, and another shard is handed to another node, while all that
    may be handed out is. In any stretch of time no more is than the rate, the burst, and one task for each shard."""
    home = home_shard(RATED, SHARDS)
    other = 1 - home
    with MapCluster(tmp_path, size=3, shards=SHARDS) as cluster:
        cluster.start()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.transfer(home, "n1")
            client.transfer(other, "n2")
            policy = QueuePolicy(concurrency_max=1000, rate_per_second=RATE, rate_burst=BURST, paused=True)
            client.set_queue(RATED, policy=policy, spread=SHARDS)
            until(lambda: client.topology([RATED]).routes[0].generation == 1, "the queue to be spread")
            accepted = [client.enqueue(NewTask(RATED, "t")).task_id for _ in range(RATED_TASKS)]
            assert {shard_of_task(task_id) for task_id in accepted} == set(range(SHARDS))
            until(lambda: all(is_paused(cluster, RATED, shard) for shard in range(SHARDS)), "the policy on both shards")
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


def test_a_cap_of_tenants_is_kept_over_all_shards_together(tmp_path: Path) -> None:
    with MapCluster(tmp_path, size=1, shards=SHARDS, replication=1) as cluster:
        cluster.start()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.set_queue(QUEUE, policy=QueuePolicy(tenant_concurrency_max=CAP, paused=True), spread=SHARDS)
            until(lambda: client.topology([QUEUE]).routes[0].generation == 1, "the queue to be spread")
            accepted = [client.enqueue(NewTask(QUEUE, "t", tenant="acme")).task_id for _ in range(20)]
            assert {shard_of_task(task_id) for task_id in accepted} == set(range(SHARDS))
            until(lambda: all(is_paused(cluster, QUEUE, shard) for shard in range(SHARDS)), "the policy on both shards")
            client.resume_queue(QUEUE)
            claims: list[ClaimedTask] = []

            def claim_more() -> bool:
                claims.extend(client.reserve([QUEUE], max_tasks=20, wait_ms=500, lease_ms=600_000))
                return len(claims) >= CAP

            until(claim_more, "as many as the tenant may have")
            assert client.reserve([QUEUE], max_tasks=20, wait_ms=500, lease_ms=600_000) == []
            assert len(claims) == CAP
