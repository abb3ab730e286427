"""TLS between brokers from a Secret, as components/peer-tls has it: renewed while the brokers run."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.certificates import Authority
from tests.integration.statefulset.controllers import SimulatedCluster
from tests.integration.statefulset.stage import (
    BROKER,
    started,
    unharmed,
    until_healthy,
    whole_clusters,
)
from tools.manifests.objects import Manifests, load
from tools.manifests.rendering import DEPLOY, has_kubectl

pytestmark = [*whole_clusters, pytest.mark.skipif(not has_kubectl(), reason="kubectl is not on PATH")]

SECRET = "holdfast-peer-tls"


def dev_with_tls(directory: Path) -> Manifests:
    """An overlay of one's own: that for development, and the component."""
    directory.mkdir()
    (directory / "k8s").symlink_to(DEPLOY / "k8s")
    own = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [k8s/overlays/dev]
components: [k8s/components/peer-tls]
"""
    (directory / "kustomization.yaml").write_text(own)
    command = ["kubectl", "kustomize", str(directory)]
    return load(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def files(authority: Authority, name: str, *trusted: Authority) -> dict[str, bytes]:
    names = ",".join(f"DNS:{BROKER}-{ordinal}" for ordinal in range(3))
    made = authority.issue(name, subject="brokers", names=names)
    return {
        "tls.crt": made.certificate.read_bytes(),
        "tls.key": made.key.read_bytes(),
        "ca.crt": b"".join(item.certificate.read_bytes() for item in trusted),
    }


def renew(cluster: SimulatedCluster, given: dict[str, bytes], times: int) -> None:
    """Until every broker has read what it was given, for the so-manieth time."""
    cluster.volumes.change_secret(SECRET, given)
    pods = cluster.pods_of(BROKER)
    cluster.wait(lambda: all(pod.log.count("certificates_reloaded") >= times for pod in pods), "it to be read again")


def test_the_authority_changes_without_a_restart(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    secrets = {SECRET: files(old, "first", old)}
    with started(dev_with_tls(tmp_path / "overlay"), tmp_path, secrets=secrets) as cluster:
        renew(cluster, files(old, "second", old, new), times=1)
        renew(cluster, files(new, "third", old, new), times=2)
        renew(cluster, files(new, "fourth", new), times=3)
        # A broker that comes now knows the new authority only: the others have to show what they read while they ran.
        with unharmed(cluster, tmp_path):
            cluster.replace(cluster.pods[f"{BROKER}-2"])
            cluster.wait_ready(BROKER)
            until_healthy(cluster)
        assert not any(pod.restarts for pod in cluster.pods_of(BROKER))
