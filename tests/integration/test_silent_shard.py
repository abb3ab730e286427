"""One shard is silent: producers and workers of the other one do not notice, through a router and straight to the
brokers."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.client import Accepted, AsyncClient, NewTask, OutcomeUnknown, TaskState
from tests.acceptance.apps import chores
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.map_cluster import MapCluster, map_cluster
from tests.integration.map_load import queues_of_all_shards
from tests.integration.server import DEADLINE_S

SHARDS = 2
LONG_S = 120.0  # calls have time, and no test has as much
LEASE_S = 2.0


cluster = map_cluster(size=2, shards=SHARDS, replication=1)


@contextmanager
def silent(cluster: MapCluster, shard: int) -> Iterator[None]:
    """The only replica of a shard is stopped: its connections stay open, and nothing is answered."""
    pid = cluster.nodes[cluster.wait_for_leader(shard)].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("direct", [False, True], ids=["router", "direct"])
async def test_enqueues_of_a_healthy_shard_do_not_wait_for_a_silent_one(cluster: MapCluster, direct: bool) -> None:
    healthy, lost = queues_of_all_shards(f"enqueue-{direct}", SHARDS)
    async with AsyncClient(cluster.address, timeout_s=LONG_S, direct=direct) as client:
        for queue in (healthy, lost):
            await client.enqueue(NewTask(queue, "t"))  # from now on it is known where they are
        with silent(cluster, 1):
            waiting = []
            for _ in range(10):
                waiting.append(asyncio.create_task(client.enqueue(NewTask(lost, "t"))))
                await asyncio.sleep(0.02)  # so that they do not all share one request
            for _ in range(20):
                await client.enqueue(NewTask(healthy, "t"))
            mixed = await client.enqueue_many([NewTask(healthy, "t"), NewTask(lost, "t")])
            assert not any(one.done() for one in waiting)
        assert isinstance(mixed[0], Accepted)
        assert isinstance(mixed[1], OutcomeUnknown), "given up long before the end of its time"
        assert len({(await one).task_id for one in waiting}) == 10, "when it answers again they are all accepted"


def test_a_worker_keeps_the_leases_of_a_healthy_shard_and_finishes_its_tasks_while_another_one_is_silent(
    cluster: MapCluster, tmp_path: Path
) -> None:
    healthy, lost = queues_of_all_shards("work", SHARDS)
    worker = WorkerProcess(tmp_path / "worker", cluster.address, [healthy, lost], lease=LEASE_S)
    with worker.start(), chores.make_app(cluster.address) as app:
        work = app.tasks["work_async"]
        # One that ends while its shard is silent, so that its report waits, and one whose lease has to be extended.
        of_lost = [work.options(queue=lost).enqueue(seconds) for seconds in (0.5, 2 * LEASE_S)]
        worker.wait_for("begin", 2)
        with silent(cluster, 1):
            long = [work.options(queue=healthy).enqueue(2 * LEASE_S) for _ in range(3)]
            quick = [work.options(queue=healthy).enqueue(0.0) for _ in range(20)]
            for handle in (*quick, *long):
                assert handle.result(timeout=DEADLINE_S) == worker.pid
                info = handle.info()
                assert (info.state, info.claims) == (TaskState.SUCCEEDED, 1), "no lease was lost"
        for handle in of_lost:
            assert handle.result(timeout=2 * DEADLINE_S) == worker.pid
