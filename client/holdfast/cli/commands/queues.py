"""`holdfast queue …`."""

from typing import Annotated

import typer

from holdfast.cli import calls, output, records
from holdfast.cli.commands import queue_settings
from holdfast.cli.commands.shared import Address, Json, Timeout, complete_queue, epilog, group, print_problem
from holdfast.cli.problems import ExitCode, problem_of
from holdfast.client import QueueStats, Rejected
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

queue_app = group("Look at queues, and change what they do in their own way.")


@queue_app.command("ls", epilog=epilog("holdfast queue ls", "holdfast queue ls --json | jq '.queues[].queue'"))
def queue_ls(address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False) -> None:
    """List all queues and how many of their tasks are in which state."""
    queues = calls.list_queues(address, timeout_s)
    if as_json:
        records.print_json(records.stats_json(queues))
    elif queues:
        output.print_queues(queues)
    else:
        output.print_line("There are no queues yet: a queue exists from its first task on.")
        output.print_line('Make one:  holdfast enqueue default greet \'{"name": "world"}\'')


@queue_app.command("stats", epilog=epilog("holdfast queue stats mail", "holdfast queue stats mail reports --json"))
def queue_stats(
    queues: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE", help="Names of queues.", show_default=False, autocompletion=complete_queue),
    ],
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Count the tasks of queues by state: ready, claimed, delayed, retrying, dead, and the totals so far."""
    answers = calls.queue_stats(address, timeout_s, queues)
    stats = [answer for answer in answers if isinstance(answer, QueueStats)]
    if as_json:
        records.print_json(records.stats_json(stats))
    elif stats:
        output.print_stats(stats)
    code = ExitCode.OK
    for queue, answer in zip(queues, answers, strict=True):
        if isinstance(answer, Rejected):
            problem = problem_of(answer, subject="" if queue in answer.message else f"Queue {queue!r}")
            print_problem(problem, as_json=as_json)
            code = max(code, problem.exit_code)
    return code


def add_to(app: typer.Typer) -> None:
    queue_settings.add_to(queue_app)
    app.add_typer(queue_app, name="queue", epilog=epilog("holdfast queue ls", "holdfast queue stats mail"))
