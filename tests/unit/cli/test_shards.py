"""`holdfast shard …`: what is asked of which node, printed and returned."""

from collections.abc import Iterator

import grpc
import pytest

from holdfast.cli.main import main
from holdfast.proto.v1 import shards_pb2 as pb
from holdfast.proto.v1 import tasks_pb2
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_cluster import describe, describe_all, replica, three_servers
from tests.unit.client.scripted_server import Refusal, ScriptedServer, not_leader

Nodes = dict[str, ScriptedServer]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with three_servers() as nodes:
        yield nodes


@pytest.fixture
def cli(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(nodes["n1"], capsys)


def hashes(nodes: Nodes, *state_hashes: bytes) -> None:
    nodes["n1"].on("ProbeShard", pb.ProbeShardResponse(index=1_041))
    for server, state_hash in zip(nodes.values(), state_hashes, strict=True):
        server.on("ReadProbe", pb.ReadProbeResponse(state_hash=state_hash, applied_index=1_000))


# --------------------------------------------------------------------------------------------------------------- ls


def test_ls_shows_every_replica(nodes: Nodes, cli: Cli) -> None:
    leading = replica(
        role="LEADER", commit_index=12_345, applied_index=12_344, lag=1, log_bytes=3 * 1024 * 1024,
        snapshot_age_ms=90_000,
    )  # fmt: skip
    learning = replica(role="LEARNER", snapshot_age_ms=-1)
    nodes["n1"].on("DescribeNode", describe(nodes, "n1", leading, replica(shard=1)))
    nodes["n2"].on("DescribeNode", describe(nodes, "n2", learning))
    nodes["n3"].on("DescribeNode", describe(nodes, "n3", replica(problem="Entry 9 is damaged.", snapshot_age_ms=0)))
    assert cli.run("shard", "ls") == 0
    head, _, *rows = cli.out.splitlines()
    assert head.split() == ["shard", "node", "role", "term", "commit", "applied", "lag", "log", "snapshot"]
    assert rows[0].split() == ["0", "n1", "leader", "7", "12,345", "12,344", "1", "3.0", "MiB", "1m", "30s"]
    assert rows[1].split() == ["0", "n2", "learner", "7", "0", "0", "12,345", "0", "B", "never"]
    assert rows[2].split()[:4] == ["0", "n3", "follower", "(!)"]
    assert rows[3].split()[:2] == ["1", "n1"]
    assert rows[4] == "Shard 0 on n3 does not serve: Entry 9 is damaged."
    assert cli.err == ""


def test_ls_shows_who_does_not_answer_and_says_so_with_its_exit_code(nodes: Nodes, cli: Cli) -> None:
    describe_all(nodes)
    nodes["n2"].stop()
    assert cli.run("shard", "ls") == 4
    assert cli.out.splitlines()[-1].split()[:3] == ["-", "n2", "unreachable"]
    assert cli.err.startswith("error: Node n2: ")
    assert f"{nodes['n2'].address} (connection refused)" in cli.err
    assert "Is it running" in cli.err
    reported = {node["node"]: node for node in cli.json("shard", "ls", code=4)["nodes"]}
    assert reported["n2"]["replicas"] == []
    assert "connection refused" in reported["n2"]["error"]
    assert reported["n1"]["error"] is None
    [leader] = reported["n1"]["replicas"]
    assert leader == {
        "shard": 0, "role": "LEADER", "term": 7, "leader": "n1", "commit_index": 0, "applied_index": 0,
        "last_index": 0, "lag": 0, "log_bytes": 0, "snapshot_age_ms": 0, "problem": "",
        "membership": {"version": 3, "voters": leader["membership"]["voters"], "learners": []},
    }  # fmt: skip
    assert cli.json_err()["error"]["reason"] == "CONNECTION_FAILED"


def test_lag_is_counted_against_what_any_node_knows(nodes: Nodes, cli: Cli) -> None:
    """A node that is cut off does not know what the others have committed, and thinks that it has everything."""
    nodes["n1"].on("DescribeNode", describe(nodes, "n1", replica(leader="", commit_index=57, applied_index=57)))
    nodes["n2"].on("DescribeNode", describe(nodes, "n2", replica(leader="n3", commit_index=1_480, applied_index=1_484)))
    nodes["n3"].on("DescribeNode", describe(nodes, "n3", replica(0, "n3", "LEADER", commit_index=1_484)))
    of_node = {node["node"]: node["replicas"][0] for node in cli.json("shard", "ls", code=1)["nodes"]}
    assert {name: (one["lag"], one["leader"]) for name, one in of_node.items()} == {
        "n1": (1_427, None), "n2": (0, "n3"), "n3": (1_484, "n3")
    }  # fmt: skip
    error = cli.json_err()["error"]
    assert (error["reason"], error["message"]) == ("NO_LEADER", "Node n1: it knows no leader of shard 0.")


def test_ls_marks_who_knows_no_leader_and_who_has_nothing(nodes: Nodes, cli: Cli) -> None:
    nodes["n1"].on("DescribeNode", describe(nodes, "n1", replica(leader=""), replica(1, "")))
    nodes["n2"].on("DescribeNode", describe(nodes, "n2", replica(leader="", role="BLANK")))
    nodes["n3"].on("DescribeNode", describe(nodes, "n3", replica(leader="", role="CANDIDATE")))
    assert cli.run("shard", "ls") == 1
    _, _, *rows = cli.out.splitlines()
    assert rows[0].split()[:5] == ["0", "n1", "follower,", "no", "leader"]
    assert rows[1].split()[:3] == ["0", "n2", "blank"]
    assert rows[2].split()[:4] == ["0", "n3", "candidate", "7"]
    assert "Node n1: it knows no leader of shards 0, 1." in cli.err
    assert "Node n2: it has nothing of shard 0 yet, and waits to be told." in cli.err
    assert "Node n3: it knows no leader of shard 0." in cli.err


def test_several_problems_are_one_json_value(nodes: Nodes, cli: Cli) -> None:
    nodes["n1"].on("DescribeNode", describe(nodes, "n1", replica(leader="")))
    nodes["n2"].stop()
    nodes["n3"].stop()
    reported = cli.json_error("shard", "ls", code=4)
    assert (reported["error"]["reason"], reported["exit_code"]) == ("CONNECTION_FAILED", 4)
    assert [other["reason"] for other in reported["other_errors"]] == ["NO_LEADER", "CONNECTION_FAILED"]
    errors = [node["error"] for node in cli.json_out()["nodes"] if node["error"]]
    assert len(errors) == 2
    assert not any("holdfast dev" in error for error in errors), "it is a node of a cluster that does not answer"


def test_ls_of_nobody(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    addresses = [server.address for server in nodes.values()]
    for server in nodes.values():
        server.stop()
    assert main(["shard", "ls", "--address", ",".join(addresses), "--timeout", "1s"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"{address}: connection refused" in err for address in addresses)
    assert "shard ls" not in err, "that is what was tried"
    assert "holdfast dev" not in err


# ------------------------------------------------------------------------------------------------------------- hash


def test_equal_hashes(nodes: Nodes, cli: Cli) -> None:
    describe_all(nodes)
    hashes(nodes, b"\xab\xcd", b"\xab\xcd", b"\xab\xcd")
    assert cli.run("shard", "hash", "0") == 0
    assert cli.out.count("abcd") == 3
    assert cli.out.splitlines()[-1] == "Shard 0: all 3 replicas are equal at index 1,041."
    assert cli.err == ""
    [shard] = cli.json("shard", "hash", "0")["shards"]
    assert (shard["shard"], shard["index"], shard["equal"]) == (0, 1_041, True)
    assert shard["replicas"][0] == {
        "node": "n1", "address": nodes["n1"].address, "state_hash": "abcd", "applied_index": 1_000, "error": None,
    }  # fmt: skip


def test_different_hashes_are_said_loudly(nodes: Nodes, cli: Cli) -> None:
    describe_all(nodes)
    hashes(nodes, b"a", b"a", b"b")
    assert cli.run("shard", "hash") == 1
    assert "Shard 0: the replicas are DIFFERENT at index 1,041." in cli.out
    assert "error: The replicas of shard 0 differ" in cli.err
    assert "--rebuild" in cli.err
    assert cli.json("shard", "hash", code=1)["shards"][0]["equal"] is False
    assert cli.json_err()["error"]["reason"] == "REPLICAS_DIFFER"


def test_a_hash_that_is_missing_is_not_an_equal_one(nodes: Nodes, cli: Cli) -> None:
    describe_all(nodes)
    hashes(nodes, b"a", b"a", b"")
    assert cli.run("shard", "hash", "0") == 1
    assert "missing: it is at index 1,000 only" in cli.out
    assert "2 of 3 replicas have told" in cli.out
    assert "did not get to the index in time" in cli.err
    nodes["n3"].stop()
    assert cli.run("shard", "hash", "0") == 4
    assert "missing" in cli.out


def test_without_a_number_all_shards_are_compared(nodes: Nodes, cli: Cli) -> None:
    describe_all(nodes, shards=(0, 1, 2))
    hashes(nodes, b"a", b"a", b"a")

    def probe(request: pb.ProbeShardRequest) -> pb.ProbeShardResponse | Refusal:
        if request.shard == 1:
            return Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", "It broke.")
        return pb.ProbeShardResponse(index=request.shard + 1)

    nodes["n1"].instead("ProbeShard", probe)
    assert cli.run("shard", "hash") == 1
    assert "Shard 0: all 3 replicas are equal at index 1." in cli.out
    assert "Shard 2: all 3 replicas are equal at index 3." in cli.out
    assert "Shard 1: It broke." in cli.err


def test_nobody_is_waited_for_where_there_is_nobody(nodes: Nodes, cli: Cli) -> None:
    nodes["n1"].stop()
    assert cli.run("shard", "hash", "0", "--timeout", "1h") == 4
    assert cli.run("shard", "transfer", "0", "n2", "--timeout", "1h") == 4
    assert "connection refused" in cli.err


def test_a_shard_that_does_not_exist(nodes: Nodes, cli: Cli) -> None:
    describe_all(nodes)
    nodes["n1"].on("ProbeShard", Refusal(grpc.StatusCode.NOT_FOUND, "SHARD_NOT_FOUND", "There is no shard 9."))
    assert cli.run("shard", "hash", "9") == 5
    assert "There is no shard 9." in cli.err
    assert "holdfast shard ls" in cli.err


# --------------------------------------------------------------------------------------------------------- transfer


def test_transfer(nodes: Nodes, cli: Cli) -> None:
    nodes["n1"].on("TransferLeadership", not_leader(nodes["n2"].address, 7))
    nodes["n2"].on("TransferLeadership", pb.TransferLeadershipResponse(leader="n3", epoch=8))
    assert cli.run("shard", "transfer", "0", "n3") == 0
    assert cli.out == "Node n3 leads shard 0 (epoch 8).\n"
    assert cli.json("shard", "transfer", "0", "n3") == {"shard": 0, "leader": "n3", "epoch": 8}
    assert nodes["n2"].requests["TransferLeadership"][0] == pb.TransferLeadershipRequest(shard=0, to="n3")


def test_a_transfer_that_is_refused(nodes: Nodes, cli: Cli) -> None:
    refusal = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "CHANGE_REFUSED", "Expected n9 to vote, but it does not.")
    nodes["n1"].on("TransferLeadership", refusal)
    assert cli.run("shard", "transfer", "0", "n9") == 1
    assert "Expected n9 to vote" in cli.err


# ------------------------------------------------------------------------------------------------ other commands


def test_commands_follow_the_leader_and_pass_over_dead_nodes(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    nodes["n2"].on("Enqueue", not_leader(nodes["n3"].address, 1))
    accepted = tasks_pb2.EnqueueOutcome(accepted=tasks_pb2.Accepted(task_id="the-id"))
    nodes["n3"].on("Enqueue", tasks_pb2.EnqueueResponse(outcomes=[accepted]))
    nodes["n1"].stop()
    address = f"{nodes['n1'].address},{nodes['n2'].address}"
    assert main(["enqueue", "mail", "welcome", "--address", address]) == 0
    assert "the-id" in capsys.readouterr().out
    assert len(nodes["n3"].requests["Enqueue"]) == 1


def test_without_a_leader_the_command_says_who_was_asked(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    for server in nodes.values():
        server.on("ListQueues", not_leader(None, 3))
    address = ",".join(server.address for server in nodes.values())
    assert main(["queue", "ls", "--address", address, "--timeout", "1s"]) == 4
    err = capsys.readouterr().err
    assert all(f"{server.address}: not the leader" in err for server in nodes.values())
    assert "holdfast shard ls" in err


def test_without_a_majority_the_command_says_how_many_answer(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    nodes["n1"].on("ListQueues", not_leader(None, 3))
    nodes["n2"].stop()
    nodes["n3"].stop()
    address = ",".join(server.address for server in nodes.values())
    assert main(["queue", "ls", "--address", address, "--timeout", "300ms"]) == 4
    err = capsys.readouterr().err
    assert "1 of 3 nodes answer, no leader: a majority must run; see `holdfast shard ls`" in err
    assert "No Holdfast server answers" not in err
    assert "holdfast dev" not in err
