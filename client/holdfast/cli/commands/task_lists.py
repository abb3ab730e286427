"""`holdfast task ls` and `holdfast claims`."""

import time
from collections.abc import Iterable
from typing import Annotated

import typer

from holdfast.cli import calls, output, queue_output, records, times
from holdfast.cli.commands.shared import Address, Json, Timeout, complete_queue, epilog, given_text, parsed
from holdfast.cli.commands.tasks import task_app
from holdfast.cli.problems import CommandFailed, shards_missing, usage
from holdfast.client import TaskFilter, TaskInfo, TaskState
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

_STATES = tuple(state for state in TaskState if state is not TaskState.UNKNOWN)
_CLAIMS_READ_MAX = 100_000

_AnyQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUEUE]", help="Only tasks of this queue.", show_default=False, autocompletion=complete_queue
    ),
]
_AnyQueues = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[QUEUE]…", help="Only tasks of these queues.", show_default=False, autocompletion=complete_queue
    ),
]
_States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        "-s",
        metavar="STATE",
        help="ready, claimed, delayed, retry-pending, succeeded, dead or cancelled; may be repeated.",
        show_default=False,
    ),
]
_Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only of this type.", show_default=False)]
_Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.", show_default=False)
]
_Worker = Annotated[
    str | None,
    typer.Option("--worker", metavar="WORKER", help="Only those that this worker claimed last.", show_default=False),
]
_MinAge = Annotated[
    str | None,
    typer.Option(
        "--min-age", metavar="TIME", help="Only those that were accepted so long ago: 10m, 2h.", show_default=False
    ),
]
_After = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="TOKEN",
        help="The next page: what follows the list that ended with this token.",
        show_default=False,
    ),
]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")]


def _state(text: str) -> TaskState:
    wanted = text.strip().upper().replace("-", "_").replace("RETRYING", "RETRY_PENDING")
    if wanted not in _STATES:
        known = ", ".join(state.lower().replace("_", "-") for state in _STATES)
        raise usage(f"--state: Expected one of {known}, but got {text!r}.")
    return TaskState(wanted)


@task_app.command(
    "ls",
    epilog=epilog(
        "holdfast task ls mail",
        "holdfast task ls mail --state ready --min-age 10m",
        "holdfast task ls --state claimed --worker host-1 --json",
        "holdfast task ls mail --limit 1000 --after TOKEN",
    ),
)
def task_ls(
    queue: _AnyQueue = None,
    state: _States = None,
    type_: _Type = None,
    tenant: _Tenant = None,
    worker: _Worker = None,
    min_age: _MinAge = None,
    limit: _Limit = 100,
    after: _After = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List tasks of a queue, or of all: what they are, where they are, for how long.

    Ready tasks come first, in the order in which they will be handed out; then claimed, delayed and retrying, dead, and
    finished ones; of a cluster, shard by shard. Every page that is read costs a server a bounded amount of work, so a
    filter that little fits takes a while in a large cluster: name the queue, and the state.
    If there may be more than --limit, the list ends with a token: --after shows what follows it.
    Shards that do not answer are passed over and named, and the exit code is 4.
    """
    where = TaskFilter(
        states=[_state(text) for text in state or ()],
        type=given_text("--type", type_),
        tenant=given_text("--tenant", tenant),
        worker=given_text("--worker", worker),
        min_age_ms=parsed("--min-age", times.duration_ms, min_age) or 0,
    )
    name = "" if queue is None else given_text("QUEUE", queue)
    with output.waiting("Looking through tasks …"):
        tasks, token, missing = calls.list_tasks(
            address, timeout_s, name, where, limit, given_text("--after", after)
        )  # fmt: skip
    if as_json:
        records.print_json(records.tasks_json(name or None, tasks, token) | {"missing_shards": missing})
    elif tasks:
        queue_output.print_tasks(tasks, _now_ms())
        if token:
            output.print_note(f"There may be more; the next page:  --after {token}")
    elif not missing:
        fits = "" if where == TaskFilter(states=[]) else " that fits"
        output.print_line(f"There is no {'further ' if after else ''}task{fits}{f' in queue {name}' if name else ''}.")
    if missing:
        raise CommandFailed(shards_missing(missing, "the list"))


def claims(
    queues: _AnyQueues = None,
    worker: _Worker = None,
    type_: _Type = None,
    limit: _Limit = 50,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show who holds which task, and since when; the oldest first.

    A claim that grows old is a handler that does not end: its worker extends the lease for as long as it runs. A
    task without a timeout may do so for ever. Shards that do not answer are named, and the exit code is 4.
    """
    names = {given_text("QUEUE", queue) for queue in queues or ()}
    where = TaskFilter(
        states=[TaskState.CLAIMED], worker=given_text("--worker", worker), type=given_text("--type", type_)
    )
    alone = next(iter(names)) if len(names) == 1 else ""
    with output.waiting("Looking through claims …"):
        found, token, missing = calls.list_tasks(address, timeout_s, alone, where, _CLAIMS_READ_MAX)
    held = _once_each(claim for claim in found if not names or claim.queue in names)
    held.sort(key=lambda claim: claim.changed_at_ms)
    shown, now_ms = held[:limit], _now_ms()
    if as_json:
        reported = records.claims_json(shown, len(held), now_ms, more=bool(token) or len(held) > limit)
        records.print_json(reported | {"missing_shards": missing})
    elif shown:
        queue_output.print_claims(shown, now_ms)
        if token:
            output.print_note(f"There are more than {_CLAIMS_READ_MAX:,}, so older ones may be missing: name a queue.")
        elif len(held) > limit:
            output.print_note(f"The oldest {limit:,} of {len(held):,}; --limit shows more.")
    elif not missing:
        output.print_line("No worker holds a task.")
    if missing:
        raise CommandFailed(shards_missing(missing, "the list"))


def _once_each(claims: Iterable[TaskInfo]) -> list[TaskInfo]:
    """A claim whose lease is extended while the pages are read comes again, at its new place."""
    return list({claim.task_id: claim for claim in claims}.values())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def add_to(app: typer.Typer) -> None:
    examples = ("holdfast claims", "holdfast claims mail reports --limit 10", "holdfast claims --worker host-1 --json")
    app.command(epilog=epilog(*examples))(claims)
