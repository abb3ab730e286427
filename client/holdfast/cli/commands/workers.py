"""`holdfast workers`."""

import time
from typing import Annotated

import typer

from holdfast.cli import calls, output, queue_output, records
from holdfast.cli.commands.shared import Address, Json, Timeout, epilog
from holdfast.cli.problems import CommandFailed, shards_missing
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S


def workers(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")] = 1_000,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List who claims tasks: how many each holds, when it was last heard of, and from which queues it takes them.

    waits: one of its calls waits for a task at this moment. works: it holds tasks.
    Those that hold nothing and have not been heard of for a while are forgotten.
    `holdfast worker` (without the s) runs one.
    """
    found, more, missing = calls.list_workers(address, timeout_s, limit)
    if as_json:
        records.print_json(records.workers_json(found, more=more) | {"missing_shards": missing})
    elif found:
        queue_output.print_workers(found, time.time_ns() // 1_000_000)
        if more:
            output.print_note("There are more; --limit shows more.")
    else:
        output.print_line("No worker has asked for tasks lately. Run one:  holdfast worker tasks:app")
    if missing:
        raise CommandFailed(shards_missing(missing))


def add_to(app: typer.Typer) -> None:
    app.command(epilog=epilog("holdfast workers", "holdfast workers --json | jq '.workers[].worker'"))(workers)
