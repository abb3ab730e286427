"""The commands, their options and their help. The only file that knows typer; what they do is in the other files."""

import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from holdfast.cli import calls, output, servers, times
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, problem_of, usage
from holdfast.client import HoldfastError, NewTask, QueueStats, Rejected
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

_EXIT_CODES = (
    "Exit codes: 0 done · 1 refused by the server · 2 wrong usage · 3 the server extra is missing · "
    "4 the server cannot be reached · 5 no such task or queue"
)


def _epilog(*examples: str) -> str:
    return "\n".join(["Examples:", *(f"  {example}" for example in examples), "", _EXIT_CODES])


app = typer.Typer(
    name="holdfast",
    help="Holdfast is a task queue that does not let go of a task. Start with `holdfast dev`, then enqueue something.",
    epilog=_epilog("holdfast dev", 'holdfast enqueue mail welcome \'{"to": "ada@example.org"}\''),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
queue_app = typer.Typer(help="Look at queues.", no_args_is_help=True, rich_markup_mode="rich")
task_app = typer.Typer(help="Look at tasks.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(queue_app, name="queue", epilog=_epilog("holdfast queue stats mail"))
app.add_typer(task_app, name="task", epilog=_epilog("holdfast task get 01984f6e-0000-8000-8000-000000000001"))

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON; errors too, on standard error.")]
Address = Annotated[
    str, typer.Option("--address", "-a", envvar="HOLDFAST_ADDRESS", metavar="HOST:PORT", help="Where the server is.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for an answer.")
]

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Where everything is kept; created if missing.")
]
Host = Annotated[str | None, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="The gRPC port; 0 takes a free one.")]
OpsPort = Annotated[
    int | None, typer.Option("--ops-port", help="The HTTP port of /metrics, /livez and /readyz; 0 takes a free one.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="auto, json or console.")]
ServerJson = Annotated[bool, typer.Option("--json", help="Log as JSON; print errors as JSON, on standard error.")]


@app.command(epilog=_epilog("holdfast dev", "holdfast dev --data-dir /tmp/try --port 7500 --ops-port 7503"))
def dev(
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    ops_port: OpsPort = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    as_json: ServerJson = False,
) -> int:
    """Start everything in one process, for development.

    Needs nothing else: no database, no cluster.
    Tasks are kept in a directory under the current one and survive a restart.
    Flags win over the environment (HOLDFAST_PORT and so on), which wins over the file. Ctrl-C stops it.
    """
    overrides = _overrides(data_dir, host, port, ops_port, log_level, log_format, as_json=as_json)
    return servers.run_dev(config, overrides)


@app.command(epilog=_epilog("holdfast broker --config /etc/holdfast/broker.toml --log-format json"))
def broker(
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    ops_port: OpsPort = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    as_json: ServerJson = False,
) -> int:
    """Start one node.

    Flags win over the environment (HOLDFAST_PORT and so on), which wins over the file.
    SIGTERM stops it gracefully; nothing that was acknowledged is lost, however it ends.
    """
    overrides = _overrides(data_dir, host, port, ops_port, log_level, log_format, as_json=as_json)
    return servers.run_broker(config, overrides)


def _overrides(
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    ops_port: int | None,
    log_level: str | None,
    log_format: str | None,
    *,
    as_json: bool,
) -> dict[str, object]:
    """The flags that were given, by the name of their setting."""
    given: dict[str, object | None] = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "ops_port": ops_port,
        "log_level": log_level,
        "log_format": "json" if as_json and log_format is None else log_format,
    }
    return {name: value for name, value in given.items() if value is not None}


@app.command(
    epilog=_epilog(
        'holdfast enqueue mail welcome \'{"to": "ada@example.org"}\'',
        "holdfast enqueue reports nightly --run-at 2030-01-01T02:00:00+01:00",
        "holdfast enqueue orders ship '[17]' --request-id order-17 --delay 5m",
        "holdfast enqueue orders ship - --priority 9 --json < order.json",
    )
)
def enqueue(
    queue: Annotated[
        str, typer.Argument(metavar="QUEUE", help="The queue's name; it need not exist yet.", show_default=False)
    ],
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="Names the handler.", show_default=False)],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="What the handler gets; - reads it from standard input.")
    ] = "{}",
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="0 to 9, higher first.", show_default="5")
    ] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Not before this has passed: 90s, 5m, 2h, 1d.")] = None,
    run_at: Annotated[
        str | None, typer.Option("--run-at", metavar="TIME", help="Not before this moment: ISO 8601 with a zone.")
    ] = None,
    request_id: Annotated[
        str, typer.Option("--request-id", help="Enqueue it once only: the same id again adds nothing.")
    ] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="On whose behalf; carried with the task.")] = "",
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, help="Failures before it is a dead letter.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Hand over one task and print its id.

    When this returns with exit code 0, the task is on disk and will not be lost.
    """
    if delay is not None and run_at is not None:
        raise usage("Expected at most one of --delay and --run-at, but both are given.")
    task = NewTask(
        queue,
        type_,
        calls.json_payload(sys.stdin.read() if payload == "-" else payload),
        headers=calls.JSON_HEADERS,
        priority=priority,
        tenant=tenant,
        request_id=request_id,
        delay_ms=None if delay is None else _parsed("--delay", times.duration_ms, delay),
        run_at_ms=None if run_at is None else _parsed("--run-at", times.instant_ms, run_at),
        max_attempts=max_attempts,
    )
    accepted = calls.enqueue(address, timeout_s, task)
    if as_json:
        output.print_json(output.accepted_json(accepted, task))
    else:
        output.print_accepted(accepted, task)


@queue_app.command("stats", epilog=_epilog("holdfast queue stats mail", "holdfast queue stats mail reports --json"))
def queue_stats(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="Names of queues.", show_default=False)],
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Count the tasks of queues by state: ready, claimed, delayed, retrying, dead, and the totals so far."""
    answers = calls.queue_stats(address, timeout_s, queues)
    stats = [answer for answer in answers if isinstance(answer, QueueStats)]
    if as_json:
        output.print_json(output.stats_json(stats))
    elif stats:
        output.print_stats(stats)
    code = ExitCode.OK
    for queue, answer in zip(queues, answers, strict=True):
        if isinstance(answer, Rejected):
            problem = problem_of(answer, subject="" if queue in answer.message else f"Queue {queue!r}")
            output.print_problem(problem, as_json=as_json)
            code = max(code, problem.exit_code)
    return code


