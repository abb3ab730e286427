"""Options that many commands have, how help texts end, and how problems with parts of a command are told."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from holdfast.cli import calls, connecting, options, output, records, times
from holdfast.cli.problems import EXIT_CODE_MEANINGS, CommandFailed, ExitCode, Problem, problem_of, usage
from holdfast.client import Rejected, TaskInfo
from holdfast.client.aio import DEFAULT_ADDRESS
from holdfast.client.app import ADDRESS_VARIABLE

T = TypeVar("T")

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


def timeout_option(help_text: str, *, shown: str) -> Any:
    """`shown`: what it is if it is not given, as people write it."""
    return typer.Option("--timeout", parser=time_limit_s, metavar="TIME", help=help_text, show_default=shown)


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
Timeout = Annotated[float, timeout_option("How long to wait for an answer: 500ms, 30s, …", shown="10s")]
Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False, autocompletion=complete_queue),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]
Shard = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard's number.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many; nothing is changed.")]
TaskIds = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of tasks.", show_default=False)]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.", show_default=False)]


def with_options(added_options: Mapping[str, Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Gives a command options that it gets as keywords: names and annotations, each for an option that may be left out.
    So several commands can have the same ones."""

    def add(command: Callable[..., T]) -> Callable[..., T]:
        own = inspect.signature(command)
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in added_options.items()
        ]
        kept = [
            parameter for parameter in own.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        arguments = [parameter for parameter in kept if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
        others = [parameter for parameter in kept if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        vars(command)["__signature__"] = own.replace(parameters=[*arguments, *added, *others])
        return command

    return add


# There is none for the token itself: everybody on a machine sees the command lines of all.
_CONNECTION_OPTIONS = {
    "token_file": Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            show_default=False,
            help="A file with the token that says who calls; HOLDFAST_TOKEN_FILE and HOLDFAST_TOKEN do it too.",
        ),
    ],
    "tls_ca": Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="TLS: who signs the servers' certificates, in PEM.")
    ],
    "tls_cert": Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="A certificate to show to the servers, in PEM.")
    ],
    "tls_key": Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="The key of --tls-cert, in PEM.")],
}


def add_connection_options(app: typer.Typer) -> None:
    """To every command that has an address: how the server there is spoken to."""
    for command in app.registered_commands:
        callback = command.callback
        if callback is not None and "address" in inspect.signature(callback).parameters:
            command.callback = _connected(callback)
    for below in app.registered_groups:
        if below.typer_instance is not None:
            add_connection_options(below.typer_instance)


def _connected(command: Callable[..., T]) -> Callable[..., T]:
    if hasattr(command, "is_connected"):  # groups are kept while trees are made anew
        return command

    @functools.wraps(command)
    def connected(
        *given: Any, token_file: str | None = None, tls_ca: str | None = None, tls_cert: str | None = None,
        tls_key: str | None = None, **named: Any,
    ) -> T:  # fmt: skip
        with connecting.using_tls(tls_ca, tls_cert, tls_key), connecting.using_token_file(token_file):
            return command(*given, **named)

    vars(connected)["is_connected"] = True
    # What `wraps` took over has no place for them.
    vars(connected)["__signature__"] = inspect.signature(command)
    return with_options(_CONNECTION_OPTIONS)(connected)


def parsed(option: str, parse: Callable[[str], T], text: str | None) -> T | None:
    """The value of an option; None if it was not given."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise usage(f"{option}: {error}") from None


def given_text(option: str, text: str | None) -> str:
    """The text of an option; empty if it was not given, and only then."""
    return parsed(option, options.some_text, text) or ""


def confirm(what: str, *, warning: str = "") -> None:
    """Ends the command unless the answer is yes; `what` begins with a verb in small letters."""
    if not sys.stdin.isatty():
        raise usage(f"Expected --yes to {what}, because there is no terminal to ask at.")
    if not output.confirmed(f"{what[0].upper()}{what[1:]}?{warning}"):
        raise CommandFailed(Problem(ExitCode.REFUSED, "DECLINED", "Nothing was changed: the answer was no."))


def print_task(info: TaskInfo, *, as_json: bool) -> None:
    if as_json:
        records.print_json(records.task_json(info))
    else:
        output.print_task(info)


def print_refusals(answers: Sequence[tuple[str, str, object]], *, as_json: bool) -> ExitCode:
    """Says which parts of a command were refused, and returns the exit code of the worst. Each is what it is about, how
    that is called in a sentence, and the answer."""
    code = ExitCode.OK
    for name, subject, answer in answers:
        if isinstance(answer, Rejected):
            problem = problem_of(answer, subject="" if name in answer.message else subject)
            print_problem(problem, as_json=as_json)
            code = max(code, problem.exit_code)
    return code


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
