"""Machines are lost, all brokers at once or one with its volume; brokers come and go for good."""

from pathlib import Path

from tests.integration.statefulset.controllers import SimulatedCluster
from tests.integration.statefulset.load import under_load
from tests.integration.statefulset.stage import (
    BROKER,
    REBALANCER,
    SHARDS,
    address,
    cluster,
    holdfast,
    nodes,
    unharmed,
    until_healthy,
    whole_clusters,
)

__all__ = ["cluster"]

pytestmark = whole_clusters


def test_all_pods_start_at_once_and_restarting_all_of_them_is_no_loss(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    with under_load(address(cluster), SHARDS, tmp_path) as running:
        cluster.wait(lambda: len(running.accepted) > 50, "some tasks")
    running.check(30)
    for pod in cluster.pods_of(BROKER):
        pod.lose()
    for pod in list(cluster.pods_of(BROKER)):
        cluster.restore(pod.name)
    cluster.wait_ready(BROKER)
    until_healthy(cluster)
    running.check(30)
    assert cluster.all_events() == []


def test_a_lost_machine_is_replaced_with_and_without_its_volume(cluster: SimulatedCluster, tmp_path: Path) -> None:
    with unharmed(cluster, tmp_path):
        cluster.lose_machine(f"{BROKER}-1")
        cluster.wait_ready(BROKER)
        until_healthy(cluster)
        cluster.lose_machine(f"{BROKER}-0", with_volume=True)
        cluster.wait_ready(BROKER)
        until_healthy(cluster)


def test_three_brokers_become_five_and_three_again(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """Up: the rebalancer brings the new ones their share. Down, as docs/kubernetes.md says: drain, shrink, remove."""
    cluster.apply(REBALANCER)
    cluster.wait_ready(REBALANCER)
    with unharmed(cluster, tmp_path):
        cluster.scale(BROKER, 5)
        cluster.wait_ready(BROKER)
        cluster.wait(lambda: len(nodes(cluster)) == 5, "five nodes")
        cluster.wait(lambda: all(node["replicas"] for node in nodes(cluster)), "the new ones to have something", 240)
        for name in (f"{BROKER}-4", f"{BROKER}-3"):
            holdfast(cluster, "node", "drain", name, "--yes")
        assert not any(node["replicas"] for node in nodes(cluster)[3:]), "both are empty"
        cluster.scale(BROKER, 3)
        for name in (f"{BROKER}-4", f"{BROKER}-3"):
            holdfast(cluster, "node", "remove", name)
            cluster.volumes.delete_claim(f"data-{name}")
        until_healthy(cluster)
        assert {node["name"] for node in nodes(cluster)} == {f"{BROKER}-{index}" for index in range(3)}


def test_a_set_that_somebody_just_shrinks_loses_nothing_and_is_whole_when_it_grows_back(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Nobody drained. Of two brokers that share a shard one goes, and the other one only when `preStop` gives up."""
    cluster.scale(BROKER, 5)
    cluster.wait(lambda: len(nodes(cluster)) == 5, "five nodes")
    for stays, leaves in ((0, 3), (1, 4)):
        holdfast(cluster, "shard", "move", "0", "--from", f"{BROKER}-{stays}", "--to", f"{BROKER}-{leaves}")
    with under_load(address(cluster), SHARDS, tmp_path) as running:
        cluster.scale(BROKER, 3)
        [refused] = cluster.all_events()
        assert refused.startswith("FailedPreStopHook")
        assert "shard 0 would lose the majority" in refused
        cluster.scale(BROKER, 5)
        cluster.wait_ready(BROKER)
        until_healthy(cluster)
        running.wait_more(2 * SHARDS)
    running.check(30)
