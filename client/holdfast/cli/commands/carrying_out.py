"""Showing a plan, asking about it, and carrying it out: what several commands have in common."""

import sys

from holdfast.cli import cluster_calls, cluster_output, cluster_records, output, plans, records
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, usage
from holdfast.client import Conflict, Plan


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


def begin(address: str, timeout_s: float, plan: Plan) -> Plan:
    """Makes it the plan that is carried out."""
    try:
        return cluster_calls.start_plan(address, timeout_s, plan)
    except Conflict as error:
        if error.reason != "PLAN_REFUSED":
            raise
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
