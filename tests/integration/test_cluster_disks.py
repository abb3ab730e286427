"""Disks that are lost or lie: the node comes back as somebody else, and nobody is told what is not so.

One cluster for all tests; each leaves it whole.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.client import Client, HoldfastError, NewTask, ReplicaRole, TaskState
from holdfast.routing.homes import home_shard
from tests.integration.cluster import Cluster
from tests.integration.cluster_tools import (
    Refusal,
    damage,
    enqueue_request,
    fill,
    holdfast,
    holdfast_soon,
    identity,
    membership,
    raw_call,
    wait_for_members,
)
from tests.integration.map_load import load_on
from tests.integration.server import wait_until

SHARDS = 2
TASKS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("disks"), shards=SHARDS) as cluster:
        cluster.start()
        cluster.wait_whole()
        with Client(cluster.address) as client:
            fill(client, "many", TASKS, 1000)
        yield cluster


def check_nothing_is_missing(cluster: Cluster) -> None:
    with Client(cluster.address) as client:
        assert client.queue_stats("many").ready == TASKS
    cluster.check_hashes()


def lose_disk_and_come_back(cluster: Cluster, name: str) -> None:
    former = identity(cluster, name)
    version = membership(cluster).version
    cluster.kill(name)
    cluster.lose_disk(name)
    cluster.start_node(name)
    assert identity(cluster, name) != former
    wait_for_members(cluster, SHARDS)
    now = membership(cluster)
    assert former not in (*now.voters, *now.learners)
    assert now.version == version + 3, "added, the former one removed, and promoted: one change each"


def test_a_follower_without_its_disk_is_somebody_else(cluster: Cluster, leader: str, queue: str) -> None:
    follower = cluster.followers()[0]
    with load_on(cluster, [queue], has_map=False) as load:
        lose_disk_and_come_back(cluster, follower)
        load.wait_for(20)
    said = [line for node in cluster.nodes.values() for line in node.events("member_change")]
    changes = {line["version"]: line for line in said if line["shard"] == 0}
    last = [changes[version] for version in sorted(changes)[-3:]]
    assert [line["step"] for line in last] == ["add", "remove", "promote"]
    assert {line["replica"].split("/")[0] for line in last} == {follower}
    load.check(cluster)
    check_nothing_is_missing(cluster)
    shown = holdfast_soon("shard", "ls", "--address", cluster.address)
    voters = {tuple(node["replicas"][0]["membership"]["voters"]) for node in shown["nodes"]}
    assert voters == {tuple(sorted(identity(cluster, name) for name in cluster.names))}


def test_a_leader_without_its_disk_is_somebody_else(cluster: Cluster, leader: str) -> None:
    lose_disk_and_come_back(cluster, leader)
    assert cluster.wait_for_leader() != leader
    check_nothing_is_missing(cluster)


@pytest.mark.usefixtures("leader")
def test_a_node_without_its_disk_sends_callers_elsewhere(cluster: Cluster, queue: str) -> None:
    """It knows nothing yet. With the others away it stays like that: it has founded the cluster, and must not again."""
    founder, *others = cluster.names
    cluster.kill(*cluster.names)
    cluster.lose_disk(founder)
    cluster.start_node(founder)
    refusal = raw_call(cluster.nodes[founder].address, "Tasks/Enqueue", enqueue_request(queue))
    assert refusal == Refusal("UNAVAILABLE", "NOT_LEADER", {"shard": "0", "epoch": "0"}, 100)
    status, body = cluster.nodes[founder].get("/readyz")
    assert (status, "serving, but waiting for" in body) == (200, True), body
    for name in others:
        cluster.nodes[name].launch()
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t"), timeout_s=30)
    for name in others:
        cluster.nodes[name].wait_serving()
    assert not cluster.nodes[founder].events("founded")
    wait_for_members(cluster, SHARDS)
    check_nothing_is_missing(cluster)


@pytest.mark.usefixtures("leader")
def test_a_majority_without_its_disks_is_said_everywhere(cluster: Cluster) -> None:
    """It cannot be healed by waiting, so nobody must think that it can. What was moved aside can be put back."""
    founder, other, last = cluster.names
    wait_for_members(cluster, SHARDS)
    cluster.kill(*cluster.names)
    for name in (founder, other):
        cluster.nodes[name].data_dir.rename(cluster.directory / name / "aside")
    cluster.start()
    for name in (founder, other):
        node = cluster.nodes[name]
        wait_until(lambda node=node: node.events("waiting_to_join"), f"{name} to say that it waits")  # type: ignore[misc]
        assert node.events("waiting_to_join")[0]["with_data"] == [last]
    said = wait_until(lambda: cluster.nodes[last].events("no_leader"), f"{last} to say that nobody leads")[0]
    assert said["shard"] in range(SHARDS)
    assert said["seconds"] >= 10
    assert said["connected"] == [founder, other]
    assert {voter.partition("/")[0] for voter in said["voters_missing"]} == {founder, other}
    assert len(said["voters"]) == 3
    shown = holdfast("shard", "ls", "--address", cluster.address, exit_code=1)
    roles = {node["node"]: {(one["role"], one["leader"]) for one in node["replicas"]} for node in shown["nodes"]}
    assert roles[founder] == roles[other] == {("BLANK", None)}
    assert roles[last] <= {("FOLLOWER", None), ("CANDIDATE", None)}
    cluster.kill(founder, other)
    for name in (founder, other):
        cluster.lose_disk(name)
        (cluster.directory / name / "aside").rename(cluster.nodes[name].data_dir)
    cluster.start()
    cluster.wait_whole()
    check_nothing_is_missing(cluster)


def launch_damaged(cluster: Cluster, name: str, damaged: Path) -> None:
    """It refuses to start; or it finds the damage later, as the leader, and refuses to go on. It names the file."""
    node = cluster.nodes[name]
    node.launch()
    wait_until(lambda: not node.is_up or node.events("serving"), f"{name} to serve or to end")
    if node.is_up:
        with Client(cluster.address, timeout_s=30) as client:
            with suppress(HoldfastError):  # it may end before that, or by that
                client.transfer(0, name, timeout_s=10)
            # Whoever reads what is damaged gets it from another: nobody is told that it is not there.
            for task_id in task_ids(client):
                assert client.get_task(task_id).state is TaskState.READY
            client.hash_shard(0)  # reads all of every state
    assert node.wait_for_exit() == 1
    assert damaged.name in node.log_text
    assert "Start this node with --rebuild" in node.log_text
    assert "backup" not in node.log_text, "an older copy has forgotten what was acknowledged"


def task_ids(client: Client) -> list[str]:
    claims = client.reserve(["many"], max_tasks=TASKS, worker="w")
    assert len(claims) == TASKS
    client.release_many(claims)
    return [claim.task_id for claim in claims]


@pytest.mark.parametrize("pattern", ["log/*.log", "state/**/*.sst"], ids=["log", "state"])
def test_a_damaged_node_says_so_and_is_rebuilt(cluster: Cluster, leader: str, pattern: str) -> None:
    follower = cluster.followers()[0]
    node, former = cluster.nodes[follower], identity(cluster, follower)
    wait_until(lambda: list(node.data_dir.glob("state/**/*.sst")), "the state to be on disk")
    cluster.kill(follower)
    damaged = damage(cluster, follower, pattern)
    launch_damaged(cluster, follower, damaged)
    cluster.start_node(follower, rebuild=True)
    assert identity(cluster, follower) != former
    set_aside = [path.read_text().strip() for path in node.data_dir.parent.glob("data.damaged-*/NODE_ID")]
    assert former.split("/")[1] in set_aside, "the old data are kept"
    wait_for_members(cluster, SHARDS)
    replicas = wait_until(
        lambda: {name: replica for name, replica in cluster.replicas().items() if name == follower}, "it"
    )
    assert replicas[follower].role in (ReplicaRole.FOLLOWER, ReplicaRole.LEADER), "it votes"
    check_nothing_is_missing(cluster)


def flip_where(directory: Path, marker: bytes) -> Path:
    """Changes one bit just behind these bytes, in the one file of a log that has them; returns the file."""
    [(path, offset)] = [
        (path, offset) for path in directory.glob("*.log") if (offset := path.read_bytes().find(marker)) >= 0
    ]
    with path.open("r+b") as file:
        file.seek(offset + len(marker))
        [byte] = file.read(1)
        file.seek(offset + len(marker))
        file.write(bytes([byte ^ 1]))
    return path


@pytest.mark.usefixtures("leader")
def test_a_log_that_is_damaged_while_its_node_runs_is_told_to_nobody(cluster: Cluster) -> None:
    """A follower needs an entry that its leader has only on disk, and the disk has changed it."""
    queue = next(name for number in range(100) if home_shard(name := f"flipped-{number}", SHARDS) == 0)
    payload = b"FLIPPED-ENTRY" + bytes(1000)
    lagging, other, leader = *cluster.followers(), cluster.wait_for_leader()
    cluster.kill(lagging)
    with Client(cluster.address, timeout_s=30) as client:
        task_id = client.enqueue(NewTask(queue, "t", payload)).task_id
        client.enqueue(NewTask(queue, "t"))  # the last entry is read at the start
    for name in (other, leader):  # in order, so that nothing of it is in memory after the next start
        cluster.nodes[name].ask_to_stop()
    assert [cluster.nodes[name].wait_for_exit() for name in (other, leader)] == [0, 0]
    cluster.start_node(leader)
    damaged = flip_where(cluster.nodes[leader].data_dir / "log", b"FLIPPED-ENTRY")
    cluster.start_node(lagging)  # of these two only the one that has everything can lead
    node = cluster.nodes[leader]
    assert node.wait_for_exit() == 1
    [stopped] = node.events("stopped_by_failure")
    assert f"{damaged.name} is damaged at byte" in stopped["error"]
    assert "is not as it was written" in stopped["error"]
    cluster.start_node(other)
    with Client(cluster.address, timeout_s=30) as client:  # the others go on
        client.enqueue(NewTask(queue, "t"))
    cluster.start_node(leader, rebuild=True)
    wait_for_members(cluster, SHARDS)
    check_nothing_is_missing(cluster)
    with Client(cluster.address, timeout_s=30) as client:
        claims = client.reserve([queue], max_tasks=10, worker="w")
    assert {claim.task_id: claim.payload for claim in claims}[task_id] == payload
    assert len(claims) == 3
