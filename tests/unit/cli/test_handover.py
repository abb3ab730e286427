"""`holdfast node handover`: what is asked, how long it is waited for, and what is said of what stands against it."""

from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_map import cluster, node, refusal, shard
from tests.unit.client.scripted_server import ScriptedServer

WHY = "1 of 3 voters would be left, 2 are needed: n3 is gone"
HELD_BACK = pb.HandOverNodeResponse(leads=1, held_back=[pb.HeldBackShard(shard=4, why=WHY)], single=[7])
MAY_STOP = pb.HandOverNodeResponse(may_stop=True)


def test_it_asks_until_the_node_may_stop(server: ScriptedServer, cli: Cli) -> None:
    server.on("HandOverNode", HELD_BACK, HELD_BACK, MAY_STOP)
    assert cli.run("node", "handover", "n1", "--wait", "20s") == 0
    assert cli.out == "Node n1 may be stopped: every shard keeps its majority without it.\n"
    assert cli.err == "Node n1 leads 1 shard, 1 shard cannot do without it\n", "once: nothing has changed"
    assert server.requests["HandOverNode"] == 3 * [pb.HandOverNodeRequest(node="n1")]


def test_in_the_end_it_says_what_would_be_lost(server: ScriptedServer, cli: Cli) -> None:
    server.on("HandOverNode", HELD_BACK)
    assert cli.run("node", "handover", "n1", "--wait", "100ms") == 7
    assert "n1 must not be stopped yet, after 0.1 s: shard 4 would lose the majority" in cli.err
    assert WHY in cli.err
    assert cli.out == ""
    assert cli.run("node", "handover", "n1", "--wait", "100ms", "--json") == 7
    assert cli.json_out() == {
        "node": "n1", "may_stop": False, "leads": 1, "held_back": [{"shard": 4, "why": WHY}], "single": [7],
    }  # fmt: skip
    assert cli.json_err()["error"]["reason"] == "HELD_BACK"


def test_the_only_replica_is_named(server: ScriptedServer, cli: Cli) -> None:
    server.on("HandOverNode", pb.HandOverNodeResponse(may_stop=True, single=[0, 2]))
    assert cli.run("node", "handover", "n1") == 0
    assert "But it has the only replica of shards 0, 2" in cli.out


def test_what_passes_is_waited_for(server: ScriptedServer, cli: Cli) -> None:
    away = refusal("UNAVAILABLE", "ETCD_UNAVAILABLE", "etcd does not answer.", retry_after_ms=10)
    server.on("HandOverNode", away, MAY_STOP)
    assert cli.run("node", "handover", "n1", "--wait", "20s") == 0
    assert "Waiting: etcd does not answer." in cli.err
    server.instead("HandOverNode", away)
    assert cli.run("node", "handover", "n1", "--wait", "100ms") == 4, "nothing is known, so it must not be stopped"


def test_a_node_that_is_gone_or_unknown_is_not_waited_for(server: ScriptedServer, cli: Cli) -> None:
    gone = refusal("FAILED_PRECONDITION", "CHANGE_REFUSED", "n1 has nothing to hand over.", metadata={"why": "gone"})
    server.on("HandOverNode", gone, refusal("NOT_FOUND", "NODE_NOT_FOUND"))
    assert cli.run("node", "handover", "n1", "--wait", "1h") == 1
    assert cli.run("node", "handover", "n9", "--wait", "1h") == 5


def test_it_can_be_taken_back(server: ScriptedServer, cli: Cli) -> None:
    server.on("HandOverNode", pb.HandOverNodeResponse())
    assert cli.run("node", "handover", "n1", "--undo") == 0
    assert "Node n1 stays" in cli.out
    assert server.requests["HandOverNode"] == [pb.HandOverNodeRequest(node="n1", undo=True)]
    assert cli.run("node", "handover", "n1", "--undo", "--json") == 0
    assert cli.json_out() == {"node": "n1", "handover": None}


def test_lists_say_who_is_about_to_be_stopped(server: ScriptedServer, cli: Cli) -> None:
    states = [pb.HANDOVER_UNSPECIFIED, pb.HANDOVER_ASKED, pb.HANDOVER_GRANTED]
    nodes = [node(f"n{index}", handover=state) for index, state in enumerate(states, start=1)]
    server.on("DescribeCluster", cluster(shard(), nodes=nodes))
    assert cli.run("node", "ls") == 0
    assert [" ".join(line.split()[1:4]) for line in cli.out.splitlines()[2:]] == [
        "alive a 1.2.3", "alive, hands over", "alive, may stop",
    ]  # fmt: skip
    assert cli.run("node", "ls", "--json") == 0
    assert [item["handover"] for item in cli.json_out()["nodes"]] == ["", "ASKED", "GRANTED"]
