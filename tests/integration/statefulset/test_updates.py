"""Pods are replaced in order: rolling updates, evictions, several deleted at once. Callers hardly notice."""

import time
from pathlib import Path

import pytest

from tests.integration.statefulset.controllers import SimulatedCluster
from tests.integration.statefulset.load import under_load
from tests.integration.statefulset.stage import (
    BROKER,
    BUSY_S_MAX,
    GAP_S_MAX,
    ROUTER,
    SHARDS,
    address,
    cluster,
    dev_with_broker,
    has_names,
    holdfast,
    started,
    unharmed,
    until_healthy,
)
from tests.long import long_only

__all__ = ["cluster"]

pytestmark = [has_names, pytest.mark.timeout(600)]


def test_a_broker_is_replaced_and_found_at_its_new_address(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """A pod that is made anew has another address behind its name, and routers have connections to the old one."""
    replaced = cluster.pods[f"{BROKER}-1"]
    with unharmed(cluster, tmp_path, workers=1) as running:
        holdfast(cluster, "shard", "transfer", "0", replaced.name)
        again = cluster.replace(replaced)
        cluster.wait_ready(BROKER)
        until_healthy(cluster)
        holdfast(cluster, "shard", "transfer", "0", again.name)
        running.wait_more(2 * SHARDS)
    assert again.address != replaced.address


@long_only
def test_a_rolling_update_is_hardly_noticed(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """Each pod goes only when its shards have a majority without it, and the next one when it is ready."""
    with unharmed(cluster, tmp_path, GAP_S_MAX):
        cluster.rolling_update(BROKER, {"HOLDFAST_LOG_LEVEL": "debug"})
        until_healthy(cluster)
    assert all('"debug"' in pod.log for pod in cluster.pods_of(BROKER))


@long_only
def test_a_partition_keeps_the_others_as_they_are(cluster: SimulatedCluster) -> None:
    before = dict(cluster.pods)
    cluster.rolling_update(BROKER, {"HOLDFAST_LOG_LEVEL": "debug"}, partition=2)
    changed = [name for name, pod in cluster.pods.items() if before[name] is not pod]
    assert changed == [f"{BROKER}-2"]
    assert cluster.all_events() == []


@long_only
def test_pods_that_are_deleted_together_go_one_after_the_other(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """Nobody asks the budget when pods are deleted: preStop alone keeps a majority of each shard."""
    with unharmed(cluster, tmp_path):
        first, second, _ = cluster.pods_of(BROKER)
        first.delete()
        second.delete()
        cluster.wait(lambda: first.is_gone or second.is_gone, "one of them to go")
        gone, waiting = (first, second) if first.is_gone else (second, first)
        assert not waiting.is_gone
        cluster.restore(gone.name)
        waiting.wait_gone()
        cluster.restore(waiting.name)
        cluster.wait_ready(BROKER)
        until_healthy(cluster)


@long_only
def test_routers_are_replaced_without_a_failed_call(cluster: SimulatedCluster, tmp_path: Path) -> None:
    with unharmed(cluster, tmp_path):
        cluster.rollout(ROUTER, {"HOLDFAST_LOG_LEVEL": "debug"})


@long_only
def test_the_budget_lets_one_broker_go_at_a_time(cluster: SimulatedCluster, tmp_path: Path) -> None:
    with unharmed(cluster, tmp_path):
        for pod in cluster.pods_of(BROKER):
            other = next(item for item in cluster.pods_of(BROKER) if item.name != pod.name)
            assert cluster.evict(pod.name)
            assert not cluster.evict(other.name), "it is another one's turn"
            cluster.restore(pod.name)
            assert not cluster.evict(other.name), "it is not ready yet"
            cluster.wait_ready(BROKER)
        until_healthy(cluster)


@long_only
def test_without_the_hook_they_would_take_a_majority_with_them(tmp_path: Path) -> None:
    """What the tests above would find if `preStop` did nothing."""
    manifests = dev_with_broker(lambda container: container.pop("lifecycle"))
    with started(manifests, tmp_path) as cluster:
        with under_load(address(cluster), SHARDS, tmp_path) as running:
            leaving = cluster.pods_of(BROKER)[:2]
            for pod in leaving:
                pod.delete()
            for pod in leaving:
                pod.wait_gone()
            time.sleep(BUSY_S_MAX)
            for pod in leaving:
                cluster.restore(pod.name)
            cluster.wait_ready(BROKER)
        with pytest.raises(AssertionError, match="a write took"):
            running.check(BUSY_S_MAX)
        running.check(60)
