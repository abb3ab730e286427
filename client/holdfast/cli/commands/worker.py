"""`holdfast worker`."""

from typing import Annotated

import typer

from holdfast.cli import output, records, worker_logs, workers
from holdfast.cli.commands.shared import complete_queue, epilog, time_limit_s
from holdfast.cli.problems import ExitCode, usage

GRACE_S = 25.0


def _grace_s(text: str) -> float:
    return 0.0 if str(text).strip() in ("0", "0s") else time_limit_s(text)


_AppName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP",
        help="Where the app is: tasks:app is `app = Holdfast()` in tasks.py.",
        show_default=False,
    ),
]
_Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="QUEUE[:N]",
        help="A queue to serve, with at most N tasks at once; may be repeated.",
        show_default="all queues of the app's tasks",
        autocompletion=complete_queue,
    ),
]
_Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, max=1_000, metavar="N", help="How many tasks run at once.")
]
_Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        parser=_grace_s,
        metavar="TIME",
        help="How long running tasks may take at the end: 30s, 2m.",
        show_default="25s",
    ),
]
_Name = Annotated[str, typer.Option("--name", help="What the server calls it; must be unique.", show_default="made up")]
_AppAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="HOST:PORT",
        help="Where the server is; nodes of a cluster with commas between them.",
        show_default="the app's",
    ),
]
_OpsPort = Annotated[
    int | None,
    typer.Option(
        "--ops-port",
        min=0,
        max=65_535,
        envvar="HOLDFAST_WORKER_OPS_PORT",
        metavar="PORT",
        help="Show /livez, /readyz and /metrics over HTTP here; 0 takes a free port.",
        show_default="not at all",
    ),
]
_OpsHost = Annotated[
    str,
    typer.Option(
        "--ops-host",
        envvar="HOLDFAST_WORKER_OPS_HOST",
        metavar="HOST",
        help="The address of that port; 0.0.0.0 for probes from elsewhere.",
    ),
]
_Transport = Annotated[
    str | None,
    typer.Option(
        "--transport",
        metavar="auto|grpc",
        help="How calls travel: in frames where the server has them, or always over gRPC.",
        show_default="the app's",
    ),
]
_Tracebacks = Annotated[
    bool,
    typer.Option(
        "--tracebacks/--no-tracebacks",
        envvar="HOLDFAST_WORKER_TRACEBACKS",
        help="Log failed attempts with traceback and text of the exception, or with its type only.",
    ),
]
_LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
_LogFormat = Annotated[str, typer.Option("--log-format", help="console or json.")]
_LogJson = Annotated[bool, typer.Option("--json", help="Log lines as JSON, and at the end a report as JSON.")]


def worker(
    app_name: _AppName,
    queue: _Queues = None,
    concurrency: _Concurrency = 10,
    grace_s: _Grace = GRACE_S,
    name: _Name = "",
    address: _AppAddress = None,
    transport: _Transport = None,
    ops_port: _OpsPort = None,
    ops_host: _OpsHost = "127.0.0.1",
    tracebacks: _Tracebacks = True,
    log_level: _LogLevel = "info",
    log_format: _LogFormat = "console",
    as_json: _LogJson = False,
) -> int:
    """Run the tasks of an app until it is stopped.

    Ctrl-C or SIGTERM stops it warmly: it takes no more tasks and lets the running ones finish.
    What does not finish within the grace period is given back without spending an attempt.
    If the server goes away, it waits for it. Log lines go to standard error.
    """
    level = log_level.lower()
    if level not in worker_logs.LEVELS:
        raise usage(f"--log-level: Expected one of {', '.join(worker_logs.LEVELS)}, but got {log_level!r}.")
    if log_format not in worker_logs.FORMATS:
        raise usage(f"--log-format: Expected one of {', '.join(worker_logs.FORMATS)}, but got {log_format!r}.")
    report = workers.run(
        app_name,
        workers.queue_limits(queue or ()),
        concurrency=concurrency,
        grace_s=grace_s,
        name=name,
        address=address,
        transport=transport,
        ops_host=ops_host,
        ops_port=ops_port,
        log_tracebacks=tracebacks,
        log_level=level,
        log_json=as_json or log_format == "json",
    )
    if as_json:
        records.print_json(records.worker_json(report))
    elif level in ("warning", "error"):  # otherwise the last line of its log has said so
        output.print_note(
            f"Stopped: {report.succeeded:,} succeeded, {report.failed:,} failed attempts, "
            f"{report.released:,} given back, {report.lost:,} leases lost."
        )
    return ExitCode.OK


def add_to(app: typer.Typer) -> None:
    examples = (
        "holdfast worker tasks:app",
        "holdfast worker shop.tasks:app -q mail:5 -q reports -c 20",
        "holdfast worker tasks:app --address queue.internal:7400 --grace 1m --json",
        "holdfast worker tasks:app --ops-host 0.0.0.0 --ops-port 7490 --log-format json",
    )
    app.command(epilog=epilog(*examples))(worker)
