"""`holdfast workers …`."""

import time
from typing import Annotated

import typer

from holdfast.cli import calls, output, queue_output, records
from holdfast.cli.commands.shared import Address, Json, Timeout, epilog, given_text, print_problem, time_limit_s
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, problem_of, shards_missing, usage
from holdfast.client import HoldfastError, WorkerState
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

workers_app = typer.Typer(
    help="List who claims tasks, and ask workers to be quiet, to go on, or to stop.", rich_markup_mode="rich"
)

_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")]
_Names = Annotated[
    list[str], typer.Argument(metavar="NAME", help="Workers, as `holdfast workers` names them.", show_default=False)
]
_Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        parser=time_limit_s,
        metavar="TIME",
        help="How long to wait until each has heard of it.",
        show_default="30s",
    ),
]


@workers_app.callback(
    invoke_without_command=True,
    epilog=epilog("holdfast workers", "holdfast workers quiet host-1", "holdfast workers ls"),
)
def workers(
    context: typer.Context,
    limit: _Limit = 1_000,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List who claims tasks, as `workers ls` does; or ask some to be quiet, to go on, or to stop.

    `holdfast worker` (without the s) runs one.
    """
    if context.invoked_subcommand is None:
        workers_ls(limit, address, timeout_s, as_json)
        return
    for name in ("limit", "address", "timeout_s", "as_json"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.removesuffix("_s").removeprefix("as_")
            raise usage(f"Expected --{option} after {context.invoked_subcommand}, but it is before.")


@workers_app.command("ls", epilog=epilog("holdfast workers ls", "holdfast workers ls --json | jq '.workers[].worker'"))
def workers_ls(
    limit: _Limit = 1_000,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List who claims tasks: what each does, how many it holds and can run, and from which queues it takes them.

    running: claims tasks. quiet: goes on with those that it has. drained: quiet, and has none left.
    stopping: goes on with those that it has, and ends then.
    gone: nothing was heard of it for a minute, and it holds tasks until their leases end; others leave the list.
    Of programs that claim tasks without being a `holdfast worker`: waits for a task at this moment, or works.
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


@workers_app.command(
    "quiet",
    epilog=epilog("holdfast workers quiet host-1-4711-a1b2c3", "holdfast workers quiet host-1 --drain --wait 5m"),
)
def workers_quiet(
    names: _Names,
    drain: Annotated[bool, typer.Option("--drain", help="Wait also until each has finished what it has.")] = False,
    wait_s: _Wait = 30.0,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Have workers claim no more tasks. They go on with those that they have, and stay.

    A worker hears of it with its next heartbeat, within 10 s; this waits for it. `workers resume` lets it claim again.
    With --drain this waits until it has no task left: then nothing is given back when it is stopped.
    """
    until = WorkerState.DRAINED if drain else WorkerState.QUIET
    return _signal(names, WorkerState.QUIET, wait_s, address, timeout_s, as_json=as_json, until=until)


def _add_signal(name: str, desired: WorkerState, help_text: str, example: str) -> None:
    """A command that asks workers to change their state, and waits until they have heard of it."""

    @workers_app.command(name, help=help_text, epilog=epilog(example))
    def signal(
        names: _Names,
        wait_s: _Wait = 30.0,
        address: Address = DEFAULT_ADDRESS,
        timeout_s: Timeout = DEFAULT_TIMEOUT_S,
        as_json: Json = False,
    ) -> int:
        return _signal(names, desired, wait_s, address, timeout_s, as_json=as_json)


_add_signal(
    "resume",
    WorkerState.RUNNING,
    "Have workers that are quiet claim tasks again.",
    "holdfast workers resume host-1-4711-a1b2c3",
)
_add_signal(
    "stop",
    WorkerState.STOPPING,
    """Have workers stop, as SIGTERM does: running tasks may finish within the worker's grace period.

    This waits until each has begun to stop, not until it has ended. Whatever starts workers may start another one.
    """,
    "holdfast workers stop host-1-4711-a1b2c3 --wait 1m",
)

_DONE = {
    WorkerState.QUIET: "is quiet: it claims no more tasks",
    WorkerState.DRAINED: "is drained: it claims no more tasks, and has none left",
    WorkerState.RUNNING: "claims tasks",
    WorkerState.STOPPING: "stops",
}


def _signal(
    names: list[str], desired: WorkerState, wait_s: float, address: str, timeout_s: float, *,
    as_json: bool, until: WorkerState | None = None,
) -> int:  # fmt: skip
    """`until`: the state that is waited for, if it is not the one that they are asked for."""
    until = until or desired
    done: list[str] = []
    code = ExitCode.OK
    for name in dict.fromkeys(given_text("NAME", name) for name in names):
        problem = _signal_one(name, desired, until, wait_s, address, timeout_s)
        if problem is not None:
            print_problem(problem, as_json=as_json)
            code = max(code, problem.exit_code)
            continue
        done.append(name)
        if not as_json:
            output.print_line(f"Worker {name} {_DONE[until]}.")
    if as_json:
        records.print_json({"workers": done, "state": str(until)})
    return code


def _signal_one(
    name: str, desired: WorkerState, until: WorkerState, wait_s: float, address: str, timeout_s: float
) -> Problem | None:
    states = (until, WorkerState.DRAINED) if until is WorkerState.QUIET else (until,)
    try:
        with output.waiting(f"Waiting for {name} …"):
            if calls.signal_worker(address, timeout_s, name, desired, states, wait_s):
                return None
    except HoldfastError as error:
        return problem_of(error, subject=f"Worker {name}")
    if until is WorkerState.DRAINED:
        message = f"Worker {name} is not drained within {wait_s:g} s."
        hint = "It is quiet, and goes on with what it has: `holdfast claims --worker NAME` shows that."
    else:
        message = f"Worker {name} has not heard of it within {wait_s:g} s."
        hint = "It will, with its next heartbeat; `holdfast workers` shows it."
    return Problem(ExitCode.UNFINISHED, "UNFINISHED", message, hint)


def add_to(app: typer.Typer) -> None:
    app.add_typer(workers_app, name="workers")
