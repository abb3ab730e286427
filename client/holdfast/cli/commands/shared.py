"""Options that many commands have, how help texts end, and how problems with parts of a command are told."""

import os
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from holdfast.cli import calls, output, records, times
from holdfast.cli.problems import EXIT_CODE_MEANINGS, ExitCode, Problem, usage
from holdfast.client.aio import DEFAULT_ADDRESS
from holdfast.client.app import ADDRESS_VARIABLE

_EXIT_CODES = "Exit codes: " + " · ".join(f"{code:d} {meaning}" for code, meaning in EXIT_CODE_MEANINGS.items())

EXAMPLE_ID = "01984f6e-0000-8000-8000-000000000001"


def epilog(*examples: str) -> str:
    return "\n".join(["Examples:", *(f"  {example}" for example in examples), "", _EXIT_CODES])


def group(help_text: str) -> typer.Typer:
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode="rich")


def time_limit_s(text: str) -> float:
    """Parses an option; typer puts its name before the sentence."""
    try:
        return times.timeout_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    return calls.queue_names(
        ctx.params.get("address") or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS, incomplete
    )


Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON; errors too, on standard error.")]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        envvar=ADDRESS_VARIABLE,
        metavar="HOST:PORT",
        help="Where the server is; nodes of a cluster with commas between them.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=time_limit_s,
        metavar="TIME",
        help="How long to wait for an answer: 500ms, 30s, …",
        show_default="10s",
    ),
]
Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False, autocompletion=complete_queue),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]
Shard = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard's number.", show_default=False)]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.", show_default=False)]


def parsed(option: str, parse: Callable[[str], int], text: str | None) -> int | None:
    """The value of an option; None if it was not given."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise usage(f"{option}: {error}") from None


def print_problem(problem: Problem, *, as_json: bool) -> None:
    """On standard error, so that it never mixes with results."""
    if as_json:
        records.print_problem_json(problem)
    else:
        output.print_problem(problem)


def print_problems(problems: Sequence[Problem], *, as_json: bool) -> ExitCode:
    """All that went wrong with parts of a command, as one JSON value if that was asked for; the exit code is that of
    the worst."""
    if not problems:
        return ExitCode.OK
    worst = max(problems, key=lambda problem: problem.exit_code)
    if as_json:
        records.print_problem_json(worst, [problem for problem in problems if problem is not worst])
    else:
        for problem in problems:
            output.print_problem(problem)
    return worst.exit_code
