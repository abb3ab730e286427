"""What people get wrong is named, where they look for it: in events of the pod or in its log."""

import shutil
from pathlib import Path

from tests.integration.statefulset.controllers import SimulatedCluster
from tests.integration.statefulset.stage import (
    BROKER,
    ETCD,
    INIT,
    ROOM,
    cluster,
    dev,
    dev_with_broker,
    started,
    until_healthy,
    whole_clusters,
)
from tools.manifests.objects import Manifests

__all__ = ["cluster"]

pytestmark = whole_clusters


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    without = Manifests([dict(manifest.body) for manifest in dev().all if manifest.kind != "Secret"])
    with SimulatedCluster(without, tmp_path) as cluster:
        cluster.apply(BROKER)
        cluster.wait(lambda: len(cluster.all_events()) == 3, "three events")
        assert all(
            'secret "holdfast-cluster-secret-' in event and "not found" in event for event in cluster.all_events()
        )
        assert not any(pod.is_ready for pod in cluster.pods.values())


def test_a_broken_probe_is_named(tmp_path: Path) -> None:
    # Sooner than the manifest has it.
    broken = {"httpGet": {"path": "/healthz", "port": "ops"}, "periodSeconds": 1}
    manifests = dev_with_broker(lambda container: container["livenessProbe"].update(broken))
    with SimulatedCluster(manifests, tmp_path, overrides=ROOM) as cluster:
        cluster.apply(ETCD, BROKER)
        cluster.wait(lambda: cluster.pods[f"{BROKER}-0"].restarts, "a restart")
        unhealthy = [event for event in cluster.all_events() if event.startswith("Unhealthy")]
        assert f"Unhealthy: liveness probe of {BROKER}-0 failed: HTTP probe failed with statuscode: 404" in unhealthy


def test_a_broker_that_hangs_is_ended_within_the_grace_period_of_its_probe(tmp_path: Path) -> None:
    """preStop asks a broker that cannot answer; that must not take as long as a handover may."""
    # Sooner than the manifest has them.
    sooner = {"periodSeconds": 1, "timeoutSeconds": 1, "terminationGracePeriodSeconds": 8}
    manifests = dev_with_broker(lambda container: container["livenessProbe"].update(sooner))
    with started(manifests, tmp_path) as cluster:
        pod = cluster.pods[f"{BROKER}-1"]
        pod.hang()
        cluster.wait(lambda: pod.restarts, "a restart", seconds=60)
        assert any(event.startswith("Unhealthy: liveness") for event in pod.events)
        assert f"Killed: {BROKER}-1 did not stop in 8 s" in pod.events
        until_healthy(cluster)


def test_a_volume_of_another_cluster_is_named(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """Somebody bound the claim of a broker to a volume that is left from an earlier cluster."""
    (other_home := tmp_path / "other").mkdir()
    with SimulatedCluster(dev(), other_home, overrides=ROOM) as other:
        other.apply(ETCD, BROKER, INIT)
        other.wait_done(INIT)
        for name in list(cluster.pods):
            if name == f"{BROKER}-2":
                cluster.pods[name].lose()
        other.pods[f"{BROKER}-2"].delete()
        other.pods[f"{BROKER}-2"].wait_gone()
        cluster.volumes.delete_claim(f"data-{BROKER}-2")
        shutil.copytree(
            other.volumes.claim(f"data-{BROKER}-2"), cluster.volumes.claim(f"data-{BROKER}-2"), dirs_exist_ok=True
        )
    pod = cluster.restore(f"{BROKER}-2")
    cluster.wait(lambda: pod.restarts, "it to refuse")
    assert f"to which the data of {BROKER}-2 belongs, but the one in etcd is" in pod.log
