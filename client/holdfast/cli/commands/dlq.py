"""`holdfast dlq …`: dead letters."""

import time
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import typer

from holdfast.cli import calls, dead_letters, output, queue_output, records, times
from holdfast.cli.commands.shared import (
    EXAMPLE_ID,
    Address,
    DryRun,
    Json,
    Queue,
    TaskId,
    Timeout,
    Yes,
    complete_queue,
    confirm,
    epilog,
    given_text,
    group,
    parsed,
    print_problem,
    print_task,
    with_options,
)
from holdfast.cli.dead_letters import LetterAction, LetterTally, Verb
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, problem_of, usage
from holdfast.client import DeadLetterFilter
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

dlq_app = group("Look at dead letters (tasks that were given up), retry them or throw them away.")

REASONS = (
    "ATTEMPTS_SPENT", "CLAIMS_SPENT", "WORKER_GAVE_UP", "NON_RETRYABLE", "TTL_PASSED", "REQUEST_ID_CONFLICT",
)  # fmt: skip
_TEXT_BYTES_MAX = 256  # of who discards, and why

_IdsOrAll = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of dead tasks; or --all --queue QUEUE.", show_default=False),
]
_All = Annotated[
    bool, typer.Option("--all", help="All dead letters that the queue has now, and that fit; needs --queue.")
]
_QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", metavar="QUEUE", help="Whose dead letters, with --all.", autocompletion=complete_queue
    ),
]
_MaybeQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE", help="The queue's name; all queues if not given.", show_default=False,
        autocompletion=complete_queue,
    ),
]  # fmt: skip
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")]
_By = Annotated[str | None, typer.Option("--by", help="Who discards them, for the record.", show_default="user@host")]
_Note = Annotated[str, typer.Option("--note", help="Why, for the record.", show_default=False)]


def _text_option(name: str, metavar: str, help_text: str) -> Any:
    return Annotated[str | None, typer.Option(name, metavar=metavar, help=help_text, show_default=False)]


_FILTER = {
    "type_": _text_option("--type", "TYPE", "Only tasks of this type."),
    "tenant": _text_option("--tenant", "TENANT", "Only those of this tenant."),
    "error": _text_option("--error", "TEXT", "Only where the last error has this in its type or message."),
    "reason": _text_option("--reason", "REASON", f"Only those that died of this: {', '.join(REASONS)}."),
    "since": _text_option("--since", "TIME", "Only those that died since: 2h (ago), or ISO 8601 with a zone."),
    "until": _text_option("--until", "TIME", "Only those that died before that."),
}


def _filter(given: dict[str, str | None]) -> DeadLetterFilter:
    now_ms = time.time_ns() // 1_000_000
    since_ms = parsed("--since", lambda text: times.moment_ms(text, now_ms), given["since"])
    until_ms = parsed("--until", lambda text: times.moment_ms(text, now_ms), given["until"])
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise usage("Expected --since before --until, but it is not.")
    reason = given_text("--reason", given["reason"]).upper().replace("-", "_")
    if reason and reason not in REASONS:
        raise usage(f"--reason: Expected one of {', '.join(REASONS)}, but got {given['reason']!r}.")
    return DeadLetterFilter(
        type=given_text("--type", given["type_"]),
        tenant=given_text("--tenant", given["tenant"]),
        error=given_text("--error", given["error"]),
        died_from_ms=since_ms,
        died_before_ms=until_ms,
        reason=reason,
    )


@dlq_app.command(
    "ls",
    epilog=epilog(
        "holdfast dlq ls mail",
        "holdfast dlq ls mail --error timeout --since 2h",
        "holdfast dlq ls mail --type welcome --limit 1000 --json",
    ),
)
@with_options(_FILTER)
def dlq_ls(
    queue: Queue,
    *,
    limit: _Limit = 20,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
    **given: Any,
) -> None:
    """List the dead letters of a queue: when and why each died, and its last error.

    The oldest first; of a queue that is spread over several shards, the oldest first of each, shard by shard.
    """
    where = _filter(given)
    with output.waiting(f"Looking through the dead letters of {queue} …"):
        letters, more = calls.list_dead_letters(address, timeout_s, queue, where, limit)
    if as_json:
        records.print_json(records.dead_letters_json(queue, letters, more=more))
    elif letters:
        output.print_dead_letters(letters)
        if more:
            output.print_note("There are more; --limit shows more.")
    else:
        output.print_line(_none_of(queue, where))


