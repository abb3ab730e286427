"""`holdfast shard plan|apply|move|cancel|watch`: where replicas should be, and getting them there."""

import time
from typing import Annotated

import typer

from holdfast.cli import cluster_calls, cluster_output, output, plans, records, watching
from holdfast.cli.commands import carrying_out
from holdfast.cli.commands.shared import Address, Json, Shard, Timeout, Yes, epilog, print_problem
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, not_current, problem_of
from holdfast.client import HoldfastError, MoveWish
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

WATCH_EVERY_S = 1.0

_Leaders = Annotated[bool, typer.Option("--leaders", help="Only who leads: spread leaders evenly, move no data.")]


def shard_plan(
    leaders: _Leaders = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show what should move, how much data that is, and why. Changes nothing.

    The goal: replicas spread evenly by capacity, zones apart, nothing on nodes that drain, and leaders even.
    As little as possible moves for it.
    --leaders: as after a rolling restart, when the nodes that came back lead nothing.
    `holdfast shard apply` carries it out.
    It is refused while etcd does not answer: nobody knows then which nodes are alive.
    """
    info = cluster_calls.describe(address, timeout_s)
    if info.plan is not None and not as_json:
        output.print_note(f"Plan {info.plan.id} is under way: {cluster_output.PLAN_NOTE}.")
    carrying_out.print_plan(cluster_calls.make_plan(address, timeout_s, leaders=leaders), as_json=as_json)


def shard_apply(
    leaders: _Leaders = False,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Move replicas and leaders to where they should be: shows the plan, asks, and carries it out.

    A node gives or gets one replica at a time. Each is copied, has to catch up, and votes before the old one goes.
    So no shard ever has fewer replicas than it should, and work goes on meanwhile.
    If a plan is under way already it goes on with that one, from whatever machine it was begun.
    Ctrl-C ends the command: what has begun goes on by itself, and `holdfast shard apply` resumes the rest.
    """
    under_way = cluster_calls.describe(address, timeout_s).plan
    if under_way is not None:
        if not as_json:
            done = plans.tally(under_way)
            output.print_note(f"Plan {under_way.id} is under way, {done.left} of {done.steps} steps left: resuming it.")
        return carrying_out.carry_out(address, timeout_s, under_way, as_json=as_json)
    return carrying_out.in_turn(
        address, timeout_s, lambda: cluster_calls.make_plan(address, timeout_s, leaders=leaders), None,
        yes=yes, as_json=as_json,
    )  # fmt: skip


def shard_move(
    shard: Shard,
    source: Annotated[str, typer.Option("--from", metavar="NODE", help="The node that gives its replica up.")],
    destination: Annotated[str, typer.Option("--to", metavar="NODE", help="The node that gets one.")],
    wait_s: carrying_out.Wait = carrying_out.WAIT_S,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Move one replica of a shard from one node to another.

    It is copied, catches up and votes before the old one goes. If the old one leads, it hands over first.
    It is refused if the shard could be left without a majority. Returns when the old replica is gone.
    If a plan is under way, it waits for its end first, for up to --wait.
    """
    move = MoveWish(shard, source, destination)
    return carrying_out.in_turn(
        address, timeout_s, lambda: cluster_calls.make_plan(address, timeout_s, move=move),
        cluster_calls.describe(address, timeout_s).plan, yes=True, as_json=as_json, wait_s=wait_s,
    )  # fmt: skip


def shard_cancel(
    address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False
) -> None:
    """Give up the plan that is under way: no more of its steps begin.

    Steps that have begun are brought to their end by the shards themselves. Nothing is moved back.
    """
    info = cluster_calls.describe(address, timeout_s)
    plan = info.plan
    if plan is None:
        for problem in not_current(info):
            raise CommandFailed(problem)
        hint = "`holdfast shard plan` shows what should move."
        raise CommandFailed(Problem(ExitCode.NOT_FOUND, "PLAN_NOT_FOUND", "No plan is under way.", hint))
    cluster_calls.cancel_plan(address, timeout_s, plan.id)
    if as_json:
        records.print_json({"plan": plan.id, "cancelled": True})
    else:
        output.print_line(f"Plan {plan.id} is given up: what has begun is finished, nothing else begins.")


def shard_watch(
    address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False
) -> int:
    """Follow the plan under way until it is done; without one, follow who leads until Ctrl-C.

    It only looks: `holdfast shard apply` is what makes a plan go on.
    At a terminal it is a table that changes; elsewhere, and with --json, a line for each change.
    While etcd does not answer it says so, and shows the last known map.
    """
    watched = watching.WatchedCluster()
    shows_table = output.is_watched() and not as_json
    is_noted = False
    try:
        with output.redrawn() as redraw:
            while True:
                try:
                    info = cluster_calls.describe(address, timeout_s)
                except HoldfastError as error:
                    problem = problem_of(error)
                    if problem.exit_code is not ExitCode.UNREACHABLE:
                        raise
                    print_problem(problem, as_json=as_json)
                else:
                    changes = watched.update(info)
                    for change in changes:
                        if as_json:
                            records.print_json(change.record, at_once=True)
                        elif not shows_table:
                            output.print_line_at_once(change.text)
                    if watched.plan is not None and not (is_noted or as_json or shows_table or watched.is_done):
                        is_noted = True
                        output.print_note(f"This only looks: {cluster_output.PLAN_NOTE}.")
                    if shows_table:
                        redraw(_screen(watched))
                    if watched.is_done:
                        return ExitCode.OK
                time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return ExitCode.OK


def _screen(watched: watching.WatchedCluster) -> list[output.Shown]:
    parts = [output.text(watched.last_known, "bold red")] if watched.last_known else []
    parts.append(cluster_output.shard_table(watched.views))
    if watched.plan is not None:
        parts += cluster_output.progress_parts(watched.plan)
        if not watched.is_done:
            parts.append(output.text(f"This only looks: {cluster_output.PLAN_NOTE}.", "dim"))
    return parts


def add_to(shard_app: typer.Typer) -> None:
    examples = ("holdfast shard plan", "holdfast shard plan --leaders", "holdfast shard plan --json | jq '.steps[]'")
    shard_app.command("plan", epilog=epilog(*examples))(shard_plan)
    examples = ("holdfast shard apply", "holdfast shard apply --yes", "holdfast shard apply --leaders --yes --json")
    shard_app.command("apply", epilog=epilog(*examples))(shard_apply)
    shard_app.command("move", epilog=epilog("holdfast shard move 3 --from n1 --to n4"))(shard_move)
    shard_app.command("cancel", epilog=epilog("holdfast shard cancel"))(shard_cancel)
    shard_app.command("watch", epilog=epilog("holdfast shard watch", "holdfast shard watch --json"))(shard_watch)
