"""`holdfast enqueue` and `holdfast task …`."""

import sys
from typing import Annotated, Any

import typer

from holdfast.cli import calls, output, records, times
from holdfast.cli.commands import task_options
from holdfast.cli.commands.shared import (
    EXAMPLE_ID,
    Address,
    Json,
    TaskId,
    TaskIds,
    Timeout,
    complete_queue,
    epilog,
    given_text,
    group,
    parsed,
    print_problem,
    print_refusals,
    print_task,
    timeout_option,
    with_options,
)
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, no_result, usage
from holdfast.client import Accepted, Cancelled, NewTask, TaskInfo, TaskUpdate, Updated
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

task_app = group("Look at tasks, wait for them, change them, cancel them.")


_NewQueue = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="The queue's name; it need not exist yet.",
        show_default=False,
        autocompletion=complete_queue,
    ),
]
_Type = Annotated[str, typer.Argument(metavar="TYPE", help="Names the handler.", show_default=False)]
_Payload = Annotated[str, typer.Argument(metavar="JSON", help="What the handler gets; - reads it from standard input.")]
_Delay = Annotated[
    str | None, typer.Option("--delay", metavar="TIME", help="Not before this has passed: 90s, 5m, 2h, 1d.")
]
_RunAt = Annotated[
    str | None, typer.Option("--run-at", metavar="INSTANT", help="Not before this moment: ISO 8601 with a zone.")
]
_RequestId = Annotated[
    str | None, typer.Option("--request-id", help="Enqueue it once only: the same id again adds nothing.")
]
_RequestIdTtl = Annotated[
    str | None,
    typer.Option("--request-id-ttl", metavar="TIME", help="How long the request id is remembered: 1h, 7d."),
]
_EnqueueTimeout = Annotated[
    float | None,
    timeout_option("How long to wait for an answer, or with --wait for the end of the task.", shown="10s, or for ever"),
]
_Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until it has finished and show its result, as `holdfast task wait` does.")
]


@with_options(task_options.OPTIONS)
def enqueue(
    queue: _NewQueue,
    type_: _Type,
    payload: _Payload = "{}",
    delay: _Delay = None,
    run_at: _RunAt = None,
    request_id: _RequestId = None,
    request_id_ttl: _RequestIdTtl = None,
    *,
    wait: _Wait = False,
    address: Address = DEFAULT_ADDRESS,
    limit_s: _EnqueueTimeout = None,
    as_json: Json = False,
    **given: Any,
) -> int:
    """Hand over one task and print its id.

    When this returns with exit code 0, the task is on disk and will not be lost.
    If its request id was used before, or its unique key is taken, nothing is added: it shows the task that is there.
    With --wait it returns when the task has finished, or when the --timeout is over.
    The exit code then says how: 0 it succeeded, 6 it is dead or was cancelled, 7 not in time.
    """
    if delay is not None and run_at is not None:
        raise usage("Expected at most one of --delay and --run-at, but both are given.")
    once_id = given_text("--request-id", request_id)
    if request_id_ttl is not None and not once_id:
        raise usage("Expected --request-id with --request-id-ttl, but there is none.")
    task = task_options.new_task(
        queue,
        type_,
        payload,
        given,
        request_id=once_id,
        request_id_ttl_ms=parsed("--request-id-ttl", times.duration_ms, request_id_ttl),
        delay_ms=parsed("--delay", times.duration_ms, delay),
        run_at_ms=parsed("--run-at", times.instant_ms, run_at),
    )
    # With --wait it is the task's end that may take so long, not the hand-over.
    timeout_s = DEFAULT_TIMEOUT_S if limit_s is None or wait else limit_s
    accepted = calls.enqueue(address, timeout_s, task)
    if wait:
        return _wait_for_new(accepted, task, address, limit_s, as_json=as_json)
    if as_json:
        records.print_json(records.accepted_json(accepted, task))
    else:
        output.print_accepted(accepted, task)
    return ExitCode.OK


def _wait_for_new(accepted: Accepted, task: NewTask, address: str, limit_s: float | None, *, as_json: bool) -> int:
    if not as_json:
        output.print_accepted(accepted, task)
        sys.stdout.flush()  # so that whoever reads a pipe has the id before the wait
    info = _wait(address, DEFAULT_TIMEOUT_S, accepted.task_id, limit_s)
    return _print_waited(info, accepted, task, as_json=as_json)


