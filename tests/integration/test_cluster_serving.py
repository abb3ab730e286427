"""Three brokers, one of them leads: redirects, reads that are current, hand-overs, and what is shown of all that.

One cluster for all tests; each leaves it whole.
"""

import json

import pytest

from holdfast.client import Client, Conflict, DeadlineExceeded, NewTask, Rejected, ReplicaRole, Unavailable
from holdfast.proto.v1 import shards_pb2 as shards_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.cluster import Cluster
from tests.integration.cluster_tools import (
    Refusal,
    enqueue_request,
    holdfast,
    holdfast_soon,
    raw_call,
)
from tests.integration.map_load import load_on
from tests.integration.server import wait_until

SHORT_S = 1.0  # for calls that must not be answered: longer than a leader without a majority believes in itself


@pytest.mark.parametrize("method", ["Tasks/Enqueue", "Tasks/QueueStats"])
def test_a_follower_names_the_leader(cluster: Cluster, leader: str, queue: str, method: str) -> None:
    request = enqueue_request(queue) if "Enqueue" in method else pb.QueueStatsRequest(queues=[queue])
    address = cluster.nodes[leader].address
    term = cluster.replicas()[leader].term
    wanted = Refusal("UNAVAILABLE", "NOT_LEADER", {"shard": "0", "epoch": str(term), "leader": address}, 0)
    for name in cluster.followers():
        assert raw_call(cluster.nodes[name].address, method, request) == wanted


def test_a_client_that_asks_a_follower_gets_to_the_leader(cluster: Cluster, leader: str, queue: str) -> None:
    [follower, _] = cluster.followers()
    with Client(cluster.nodes[follower].address) as client:
        accepted = client.enqueue(NewTask(queue, "t"))
        [claim] = client.reserve([queue])
        assert claim.task_id == accepted.task_id
        client.ack(claim)
        assert client.queue_stats(queue).succeeded_total == 1


def test_a_shard_that_is_not_there_is_not_led_elsewhere(cluster: Cluster, leader: str) -> None:
    found = raw_call(cluster.nodes[leader].address, "Shards/FindLeader", shards_pb.FindLeaderRequest(shard=7))
    assert isinstance(found, Refusal)
    assert (found.code, found.reason) == ("NOT_FOUND", "SHARD_NOT_FOUND")


def test_leadership_handed_over_under_load_loses_and_repeats_nothing(cluster: Cluster, leader: str, queue: str) -> None:
    led = [leader]
    with load_on(cluster, [queue], has_map=False) as load:
        for _ in range(2):
            for to in (name for name in cluster.names if name != led[-1]):
                done = holdfast("shard", "transfer", "0", to, "--address", cluster.address)
                assert done["leader"] == to
                led.append(to)
                load.wait_for(20)
                break
    assert len(led) == 3
    load.check(cluster)


def test_a_hand_over_to_who_leads_already_is_no_change(cluster: Cluster, leader: str) -> None:
    term = cluster.replicas()[leader].term
    done = holdfast("shard", "transfer", "0", leader, "--address", cluster.address)
    assert (done["leader"], done["epoch"]) == (leader, term)


def test_a_hand_over_to_who_cannot_lead_is_refused_and_costs_nothing(cluster: Cluster, leader: str, queue: str) -> None:
    address = cluster.nodes[leader].address
    term = cluster.replicas()[leader].term
    unknown = raw_call(address, "Shards/TransferLeadership", shards_pb.TransferLeadershipRequest(to="n9"))
    assert isinstance(unknown, Refusal)
    assert unknown.metadata["why"] == "NOT_A_VOTER"
    with Client(address, timeout_s=30) as client:
        with pytest.raises(Conflict, match="n9 is none of n1, n2, n3"):
            client.transfer(0, "n9")
        gone = cluster.followers()[0]
        cluster.kill(gone)
        with pytest.raises(Conflict, match=f"Expected {gone} to "):
            client.transfer(0, gone)  # which may have been heard a moment ago
        with pytest.raises(Conflict, match=f"Expected {gone} to be able to lead shard 0, but it does not answer"):
            client.transfer(0, gone)
        client.enqueue(NewTask(queue, "t"))
    cluster.start_node(gone)
    # Unless there was an election, because the machine was busy: that begins another term.
    if max(leadership for _, leadership, _ in cluster.leaderships()) == term:
        stopped = [line for line in cluster.nodes[leader].events("leading_no_more") if line["term"] == term]
        assert stopped == [], "nothing was stopped for it"


