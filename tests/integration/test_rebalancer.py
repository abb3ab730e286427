"""`holdfast rebalance --watch` with real brokers under load: nodes come, go for good and return, and nobody types."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client
from tests.integration.cluster_tools import holdfast
from tests.integration.map_cluster import NAME, MapCluster, map_cluster, until
from tests.integration.map_load import load_on, queues_of_all_shards
from tests.integration.server import DEADLINE_S, ServerProcess, wait_until

SHARDS = 4


class RebalancerProcess(ServerProcess):
    """One of those that watch."""

    def __init__(self, directory: Path, endpoints: str) -> None:
        directory.mkdir()
        super().__init__(directory, gone_after_seconds=3, settle_seconds=0.5, poll_seconds=0.1)
        self._endpoints = endpoints

    def launch(self) -> None:
        self._launch("rebalance", "--watch", etcd_endpoints=self._endpoints, cluster_name=NAME, ops_port=0)

    def wait_serving(self) -> None:
        self.ops_port = wait_until(lambda: self.events("watching"), "the rebalancer to run")[-1]["ops_port"]

    @property
    def is_active(self) -> bool:
        return self.metric("holdfast_rebalancer_active") == 1


cluster = map_cluster(size=4, shards=SHARDS)


@pytest.fixture(scope="module")
def watching(cluster: MapCluster) -> Iterator[list[RebalancerProcess]]:
    both = [RebalancerProcess(cluster.directory / name, cluster.etcd_endpoints) for name in ("w1", "w2")]
    for item in both:
        item.launch()
    for item in both:
        item.wait_serving()
    yield both
    for item in both:
        item.close()


def replicas(cluster: MapCluster) -> Counter[str]:
    return Counter(name for shard in cluster.info().shards for name in shard.replicas)


def test_what_is_gone_for_good_is_made_anew_and_gets_its_share_when_it_returns(
    cluster: MapCluster, watching: list[RebalancerProcess]
) -> None:
    until(lambda: any(item.is_active for item in watching), "one of them to be active")
    active, other = sorted(watching, key=lambda item: not item.is_active)
    assert json.loads(other.get("/readyz")[1])["reason"].startswith("standing by")
    with load_on(cluster, queues_of_all_shards("anew", SHARDS)) as load:
        load.wait_for(10)
        cluster.nodes["n4"].kill()
        active.kill()  # nobody says goodbye: the other one takes over when the lease has ended
        until(lambda: replicas(cluster)["n4"] == 0, "its replicas to be made anew elsewhere")
        until(lambda: cluster.info().plan is None, "the plan to be done")
        assert other.is_active
        assert cluster.info().rebalancing.given_up == ("n4",)
        assert replicas(cluster) == {"n1": 4, "n2": 4, "n3": 4}
        load.wait_for(10)
        cluster.nodes["n4"].start()
        until(lambda: replicas(cluster)["n4"] == 3, "it to have its share again")
        cluster.wait_settled()
        until(lambda: cluster.info().plan is None, "the plan to be done")
        load.wait_for(10)
    load.check(cluster)
    assert cluster.info().rebalancing.given_up == ()
    active.start()


def test_it_is_paused_for_all_of_them(cluster: MapCluster, watching: list[RebalancerProcess]) -> None:
    paused = holdfast("rebalance", "--pause", "--why", "a new rack", "--address", cluster.address)
    assert (paused["is_paused"], paused["why"]) == (True, "a new rack")
    status = holdfast("cluster", "status", "--address", cluster.address)
    assert (status["rebalancing"]["is_paused"], status["rebalancing"]["why"]) == (True, "a new rack")
    cluster.add_node()
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.drain_node("n1")
        until(lambda: any('"state": "paused"' in item.log_text for item in watching), "it to be heard of")
        assert replicas(cluster)["n1"] > 0
        assert cluster.info().plan is None
        assert not holdfast("rebalance", "--resume", "--address", cluster.address)["is_paused"]
        until(lambda: replicas(cluster)["n1"] == 0, "the node that drains to be emptied")
        until(lambda: replicas(cluster)["n5"] > 0, "the new node to have its share")
        cluster.wait_settled()
        client.drain_node("n1", drain=False)


def test_an_operator_who_drains_a_node_waits_for_its_plan_and_is_not_refused(
    cluster: MapCluster, watching: list[RebalancerProcess]
) -> None:
    until(lambda: replicas(cluster)["n1"] > 0 and cluster.info().plan is None, "the cluster to be even again")
    new = cluster.nodes[cluster.add_node()]
    until(lambda: cluster.info().plan is not None, "the rebalancer to bring it its share")
    new.pause()  # so that the plan is under way until the operator has met it
    command = [sys.executable, "-m", "holdfast.cli", "node", "drain", "n2", "--yes", "--address", cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as drain:
        assert drain.stderr is not None
        while "is under way: this waits for its end" not in drain.stderr.readline():
            assert drain.poll() is None, "it ended without having met the plan"
        new.resume()
        _, notes = drain.communicate(timeout=DEADLINE_S)
    assert drain.returncode == 0, notes
    assert replicas(cluster)["n2"] == 0
    assert replicas(cluster)[new.name] > 0, "the plan was carried out, not given up"
    assert not any(f'"kind": "cancel", "node": "{new.name}"' in item.log_text for item in watching)
