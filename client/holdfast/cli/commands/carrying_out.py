"""Showing a plan, asking about it, and carrying it out: what several commands have in common."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from holdfast.cli import cluster_calls, cluster_output, cluster_records, output, plans, records
from holdfast.cli.commands.shared import time_limit_s
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, usage
from holdfast.client import Conflict, Plan

WAIT_S = 3600.0
WAIT_HINT = (
    "Nothing of this command has begun: run it again to go on. `holdfast shard watch` follows the plan under way, "
    "`holdfast shard cancel` gives it up."
)

Wait = Annotated[
    float,
    typer.Option(
        "--wait", parser=time_limit_s, metavar="TIME", help="How long to wait for another plan that is under way: 30m.",
        show_default="1h",
    ),
]  # fmt: skip


def print_plan(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        records.print_json(cluster_records.plan_json(plan))
    elif plan.steps:
        output.show(cluster_output.plan_parts(plan))
    else:
        output.print_line(nothing_to_do(plan))


def nothing_to_do(plan: Plan) -> str:
    return plan.summary or "Nothing has to move: everything is where it should be."


def require_answer(*, yes: bool, what: str) -> None:
    """Before anything is changed: somebody has to be there who can say yes."""
    if not yes and not sys.stdin.isatty():
        raise usage(f"Expected --yes to {what}, because there is no terminal to ask at.", "`--help` says more.")


def confirm(question: str, *, yes: bool) -> None:
    if not yes and not output.confirmed(question):
        raise CommandFailed(Problem(ExitCode.REFUSED, "DECLINED", "Nothing was moved: the answer was no."))


def show_for_decision(plan: Plan, *, as_json: bool) -> None:
    """What is about to happen: for a program it is told with the outcome, which has all the steps."""
    if not as_json:
        output.show(cluster_output.plan_parts(plan))


def in_turn(
    address: str, timeout_s: float, make: Callable[[], Plan], under_way: Plan | None, *, yes: bool, as_json: bool,
    wait_s: float = WAIT_S, hint: str = WAIT_HINT,
) -> int:  # fmt: skip
    """Makes a plan, asks about it, and carries it out, after the plan that is under way. There is one at a time, and a
    machine may have begun it: nobody is refused for that, and what it has done meanwhile is not done again.

    wait_s: for others' plans, all together. hint: how to go on after Ctrl-C, or if it takes longer."""
    ends_s = time.monotonic() + wait_s
    while True:
        if under_way is not None:
            _outlast(address, timeout_s, under_way, ends_s - time.monotonic(), hint, as_json=as_json)
        plan = make()
        if not plan.steps:
            print_plan(plan, as_json=as_json)
            return ExitCode.OK
        show_for_decision(plan, as_json=as_json)
        require_answer(yes=yes, what="carry out this plan")
        confirm("Carry it out?", yes=yes)
        try:
            begun = cluster_calls.start_plan(address, timeout_s, plan)
        except Conflict as error:
            under_way = _begun_by_others(error, may_wait=time.monotonic() < ends_s)
        else:
            return carry_out(address, timeout_s, begun, as_json=as_json)


def _outlast(address: str, timeout_s: float, plan: Plan, wait_s: float, hint: str, *, as_json: bool) -> None:
    if not as_json:
        output.print_note(f"Plan {plan.id} is under way: this waits for its end, and carries it on meanwhile.")
    with cluster_output.plan_progress(quiet=as_json) as show:
        plans.outlast(address, timeout_s, plan, wait_s, show, hint)


def _begun_by_others(error: Conflict, *, may_wait: bool) -> Plan:
    """The plan that came first, if that is why this one was refused."""
    if error.reason == "PLAN_UNDER_WAY" and may_wait:
        return Plan(error.metadata["plan"])
    if error.reason != "PLAN_REFUSED":
        raise error
    hint = "The cluster has changed since the plan was made: run this again for a new one."
    raise CommandFailed(Problem(ExitCode.REFUSED, error.reason, str(error), hint)) from None


def carry_out(address: str, timeout_s: float, plan: Plan, *, as_json: bool) -> int:
    """Until it is done; prints how it went."""
    with cluster_output.plan_progress(quiet=as_json) as show:
        done = plans.follow(address, timeout_s, plan, show)
    if as_json:
        records.print_json({**cluster_records.plan_json(done), "is_done": True})
    else:
        output.print_line(cluster_output.plan_outcome(done))
    return ExitCode.OK
