"""overlays/dev with real processes: start, rolling update, scaling, lost machines, evictions; under load.

With `make test-long` only: each test is a cluster of etcd, brokers, routers and workers.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.statefulset.controllers import SimulatedCluster
from tests.integration.statefulset.load import under_load
from tests.long import long_only
from tools.manifests.objects import Manifests, load
from tools.manifests.rendering import RENDERED

pytestmark = [long_only, pytest.mark.timeout(600)]

BROKER, ROUTER, ETCD, INIT = "holdfast-broker", "holdfast-router", "holdfast-etcd", "holdfast-cluster-init"
SHARDS = 8  # of overlays/dev
GAP_S_MAX = 2.0


def has_handover() -> bool:
    command = [str(Path(sys.executable).parent / "holdfast"), "node", "handover", "--help"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def dev() -> Manifests:
    return load((RENDERED / "dev.yaml").read_text())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    """Everything is created at the same moment, as `kubectl apply` does; but nobody rebalances: tests do that."""
    with SimulatedCluster(dev(), tmp_path, overrides={BROKER: {"HOLDFAST_FREE_BYTES_MIN": "0"}}) as running:
        running.apply(ETCD, BROKER, ROUTER, INIT)
        running.wait_done(INIT)
        running.wait_ready(ETCD, BROKER, ROUTER)
        until_healthy(running)
        yield running


def address(cluster: SimulatedCluster) -> str:
    return f"{cluster.network.address_of(ROUTER)}:7400"


def holdfast(cluster: SimulatedCluster, *words: str, codes: Sequence[int] = (0,)) -> dict[str, object]:
    """As `kubectl exec deploy/holdfast-router -- holdfast …`."""
    command = [str(Path(sys.executable).parent / "holdfast"), *words, "--json", "--address", address(cluster)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in codes, done.stdout + done.stderr
    return dict(json.loads(done.stdout)) if done.stdout.strip() else {}


def until_healthy(cluster: SimulatedCluster) -> None:
    cluster.wait(lambda: holdfast(cluster, "cluster", "status", codes=range(20)).get("healthy"), "a healthy cluster")


def check_no_event(cluster: SimulatedCluster) -> None:
    assert cluster.all_events() == []


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
    check_no_event(cluster)