@task_app.command("get", epilog=epilog(f"holdfast task get {EXAMPLE_ID}", f"holdfast task get {EXAMPLE_ID} --json"))
def task_get(
    task_id: TaskId,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a task: its state, its attempts so far, its payload, and its result or last error."""
    print_task(calls.get_task(address, timeout_s, task_id), as_json=as_json)


@task_app.command(
    "wait",
    epilog=epilog(
        f"holdfast task wait {EXAMPLE_ID}",
        f"holdfast task wait {EXAMPLE_ID} --timeout 30s --json",
    ),
)
def task_wait(
    task_id: TaskId,
    limit_s: Annotated[float | None, timeout_option("How long to wait at most: 30s, 5m, 1h.", shown="for ever")] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> int:
    """Wait until a task has finished; print its state and its result.

    The exit code says how it ended: 0 it succeeded, 6 it is dead or was cancelled, 7 not in time.
    The wait goes on through restarts of the server.
    Ctrl-C ends the wait, not the task.
    """
    info = _wait(address, DEFAULT_TIMEOUT_S, task_id, limit_s)
    return _print_waited(info, as_json=as_json)


def _wait(address: str, timeout_s: float, task_id: str, limit_s: float | None) -> TaskInfo:
    try:
        with output.waiting(f"Waiting for task {task_id} …"):
            return calls.wait_task(address, timeout_s, task_id, limit_s)
    except KeyboardInterrupt:
        hint = f"The task goes on: look at it with `holdfast task get {task_id}`."
        raise CommandFailed(Problem(ExitCode.INTERRUPTED, "INTERRUPTED", "The wait was interrupted.", hint)) from None


def _print_waited(
    info: TaskInfo, accepted: Accepted | None = None, task: NewTask | None = None, *, as_json: bool
) -> int:
    if as_json:
        records.print_json(records.waited_json(info, accepted, task))
    else:
        output.print_waited(info)
    problem = no_result(info)
    if problem is None:
        return ExitCode.OK
    print_problem(problem, as_json=as_json)
    return problem.exit_code


@task_app.command(
    "cancel",
    epilog=epilog(f"holdfast task cancel {EXAMPLE_ID}", "holdfast task cancel $(cat ids.txt) --json"),
)
def task_cancel(
    task_ids: TaskIds,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Cancel tasks: a waiting one is cancelled now, the worker of a running one is told to stop it."""
    answers = calls.cancel(address, timeout_s, task_ids)
    pairs = list(zip(task_ids, answers, strict=True))
    cancelled = {task_id: answer for task_id, answer in pairs if isinstance(answer, Cancelled)}
    if as_json:
        records.print_json(records.cancelled_json(cancelled))
    else:
        output.print_cancelled(cancelled)
    return print_refusals([(task_id, f"Task {task_id}", answer) for task_id, answer in pairs], as_json=as_json)


@task_app.command(
    "update",
    epilog=epilog(
        f"holdfast task update {EXAMPLE_ID} --priority 9",
        f"holdfast task update {EXAMPLE_ID} --delay 15m",
        f"holdfast task update {EXAMPLE_ID} --delay 0 --json",
    ),
)
def task_update(
    task_ids: TaskIds,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="0 to 9, higher first.", show_default=False)
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay", metavar="TIME", help="Not before this has passed: 90s, 2h; 0 is now.", show_default=False
        ),
    ] = None,
    run_at: _RunAt = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Change the priority of waiting tasks, or when they may start.

    With --delay a waiting task is snoozed: it waits so long from now on. --delay 0 makes it ready at once.
    With a new priority a ready task joins the end of that line.
    A task that a worker has, or that has finished, stays as it is.
    """
    if delay is not None and run_at is not None:
        raise usage("Expected at most one of --delay and --run-at, but both are given.")
    delay_ms = parsed("--delay", times.duration_or_zero_ms, delay)
    run_at_ms = parsed("--run-at", times.instant_ms, run_at)
    if priority is None and delay_ms is None and run_at_ms is None:
        raise usage("Expected --priority, --delay or --run-at, but there is none of them.")
    updates = [
        TaskUpdate(task_id, priority=priority, run_at_ms=run_at_ms, delay_ms=delay_ms)
        for task_id in dict.fromkeys(task_ids)
    ]
    answers = calls.update(address, timeout_s, updates)
    pairs = [(update.task_id, answer) for update, answer in zip(updates, answers, strict=True)]
    updated = {task_id: answer for task_id, answer in pairs if isinstance(answer, Updated)}
    if as_json:
        records.print_json(records.updated_json(updated))
    else:
        output.print_updated(updated)
    return print_refusals([(task_id, f"Task {task_id}", answer) for task_id, answer in pairs], as_json=as_json)


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=epilog(
            'holdfast enqueue mail welcome \'{"to": "ada@example.org"}\'',
            "holdfast enqueue reports nightly --run-at 2030-01-01T02:00:00+01:00",
            "holdfast enqueue orders ship '[17]' --request-id order-17 --delay 5m",
            "holdfast enqueue orders ship - --priority 9 --json < order.json",
            "holdfast enqueue math add '[1, 2]' --wait",
            "holdfast enqueue feeds fetch '[\"acme\"]' --unique-key acme --task-timeout 5m --ttl 1h",
            "holdfast enqueue mail welcome --tenant acme --retry-shape fixed --retry-base 30s",
        )
    )(enqueue)
    app.add_typer(
        task_app,
        name="task",
        epilog=epilog(f"holdfast task get {EXAMPLE_ID}", f"holdfast task wait {EXAMPLE_ID} --timeout 30s"),
    )
