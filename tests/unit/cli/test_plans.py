"""`holdfast shard plan|apply|move|cancel|watch`: what is asked, printed and returned, and what becomes of a plan."""

import json
import os
import signal
import threading
from typing import Any

import pytest

from holdfast.cli import cluster_output, health, plans, watching
from holdfast.cli.problems import ExitCode
from holdfast.client import (
    ClusterInfo,
    ClusterNode,
    ClusterShard,
    NodeInfo,
    NodeReport,
    Plan,
    PlanStep,
    ReplicaInfo,
    ReplicaRole,
    StepState,
)
from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_cluster import describe, replica
from tests.unit.cli.scripted_map import IDS, carried_out, cluster, move, node, plan, refusal, shard
from tests.unit.client.scripted_server import Refusal, ScriptedServer

# ------------------------------------------------------------------------------------------------------------ plans


def test_a_plan_is_shown_with_what_moves_how_much_and_why(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard()))
    steps = [move(), move(1, state_bytes=-1), pb.PlanStep(shard=2, destination="n2", is_transfer=True, why="even")]
    server.on("MakePlan", pb.MakePlanResponse(plan=plan(*steps)))
    assert cli.run("shard", "plan") == 0
    _, _, first, second, third, summary = cli.out.splitlines()
    assert first.split() == ["1", "0", "move", "n1", "n4", "n1", "drains", "3.0", "MiB"]
    assert second.split()[-1] == "?"
    assert third.split() == ["3", "2", "lead", "-", "n2", "even", "-"]
    assert summary == ("Node n1 drains. About 3.0 MiB to copy, and 1 replica of unknown size.")
    assert cli.run("shard", "plan", "--leaders", "--json") == 0
    assert server.requests["MakePlan"][1] == pb.MakePlanRequest(leaders=True)
    assert cli.json_out()["steps"][1]["state_bytes"] is None
    assert server.requests["StartPlan"] == []


def test_nothing_to_do_is_no_failure(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard()))
    server.on("MakePlan", pb.MakePlanResponse(plan=plan()))
    for command in ("plan", "apply"):
        assert cli.run("shard", command) == 0
        assert cli.out == "All is even.\n"
    assert cli.json("shard", "apply")["steps"] == []


def test_apply_shows_the_plan_and_follows_it_to_its_end(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    assert cli.run("shard", "apply", "--yes") == 0
    assert cli.out.index("n1 drains") < cli.out.index("The plan is done: 1 replica moved")
    assert "step 1 of 1: shard 0 moves from n1 to n4: copies" in cli.err
    assert "step 1 of 1: shard 0 moves from n1 to n4: done" in cli.err
    assert server.requests["StartPlan"] == [pb.StartPlanRequest(plan=plan(move()))]
    assert {request.id for request in server.requests["AdvancePlan"]} == {"p1"}
    value = cli.json("shard", "apply", "--yes")
    assert (value["is_done"], value["steps_done"], value["steps"][0]["state"]) == (True, 1, "DONE")


def test_apply_asks_first(server: ScriptedServer, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out(server)
    assert cli.run("shard", "apply") == 2, "there is no terminal to ask at"
    assert "Expected --yes" in cli.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: "n\n", raising=False)
    assert cli.run("shard", "apply") == 1
    assert "Nothing was moved: the answer was no." in cli.err
    assert server.requests["StartPlan"] == []


def test_apply_resumes_the_plan_under_way_without_asking(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server, under_way=plan(move(state="COPYING")))
    assert cli.run("shard", "apply") == 0
    assert "Plan p1 is under way, 1 of 1 steps left: resuming it." in cli.err
    assert server.requests["MakePlan"] == server.requests["StartPlan"] == []
    assert "The plan is done" in cli.out


def test_apply_goes_on_through_what_passes(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    away = refusal("UNAVAILABLE", "ETCD_UNAVAILABLE", "etcd does not answer.", retry_after_ms=1)
    server.first("AdvancePlan", away)
    assert cli.run("shard", "apply", "--yes", "--timeout", "300ms") == 0
    assert "The plan is done" in cli.out


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            refusal("FAILED_PRECONDITION", "PLAN_REFUSED", "No majority.", metadata={"why": "NO_MAJORITY"}),
            "run this again",
        ),
        (refusal("FAILED_PRECONDITION", "NOT_ENOUGH_NODES", "2 nodes are too few."), "holdfast node ls"),
    ],
)
def test_a_plan_that_is_refused(server: ScriptedServer, cli: Cli, answer: Refusal, words: str) -> None:
    carried_out(server)
    server.instead("StartPlan", answer)
    assert cli.run("shard", "apply", "--yes") == 1
    assert answer.message in cli.err
    assert words in cli.err


