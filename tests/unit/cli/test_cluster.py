"""`holdfast cluster …` and `node …` of a cluster with a map: what is asked, printed and returned."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.cli import cluster_calls
from holdfast.cli.main import main
from holdfast.cli.problems import ExitCode
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.proto.v1 import queues_pb2, tasks_pb2
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_cluster import describe, describe_all, replica, three_servers
from tests.unit.cli.scripted_map import carried_out, cluster, move, node, plan, refusal, shard
from tests.unit.client.scripted_server import Refusal, ScriptedServer


@pytest.fixture(autouse=True)
def one_queue(server: ScriptedServer) -> None:
    mail = tasks_pb2.QueueCounts(queue="mail", ready=7, dead=2)
    server.on("ListQueues", tasks_pb2.ListQueuesResponse(queues=[mail]))


# ------------------------------------------------------------------------------------------------- help and usage


@pytest.mark.parametrize("command", [["cluster"], ["node"], ["cluster", "status"], ["queue", "set"]], ids=" ".join)
def test_help_fits_a_narrow_terminal(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main([*command, "--help"]) == ExitCode.OK
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cluster", "init"], "--shards"),
        (["cluster", "init", "--shards", "0"], "--shards"),
        (["cluster", "init", "--shards", "4", "--wait", "soon"], "--wait"),
        (["cluster", "up", "--nodes", "10"], "--nodes"),
        (["node", "drain"], "Missing argument 'NAME'"),
        (["node", "drain", "n1"], "Expected --yes to move what node n1 holds; or --plan-only"),
        (["node", "drain", "n1", "--yes", "--plan-only"], "at most one of --plan-only and --yes"),
        (["shard", "move", "0", "--from", "n1"], "--to"),
        (["shard", "move", "x", "--from", "n1", "--to", "n2"], "SHARD"),
        (["queue", "set", "mail"], "Expected something to set"),
        (["queue", "set", "mail", "--retry-base", "soon"], "--retry-base: Expected a duration"),
        (["queue", "set", "mail", "--pin", "3,x"], "--pin: Expected numbers of shards"),
        (["queue", "set", "mail", "--pin", "3", "--spread", "2"], "at most one of --spread, --pin and --home"),
        (["queue", "set", "mail", "--reset", "colour"], "--reset: Expected one of max-attempts"),
        (["queue", "set", "mail", "--reset", "retry-base", "--retry-base", "1s"], "either set or reset"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err.splitlines()[0]
    assert main([*arguments, "--json"]) == ExitCode.USAGE
    assert words in json.loads(capsys.readouterr().err)["error"]["message"]


@pytest.mark.parametrize(
    ("command", "module"), [("router", "holdfast.router.main"), ("broker", "holdfast.broker.main")]
)
def test_servers_of_a_cluster_get_the_flags_that_were_given(
    command: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Path | None, dict[str, object]]] = []

    def run(config: Path | None, overrides: dict[str, object], *, as_json: bool = False) -> int:
        started.append((config, overrides))
        return 7

    fake = ModuleType(module)
    vars(fake)[f"run_{command}"] = run
    monkeypatch.setitem(sys.modules, module, fake)
    flags = ["--etcd-endpoints=h1:2379,h2:2379", "--cluster-name=shop", "--port=0"]
    expected: dict[str, object] = {"etcd_endpoints": "h1:2379,h2:2379", "cluster_name": "shop", "port": 0}
    if command == "broker":
        flags += ["--node-name=n7", "--zone=b"]
        expected |= {"node_name": "n7", "zone": "b"}
    assert main([command, *flags, "--config", "f.toml"]) == 7
    assert started == [(Path("f.toml"), expected)]


# ------------------------------------------------------------------------------------------------------------- init


NOT_MADE = pb.DescribeClusterResponse(name="local", etcd_answers=True)


def test_init_makes_a_cluster(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", NOT_MADE)
    server.on("InitCluster", pb.InitClusterResponse(cluster_id="c" * 32))
    assert cli.run("cluster", "init", "--shards", "64") == 0
    assert f"Cluster {'c' * 32} is made: 64 shards, 3 replicas of each." in cli.out
    assert server.requests["InitCluster"] == [pb.InitClusterRequest(shards=64, replication=3)]
    assert cli.run("cluster", "init", "--shards", "8", "--replication", "1", "--json") == 0
    assert cli.json_out() == {"cluster_id": "c" * 32, "shards": 8, "replication": 1, "existed": False}


def test_init_may_be_run_again(server: ScriptedServer, cli: Cli) -> None:
    """As a job that is started a second time."""
    server.on("DescribeCluster", cluster(shard()))
    server.on("InitCluster", pb.InitClusterResponse(cluster_id="c" * 32))
    assert cli.run("cluster", "init", "--shards", "64") == 0
    assert "is there already, with this shape: nothing was changed" in cli.out
    assert cli.run("cluster", "init", "--shards", "64", "--json") == 0
    assert cli.json_out()["existed"] is True


def test_init_waits_for_nodes_only_if_told(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", NOT_MADE)
    few = refusal("FAILED_PRECONDITION", "NOT_ENOUGH_NODES", "3 nodes are needed, 2 are there.")
    server.on("InitCluster", few, few, few, pb.InitClusterResponse(cluster_id="c" * 32))
    assert cli.run("cluster", "init", "--shards", "4") == 1
    assert "3 nodes are needed, 2 are there." in cli.err
    assert "--wait 60s" in cli.err
    assert cli.run("cluster", "init", "--shards", "4", "--wait", "20s") == 0
    assert len(server.requests["InitCluster"]) == 4


def test_init_never_overwrites(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard()))
    server.on("InitCluster", refusal("ALREADY_EXISTS", "CLUSTER_EXISTS", "There is a cluster already."))
    assert cli.run("cluster", "init", "--shards", "4", "--wait", "1h") == 1, "it is not waited for"
    assert "There is a cluster already." in cli.err
    assert "holdfast cluster status" in cli.err


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (refusal("FAILED_PRECONDITION", "NO_CLUSTER"), 1, "holdfast cluster init --shards"),
        (
            refusal("UNAVAILABLE", "ETCD_UNAVAILABLE", "etcd at h:1 does not answer.", retry_after_ms=100),
            4,
            "etcd runs",
        ),
        (refusal("UNIMPLEMENTED", ""), 4, "older than this command"),
    ],
)
def test_what_stands_in_the_way_is_told(
    server: ScriptedServer, cli: Cli, answer: Refusal, code: int, words: str
) -> None:
    server.on("DescribeCluster", answer)
    for command in (["node", "ls"], ["cluster", "status"], ["shard", "plan"]):
        assert cli.run(*command) == code
        assert words in cli.err
        assert cli.out == ""


# ----------------------------------------------------------------------------------------------------------- status


def test_status_is_one_screen(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(), shard(1, leader="n2")))
    assert cli.run("cluster", "status") == 0
    assert "3 of 3 nodes alive, 2 shards, 3 replicas of each" in cli.out
    rows = [line.split() for line in cli.out.splitlines()]
    assert ["n1", "alive", "a", "1.2.3", "100", "2", "1"] in rows
    assert ["1", "n2", "n1", "n2", "n3", "-", "-"] in rows
    assert "7 unfinished in 1 queue: 7 ready" in cli.out
    assert "none under way" in cli.out
    assert cli.err == ""
    assert cli.run("cluster", "status", "--json") == 0
    value = cli.json_out()
    assert value["healthy"] is True
    assert value["cluster"]["cluster_id"] == "c" * 32
    assert value["tasks"] == {
        "queues": 1, "ready": 7, "claimed": 0, "delayed": 0, "retrying": 0, "dead": 2, "unfinished": 7,
        "missing_shards": [],
    }  # fmt: skip
    assert [(item["shard"], item["leader"], item["problem"]) for item in value["shards"]] == [
        (0, "n1", None), (1, "n2", None)
    ]  # fmt: skip


def test_status_tells_what_is_wrong_with_its_exit_code(server: ScriptedServer, cli: Cli) -> None:
    nodes = [node("n1"), node("n2", is_alive=False), node("n3", is_draining=True)]
    server.on("DescribeCluster", cluster(shard(), shard(1, leader="n2"), nodes=nodes, plan=plan(move(state="DONE"))))
    assert cli.run("cluster", "status") == 1
    assert "GONE" in cli.out
    assert "alive, draining" in cli.out
    assert "p1 is under way, 1 of 1 steps done: `holdfast shard apply` carries it on" in cli.out
    assert "Node n2: gone" in cli.err
    assert "Shards 0, 1: n2 is gone." in cli.err
    assert cli.run("cluster", "status", "--json") == 1
    assert cli.json_out()["healthy"] is False
    assert cli.json_out()["shards"][1]["leader"] is None, "the map's hint is a node that is gone"
    reasons = [
        cli.json_err()["error"]["reason"],
        *(other_error["reason"] for other_error in cli.json_err()["other_errors"]),
    ]
    assert sorted(reasons) == ["NODE_GONE", "SHARD_UNHEALTHY"]


def test_status_before_the_cluster_is_made_shows_who_is_there(server: ScriptedServer, cli: Cli) -> None:
    answer = cluster()
    answer.cluster_id = ""
    server.on("DescribeCluster", answer)
    assert cli.run("cluster", "status") == 1
    assert "There is no cluster local yet: 3 nodes have registered for it" in cli.out
    assert "holdfast cluster init" in cli.err
    assert server.requests["ListQueues"] == []


def test_status_without_etcd_says_that_it_may_be_old(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(), etcd_answers=False, age_ms=12_000))
    assert cli.run("cluster", "status") == 8
    assert "3 of 3 nodes were alive" in cli.out
    assert "etcd does not answer: this is the last known map, as of 12s ago" in cli.out
    assert "the last map that it knew, as of 12s ago" in cli.err
    assert "Tasks go on without etcd" in cli.err
    assert cli.run("cluster", "status", "--json") == 8
    reported = cli.json_out()
    assert not reported["healthy"]
    assert (reported["cluster"]["is_last_known"], reported["cluster"]["age_ms"]) == (True, 12_000)
    server.instead("DescribeCluster", cluster(shard(), etcd_answers=False, age_ms=-1))
    assert cli.run("cluster", "status") == 8
    assert "this is the last known map, from before the server was started" in cli.out


@pytest.mark.parametrize(
    "command",
    [["node", "ls"], ["shard", "ls"], ["queue", "show", "mail"], ["top", "--once"], ["cluster", "status"]],
    ids=" ".join,
)
def test_whatever_shows_the_map_says_when_it_is_the_last_known_one(
    command: list[str], server: ScriptedServer, cli: Cli
) -> None:
    nodes = [node("n1", address=server.address), node("n2"), node("n3", is_alive=False)]
    known: dict[str, Any] = {"nodes": nodes, "age_ms": 12_000}
    server.on("DescribeCluster", cluster(shard(), etcd_answers=False, **known))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER")))
    server.on("ListWorkers", queues_pb2.ListWorkersResponse())
    route = pb.QueueRoute(queue="mail", home=0)
    server.on("ListQueueSettings", pb.ListQueueSettingsResponse(queues=[pb.QueueSettings(route=route)]))
    assert cli.run(*command) == ExitCode.LAST_KNOWN
    assert "etcd does not answer: this is the last known map, as of 12s ago" in cli.out
    assert "the last map that it knew, as of 12s ago" in cli.err
    assert "Check that etcd runs" in cli.err
    assert cli.run(*command, "--json") == ExitCode.LAST_KNOWN
    reported = cli.json_out()["cluster"]
    assert (reported["is_last_known"], reported["age_ms"]) == (True, 12_000)
    assert cli.json_err()["error"]["reason"] == "ETCD_UNAVAILABLE"
    server.instead("DescribeCluster", cluster(shard(), **known))
    assert cli.run(*command) != ExitCode.LAST_KNOWN
    assert "last known" not in cli.out
    assert cli.run(*command, "--json") != ExitCode.LAST_KNOWN
    assert cli.json_out()["cluster"]["is_last_known"] is False


def test_nobody_is_said_to_be_alive_by_a_map_that_is_not_current(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(), etcd_answers=False, age_ms=12_000))
    assert cli.run("node", "ls") == ExitCode.LAST_KNOWN
    states = [line.split()[1:3] for line in cli.out.splitlines() if line.startswith("n") and "alive" in line]
    assert states == [["was", "alive"]] * 3


def test_no_lease_is_said_to_end_while_etcd_does_not_answer(server: ScriptedServer, cli: Cli) -> None:
    with ScriptedServer() as killed:
        address = killed.address
    nodes = [node("n1", address=server.address), node("n2", address=address)]
    server.on("DescribeCluster", cluster(shard(on="n1 n2"), nodes=nodes, etcd_answers=False))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER")))
    assert cli.run("cluster", "status") == ExitCode.LAST_KNOWN
    assert "Node n2: no answer; its lease is not known without etcd." in cli.err
    assert "when its lease ends" not in cli.err
    assert [line.split()[:2] for line in cli.out.splitlines() if line.startswith("n1")] == [["n1", "alive"]]


def test_a_server_that_never_saw_the_map_does_not_say_that_there_is_no_cluster(
    server: ScriptedServer, cli: Cli
) -> None:
    server.on("DescribeCluster", pb.DescribeClusterResponse(name="local", age_ms=-1))
    assert cli.run("cluster", "status") == ExitCode.LAST_KNOWN
    assert "Whether there is a cluster local is not known" in cli.out
    assert "cluster init" not in cli.err


def test_status_asks_the_nodes_for_lag_and_problems(server: ScriptedServer, cli: Cli) -> None:
    with three_servers() as servers:
        describe_all(servers)
        nodes = [node(name, address=server.address) for name, server in servers.items()]
        server.on("DescribeCluster", cluster(shard(), nodes=nodes))
        assert cli.run("cluster", "status") == 0
        for name, role, applied in (("n1", "LEADER", 50), ("n2", "FOLLOWER", 8), ("n3", "FOLLOWER", 50)):
            problem = "Entry 9 is damaged." if name == "n2" else ""
            said = replica(role=role, commit_index=50, applied_index=applied, problem=problem)
            servers[name].instead("DescribeNode", describe(servers, name, said))
        assert cli.run("cluster", "status", "--json") == 1
    [reported] = cli.json_out()["shards"]
    assert reported["lag"] == 42
    assert reported["problem"] == "n2 does not serve: Entry 9 is damaged."


def test_a_node_that_does_not_answer_is_not_well_whatever_etcd_knows(server: ScriptedServer, cli: Cli) -> None:
    nodes = [node("n1", address=server.address), node("n2"), node("n3")]
    server.on("DescribeCluster", cluster(shard(), nodes=nodes))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER", lag=5)))
    assert cli.run("cluster", "status") == 1
    assert "3 of 3 nodes alive" in cli.out
    assert "Shard 0: no majority of 3 voters: n2 does not answer, n3 does not answer." in cli.err
    assert cli.run("cluster", "status", "--json") == 1
    assert cli.json_out()["healthy"] is False
    assert cli.json_out()["shards"][0]["lag"] is None


def test_a_node_that_was_killed_is_told_before_its_lease_has_ended(server: ScriptedServer, cli: Cli) -> None:
    with ScriptedServer() as killed:
        address = killed.address
    nodes = [node("n1", address=server.address), node("n2", address=address)]
    server.on("DescribeCluster", cluster(shard(on="n1 n2"), nodes=nodes))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER")))
    assert cli.run("cluster", "status") == 1
    assert "1 of 2 nodes alive" in cli.out
    assert [line.split()[:3] for line in cli.out.splitlines() if line.startswith("n2")] == [["n2", "NO", "ANSWER"]]
    assert "Node n2: no answer, although its lease in etcd lasts still." in cli.err
    assert cli.run("cluster", "status", "--json") == 1
    assert [(item["is_alive"], item["answers"]) for item in cli.json_out()["nodes"]] == [(True, True), (True, False)]


def test_who_looks_for_a_lost_node_does_not_wait_for_its_shards(server: ScriptedServer, cli: Cli) -> None:
    """They have no leader, and a router waits for one as long as it may: no longer than a node has for its answer."""
    with ScriptedServer() as killed:
        address = killed.address
    nodes = [node("n1", address=server.address), node("n2", address=address)]
    server.on("DescribeCluster", cluster(shard(on="n1 n2"), nodes=nodes))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER")))
    server.instead("ListQueues", tasks_pb2.ListQueuesResponse(missing_shards=[7]))
    assert cli.run("cluster", "status", "--timeout", "20s", "--json") == 4
    assert [item["answers"] for item in cli.json_out()["nodes"]] == [True, False]
    assert cli.json_out()["tasks"]["missing_shards"] == [7]
    (limit_s,) = server.deadlines_s["ListQueues"]
    assert limit_s is not None
    assert limit_s < 2 * cluster_calls.ANSWER_S, "of 20 s"


def test_where_all_nodes_answer_tasks_are_counted_with_all_the_time(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(on="n1"), nodes=[node("n1", address=server.address)]))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER")))
    server.instead("ListQueues", tasks_pb2.ListQueuesResponse(missing_shards=[7]), tasks_pb2.ListQueuesResponse())
    assert cli.run("cluster", "status", "--timeout", "20s") == 0
    first_s, second_s = server.deadlines_s["ListQueues"]
    assert first_s is not None
    assert second_s is not None
    assert first_s < 2 * cluster_calls.ANSWER_S < second_s


def test_where_no_node_can_be_reached_tasks_are_counted_with_all_the_time(server: ScriptedServer, cli: Cli) -> None:
    with ScriptedServer() as elsewhere:
        address = elsewhere.address
    server.on("DescribeCluster", cluster(shard(), nodes=[node(name, address=address) for name in ("n1", "n2", "n3")]))
    server.instead("ListQueues", tasks_pb2.ListQueuesResponse(missing_shards=[7]), tasks_pb2.ListQueuesResponse())
    assert cli.run("cluster", "status") == 0
    assert len(server.requests["ListQueues"]) == 2


def test_where_no_node_can_be_reached_none_is_called_silent(server: ScriptedServer, cli: Cli) -> None:
    with ScriptedServer() as elsewhere:
        address = elsewhere.address
    server.on("DescribeCluster", cluster(shard(), nodes=[node(name, address=address) for name in ("n1", "n2", "n3")]))
    assert cli.run("cluster", "status") == 0
    assert cli.run("cluster", "status", "--json") == 0
    assert {item["answers"] for item in cli.json_out()["nodes"]} == {None}


def test_a_broker_that_cannot_count_all_tasks_is_no_problem(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard()))
    server.instead(
        "ListQueues", refusal("INVALID_ARGUMENT", "MISSING_FIELD", "Which shard?", metadata={"field": "holdfast-shard"})
    )
    assert cli.run("cluster", "status") == 0
    assert "tasks   are counted through a router" in cli.out
    assert cli.err == ""
    assert cli.run("cluster", "status", "--json") == 0
    assert cli.json_out()["tasks"] is None
    server.instead(
        "ListQueues", refusal("INVALID_ARGUMENT", "MISSING_FIELD", "Which queue?", metadata={"field": "queue"})
    )
    assert cli.run("cluster", "status") == 1
    assert "tasks   could not be counted" in cli.out


def test_many_shards_are_shown_only_where_there_is_something_to_say(server: ScriptedServer, cli: Cli) -> None:
    shards = [shard(number) for number in range(60)] + [shard(60, desired="n1 n2 n4")]
    server.on("DescribeCluster", cluster(*shards))
    assert cli.run("cluster", "status") == 0
    assert "n4 is to come, n3 is to go" in cli.out
    assert "… and 60 more shards; --all shows them." in cli.out
    assert cli.run("cluster", "status", "--all") == 0
    assert "more shards" not in cli.out


# ------------------------------------------------------------------------------------------------------------ nodes


def test_node_ls(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(), nodes=[node("n1", zone=""), node("n2", is_alive=False)]))
    assert cli.run("node", "ls") == 0
    head, _, *rows = cli.out.splitlines()
    assert head.split() == ["node", "state", "zone", "version", "address", "capacity", "replicas", "leaders"]
    assert rows[1].split()[:2] == ["n2", "GONE"]
    assert cli.run("node", "ls", "--json") == 0
    assert [(item["name"], item["is_alive"]) for item in cli.json_out()["nodes"]] == [("n1", True), ("n2", False)]


def test_drain_marks_shows_and_moves(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    server.on("DrainNode", pb.DrainNodeResponse())
    assert cli.run("node", "drain", "n1", "--yes") == 0
    assert server.requests["DrainNode"] == [pb.DrainNodeRequest(node="n1", drain=True)]
    assert server.requests["MakePlan"] == [pb.MakePlanRequest(balance=True)]
    assert "3.0 MiB" in cli.out
    assert "The plan is done: 1 replica moved, 0 leaders changed." in cli.out
    assert "holdfast node remove n1" in cli.err


def test_drain_can_stop_at_the_plan(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    server.on("DrainNode", pb.DrainNodeResponse())
    assert cli.run("node", "drain", "n1", "--plan-only") == 0
    assert "n1 drains" in cli.out
    assert "Nothing moves yet" in cli.err
    assert server.requests["StartPlan"] == []
    assert cli.run("node", "drain", "n1", "--plan-only", "--json") == 0
    assert cli.json_out()["steps"][0]["destination"] == "n4"


def test_a_drain_without_a_terminal_changes_nothing_unless_told(server: ScriptedServer, cli: Cli) -> None:
    server.on("DrainNode", pb.DrainNodeResponse())
    assert cli.run("node", "drain", "n1") == 2
    assert server.requests["DrainNode"] == []


def test_a_drain_that_has_nowhere_to_go_says_that_the_mark_stays(server: ScriptedServer, cli: Cli) -> None:
    server.on("DrainNode", pb.DrainNodeResponse())
    server.on("DescribeCluster", cluster(shard()))
    server.on("MakePlan", refusal("FAILED_PRECONDITION", "PLAN_REFUSED", "Only 2 nodes are left."))
    assert cli.run("node", "drain", "n1", "--yes") == 1
    assert "Only 2 nodes are left." in cli.err
    assert "`holdfast node undrain n1` takes it back" in cli.err


def test_undrain_and_remove(server: ScriptedServer, cli: Cli) -> None:
    server.on("DrainNode", pb.DrainNodeResponse())
    server.on("RemoveNode", pb.RemoveNodeResponse(), refusal("NOT_FOUND", "NODE_NOT_FOUND", "There is no node n9."))
    assert cli.run("node", "undrain", "n1") == 0
    assert server.requests["DrainNode"] == [pb.DrainNodeRequest(node="n1", drain=False)]
    assert cli.run("node", "remove", "n1", "--json") == 0
    assert cli.json_out() == {"node": "n1", "removed": True}
    assert cli.run("node", "remove", "n9") == 5
    assert "There is no node n9." in cli.err
    assert "holdfast node ls" in cli.err
