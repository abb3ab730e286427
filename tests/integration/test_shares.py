"""Limits of a queue that is spread over shards on several nodes: kept over all of them together."""

import threading
import time
from pathlib import Path

from holdfast.client import Client, NewTask, QueuePolicy
from holdfast.proto.v1 import tasks_pb2 as pb
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


def is_capped(cluster: MapCluster, shard: int) -> bool:
    """Whether the settings of the queue are in the log of a shard."""
    address = cluster.nodes[cluster.leader(shard)].address
    answer = raw_call(address, "Tasks/QueueStats", pb.QueueStatsRequest(queues=[QUEUE]), shard=shard)
    assert isinstance(answer, bytes)
    return pb.QueueStatsResponse.FromString(answer).outcomes[0].counts.paused


def test_a_cap_is_kept_over_all_shards_together(tmp_path: Path) -> None:
    with MapCluster(tmp_path, size=2, shards=SHARDS, replication=1) as cluster:
        cluster.start()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            policy = QueuePolicy(concurrency_max=CAP, rate_per_second=500.0, paused=True)
            client.set_queue(QUEUE, policy=policy, spread=SHARDS)
            until(lambda: client.topology([QUEUE]).routes[0].generation == 1, "the queue to be spread")
            accepted = [client.enqueue(NewTask(QUEUE, "t")).task_id for _ in range(TASKS)]
            assert {shard_of_task(task_id) for task_id in accepted} == set(range(SHARDS))
            until(lambda: all(is_capped(cluster, shard) for shard in range(SHARDS)), "the policy on both shards")
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
