"""`holdfast node …`."""

from dataclasses import replace
from typing import Annotated

import typer

from holdfast.cli import cluster_calls, cluster_output, cluster_records, handovers, output, records
from holdfast.cli.commands import carrying_out
from holdfast.cli.commands.shared import Address, Json, Timeout, Yes, epilog, group, print_problem, print_problems
from holdfast.cli.commands.shared import time_limit_s as _time
from holdfast.cli.problems import CommandFailed, ExitCode, not_current, problem_of, usage
from holdfast.client import Plan, Rejected
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

node_app = group("Look at the nodes of a cluster, empty them, take them out.")

_HANDOVER_WAIT_S = 60.0

_Node = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.", show_default=False)]


@node_app.command("ls", epilog=epilog("holdfast node ls", "holdfast node ls --json | jq -r '.nodes[].name'"))
def node_ls(address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False) -> int:
    """List the nodes of the cluster: whether they are alive, where they are, and what they hold.

    A node is there from the moment its broker first registers. GONE: it has lost its lease in etcd.
    replicas: those that vote or learn on it. leaders: how many shards it leads.
    If etcd does not answer, this is the last known map, with its age, and the exit code is 8.
    """
    info = cluster_calls.describe(address, timeout_s)
    if as_json:
        records.print_json(cluster_records.nodes_json(info))
    elif info.nodes or not info.etcd_answers:
        output.show([*cluster_output.last_known_parts(info), cluster_output.node_table(info)])
    else:
        output.print_line("There are no nodes: start some with `holdfast broker --etcd-endpoints HOST:PORT`.")
    return print_problems(not_current(info), as_json=as_json)


@node_app.command(
    "drain",
    epilog=epilog("holdfast node drain n3", "holdfast node drain n3 --plan-only", "holdfast node drain n3 --yes"),
)
def node_drain(
    name: _Node,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Only mark the node and show what has to move; move nothing.")
    ] = False,
    yes: Yes = False,
    wait_s: carrying_out.Wait = carrying_out.WAIT_S,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Empty a node: mark it as one that should hold nothing, show what has to move, and move it.

    The mark alone moves nothing; it makes every plan from now on avoid the node. It asks before it moves anything.
    Each replica is copied first and given up afterwards, so that no shard ever has fewer than it should.
    If a plan is under way, e.g. of `holdfast rebalance --watch`, it waits for its end, for up to --wait.
    Ctrl-C ends the command: the mark stays, what has begun goes on, and the same command goes on with the rest.
    Then the node can be stopped, and forgotten with `holdfast node remove`.
    `holdfast node undrain` takes the mark back.
    """
    if plan_only and yes:
        raise usage("Expected at most one of --plan-only and --yes, but both are given.")
    if not plan_only:
        carrying_out.require_answer(yes=yes, what=f"move what node {name} holds; or --plan-only")
    cluster_calls.drain(address, timeout_s, name, is_on=True)
    if not as_json:
        output.print_note(f"Node {name} is marked: it should hold nothing.")
    if plan_only:
        plan = _plan_without(name, address, timeout_s)
        carrying_out.print_plan(plan, as_json=as_json)
        if not as_json and plan.steps:
            output.print_note("Nothing moves yet: `holdfast shard apply` carries it out.")
            return ExitCode.OK
    else:
        hint = (
            f"The mark stays: `holdfast node drain {name}` goes on, `holdfast node undrain {name}` takes it back. "
            "`holdfast shard watch` follows the plan under way, `holdfast shard cancel` gives it up."
        )
        carrying_out.in_turn(
            address, timeout_s, lambda: _plan_without(name, address, timeout_s),
            cluster_calls.describe(address, timeout_s).plan, yes=yes, as_json=as_json, wait_s=wait_s, hint=hint,
        )  # fmt: skip
    if not as_json:
        output.print_note(f"Forget the node, once it is stopped, with `holdfast node remove {name}`.")
    return ExitCode.OK


def _plan_without(name: str, address: str, timeout_s: float) -> Plan:
    """What has to move now that the node is marked."""
    try:
        return cluster_calls.make_plan(address, timeout_s)
    except Rejected as error:
        problem = problem_of(error)
        hint = f"The mark stays: `holdfast node undrain {name}` takes it back, `holdfast shard apply` tries again."
        raise CommandFailed(replace(problem, hint=hint)) from None


@node_app.command("undrain", epilog=epilog("holdfast node undrain n3"))
def node_undrain(
    name: _Node, address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False
) -> None:
    """Take back the mark of `holdfast node drain`: the node may hold replicas again.

    It moves nothing by itself: `holdfast shard plan` shows what should come back.
    """
    cluster_calls.drain(address, timeout_s, name, is_on=False)
    if as_json:
        records.print_json({"node": name, "is_draining": False})
    else:
        output.print_line(f"Node {name} may hold replicas again; `holdfast shard apply` brings it some.")


@node_app.command(
    "handover",
    epilog=epilog(
        "holdfast node handover n3 --wait 2m && systemctl stop holdfast",
        "holdfast node handover $POD_NAME --wait 100s --address localhost:7401    (a preStop hook)",
        "holdfast node handover n3 --undo",
    ),
)
def node_handover(
    name: _Node,
    wait_s: Annotated[
        float,
        typer.Option("--wait", parser=_time, metavar="TIME", help="How long to wait until it may stop: 30s, 2m."),
    ] = _HANDOVER_WAIT_S,
    undo: Annotated[bool, typer.Option("--undo", help="The node stays after all: it may lead again.")] = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Get a node ready to be stopped: it hands over what it leads, and the command ends when it may go.

    The exit code is 0 once every shard that it votes in keeps, without it, a majority of voters that are there and have
    caught up. Of two nodes that a shard cannot do without together one has to wait until the other is back.
    7 means that it may not stop yet: the shards that would lose their majority are named.
    Shards of which it has the only replica cannot be kept: they are named, and nothing waits for them.
    The node leads nothing, if others can, until it is stopped, or for two minutes; --undo takes that back at once.
    Ask any router or broker, also the node itself.
    """
    if undo:
        cluster_calls.hand_over(address, timeout_s, name, undo=True)
        if as_json:
            records.print_json({"node": name, "handover": None})
        else:
            output.print_line(f"Node {name} stays: it may lead again. `holdfast shard apply --leaders` brings it some.")
        return ExitCode.OK
    with cluster_output.handover_progress(name, quiet=as_json) as show:
        progress, problem = handovers.follow(address, timeout_s, name, wait_s, show)
    if as_json:
        records.print_json(cluster_records.handover_json(name, progress))
    elif problem is None and progress is not None:
        output.print_line(cluster_output.handover_outcome(name, progress))
    if problem is None:
        return ExitCode.OK
    print_problem(problem, as_json=as_json)
    return problem.exit_code


@node_app.command("remove", epilog=epilog("holdfast node remove n3"))
def node_remove(
    name: _Node, address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False
) -> None:
    """Forget a node that holds nothing and is stopped.

    It is refused while the node holds anything: empty it first with `holdfast node drain`.
    It cannot come back with the data it has; with an empty data directory it is a new node.
    """
    cluster_calls.remove(address, timeout_s, name)
    if as_json:
        records.print_json({"node": name, "removed": True})
    else:
        output.print_line(f"Node {name} is forgotten. It comes back only as a new node, with an empty data directory.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(node_app, name="node", epilog=epilog("holdfast node ls", "holdfast node drain n3"))