def test_every_replica_is_shown(cluster: Cluster, leader: str, queue: str) -> None:
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t"))
    shown = holdfast_soon("shard", "ls", "--address", cluster.nodes[leader].address)
    replicas = {node["node"]: node["replicas"] for node in shown["nodes"]}
    assert set(replicas) == set(cluster.names)
    roles = {name: of_node[0]["role"] for name, of_node in replicas.items()}
    leader = next(name for name, role in roles.items() if role == "LEADER")
    assert roles == {name: "LEADER" if name == leader else "FOLLOWER" for name in cluster.names}
    assert {of_node[0]["leader"] for of_node in replicas.values()} == {leader}
    assert all(of_node[0]["log_bytes"] > 0 and of_node[0]["commit_index"] > 0 for of_node in replicas.values())
    compared = holdfast("shard", "hash", "--address", cluster.address)
    assert len(compared["shards"][0]["replicas"]) == 3


def test_leader_and_followers_are_ready_and_only_the_leader_counts_queues(
    cluster: Cluster, leader: str, queue: str
) -> None:
    """Otherwise a sum over all nodes would count every task three times."""
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t"))
    depth = f'holdfast_queue_tasks{{queue="{queue}",state="ready"}}'
    for name, node in cluster.nodes.items():
        assert json.loads(node.get("/readyz")[1]) == {"ready": True, "reason": "serving"}
        assert node.metric(depth) == (1 if name == leader else 0)
        assert node.metric("holdfast_log_bytes") > 0
    wait_until(
        lambda: len({node.metric("holdfast_applied_index") for node in cluster.nodes.values()}) == 1,
        "all nodes to show that they have applied the same",
    )


def test_a_leader_that_is_cut_off_answers_no_reads(cluster: Cluster, leader: str, queue: str) -> None:
    """Somebody else may lead by now, and have changed what it would answer."""
    followers = cluster.followers()
    address = cluster.nodes[leader].address
    with Client(address) as client:
        accepted = client.enqueue(NewTask(queue, "t"))
    for name in followers:
        cluster.nodes[name].pause()
    try:
        with Client(address, retry=False) as client:
            for _ in range(2):  # the first while it still believes that it leads, the second afterwards
                with pytest.raises((Unavailable, DeadlineExceeded)):
                    client.get_task(accepted.task_id, timeout_s=SHORT_S)
        lacks = "serving, but there is a shard of which no leader is known"
        wait_until(lambda: lacks in cluster.nodes[leader].get("/readyz")[1], "it to say that it is cut off")
        assert cluster.nodes[leader].get("/readyz")[0] == 200, "whether it is ready must not depend on other nodes"
    finally:
        for name in followers:
            cluster.nodes[name].resume()
    with Client(cluster.address) as client:
        assert client.get_task(accepted.task_id).task_id == accepted.task_id


def refusal_of(client: Client, task: NewTask) -> str:
    """Why the task is not accepted; empty if there is no answer."""
    with pytest.raises((Rejected, DeadlineExceeded)) as refused:
        client.enqueue(task, timeout_s=2 * SHORT_S)
    return refused.value.reason if isinstance(refused.value, Rejected) else ""


def test_without_a_majority_nothing_is_acknowledged(cluster: Cluster, leader: str, queue: str) -> None:
    with Client(cluster.address) as client:
        client.enqueue(NewTask(queue, "t", request_id="before"))
    followers = cluster.followers()
    cluster.kill(*followers)
    with Client(cluster.nodes[leader].address, retry=False) as client:
        refusals = []
        for number in range(3):
            refusals.append(refusal_of(client, NewTask(queue, "t", request_id=f"r{number}")))
        wait_until(
            lambda: refusal_of(client, NewTask(queue, "t", request_id="r2")) == "NOT_LEADER",
            "it to know that it does not lead",
        )
    assert set(refusals) <= {"OUTCOME_UNKNOWN", "NOT_LEADER", ""}
    cluster.start_node(followers[0])
    with Client(cluster.address) as client:
        # The first may have been in the log already: its repeat is the same task in any case.
        for request_id in ("before", "r0", "r1", "r2"):
            client.enqueue(NewTask(queue, "t", request_id=request_id))
        assert client.queue_stats(queue).enqueued_total == 4
    cluster.start_node(followers[1])
    cluster.wait_whole()
    assert {one.role for one in cluster.replicas().values()} == {ReplicaRole.LEADER, ReplicaRole.FOLLOWER}
    cluster.check_hashes()
