"""`holdfast rebalance`: once, for ever, or not for now."""

from pathlib import Path

import pytest

from holdfast.cli import servers
from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_map import carried_out, cluster, move, plan, shard
from tests.unit.client.scripted_server import ScriptedServer


def test_once_it_makes_a_plan_and_carries_it_out(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    assert cli.run("rebalance", "--yes") == 0
    assert "The plan is done: 1 replica moved" in cli.out
    assert len(server.requests["StartPlan"]) == 1


def test_a_dry_run_only_shows_it(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard()))
    server.on("MakePlan", pb.MakePlanResponse(plan=plan(move())))
    assert cli.run("rebalance", "--dry-run") == 0
    assert "n1 drains" in cli.out
    assert server.requests["StartPlan"] == []


def test_it_is_paused_and_resumed(server: ScriptedServer, cli: Cli) -> None:
    paused = pb.Rebalancing(active="h:1", is_paused=True, why="racks")
    server.on(
        "SetRebalancing",
        pb.SetRebalancingResponse(rebalancing=paused),
        pb.SetRebalancingResponse(rebalancing=pb.Rebalancing()),
    )
    assert cli.run("rebalance", "--pause", "--why", "racks") == 0
    assert "Nothing is moved by itself any more" in cli.out
    assert cli.run("rebalance", "--resume") == 0
    assert "moved by themselves again" in cli.out
    assert "No process does that at the moment" in cli.err
    assert server.requests["SetRebalancing"] == [
        pb.SetRebalancingRequest(pause=True, why="racks"),
        pb.SetRebalancingRequest(),
    ]


@pytest.mark.parametrize(
    ("rebalancing", "line"),
    [
        (pb.Rebalancing(), ""),
        (pb.Rebalancing(active="h:1"), "moves   by themselves, by h:1"),
        (
            pb.Rebalancing(active="h:1", gone=[pb.GoneNode(name="n3", gone_ms=90_000)], given_up=["n4"]),
            "moves   by themselves, by h:1: n3 is away for 1m 30s, n4 is given up",
        ),
        (
            pb.Rebalancing(is_paused=True, why="racks"),
            "moves   by themselves are paused (racks): `holdfast rebalance --resume` goes on",
        ),
    ],
)
def test_status_says_what_moves_by_itself(
    server: ScriptedServer, cli: Cli, rebalancing: pb.Rebalancing, line: str
) -> None:
    server.on("DescribeCluster", cluster(shard(), rebalancing=rebalancing))
    cli.run("cluster", "status")
    assert [item for item in cli.out.splitlines() if item.startswith("moves")] == ([line] if line else [])


def test_a_process_that_goes_on_gets_its_settings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def run(config: Path | None, overrides: dict[str, object], *, dry_run: bool, as_json: bool) -> int:
        started.append((config, overrides, dry_run, as_json))
        return 0

    monkeypatch.setattr(servers, "run_rebalance", run)
    flags = ["--etcd-endpoints", "h:2379", "--gone-after", "30m", "--ops-port", "0", "--dry-run", "--config", "f.toml"]
    assert cli.run("rebalance", "--watch", *flags, "--json") == 0
    settings = {"etcd_endpoints": "h:2379", "gone_after_seconds": 1800.0, "ops_port": 0, "log_format": "json"}
    assert started == [(Path("f.toml"), settings, True, True)]


@pytest.mark.parametrize("flags", [["--watch", "--pause"], ["--pause", "--resume"], ["--gone-after", "30m"]])
def test_what_does_not_go_together_is_refused(cli: Cli, flags: list[str]) -> None:
    assert cli.run("rebalance", *flags) == 2
