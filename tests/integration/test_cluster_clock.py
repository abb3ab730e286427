"""A node whose wall clock is off neither leads nor stands for election; the time of the shard does not follow it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client, NewTask, TaskState
from tests.integration.cluster import Cluster
from tests.integration.faults import Faults
from tests.integration.server import wait_until

OFF_S = 60.0  # more than the whole test takes, so that a lease can outlast it unless time jumps


@pytest.fixture
def cluster(tmp_path: Path, faults: Faults) -> Iterator[Cluster]:
    """The clock of n1 is in the hands of the test."""
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.nodes["n1"].env |= faults.env
        cluster.start()
        cluster.wait_whole()
        yield cluster


def problem_of(cluster: Cluster, name: str) -> str:
    """What a node says is wrong with it; nothing if it does not answer."""
    replica = cluster.replicas().get(name)
    return replica.problem if replica is not None else ""


def test_a_leader_whose_clock_jumps_leads_no_more(cluster: Cluster, faults: Faults, queue: str) -> None:
    wrong = cluster.nodes["n1"]
    with Client(cluster.address, timeout_s=30) as client:
        client.transfer(0, "n1")
        client.enqueue(NewTask(queue, "t"))
        [claim] = client.reserve([queue], lease_ms=int(OFF_S * 1000) - 1000, worker="w")
        faults.jump_wall_clock(OFF_S)
        assert wrong.wait_for_event("clock_is_off")["leads"]
        led_before = wrong.leaderships()
        next_one = wait_until(lambda: (leader := cluster.leader()) and leader != "n1" and leader, "another to lead")
        assert client.get_task(claim.task_id).state is TaskState.CLAIMED, "time did not jump with one clock"
        # One of two others is left, and needs the vote of the wrong one: still it is not the wrong one that leads.
        cluster.kill(str(next_one))
        last = wait_until(lambda: (leader := cluster.leader()) and leader != "n1" and leader, "the last one to lead")
        assert last != next_one
        client.ack(claim)
    assert wrong.leaderships() == led_before
    cluster.start_node(str(next_one))
    # With one of three silent for a while nobody can tell which of two clocks is wrong; with three it shows again.
    wait_until(lambda: "s ahead of the others'" in problem_of(cluster, "n1"), "the wrong clock to be told")
    faults.jump_wall_clock(0)
    cluster.wait_whole()  # it has no problem any more
    cluster.check_hashes()