@task_app.command(
    "get",
    epilog=_epilog(
        "holdfast task get 01984f6e-0000-8000-8000-000000000001",
        "holdfast task get 01984f6e-0000-8000-8000-000000000001 --json",
    ),
)
def task_get(
    task_id: Annotated[str, typer.Argument(metavar="ID", help="The task's id.", show_default=False)],
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a task: its state, its history, its payload, and its result or last error."""
    info = calls.get_task(address, timeout_s, task_id)
    if as_json:
        output.print_json(output.task_json(info))
    else:
        output.print_task(info)


@app.command(epilog=_epilog("holdfast version --json"))
def version(as_json: Json = False) -> None:
    """Show the version of this command."""
    try:
        number = metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        number = "unknown"  # run from a source tree that was never installed
    versions = {"version": number, "python": platform.python_version()}
    if as_json:
        output.print_json(versions)
    else:
        output.print_version(versions)


def _parsed(option: str, parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise usage(f"{option}: {error}") from None


# The base of everything that is wrong with a command line. Its name and home differ between releases of typer, and an
# application that uses the client library may pin any of them; that a bad parameter is one of its kind does not.
_COMMAND_LINE_ERROR: type[Exception] = [kind for kind in typer.BadParameter.__mro__ if issubclass(kind, Exception)][-2]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code. Every expected failure is one line, never a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    try:
        command = typer.main.get_command(app)
        code = command.main(args=arguments, prog_name="holdfast", standalone_mode=False)
    except HoldfastError as error:
        problem = problem_of(error)
    except CommandFailed as failed:
        problem = failed.problem
    except _COMMAND_LINE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it has printed the help already
            return ExitCode.USAGE
        problem = _usage_problem(error)
    except typer.Abort:
        return 130
    else:
        return code if isinstance(code, int) else ExitCode.OK
    output.print_problem(problem, as_json=as_json)
    return problem.exit_code


def _usage_problem(error: Exception) -> Problem:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "holdfast"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return Problem(ExitCode.USAGE, "USAGE", message, f"See `{command} --help`.")
