"""How a cluster begins: three empty nodes in any order and none missing, over TLS, or one node that gets company."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client, NewTask, ReplicaRole
from holdfast.proto.v1 import shards_pb2 as shards_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.certificates import Authority
from tests.integration.cluster import HOST, Cluster
from tests.integration.cluster_tools import (
    Refusal,
    enqueue_request,
    fill,
    holdfast,
    identity,
    membership,
    raw_call,
    wait_for_members,
)
from tests.integration.server import wait_until

LEASE_MS = 600_000


@pytest.fixture
def shards() -> int:
    return 1


@pytest.fixture
def cluster(tmp_path: Path, shards: int) -> Iterator[Cluster]:
    with Cluster(tmp_path, shards=shards) as cluster:
        yield cluster


def founders(cluster: Cluster) -> list[str]:
    """Of those that run."""
    return [name for name, node in cluster.nodes.items() if node.is_up and node.events("founded")]


def wait_connected(cluster: Cluster, *names: str) -> None:
    """Each of these has heard of each other."""
    for name in names:
        wait_until(
            lambda name=name: (
                {line["node"] for line in cluster.nodes[name].events("node connected")}  # type: ignore[misc]
                >= set(names) - {name}
            ),
            f"{name} to be connected with the others",
        )


@pytest.mark.parametrize("shards", [2])
def test_nothing_begins_before_all_are_there(cluster: Cluster, queue: str) -> None:
    for name in ("n3", "n1"):
        cluster.nodes[name].launch()
    for name in ("n3", "n1"):
        cluster.nodes[name].wait_serving()
    wait_connected(cluster, "n1", "n3")
    for name in ("n1", "n3"):
        node = cluster.nodes[name]
        refusal = raw_call(node.address, "Tasks/Enqueue", enqueue_request(queue))
        assert refusal == Refusal("UNAVAILABLE", "NOT_LEADER", {"shard": "0", "epoch": "0"}, 100)
        # Ready by itself: it must not wait for the others, who would wait for it.
        assert (node.get("/livez")[0], node.get("/readyz")[0]) == (200, 200)
    check_they_say_that_they_wait(cluster)
    # Restarted, it is as empty as it was, and there have been several attempts by now.
    cluster.nodes["n3"].stop()
    cluster.start_node("n3")
    wait_connected(cluster, "n1", "n3")
    assert founders(cluster) == []
    cluster.start_node("n2")
    cluster.wait_whole()
    assert founders(cluster) == ["n1"]
    assert membership(cluster).voters == tuple(sorted(identity(cluster, name) for name in cluster.names))
    check_each_shard_has_its_own(cluster, queue)
    for node in cluster.nodes.values():
        wait_until(lambda node=node: '"serving"' in node.get("/readyz")[1], f"{node.name} to serve")  # type: ignore[misc]
    # Once is enough: what has been founded is found again.
    cluster.kill(*cluster.names)
    for name in ("n2", "n3", "n1"):
        cluster.start_node(name)
    cluster.wait_whole()
    assert founders(cluster) == []
    with Client(cluster.address) as client:
        assert client.queue_stats(queue).ready == 1
    cluster.check_hashes()


def check_they_say_that_they_wait(cluster: Cluster) -> None:
    """n1 and n3, which miss n2."""
    shown = holdfast("shard", "ls", "--address", cluster.address, exit_code=4)
    roles = {
        node["node"]: [one["role"] for one in node["replicas"]] for node in shown["nodes"] if node["error"] is None
    }
    assert roles == {"n1": ["BLANK", "BLANK"], "n3": ["BLANK", "BLANK"]}
    for name in ("n1", "n3"):
        node = cluster.nodes[name]
        assert "waiting for n2" in json.loads(node.get("/readyz")[1])["reason"]
        [said] = wait_until(lambda node=node: node.events("waiting_to_found"), f"{name} to say it")  # type: ignore[misc]
        assert (said["with_data"], said["founder"]) == ([], "n1")
        # If the machine was slow it may have been said before the other one came.
        assert said["missing"] in (["n2"], sorted({"n1", "n2", "n3"} - {name}))
        transfer = shards_pb.TransferLeadershipRequest(shard=1, to="n1")
        refusal = raw_call(node.address, "Shards/TransferLeadership", transfer)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "NOT_LEADER", "others may have this shard"


def test_a_node_that_listens_where_nobody_looks_for_it_says_so(cluster: Cluster) -> None:
    """It may be meant so, with a proxy in between, or it is a mistake."""
    node = cluster.nodes["n2"]
    node.settings |= {"port": 0}
    node.start()
    [said] = node.events("listens_elsewhere")
    assert (said["setting"], said["listed"]) == ("port", node.address)
    assert said["port"] == node.events("serving")[-1]["port"] != node.port


def check_each_shard_has_its_own(cluster: Cluster, queue: str) -> None:
    """Tasks of one shard are not those of another, and each says who leads it."""
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t"))
    leader, [follower, _] = cluster.nodes[cluster.wait_for_leader(1)], cluster.followers(1)
    asked = pb.QueueStatsRequest(queues=[queue])
    found = raw_call(leader.address, "Tasks/QueueStats", asked, shard=1)
    assert isinstance(found, bytes)
    [outcome] = pb.QueueStatsResponse.FromString(found).outcomes
    assert outcome.rejection.reason == "QUEUE_NOT_FOUND"

    def names_leader() -> Refusal | None:
        refusal = raw_call(cluster.nodes[follower].address, "Tasks/QueueStats", asked, shard=1)
        assert isinstance(refusal, Refusal)
        return refusal if "leader" in refusal.metadata else None

    reported = wait_until(names_leader, f"{follower} to know who leads shard 1")
    assert reported is not None
    assert (reported.reason, reported.metadata["shard"], reported.metadata["leader"]) == (
        "NOT_LEADER",
        "1",
        leader.address,
    )
    refusal = raw_call(leader.address, "Tasks/QueueStats", asked, shard=2)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.reason) == ("NOT_FOUND", "SHARD_NOT_FOUND")


def test_a_node_alone_gets_company(cluster: Cluster, queue: str) -> None:
    """Its tasks and claims go on, and are on three disks in the end."""
    node, config = cluster.nodes["n1"], cluster.directory / "n1" / "n1.toml"
    listed = config.read_text()
    config.write_text(f'node_name = "n1"\nhost = "{HOST}"\nport = {node.port}\n')
    cluster.start_node("n1")
    with Client(node.address) as client:
        fill(client, queue, 200, 1000)
        [claim] = client.reserve([queue], lease_ms=LEASE_MS, worker="w")
    before = identity(cluster, "n1")
    assert node.stop() == 0
    config.write_text(listed)
    cluster.start()
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t"), timeout_s=30)
        wait_for_members(cluster)
        assert identity(cluster, "n1") == before
        assert founders(cluster) == []
        assert {one.role for one in cluster.replicas().values()} == {ReplicaRole.LEADER, ReplicaRole.FOLLOWER}
        cluster.check_hashes()
        # Any two are enough from now on.
        cluster.kill("n1")
        client.ack(claim, timeout_s=30)
        stats = client.queue_stats(queue)
        assert (stats.ready, stats.claimed, stats.succeeded_total) == (200, 0, 1)


def begin_alone(cluster: Cluster, name: str, queue: str) -> str:
    """A node that began without the others, stopped again; returns the configuration that lists them all."""
    node, config = cluster.nodes[name], cluster.directory / name / f"{name}.toml"
    listed = config.read_text()
    config.write_text(f'node_name = "{name}"\nhost = "{HOST}"\nport = {node.port}\n')
    cluster.start_node(name)
    with Client(node.address) as client:
        client.enqueue(NewTask(queue, "t"))
    assert node.stop() == 0
    return listed


def test_two_foundings_in_one_list_are_not_both_served(cluster: Cluster, queue: str) -> None:
    """Clients would find the one or the other, and half of the tasks each time."""
    for name in ("n1", "n2"):
        listed = begin_alone(cluster, name, queue)
        (cluster.directory / name / f"{name}.toml").write_text(listed)
        cluster.nodes[name].launch()
    asked = pb.QueueStatsRequest(queues=[queue])
    for name in ("n1", "n2"):
        wait_until(lambda name=name: cluster.nodes[name].events("another_group"), f"{name} to notice")  # type: ignore[misc]
        wait_until(
            lambda name=name: isinstance(  # type: ignore[misc]
                raw_call(cluster.nodes[name].address, "Tasks/QueueStats", asked), Refusal
            ),
            f"{name} to refuse",
        )
    # One of them gives up its own, and there is one founding again.
    cluster.kill("n2")
    cluster.start_node("n2", rebuild=True)
    cluster.start_node("n3")
    cluster.kill("n1")
    cluster.start_node("n1")
    with Client(cluster.address) as client:
        assert client.queue_stats(queue).enqueued_total == 1
        wait_for_members(cluster)
        cluster.check_hashes()


def test_a_node_of_a_cluster_does_not_start_without_its_list(cluster: Cluster) -> None:
    cluster.start()
    cluster.wait_whole()
    node = cluster.nodes["n2"]
    assert node.stop() == 0
    config = cluster.directory / "n2" / "n2.toml"
    config.write_text(f'node_name = "n2"\nhost = "{HOST}"\nport = {node.port}\n')
    node.launch()
    assert node.wait_for_exit() == 1
    assert "n1, n3" in node.log_text
    assert "names neither nodes nor etcd" in node.log_text


def test_nodes_that_prove_their_names(cluster: Cluster, queue: str, tmp_path: Path) -> None:
    authority, unknown = Authority(tmp_path, "authority"), Authority(tmp_path, "unknown")
    proofs = {name: authority.issue(name, subject=name, names=f"DNS:{name}") for name in cluster.names}
    proofs["n3"] = unknown.issue("n3-false", subject="n3", names="DNS:n3")
    for name, proof in proofs.items():
        cluster.nodes[name].settings |= {
            "peer_certificate": proof.certificate,
            "peer_key": proof.key,
            "peer_authority": authority.certificate,
        }
        cluster.nodes[name].launch()
    for node in cluster.nodes.values():
        node.wait_serving()
    wait_connected(cluster, "n1", "n2")
    wait_until(
        lambda: any("n3" in str(line.get("node", "")) for line in cluster.nodes["n1"].events("cannot reach a node")),
        "the false n3 to be refused",
    )
    assert not any(
        line["node"] == "n3" for name in ("n1", "n2") for line in cluster.nodes[name].events("node connected")
    )
    assert founders(cluster) == []
    cluster.kill("n3")
    right = authority.issue("n3", subject="n3", names="DNS:n3")
    cluster.nodes["n3"].settings |= {"peer_certificate": right.certificate, "peer_key": right.key}
    cluster.start_node("n3")
    cluster.wait_whole()
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t"))
    cluster.check_hashes()
