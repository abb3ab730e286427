"""`holdfast queue …`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.cli import calls, output, queue_output, records
from holdfast.cli.commands import queue_settings, repeating
from holdfast.cli.commands.shared import (
    Address,
    DryRun,
    Json,
    Queue,
    Timeout,
    Yes,
    complete_queue,
    confirm,
    epilog,
    group,
    print_refusals,
)
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, shards_missing
from holdfast.client import HoldfastError, QueueStats, Rejected
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

queue_app = group("Look at queues, pause or empty them, and change what they do in their own way.")

_WATCH_EVERY_S = 1.0

_NO_QUEUES = "There are no queues yet: a queue exists from its first task on."


@queue_app.command("ls", epilog=epilog("holdfast queue ls", "holdfast queue ls --json | jq '.queues[].queue'"))
def queue_ls(address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False) -> None:
    """List all queues and how many of their tasks are in which state."""
    queues, missing = calls.list_queues(address, timeout_s)
    if as_json:
        records.print_json(records.stats_json(queues) | {"missing_shards": missing})
    elif queues:
        queue_output.print_queues(queues)
    else:
        output.print_line(_NO_QUEUES)
        output.print_line('Make one:  holdfast enqueue default greet \'{"name": "world"}\'')
    if missing:
        raise CommandFailed(shards_missing(missing))


@queue_app.command(
    "stats",
    epilog=epilog(
        "holdfast queue stats mail",
        "holdfast queue stats --watch",
        "holdfast queue stats mail reports --json | jq '.queues[].latencies'",
    ),
)
def queue_stats(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help="Names of queues; all if there is none.",
            show_default=False,
            autocompletion=complete_queue,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look every second, until Ctrl-C.")] = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Show queues on one screen: tasks by state, the oldest, rates, latencies by type, totals.

    per second: over the last minute. wait: from when a task could start to its claim. run: from there to its success.
    waiting: calls of workers that wait for a task. Rates and latencies begin anew with each new leader.
    Of more than 100 queues at once, latencies are left out: name those that you want to see.
    With --watch and --json it is a line each second.
    """
    names = list(dict.fromkeys(queues or ()))
    if watch:
        return repeating.watch(
            lambda: calls.queue_stats(address, timeout_s, names),
            lambda answers: _screen(names, answers),
            lambda answers: _print_stats(answers, as_json=as_json),
            _WATCH_EVERY_S,
            as_json=as_json,
        )
    answers = calls.queue_stats(address, timeout_s, names)
    _print_stats(answers, as_json=as_json)
    return _refusals(names, answers, as_json=as_json)


def _print_stats(answers: Sequence[QueueStats | Rejected], *, as_json: bool) -> None:
    stats = [answer for answer in answers if isinstance(answer, QueueStats)]
    if as_json:
        records.print_json(records.stats_json(stats), at_once=True)
    elif stats:
        output.show(queue_output.stats_parts(stats))
    elif not answers:
        output.print_line(_NO_QUEUES)


def _refusals(names: Sequence[str], answers: Sequence[QueueStats | Rejected], *, as_json: bool) -> int:
    named = zip(names, answers, strict=True) if names else ()
    return print_refusals([(name, f"Queue {name!r}", answer) for name, answer in named], as_json=as_json)


def _screen(names: Sequence[str], answers: Sequence[QueueStats | Rejected]) -> list[output.Shown]:
    """Also says what was not found: it may come with the first task."""
    stats = [answer for answer in answers if isinstance(answer, QueueStats)]
    parts = queue_output.stats_parts(stats) if stats else []
    if not answers:
        parts.append(output.text(_NO_QUEUES))
    missing = [name for name, answer in zip(names, answers, strict=False) if isinstance(answer, Rejected)]
    if missing:
        parts.append(output.text(f"Not there: {', '.join(missing)}.", "red"))
    return parts


@queue_app.command(
    "purge", epilog=epilog("holdfast queue purge mail --dry-run", "holdfast queue purge mail --yes --json")
)
def queue_purge(
    queue: Queue,
    dry_run: DryRun = False,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Cancel all waiting tasks of a queue: ready, delayed and retrying ones. There is no way back.

    It shows how many there are and asks first.
    What workers have claimed goes on, dead letters stay, and so do tasks that come after it has begun.
    """
    waiting = calls.waiting_tasks(address, timeout_s, queue)
    if not dry_run and not yes and waiting:
        which = "the only waiting task" if waiting == 1 else f"all {waiting:,} waiting tasks"
        confirm(f"cancel {which} of queue {output.printable(queue)}", warning=" There is no way back.")
    purge = calls.PurgeProgress()
    try:
        with output.progress(f"Purge {queue}", waiting) as advance:
            calls.purge_queue(address, timeout_s, queue, purge, advance, dry_run=dry_run)
    except KeyboardInterrupt:
        _print_purged(queue, purge.tasks, dry_run=dry_run, as_json=as_json)
        problem = Problem(ExitCode.INTERRUPTED, "INTERRUPTED", "It was interrupted.", "The rest still waits.")
        raise CommandFailed(problem) from None
    except HoldfastError:
        if purge.tasks:
            _print_purged(queue, purge.tasks, dry_run=dry_run, as_json=as_json)
        raise
    _print_purged(queue, purge.tasks, dry_run=dry_run, as_json=as_json)
    return ExitCode.OK


def _print_purged(queue: str, tasks: int, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        counts = {"purged": 0, "found": tasks} if dry_run else {"purged": tasks, "found": tasks}
        records.print_json({"queue": queue, **counts, "dry_run": dry_run})
        return
    noun = "waiting task" if tasks == 1 else "waiting tasks"
    if dry_run:
        output.print_line(f"{tasks:,} {noun} of queue {queue} would be cancelled.")
    else:
        output.print_line(f"{tasks:,} {noun} of queue {queue} cancelled.")


queue_settings.add_to(queue_app)


def add_to(app: typer.Typer) -> None:
    app.add_typer(queue_app, name="queue", epilog=epilog("holdfast queue ls", "holdfast queue stats mail"))