def _none_of(queue: str, where: DeadLetterFilter) -> str:
    return f"Queue {queue} has no dead letters{'' if where == DeadLetterFilter() else ' that fit'}."


@dlq_app.command("show", epilog=epilog(f"holdfast dlq show {EXAMPLE_ID}", f"holdfast dlq show {EXAMPLE_ID} --json"))
def dlq_show(
    task_id: TaskId,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a dead letter: why it died, its last error with the traceback, its attempts and its payload."""
    print_task(calls.get_dead_letter(address, timeout_s, task_id), as_json=as_json)


@dlq_app.command(
    "retry",
    epilog=epilog(
        f"holdfast dlq retry {EXAMPLE_ID}",
        "holdfast dlq retry --all --queue mail --error timeout --dry-run",
        "holdfast dlq retry --all --queue mail --yes",
    ),
)
@with_options(_FILTER)
def dlq_retry(
    task_ids: _IdsOrAll = None,
    every: _All = False,
    queue: _QueueOption = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
    **given: Any,
) -> int:
    """Make dead tasks ready again, with fresh attempts: those named, or all of a queue that fit.

    With --all it first shows how many there are and asks. --dry-run only says how many.
    A task that dies again meanwhile is not retried again.
    """
    which = _Which(task_ids or [], queue, _filter(given), every)
    run = _Run(address, timeout_s, dry_run=dry_run, yes=yes, as_json=as_json)
    return _act(LetterAction(Verb.RETRY), which, run)


@dlq_app.command(
    "discard",
    epilog=epilog(
        f"holdfast dlq discard {EXAMPLE_ID} --yes",
        "holdfast dlq discard --all --queue mail --type welcome --note 'the campaign is over'",
        "holdfast dlq discard --all --queue mail --until 7d --dry-run",
    ),
)
@with_options(_FILTER)
def dlq_discard(
    task_ids: _IdsOrAll = None,
    every: _All = False,
    queue: _QueueOption = None,
    *,
    by: _By = None,
    note: _Note = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
    **given: Any,
) -> int:
    """Delete dead tasks for good: those named, or all of a queue that fit.

    It asks first, with --all after it has shown how many there are. There is no way back.
    What is left is a record of what was discarded, when, by whom and why: `holdfast dlq discarded`.
    """
    which = _Which(task_ids or [], queue, _filter(given), every)
    run = _Run(address, timeout_s, dry_run=dry_run, yes=yes, as_json=as_json)
    for option, text in (("--by", given_text("--by", by)), ("--note", note)):
        if len(text.encode(errors="replace")) > _TEXT_BYTES_MAX:
            raise usage(f"{option}: Expected at most {_TEXT_BYTES_MAX} bytes, but it is longer.")
    return _act(LetterAction(Verb.DISCARD, by, note), which, run)


@dlq_app.command("discarded", epilog=epilog("holdfast dlq discarded mail", "holdfast dlq discarded --json"))
def dlq_discarded(
    queue: _MaybeQueue = None,
    limit: _Limit = 20,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List what was discarded: which tasks, when, by whom and why.

    The oldest first. Records are kept for 90 days unless the brokers' configuration says otherwise.
    """
    discards, more = calls.list_discards(address, timeout_s, queue or "", limit)
    if as_json:
        records.print_json(records.discards_json(queue, discards, more=more))
    elif discards:
        queue_output.print_discards(discards)
        if more:
            output.print_note("There are more; --limit shows more.")
    else:
        output.print_line("Nothing was discarded" + (f" of queue {queue}." if queue else "."))


@dataclass(frozen=True, slots=True)
class _Which:
    """The letters that are meant: named ones, or all of a queue that fit."""

    task_ids: list[str]
    queue: str | None
    where: DeadLetterFilter
    every: bool

    def check(self) -> None:
        if self.every and self.task_ids:
            raise usage("Expected either ids or --all, but both are given.")
        if self.every and self.queue is None:
            hint = "Say whose dead letters: --all --queue QUEUE."
            raise usage("Expected --queue with --all, but there is none.", hint)
        if self.queue is not None and not self.every:
            hint = "Name the tasks by their ids, or all of the queue."
            raise usage("Expected --all with --queue, but there is none.", hint)
        if not self.every and self.has_filter:
            raise usage("Expected --all --queue QUEUE with a filter, but there is none.")
        if not self.every and not self.task_ids:
            raise usage("Expected the ids of dead letters, or --all --queue QUEUE, but there is neither.")

    @property
    def has_filter(self) -> bool:
        return self.where != DeadLetterFilter()


@dataclass(frozen=True, slots=True)
class _Run:
    """How the command was called."""

    address: str
    timeout_s: float
    _: KW_ONLY
    dry_run: bool
    yes: bool
    as_json: bool


def _act(action: LetterAction, which: _Which, run: _Run) -> int:
    which.check()
    report = LetterTally()
    try:
        if which.queue is not None:
            if not _act_on_all(action, which.queue, which.where, run, report) and not run.as_json:
                output.print_line(_none_of(which.queue, which.where))
                return ExitCode.OK
        else:
            _act_on_named(action, list(dict.fromkeys(which.task_ids)), run, report)
    except KeyboardInterrupt:
        _print_report(action.verb, which.queue, report, run)
        problem = Problem(ExitCode.INTERRUPTED, "INTERRUPTED", "It was interrupted.", "The rest is still dead.")
        raise CommandFailed(problem) from None
    _print_report(action.verb, which.queue, report, run)
    return _exit_code(report, as_json=run.as_json)


def _act_on_named(action: LetterAction, named: list[str], run: _Run, report: LetterTally) -> None:
    if run.dry_run:
        dead_letters.check_dead_letters(run.address, run.timeout_s, named, report)
        return
    if action.verb is Verb.DISCARD and not run.yes:  # a retry can do no harm, and was asked for by name
        _confirm(action, "the dead letter named" if len(named) == 1 else f"the {len(named):,} dead letters named")
    dead_letters.act_on(run.address, run.timeout_s, action, named, report)


def _act_on_all(action: LetterAction, queue: str, where: DeadLetterFilter, run: _Run, report: LetterTally) -> bool:
    """Whether there were any. How many fit a filter is known only when all have been looked at."""
    letters = dead_letters.count(run.address, run.timeout_s, queue)
    if not letters:
        return False
    has_filter = where != DeadLetterFilter()
    if run.dry_run and not has_filter:
        report.done = letters
        return True
    whose = f"of queue {output.printable(queue)}"
    if not run.yes and not run.dry_run and not has_filter:
        _confirm(action, f"{'the only dead letter' if letters == 1 else f'all {letters:,} dead letters'} {whose}")
    with output.progress(f"Find in {queue}", letters) as advance:
        packed = dead_letters.find(run.address, run.timeout_s, queue, where, letters, advance)
    found = dead_letters.found_count(packed)
    if run.dry_run or not found:
        report.done = found
        return bool(found)
    if not run.yes and has_filter:
        _confirm(action, f"{'the only dead letter' if found == 1 else f'the {found:,} dead letters'} {whose} that fit")
    with output.progress(f"{action.verb.name.capitalize()} {queue}", found) as advance:
        dead_letters.act_on_found(run.address, run.timeout_s, action, packed, report, advance)
    return True


def _confirm(action: LetterAction, which: str) -> None:
    warning = " There is no way back." if action.verb is Verb.DISCARD else ""
    confirm(f"{action.verb.name.lower()} {which}", warning=warning)


def _print_report(verb: Verb, queue: str | None, report: LetterTally, run: _Run) -> None:
    if run.as_json:
        records.print_json(records.dead_letter_report_json(verb.value, queue, report, dry_run=run.dry_run))
        return
    whose = f" of queue {queue}" if queue is not None else ""
    failed = f", {report.failed:,} failed" if report.failed else ""
    unknown = f", {report.unknown:,} without an answer (they may be {verb.value} or not)" if report.unknown else ""
    letters = "dead letter" if report.done == 1 else "dead letters"
    done = f"would be {verb.value}" if run.dry_run else verb.value
    output.print_line(f"{report.done:,} {letters}{whose} {done}{failed}{unknown}.")


def _exit_code(report: LetterTally, *, as_json: bool) -> int:
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
