"""The leader dies, stops or is told to: what was promised holds at the next one, unchanged.

One cluster for all tests; each leaves it whole.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from holdfast.client import (
    Accepted,
    ClaimedTask,
    Client,
    NewTask,
    QueueStats,
    StaleToken,
    TaskError,
    TaskInfo,
    TaskState,
)
from tests.integration.cluster import Cluster
from tests.integration.cluster_tools import (
    MIB,
    fill,
    wait_caught_up,
)
from tests.integration.map_load import load_on
from tests.integration.server import wait_until

LONG_LEASE_MS = 600_000
HOUR_MS = 3_600_000
# Shard time is counted in whole milliseconds, so something may seem to happen a little before its time.
ROUNDING_S = 0.005


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("failover"), log_keep_bytes=16 * MIB) as cluster:
        yield cluster.start()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.address, timeout_s=30) as client:
        yield client


@dataclass
class Scene:
    """One task of each kind, made by a leader that is about to die."""

    held: ClaimedTask
    released: ClaimedTask  # its token was given back
    acked: ClaimedTask
    failed: ClaimedTask
    dead: TaskInfo
    delayed: Accepted
    stats: dict[str, QueueStats]


def prepare(client: Client, queue: str) -> Scene:
    client.enqueue_many([NewTask(queue, str(n), b"body", request_id=f"r{n}") for n in range(5)])
    claims = client.reserve([queue], max_tasks=5, lease_ms=LONG_LEASE_MS, worker="w", claim_request_id=queue)
    held, released, acked, failed, dead = claims
    client.release(released)
    client.ack(acked, result=b"42", follow_ups=[NewTask(f"{queue}.next", "n", request_id="follow-up")])
    client.fail(failed, TaskError("E", "m"), retry_delay_ms=HOUR_MS)
    client.fail(dead, TaskError("E", "m", "trace"), dead=True)
    delayed = client.enqueue(NewTask(f"{queue}.later", "t", delay_ms=HOUR_MS))
    return Scene(held, released, acked, failed, client.get_dead_letter(dead.task_id), delayed, stats_of(client, queue))


def stats_of(client: Client, queue: str) -> dict[str, QueueStats]:
    found = [client.queue_stats(name) for name in (queue, f"{queue}.next", f"{queue}.later")]
    return {stats.queue: stats for stats in found}


def counts(stats: dict[str, QueueStats]) -> dict[str, QueueStats]:
    """Without what changes by itself, and what each leader counts anew."""
    return {
        name: replace(
            one, oldest_ready_age_ms=0, oldest_claim_age_ms=0, latencies=(), enqueued_per_second=0,
            claimed_per_second=0, succeeded_per_second=0, failed_per_second=0,
        )
        for name, one in stats.items()
    }  # fmt: skip


def check_unchanged(client: Client, queue: str, scene: Scene) -> None:
    assert counts(stats_of(client, queue)) == counts(scene.stats)
    for n in range(5):
        assert client.enqueue(NewTask(queue, str(n), b"body", request_id=f"r{n}")).duplicate
    for task_id, state in (
        (scene.held.task_id, TaskState.CLAIMED),
        (scene.released.task_id, TaskState.READY),
        (scene.acked.task_id, TaskState.SUCCEEDED),
        (scene.failed.task_id, TaskState.RETRY_PENDING),
        (scene.delayed.task_id, TaskState.DELAYED),
    ):
        assert client.get_task(task_id).state is state
    assert client.get_task(scene.acked.task_id).result == b"42"
    assert client.get_dead_letter(scene.dead.task_id) == scene.dead


def test_everything_is_as_it_was_after_the_leader_was_killed(
    cluster: Cluster, leader: str, client: Client, queue: str
) -> None:
    scene = prepare(client, queue)
    cluster.kill(leader)
    check_unchanged(client, queue, scene)
    assert cluster.wait_for_leader() != leader
    # The claim holds at the new leader, under the same token, and what was settled before stays settled.
    client.extend(scene.held, LONG_LEASE_MS)
    with pytest.raises(StaleToken):
        client.ack(scene.released)
    with pytest.raises(StaleToken):
        client.fail(scene.acked)
    client.ack(scene.acked, result=b"42")
    [other] = client.reserve([queue], max_tasks=5, lease_ms=LONG_LEASE_MS, worker="other")
    assert other.task_id == scene.released.task_id
    assert other.token > scene.held.token, "tokens grow from leader to leader"
    with pytest.raises(StaleToken):
        client.ack(scene.released)
    client.ack_many([scene.held, other])
    assert client.queue_stats(queue).succeeded_total == 3
    cluster.start_node(leader)
    cluster.wait_whole()
    cluster.check_hashes()


def test_leases_and_delays_end_on_time_at_the_next_leader(
    cluster: Cluster, leader: str, client: Client, queue: str
) -> None:
    """Neither early, nor prolonged by the change."""
    wait_s = 3.0
    client.enqueue(NewTask(queue, "claimed"))
    claimed_s = time.monotonic()
    [short] = client.reserve([queue], lease_ms=int(wait_s * 1000), worker="w")
    client.enqueue(NewTask(queue, "delayed", delay_ms=int(wait_s * 1000)))
    cluster.kill(leader)
    found: dict[str, ClaimedTask] = {}
    while len(found) < 2:
        # Another worker each time: the task whose lease has ended is a suspect, and who has it gets nothing else.
        name = f"w{len(found) + 2}"
        for claim in client.reserve([queue], max_tasks=2, wait_ms=20_000, lease_ms=LONG_LEASE_MS, worker=name):
            assert time.monotonic() - claimed_s >= wait_s - ROUNDING_S, f"{claim.type} was early"
            found[claim.type] = claim
    assert found["claimed"].task_id == short.task_id
    with pytest.raises(StaleToken):
        client.ack(short)
    client.ack_many(list(found.values()))
    cluster.start_node(leader)


def test_a_leader_killed_under_load_loses_and_repeats_nothing(cluster: Cluster, leader: str, queue: str) -> None:
    with load_on(cluster, [queue], has_map=False) as load:
        load.wait_for(20)
        cluster.kill(leader)
        load.wait_for(20)
        cluster.start_node(leader)
        load.wait_for(20)
    cluster.wait_whole()
    load.check(cluster)


def test_who_waits_goes_on_waiting_at_the_next_leader(
    cluster: Cluster, leader: str, client: Client, queue: str
) -> None:
    """A worker for a task, and a caller for the end of it."""
    other = client.enqueue(NewTask(f"{queue}.other", "t"))
    waiters = "holdfast_waiters"
    with ThreadPoolExecutor(2) as threads, Client(cluster.address, timeout_s=60) as waiting:
        reserving = threads.submit(waiting.reserve, [queue], wait_ms=30_000, worker="w", lease_ms=LONG_LEASE_MS)
        finishing = threads.submit(waiting.wait_task, other.task_id, timeout_s=60)
        wait_until(
            lambda: cluster.nodes[leader].metric(waiters) and cluster.nodes[leader].metric("holdfast_watched_tasks"),
            "both to wait",
        )
        cluster.kill(leader)
        accepted = client.enqueue(NewTask(queue, "t"))
        [claim] = reserving.result()
        assert claim.task_id == accepted.task_id
        [last] = client.reserve([f"{queue}.other"], worker="w2")
        client.ack_many([claim, last])
        assert finishing.result().state is TaskState.SUCCEEDED
    cluster.start_node(leader)


def test_a_follower_that_was_away_catches_up(cluster: Cluster, leader: str, client: Client, queue: str) -> None:
    [follower, _] = cluster.followers()
    cluster.kill(follower)
    fill(client, queue, 300, 1000)
    cluster.start_node(follower)
    wait_caught_up(cluster, follower)
    assert not cluster.nodes[follower].events("snapshot_installed"), "the log is enough"
    cluster.check_hashes()


def test_a_leader_that_is_told_to_stop_hands_over_first(cluster: Cluster, leader: str, queue: str) -> None:
    """Nobody has to wait for an election: the next one leads before this one has gone."""
    with load_on(cluster, [queue], has_map=False) as load:
        cluster.nodes[leader].ask_to_stop()
        assert cluster.nodes[leader].wait_for_exit() == 0
        new = cluster.wait_for_leader()
        load.wait_for(20)
    assert new != leader
    assert not cluster.nodes[leader].events("not_handed_over")
    handed, stopped = (cluster.nodes[leader].events(name)[-1] for name in ("leading_no_more", "stopped"))
    [taken] = [line for line in cluster.nodes[new].events("leading") if line["term"] == handed["term"]]
    assert taken["timestamp"] < stopped["timestamp"]
    cluster.start_node(leader)
    cluster.wait_whole()
    load.check(cluster)
