"""A follower that was away for longer than the log is kept gets a snapshot, whoever is killed on the way.

The cluster keeps no log for those who are away, and sends snapshots slowly enough to be met halfway.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.client import Client
from tests.integration.cluster import Cluster
from tests.integration.cluster_tools import (
    MIB,
    NOTHING_KEPT,
    fill,
    incoming_bytes,
    wait_caught_up,
)
from tests.integration.map_load import load_on
from tests.integration.server import wait_until

RATE = 2 * MIB  # bytes of a snapshot per second
ELECTION_MS = 6000
FILLED_BYTES = 5 * MIB  # more than the log may have
TASK_BYTES = 10_000
LOG_FILES_MAX = 4  # what is needed, the one that is written, a spare, and one that is about to be cut


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("snapshots")
    # Who sends a snapshot leads until it is killed, also while the machine stands still for a few seconds: after an
    # election another one leads, which may have the log that the follower lacks, and sends no snapshot at all.
    with Cluster(directory, snapshot_bytes_per_second=RATE, election_ms=ELECTION_MS, **NOTHING_KEPT) as cluster:
        yield cluster.start()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    cluster.wait_whole()
    with Client(cluster.address, timeout_s=30) as client:
        yield client


def leave_behind(cluster: Cluster, client: Client, name: str, queue: str, *, by: Sequence[str]) -> None:
    """Stops a node, and has others forget the log that it would need."""
    cluster.kill(name)
    fill(client, queue, MIB // TASK_BYTES, TASK_BYTES)

    def is_forgotten() -> bool:
        replicas = cluster.replicas()
        return all(other in replicas and replicas[other].log_bytes < MIB // 2 for other in by)

    wait_until(is_forgotten, f"{', '.join(by)} to have cut the log")


def wait_for_halfway(cluster: Cluster, name: str) -> None:
    wait_until(lambda: incoming_bytes(cluster, name) >= 256 * 1024, f"a part of a snapshot to be at {name}")
    assert not cluster.nodes[name].events("snapshot_installed"), "it is too fast for this test"


def test_the_log_does_not_grow_with_the_work(cluster: Cluster, client: Client, queue: str) -> None:
    fill(client, queue, FILLED_BYTES // TASK_BYTES, TASK_BYTES)

    def is_short() -> bool:
        replicas = cluster.replicas().values()
        return (
            all(len(list(node.data_dir.glob("log/*.log"))) <= LOG_FILES_MAX for node in cluster.nodes.values())
            and len(replicas) == len(cluster.names)
            and all(one.log_bytes < 2 * MIB for one in replicas)
        )

    wait_until(is_short, "all logs to be short again")
    cluster.check_hashes()


def test_an_idle_shard_does_not_pin_the_log_that_it_shares(tmp_path: Path) -> None:
    settings = {**NOTHING_KEPT, "log_keep_bytes": MIB}
    with Cluster(tmp_path, shards=2, **settings) as cluster, Client(cluster.start().address, timeout_s=30) as client:

        def is_flushed(shard: int) -> bool:
            ages = [one.snapshot_age_ms for one in cluster.replicas(shard).values()]
            return len(ages) == len(cluster.names) and None not in ages

        # From now on the shard without the queue has nothing to flush, and next to no log follows what it has.
        wait_until(lambda: is_flushed(0) and is_flushed(1), "the first entries of both shards to be in their states")
        fill(client, "q", FILLED_BYTES // TASK_BYTES, TASK_BYTES)

        def log_files() -> list[int]:
            return [len(list(node.data_dir.glob("log/*.log"))) for node in cluster.nodes.values()]

        wait_until(lambda: max(log_files()) <= LOG_FILES_MAX, "all logs to be short again")


def test_a_sender_that_is_killed_halfway_is_replaced(cluster: Cluster, client: Client, queue: str) -> None:
    leader, [follower, other] = cluster.wait_for_leader(), cluster.followers()
    leave_behind(cluster, client, follower, queue, by=[leader, other])
    cluster.start_node(follower)
    wait_for_halfway(cluster, follower)
    cluster.kill(leader)
    installed = cluster.nodes[follower].wait_for_event("snapshot_installed")
    assert not installed["sender"].startswith(f"{leader}/")
    wait_caught_up(cluster, follower)
    cluster.start_node(leader)
    cluster.wait_whole()
    cluster.check_hashes()
    with Client(cluster.address) as new_client:
        assert new_client.queue_stats(queue).ready == MIB // TASK_BYTES


def test_a_receiver_that_is_killed_halfway_goes_on_from_there(cluster: Cluster, client: Client, queue: str) -> None:
    """Under load: what comes after the snapshot must still be in the log when it is there."""
    # Who has sent a snapshot lately keeps it, and the log that goes on from it, for a while.
    leader = next(name for name, node in cluster.nodes.items() if not node.events("snapshot_sent"))
    client.transfer(0, leader)
    follower = next(name for name in cluster.names if name != leader)
    node = cluster.nodes[follower]
    with load_on(cluster, [f"{queue}.load"], has_map=False) as load:
        leave_behind(cluster, client, follower, queue, by=[leader])
        cluster.start_node(follower)
        wait_for_halfway(cluster, follower)
        before = node.wait_for_event("snapshot_receiving")
        cluster.kill(follower)
        cluster.start_node(follower)
        installed = node.wait_for_event("snapshot_installed")
        wait_caught_up(cluster, follower)
        load.wait_for(20)
    after = node.events("snapshot_receiving")[0]
    assert after["snapshot"] == before["snapshot"] == installed["snapshot"]
    assert after["missing_bytes"] < before["missing_bytes"], "it began anew"
    assert len(node.events("snapshot_installed")) == 1, "the log had gone on without it"
    load.check(cluster)
    assert incoming_bytes(cluster, follower) == 0
