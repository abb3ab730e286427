"""`holdfast dlq …`: dead letters."""

import sys
from typing import Annotated

import typer

from holdfast.cli import calls, dead_letters, output, records
from holdfast.cli.commands.shared import (
    EXAMPLE_ID,
    Address,
    Json,
    Queue,
    TaskId,
    Timeout,
    Yes,
    complete_queue,
    epilog,
    group,
    print_problem,
)
from holdfast.cli.dead_letters import Report, Verb
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, problem_of, usage
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

dlq_app = group("Look at dead letters (tasks that were given up), retry them or throw them away.")

_IdsOrAll = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of dead tasks; or --all --queue QUEUE.", show_default=False),
]
_All = Annotated[bool, typer.Option("--all", help="All dead letters that the queue has now; needs --queue.")]
_QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", metavar="QUEUE", help="Whose dead letters, with --all.", autocompletion=complete_queue
    ),
]


@dlq_app.command("ls", epilog=epilog("holdfast dlq ls mail", "holdfast dlq ls mail --limit 1000 --json"))
def dlq_ls(
    queue: Queue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")] = 20,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the dead letters of a queue: when and why each died, and its last error.

    The oldest first; of a queue that is spread over several shards, the oldest first of each, shard by shard.
    """
    letters, more = calls.list_dead_letters(address, timeout_s, queue, limit)
    if as_json:
        records.print_json(records.dead_letters_json(queue, letters, more=more))
    elif letters:
        output.print_dead_letters(letters)
        if more:
            output.print_note("There are more; --limit shows more.")
    else:
        output.print_line(f"Queue {queue} has no dead letters.")


@dlq_app.command("show", epilog=epilog(f"holdfast dlq show {EXAMPLE_ID}", f"holdfast dlq show {EXAMPLE_ID} --json"))
def dlq_show(
    task_id: TaskId,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a dead letter: why it died, its last error and its payload."""
    info = calls.get_dead_letter(address, timeout_s, task_id)
    if as_json:
        records.print_json(records.task_json(info))
    else:
        output.print_task(info)


@dlq_app.command(
    "retry", epilog=epilog(f"holdfast dlq retry {EXAMPLE_ID}", "holdfast dlq retry --all --queue mail --yes")
)
def dlq_retry(
    task_ids: _IdsOrAll = None,
    every: _All = False,
    queue: _QueueOption = None,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Make dead tasks ready again, with fresh attempts: those named, or all of a queue.

    With --all it first shows how many there are and asks.
    A task that dies again meanwhile is not retried again.
    """
    return _act(Verb.RETRY, task_ids or [], queue, address, timeout_s, every=every, yes=yes, as_json=as_json)


@dlq_app.command(
    "discard", epilog=epilog(f"holdfast dlq discard {EXAMPLE_ID} --yes", "holdfast dlq discard --all --queue mail")
)
def dlq_discard(
    task_ids: _IdsOrAll = None,
    every: _All = False,
    queue: _QueueOption = None,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Delete dead tasks for good: those named, or all of a queue.

    It asks first, with --all after it has shown how many there are. There is no way back.
    """
    return _act(Verb.DISCARD, task_ids or [], queue, address, timeout_s, every=every, yes=yes, as_json=as_json)


def _act(
    verb: Verb, task_ids: list[str], queue: str | None, address: str, timeout_s: float, *,
    every: bool, yes: bool, as_json: bool,
) -> int:  # fmt: skip
    if every and task_ids:
        raise usage("Expected either ids or --all, but both are given.")
    if every and queue is None:
        raise usage("Expected --queue with --all, but there is none.", "Say whose dead letters: --all --queue QUEUE.")
    if queue is not None and not every:
        raise usage(
            "Expected --all with --queue, but there is none.", "Name the tasks by their ids, or all of the queue."
        )
    report = Report()
    try:
        if queue is not None:
            if not _act_on_all(verb, queue, address, timeout_s, report, yes=yes) and not as_json:
                output.print_line(f"Queue {queue} has no dead letters.")
                return ExitCode.OK
        elif task_ids:
            named = list(dict.fromkeys(task_ids))
            if verb is Verb.DISCARD and not yes:  # a retry can do no harm, and was asked for by name
                _confirm(verb, "the dead letter named" if len(named) == 1 else f"the {len(named):,} dead letters named")
            dead_letters.act_on(address, timeout_s, verb, named, report)
        else:
            raise usage("Expected the ids of dead letters, or --all --queue QUEUE, but there is neither.")
    except KeyboardInterrupt:
        _print_report(verb, queue, report, as_json=as_json)
        problem = Problem(ExitCode.INTERRUPTED, "INTERRUPTED", "It was interrupted.", "The rest is still dead.")
        raise CommandFailed(problem) from None
    _print_report(verb, queue, report, as_json=as_json)
    return _exit_code(report, as_json=as_json)


def _act_on_all(verb: Verb, queue: str, address: str, timeout_s: float, report: Report, *, yes: bool) -> bool:
    """Whether there were any."""
    letters = dead_letters.count(address, timeout_s, queue)
    if not letters:
        return False
    if not yes:
        many = "the only dead letter" if letters == 1 else f"all {letters:,} dead letters"
        _confirm(verb, f"{many} of queue {output.printable(queue)}")
    with output.progress(f"{verb.name.capitalize()} {queue}", 2 * letters) as advance:
        dead_letters.act_on_all(address, timeout_s, verb, queue, letters, report, advance)
    return True


def _confirm(verb: Verb, which: str) -> None:
    what = f"{verb.name.lower()} {which}"
    if not sys.stdin.isatty():
        raise usage(f"Expected --yes to {what}, because there is no terminal to ask at.")
    warning = " There is no way back." if verb is Verb.DISCARD else ""
    if not output.confirmed(f"{what[0].upper()}{what[1:]}?{warning}"):
        raise CommandFailed(Problem(ExitCode.REFUSED, "DECLINED", "Nothing was changed: the answer was no."))


def _print_report(verb: Verb, queue: str | None, report: Report, *, as_json: bool) -> None:
    if as_json:
        records.print_json(records.dead_letter_report_json(verb.value, queue, report))
        return
    whose = f" of queue {queue}" if queue is not None else ""
    failed = f", {report.failed:,} failed" if report.failed else ""
    unknown = f", {report.unknown:,} without an answer (they may be {verb.value} or not)" if report.unknown else ""
    letters = "dead letter" if report.done == 1 else "dead letters"
    output.print_line(f"{report.done:,} {letters}{whose} {verb.value}{failed}{unknown}.")


def _exit_code(report: Report, *, as_json: bool) -> int:
    """Says what failed. If nothing at all was done, the code is that of the problem; otherwise it was done in part."""
    code = ExitCode.OK
    for task_id, refusal in report.failures:
        problem = problem_of(refusal, subject="" if task_id in refusal.message else f"Task {task_id}")
        print_problem(problem, as_json=as_json)
        code = max(code, problem.exit_code)
    if report.failed > len(report.failures) and not as_json:
        output.print_note(f"… and {report.failed - len(report.failures):,} more like these.")
    if report.stopped_by is not None:
        problem = problem_of(report.stopped_by)
        print_problem(problem, as_json=as_json)
        return problem.exit_code
    return ExitCode.REFUSED if code and report.done else code


def add_to(app: typer.Typer) -> None:
    app.add_typer(dlq_app, name="dlq", epilog=epilog("holdfast dlq ls mail", "holdfast dlq retry --all --queue mail"))
