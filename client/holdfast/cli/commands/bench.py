"""`holdfast bench`."""

from dataclasses import asdict, replace
from typing import Annotated

import typer

from holdfast.cli import bench, output, records
from holdfast.cli.bench import BenchFailed, BenchPlan, BenchResult
from holdfast.cli.commands.shared import Address, Json, Timeout, epilog, print_problem
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, problem_of
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S


def run_bench(
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, max=bench.TASKS_MAX, help="How many tasks.")] = 10_000,
    batch: Annotated[int, typer.Option("--batch", min=1, max=1_000, help="Tasks per call.")] = 100,
    payload_bytes: Annotated[
        int, typer.Option("--payload-bytes", min=bench.PAYLOAD_BYTES_MIN, max=1_048_576, help="Size of each payload.")
    ] = 100,
    producers: Annotated[int, typer.Option("--producers", min=1, max=256, help="Connections that enqueue.")] = 2,
    consumers: Annotated[int, typer.Option("--consumers", min=1, max=256, help="Connections that take and ack.")] = 2,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Measure a server: enqueue tasks, take them, finish them, and check that each came back exactly once.

    Producers and consumers run at the same time, in a queue of their own.
    It is empty again afterwards, also after Ctrl-C.
    One process may be slower than the server: watch the CPU figure, and start several for more load.
    """
    plan = BenchPlan(tasks, batch, payload_bytes, producers, consumers)
    try:
        with output.progress("Tasks finished", tasks) as advance:
            report = bench.run(address, timeout_s, plan, advance)
    except BenchFailed as failed:
        problem = problem_of(failed.error)
        if failed.left_behind:
            problem = replace(problem, hint=f"{problem.hint} {_left_behind(plan, failed.left_behind)}".strip())
        raise CommandFailed(problem) from failed
    except KeyboardInterrupt:
        hint = f"Tasks may be left: see `holdfast queue stats {plan.queue}`."
        raise CommandFailed(Problem(ExitCode.INTERRUPTED, "INTERRUPTED", "It was interrupted.", hint)) from None
    if as_json:
        records.print_json(records.bench_json(asdict(plan) | asdict(report)))
    else:
        output.print_rows(_rows(plan, report))
        if report.left_behind:
            output.print_note(_left_behind(plan, report.left_behind))
    return _verdict(plan, report, as_json=as_json)


def _rows(plan: BenchPlan, report: BenchResult) -> list[tuple[str, str]]:
    return [
        ("tasks", f"{report.finished:,} of {plan.payload_bytes:,} bytes, {plan.batch:,} per call"),
        ("connections", f"{plan.producers} producing, {plan.consumers} consuming"),
        ("enqueue", f"{report.enqueue_tasks_per_s:,.0f} tasks/s"),
        ("end to end", f"{report.end_to_end_tasks_per_s:,.0f} tasks/s"),
        ("enqueue call", f"p50 {report.enqueue_p50_ms:.1f} ms, p99 {report.enqueue_p99_ms:.1f} ms"),
        ("CPU here", f"{report.cpu_us_per_task:,.0f} µs per task"),
    ]


def _left_behind(plan: BenchPlan, tasks: int) -> str:
    return f"{tasks:,} tasks may be left: see `holdfast queue stats {plan.queue}`."


def _verdict(plan: BenchPlan, report: BenchResult, *, as_json: bool) -> int:
    if report.missing or report.repeated:
        message = (
            f"Expected every task to come back exactly once, but {report.missing:,} are missing "
            f"and {report.repeated:,} came more than once."
        )
        hint = "A task comes again when its lease of 15 s runs out: use smaller batches on a slow server."
        print_problem(Problem(ExitCode.REFUSED, "NOT_EXACTLY_ONCE", message, hint), as_json=as_json)
        return ExitCode.REFUSED
    if report.interrupted:
        if not as_json:
            output.print_note(
                f"Interrupted after {report.accepted:,} of {plan.tasks:,} tasks; all of them are finished."
            )
        return ExitCode.INTERRUPTED
    if not as_json:
        output.print_note("Every task came back exactly once.")
    return ExitCode.OK


def add_to(app: typer.Typer) -> None:
    examples = ("holdfast bench", "holdfast bench --tasks 100000 --batch 500 --producers 4 --consumers 4 --json")
    app.command("bench", epilog=epilog(*examples))(run_bench)