def test_a_plan_that_somebody_else_finished(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    server.instead("AdvancePlan", refusal("NOT_FOUND", "PLAN_NOT_FOUND", "No such plan."))
    server.instead("DescribeCluster", cluster(shard()), cluster(shard(on="n2 n3 n4", leader="n2")))
    assert cli.run("shard", "apply", "--yes") == 0, "the map shows that its only step is done"
    server.instead("DescribeCluster", cluster(shard()))
    assert cli.run("shard", "apply", "--yes") == 1
    assert "given up elsewhere: 1 of 1 steps are not done" in cli.err


def interrupting(answer: pb.AdvancePlanResponse) -> tuple[Any, pb.AdvancePlanResponse]:
    """Ctrl-C soon after the first answer."""

    def interrupt(_request: pb.AdvancePlanRequest) -> pb.AdvancePlanResponse:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return answer

    return interrupt, answer


def test_ctrl_c_says_that_what_has_begun_goes_on(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    server.instead("AdvancePlan", *interrupting(pb.AdvancePlanResponse(plan=plan(move(state="COPYING")))))
    assert cli.run("shard", "apply", "--yes") == 130
    assert "Interrupted: 0 of 1 steps of the plan are done." in cli.err
    assert "`holdfast shard apply` resumes the rest, from any machine" in cli.err


def test_move(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    assert cli.run("shard", "move", "0", "--from", "n1", "--to", "n4") == 0
    move = pb.MoveWish(shard=0, source="n1", destination="n4")
    assert server.requests["MakePlan"] == [pb.MakePlanRequest(move=move)]
    assert "The plan is done" in cli.out


# -------------------------------------------------------------------------------------------------- others' plans

UNDER_WAY = refusal("FAILED_PRECONDITION", "PLAN_UNDER_WAY", "Plan p0 is under way.", metadata={"plan": "p0"})
DRAIN = ("node", "drain", "n1", "--yes")
MOVE = ("shard", "move", "0", "--from", "n1", "--to", "n4")


def others_plan(state: str, *, is_done: bool = False) -> pb.AdvancePlanResponse:
    step = move(3, source="n2", destination="n3", state=state)
    return pb.AdvancePlanResponse(plan=pb.Plan(id="p0", steps=[step]), is_done=is_done)


def while_another_plan_runs(server: ScriptedServer, *answers: Any) -> None:
    """The map tells of p0, whose progress is `answers`; then p1 can be carried out."""
    server.on("DrainNode", pb.DrainNodeResponse())
    carried_out(server, under_way=others_plan("COPYING").plan)
    server.first("AdvancePlan", *answers)


@pytest.mark.parametrize("command", [DRAIN, MOVE])
@pytest.mark.parametrize(
    "end", [others_plan("DONE", is_done=True), refusal("NOT_FOUND", "PLAN_NOT_FOUND", "No such plan.")]
)
def test_a_command_waits_for_the_plan_under_way_however_it_ends(
    server: ScriptedServer, cli: Cli, command: tuple[str, ...], end: Any
) -> None:
    while_another_plan_runs(server, others_plan("COPYING"), end)
    assert cli.run(*command) == 0
    assert [request.id for request in server.requests["AdvancePlan"]] == ["p0", "p0", "p1", "p1"]
    assert "Plan p0 is under way: this waits for its end" in cli.err
    assert "shard 3 moves from n2 to n3: copies" in cli.err
    assert "The plan is done: 1 replica moved" in cli.out


def test_a_plan_that_begins_in_the_same_moment_is_waited_for(server: ScriptedServer, cli: Cli) -> None:
    carried_out(server)
    server.on("DrainNode", pb.DrainNodeResponse())
    server.first("StartPlan", UNDER_WAY)
    server.first("AdvancePlan", others_plan("DONE", is_done=True))
    assert cli.run(*DRAIN) == 0
    assert [request.id for request in server.requests["AdvancePlan"]] == ["p0", "p1", "p1"]
    assert len(server.requests["MakePlan"]) == 2, "the cluster is another one by then"


def test_a_node_that_the_plan_under_way_has_emptied_is_drained(server: ScriptedServer, cli: Cli) -> None:
    while_another_plan_runs(server, others_plan("DONE", is_done=True))
    server.instead("MakePlan", pb.MakePlanResponse(plan=plan()))
    assert cli.run(*DRAIN) == 0
    assert server.requests["StartPlan"] == []
    assert "Forget the node, once it is stopped, with `holdfast node remove n1`." in cli.err


def test_the_wait_for_another_plan_is_bounded(server: ScriptedServer, cli: Cli) -> None:
    while_another_plan_runs(server)
    server.instead("AdvancePlan", others_plan("COPYING"))
    assert cli.run(*DRAIN, "--wait", "50ms") == 7
    assert "Plan p0 is under way still, with 1 of 1 steps left." in cli.err
    assert "The mark stays: `holdfast node drain n1` goes on" in cli.err
    assert cli.run(*MOVE, "--wait", "50ms", "--json") == 7
    assert json.loads(cli.err)["error"]["reason"] == "PLAN_UNDER_WAY"
    server.instead("AdvancePlan", others_plan("DONE", is_done=True))
    server.instead("StartPlan", UNDER_WAY)
    assert cli.run(*DRAIN, "--wait", "50ms") == 1, "others always come first"
    assert "holdfast shard watch" in cli.err


def test_ctrl_c_while_another_plan_runs_says_how_to_go_on(server: ScriptedServer, cli: Cli) -> None:
    while_another_plan_runs(server)
    server.instead("AdvancePlan", *interrupting(others_plan("COPYING")))
    assert cli.run(*DRAIN) == 130
    assert "The mark stays: `holdfast node drain n1` goes on" in cli.err
    assert server.requests["StartPlan"] == []


def test_move_of_what_is_not_there(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard()))
    server.on("MakePlan", refusal("NOT_FOUND", "SHARD_NOT_FOUND", "There is no shard 99."))
    assert cli.run("shard", "move", "99", "--from", "n1", "--to", "n4") == 5
    assert "There is no shard 99." in cli.err


def test_cancel(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(), plan=plan(move())), cluster(shard()))
    server.on("CancelPlan", pb.CancelPlanResponse())
    assert cli.json("shard", "cancel") == {"plan": "p1", "cancelled": True}
    assert server.requests["CancelPlan"] == [pb.CancelPlanRequest(id="p1")]
    assert cli.run("shard", "cancel") == 5
    assert "No plan is under way." in cli.err


def test_a_map_that_is_not_current_does_not_say_that_no_plan_is_under_way(server: ScriptedServer, cli: Cli) -> None:
    server.on("DescribeCluster", cluster(shard(), etcd_answers=False, age_ms=12_000))
    assert cli.json_error("shard", "cancel", code=ExitCode.LAST_KNOWN)["error"]["reason"] == "ETCD_UNAVAILABLE"


def test_watch_tells_when_etcd_goes_and_comes(
    server: ScriptedServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.commands.shard_plans.WATCH_EVERY_S", 0.0)

    def poll() -> None:
        away = cluster(shard(), plan=plan(move()), etcd_answers=False, age_ms=12_000)
        server.instead("DescribeCluster", away, away, cluster(shard(), plan=plan(move())), cluster(shard()))

    poll()
    assert cli.run("shard", "watch") == 0
    assert cli.out.count("etcd does not answer: this is the last known map, as of 12s ago.") == 1
    assert cli.out.count("etcd answers: the map is current") == 1
    poll()
    assert cli.run("shard", "watch", "--json") == 0
    events = [json.loads(line) for line in cli.out.splitlines()]
    assert [event["is_last_known"] for event in events if event["event"] == "map"] == [True, False]


def test_watch_tells_each_change_until_the_plan_is_done(
    server: ScriptedServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.commands.shard_plans.WATCH_EVERY_S", 0.0)

    def poll() -> None:
        server.instead(
            "DescribeCluster",
            cluster(shard(), plan=plan(move())),
            cluster(shard(desired="n2 n3 n4"), plan=plan(move())),
            cluster(shard(on="n2 n3 n4", leader="n2")),
        )

    poll()
    assert cli.run("shard", "watch") == 0
    assert cli.err.count("`holdfast shard apply` carries it on") == 1, "nobody may be carrying it out"
    poll()
    assert cli.run("shard", "watch", "--json") == 0
    assert cli.err == ""
    events = [json.loads(line) for line in cli.out.splitlines()]
    assert [(event["event"], event.get("state") or event.get("leader") or event.get("what")) for event in events] == [
        ("leader", "n1"), ("plan", "under_way"), ("step", "WAITING"),
        ("step", "COPYING"),
        ("leader", "n2"), ("step", "DONE"), ("plan", "ended"),
    ]  # fmt: skip


def test_shard_ls_tells_where_replicas_should_be(server: ScriptedServer, cli: Cli) -> None:
    nodes = [node("n1", address=server.address), node("n2"), node("n3")]
    server.on("DescribeCluster", cluster(shard(desired="n1 n2 n4"), nodes=nodes))
    server.on("DescribeNode", describe({"n1": server}, "n1", replica(role="LEADER")))
    assert cli.run("shard", "ls") == 0
    assert "Shard 0 should be on n1, n2, n4; it is on n1, n2, n3 (n4 is to come, n3 is to go)." in cli.out
    assert cli.json("shard", "ls")["shards"][0]["replicas"] == ["n1", "n2", "n4"]
    assert [item["node"] for item in cli.json_out()["nodes"]] == ["n1"]


# ------------------------------------------------------------------------------------------------------ pure parts


def info(*shards: ClusterShard, gone: str = "") -> ClusterInfo:
    nodes = tuple(ClusterNode(name=name, is_alive=name not in gone.split()) for name in IDS)
    return ClusterInfo(cluster_id="c", nodes=nodes, shards=shards)


def mapped(on: str, desired: str = "", leader: str = "n1", **more: Any) -> ClusterShard:
    voters = tuple(IDS[name] for name in on.split())
    return ClusterShard(shard=0, replicas=tuple((desired or on).split()), voters=voters, leader=leader, **more)


@pytest.mark.parametrize(
    ("shard_", "gone", "problem"),
    [
        (mapped("n1 n2 n3"), "", ""),
        (mapped("n1 n2 n3"), "n4", ""),
        (mapped("n1 n2 n3"), "n3", "n3 is gone"),
        (mapped("n1 n2 n3"), "n1", "no leader; n1 is gone"),
        (mapped("n1 n2 n3", leader=""), "", "no leader"),
        (mapped("n1 n2 n3"), "n2 n3", "no majority of 3 voters: n2 is gone, n3 is gone"),
        (mapped("n1 n2"), "n2", "no majority of 2 voters: n2 is gone"),
        (mapped("", desired="n1 n2 n3"), "", "it has not begun yet: its nodes have not all been there"),
    ],
)
def test_what_is_wrong_with_a_shard(shard_: ClusterShard, gone: str, problem: str) -> None:
    [view] = health.views(info(shard_, gone=gone))
    assert view.problem == problem


def report(name: str, role: ReplicaRole | None = ReplicaRole.FOLLOWER, node_id: str = "", lag: int = 0) -> NodeReport:
    """What a node says of its replica of shard 0; `role` None: it has none."""
    said = () if role is None else (ReplicaInfo(shard=0, role=role, leader="n1", lag=lag),)
    node_id = node_id or IDS[name].partition("/")[2]
    return NodeReport(name, f"{name}:1", NodeInfo(name, node_id, "1.2.3", (), said))


LEADS = report("n1", ReplicaRole.LEADER, lag=1)
SILENT = {name: NodeReport(name, f"{name}:1", None) for name in IDS}


@pytest.mark.parametrize(
    ("reports", "gone", "problem", "lag"),
    [
        ([LEADS, report("n2", lag=7), report("n3")], "", "", 7),
        ([LEADS, report("n2", ReplicaRole.CANDIDATE), report("n3")], "", "", 1),
        ([LEADS, report("n2"), SILENT["n3"]], "", "n3 does not answer", None),
        ([LEADS, report("n2"), SILENT["n3"]], "n3", "n3 is gone", None),
        ([LEADS, report("n2"), report("n3", node_id="9")], "", "n3 has lost its data and is being rebuilt", None),
        ([LEADS, report("n2"), report("n3", ReplicaRole.BLANK)], "", "n3 has no copy yet", None),
        ([LEADS, report("n2"), report("n3", None)], "", "n3 has no copy yet", None),
        ([LEADS, report("n2"), report("n3", ReplicaRole.LEARNER)], "", "n3 does not vote yet", None),
        (
            [LEADS, SILENT["n2"], report("n3", node_id="9")], "",
            "no majority of 3 voters: n2 does not answer, n3 has lost its data and is being rebuilt", None,
        ),
        ([SILENT["n1"], report("n2"), report("n3")], "", "n1 does not answer", None),
        (list(SILENT.values()), "", "", None),
    ],
)  # fmt: skip
def test_a_voter_counts_only_if_its_node_says_so(
    reports: list[NodeReport], gone: str, problem: str, lag: int | None
) -> None:
    [view] = health.views(info(mapped("n1 n2 n3"), gone=gone), reports)
    assert (view.problem, view.lag, view.leader) == (problem, lag, "n1")


def test_a_silent_leader_whom_nobody_follows_is_none() -> None:
    [view] = health.views(info(mapped("n1 n2 n3", leader="n4")), [report("n1"), report("n2"), report("n3")])
    assert (view.leader, view.problem) == ("", "no leader")


def test_who_learns_anew_is_no_voter_meanwhile() -> None:
    shard_ = mapped("n1 n2 n3", learners=("n2/" + "9" * 32,))
    reports = [LEADS, report("n2", ReplicaRole.LEARNER, node_id="9" * 32), report("n3")]
    [view] = health.views(info(shard_), reports)
    assert (view.voters, view.learners) == (("n1", "n3"), ("n2",))
    assert (view.problem, view.change) == ("n2 has lost its data and is being rebuilt", "n2 learns")
    assert not health.is_spread(view)
    shard_ = mapped("n1 n3", desired="n1 n2 n3", learners=("n2/" + "9" * 32,))
    [view] = health.views(info(shard_), reports)
    assert (view.problem, view.lag) == ("only 2 of 3 voters", 1), "its former self is gone, and it does not vote yet"


STEP = PlanStep(shard=0, source="n1", destination="n4", state=StepState.WAITING)
TRANSFER = PlanStep(shard=0, destination="n2", is_transfer=True, state=StepState.WAITING)


@pytest.mark.parametrize(
    ("step", "shard_", "state"),
    [
        (STEP, mapped("n1 n2 n3"), StepState.WAITING),
        (STEP, mapped("n1 n2 n3", desired="n2 n3 n4"), StepState.COPYING),
        (STEP, mapped("n1 n2 n3", desired="n2 n3 n4", learners=(IDS["n4"],)), StepState.COPYING),
        (STEP, mapped("n1 n2 n3 n4", desired="n2 n3 n4"), StepState.LEAVING),
        (STEP, mapped("n2 n3 n4", leaving=(IDS["n1"],)), StepState.LEAVING),
        (STEP, mapped("n2 n3 n4"), StepState.DONE),
        (TRANSFER, mapped("n1 n2 n3"), StepState.WAITING),
        (TRANSFER, mapped("n1 n2 n3", leader="n2"), StepState.DONE),
    ],
)
def test_how_far_a_step_is_can_be_seen_in_the_map(step: PlanStep, shard_: ClusterShard, state: StepState) -> None:
    assert plans.judged(Plan("p", steps=(step,)), info(shard_)).steps[0].state is state


def test_a_look_at_what_has_not_changed_tells_nothing() -> None:
    watched = watching.WatchedCluster()
    assert len(watched.update(info(mapped("n1 n2 n3")))) == 1
    assert watched.update(info(mapped("n1 n2 n3"))) == []
    assert not watched.is_done, "without a plan it is never done"


def test_what_a_step_waits_for_is_told_once_and_not_that_others_go_first() -> None:
    lines = cluster_output.ChangeLines()
    busy = PlanStep(shard=1, source="n1", destination="n4", state=StepState.WAITING, detail="n4 is busy")
    stuck = PlanStep(shard=0, destination="n2", is_transfer=True, state=StepState.WAITING, detail="n2 lags")
    assert lines.of(Plan("p", steps=(busy, stuck)), "") == ["step 2 of 2: shard 0 is to be led by n2: waits: n2 lags"]
    assert lines.of(Plan("p", steps=(busy, stuck)), "") == []


def test_progress_shows_what_is_under_way_first_and_not_too_much() -> None:
    steps = [PlanStep(shard=n, source="n1", destination="n4", state=StepState.WAITING) for n in range(40)]
    steps[30] = PlanStep(shard=30, source="n1", destination="n4", state=StepState.COPYING, lag=7, detail="catches up")
    head, table, more = cluster_output.progress_parts(Plan("p1", steps=tuple(steps)))
    assert "0 of 40 steps done" in str(head)
    assert str(more) == "… and 20 more that wait."
    assert len(table.rows) == cluster_output.STEPS_SHOWN_MAX  # type: ignore[union-attr]
