"""What the tests of this folder share: a cluster of overlays/dev, and what operators ask it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.integration.statefulset.controllers import SimulatedCluster
from tests.integration.statefulset.load import Load, under_load
from tests.integration.statefulset.network import names_are_possible
from tests.long import long_only
from tools.manifests.objects import Manifests, load
from tools.manifests.rendering import RENDERED

BROKER, ROUTER, ETCD, INIT = "holdfast-broker", "holdfast-router", "holdfast-etcd", "holdfast-cluster-init"
REBALANCER = "holdfast-rebalancer"
SHARDS = 8  # of overlays/dev
GAP_S_MAX = 2.0  # without a write, in a rolling update
BUSY_S_MAX = 10.0  # where more happens than a machine with few cores does in time: what counts is that nothing fails
# Where tests run, disks may be full; and nobody waits half a minute for the rebalancer to begin.
ROOM = {BROKER: {"HOLDFAST_FREE_BYTES_MIN": "0"}, REBALANCER: {"HOLDFAST_SETTLE_SECONDS": "2"}}

has_names = pytest.mark.skipif(not names_are_possible(), reason="needs `unshare --mount`, for an /etc/hosts of its own")
# Each test is a cluster of etcd, brokers, routers and workers.
whole_clusters = [long_only, has_names, pytest.mark.timeout(600)]


def dev() -> Manifests:
    return load((RENDERED / "dev.yaml").read_text())


@contextmanager
def started(manifests: Manifests, directory: Path, **more: Any) -> Iterator[SimulatedCluster]:
    """Everything is created at the same moment, as `kubectl apply` does; the rebalancer where a test wants it."""
    with SimulatedCluster(manifests, directory, overrides=ROOM, **more) as running:
        running.apply(ETCD, BROKER, ROUTER, INIT)
        running.wait_done(INIT)
        running.wait_ready(ETCD, BROKER, ROUTER)
        until_healthy(running)
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    with started(dev(), tmp_path) as running:
        yield running


@contextmanager
def unharmed(
    cluster: SimulatedCluster, directory: Path, gap_s_max: float = BUSY_S_MAX, workers: int = 2
) -> Iterator[Load]:
    """Under load, of which nothing is lost and nothing waits for longer; and pods have nothing to complain of."""
    with under_load(address(cluster), SHARDS, directory, workers) as running:
        yield running
    running.check(gap_s_max)
    assert cluster.all_events() == []


def dev_with_broker(change: Callable[[dict[str, Any]], object]) -> Manifests:
    """With another container of brokers."""
    bodies = deepcopy([dict(manifest.body) for manifest in dev().all])
    for body in bodies:
        if (body["kind"], body["metadata"]["name"]) == ("StatefulSet", BROKER):
            change(body["spec"]["template"]["spec"]["containers"][0])
    return Manifests(bodies)


def address(cluster: SimulatedCluster) -> str:
    """Where programs find the routers."""
    return f"{cluster.network.address_of(ROUTER)}:7400"


def holdfast(cluster: SimulatedCluster, *words: str, codes: Sequence[int] = (0,)) -> dict[str, Any]:
    """As `kubectl exec deploy/holdfast-router -- holdfast …`."""
    command = [str(Path(sys.executable).parent / "holdfast"), *words, "--json", "--address", address(cluster)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in codes, done.stdout + done.stderr
    return dict(json.loads(done.stdout)) if done.stdout.strip() else {}


def until_healthy(cluster: SimulatedCluster) -> None:
    cluster.wait(lambda: holdfast(cluster, "cluster", "status", codes=range(20)).get("healthy"), "a healthy cluster")


def nodes(cluster: SimulatedCluster) -> list[dict[str, Any]]:
    return list(holdfast(cluster, "node", "ls")["nodes"])
