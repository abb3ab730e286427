"""`holdfast schedule …`: tasks by the clock."""

import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from holdfast.cli import options, output, records, schedule_calls, schedule_output, times
from holdfast.cli.commands import task_options
from holdfast.cli.commands.shared import (
    Address,
    Json,
    Timeout,
    complete_queue,
    epilog,
    given_text,
    group,
    parsed,
    with_options,
)
from holdfast.cli.problems import CommandFailed, problem_of, usage
from holdfast.client import CatchUp, InvalidArgument, Overlap, Schedule, ScheduleInfo
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

schedule_app = group("Make tasks by the clock: put schedules, look at them, pause, resume and remove them.")

_TIMES_MAX = 100

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name in its queue.", show_default=False)]
_Queue = Annotated[
    str,
    typer.Option(
        "--queue", "-q", metavar="QUEUE", help="Its queue.", show_default=False, autocompletion=complete_queue
    ),
]
_MaybeQueue = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", metavar="QUEUE", help="Only of this queue.", show_default=False, autocompletion=complete_queue
    ),
]


def _option(name: str, metavar: str, help_text: str, default: str | bool = False) -> Any:
    return typer.Option(name, metavar=metavar, help=help_text, show_default=default)


_Cron = Annotated[
    str | None, _option("--cron", "EXPRESSION", "When: five fields, six with seconds first, or @daily and the like.")
]
_Every = Annotated[str | None, _option("--every", "TIME", "Instead: once in this time, 1s to 366d: 90s, 1h30m.")]
_Zone = Annotated[str | None, _option("--zone", "ZONE", "Whose clocks: Europe/Berlin.", "UTC")]
_Type = Annotated[str, _option("--type", "TYPE", "Names the handler of its tasks.")]
_Payload = Annotated[
    str,
    typer.Option("--payload", "--args", metavar="JSON", help="What the handler gets; - reads it from standard input."),
]
_CatchUp = Annotated[
    str, _option("--catch-up", options.words(CatchUp), "Ticks that were missed: no task, one, or one each.", "one")
]
_Overlap = Annotated[str, _option("--overlap", options.words(Overlap), "If the task before has not finished.", "allow")]


@schedule_app.command(
    "put",
    epilog=epilog(
        "holdfast schedule put nightly --queue reports --cron '30 2 * * mon-fri' --zone Europe/Berlin --type sales",
        "holdfast schedule put poll -q feeds --every 90s --type fetch --args '[\"acme\"]' --overlap skip",
        "holdfast schedule put close -q books --cron @monthly --type close --catch-up all --must-be-new --json",
    ),
)
@with_options(task_options.OPTIONS)
def schedule_put(
    name: _Name,
    queue: _Queue,
    type_: _Type,
    cron: _Cron = None,
    every: _Every = None,
    zone: _Zone = None,
    payload: _Payload = "{}",
    catch_up: _CatchUp = "one",
    overlap: _Overlap = "allow",
    paused: Annotated[bool, typer.Option("--paused", help="Make no tasks until it is resumed.")] = False,
    must_be_new: Annotated[bool, typer.Option("--must-be-new", help="Do not change one that is there.")] = False,
    *,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Make a schedule, or change the one of this name: then everything is as given here.

    Each tick makes exactly one task, also if brokers fail. `holdfast schedule next` shows when that will be.
    A time of day comes once a day, also when clocks change; with every hour (`*/15 * * * *`) it goes on in real time.
    --catch-up: what becomes of ticks while no broker ran; all is at most the newest 1,000.
    --overlap: skip makes no task for the tick, replace cancels the one before.
    """
    task = task_options.new_task(queue, type_, payload, given)
    schedule = Schedule(
        name,
        _expression(cron, every),
        task,
        given_text("--zone", zone),
        parsed("--catch-up", options.one_of(CatchUp), catch_up) or CatchUp.ONE,
        parsed("--overlap", options.one_of(Overlap), overlap) or Overlap.ALLOW,
    )
    _print_schedule(schedule_calls.put(address, timeout_s, schedule, must_be_new=must_be_new, paused=paused), as_json)


def _expression(cron: str | None, every: str | None) -> str:
    if (cron is None) == (every is None):
        both = "both are given" if cron is not None else "there is neither"
        raise usage(f"Expected either --cron or --every, but {both}.")
    if every is None:
        return cron or ""
    period_ms = parsed("--every", times.duration_between_ms("1s", "366d"), every) or 0
    if period_ms % 1_000:
        raise usage(f"--every: Expected whole seconds, but got {every!r}.")
    return f"@every {every.strip()}"


@schedule_app.command(
    "ls", epilog=epilog("holdfast schedule ls", "holdfast schedule ls --queue reports --json | jq '.schedules[].name'")
)
def schedule_ls(
    queue: _MaybeQueue = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")] = 1_000,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List schedules: when they fire, when next, and how often they did.

    Times are as the clocks of the schedule's zone show them, with the offset from UTC.
    """
    found, more = schedule_calls.list_schedules(address, timeout_s, given_text("--queue", queue), limit)
    if as_json:
        listed = [schedule_output.schedule_json(info, with_payload=False) for info in found]
        records.print_json({"queue": queue, "schedules": listed, "more": more})
    elif found:
        schedule_output.print_schedules(found)
        if more:
            output.print_note("There are more; --limit shows more.")
    else:
        output.print_line("There are no schedules" + (f" of queue {queue}." if queue else "."))


@schedule_app.command(
    "show",
    epilog=epilog("holdfast schedule show nightly --queue reports", "holdfast schedule show nightly -q reports --json"),
)
def schedule_show(
    name: _Name,
    queue: _Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a schedule: when it fires, what tasks it makes, and what has come of it."""
    _print_schedule(schedule_calls.get(address, timeout_s, queue, name), as_json)


def _print_schedule(info: ScheduleInfo, as_json: bool) -> None:
    if as_json:
        records.print_json(schedule_output.schedule_json(info))
    else:
        output.print_rows(schedule_output.schedule_rows(info))


@schedule_app.command("pause", epilog=epilog("holdfast schedule pause nightly --queue reports"))
def schedule_pause(
    name: _Name,
    queue: _Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make no more tasks until it is resumed. Ticks that pass meanwhile are not made up for."""
    info = schedule_calls.pause(address, timeout_s, queue, name, paused=True)
    _print_changed(info, f"Schedule {name} of queue {queue} is paused.", as_json=as_json)


@schedule_app.command("resume", epilog=epilog("holdfast schedule resume nightly --queue reports"))
def schedule_resume(
    name: _Name,
    queue: _Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Go on with the next tick from now on."""
    info = schedule_calls.pause(address, timeout_s, queue, name, paused=False)
    goes_on = f"Schedule {name} of queue {queue} goes on: next {schedule_output.shown_next(info)}."
    _print_changed(info, goes_on, as_json=as_json)


def _print_changed(info: ScheduleInfo, sentence: str, *, as_json: bool) -> None:
    if as_json:
        records.print_json(schedule_output.schedule_json(info))
    else:
        output.print_line(sentence)


@schedule_app.command("rm", epilog=epilog("holdfast schedule rm nightly --queue reports"))
def schedule_rm(
    name: _Name,
    queue: _Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Remove a schedule. The tasks that it made stay."""
    schedule_calls.delete(address, timeout_s, queue, name)
    if as_json:
        records.print_json({"queue": queue, "name": name, "removed": True})
    else:
        output.print_line(f"Schedule {name} of queue {queue} is removed.")


@schedule_app.command("trigger", epilog=epilog("holdfast schedule trigger nightly --queue reports"))
def schedule_trigger(
    name: _Name,
    queue: _Queue,
    request_id: Annotated[
        str | None, _option("--request-id", "ID", "Trigger it once only: the same id again adds nothing.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make one task now, whatever the time and the overlap policy, also if it is paused.

    The ticks go on as they are.
    """
    parsed("--request-id", options.some_text, request_id)
    accepted = schedule_calls.trigger(address, timeout_s, queue, name, request_id)
    if as_json:
        records.print_json({"queue": queue, "name": name, **records.triggered_json(accepted)})
    elif accepted.duplicate:
        has = "the same unique key" if request_id is None else "this request id or the same unique key"
        known = output.known_task(accepted)
        output.print_line(f"Already there: {known} has {has}. Nothing was added.")
    else:
        output.print_line(f"Accepted task {accepted.task_id} into queue {queue}.")


@schedule_app.command(
    "next",
    epilog=epilog(
        "holdfast schedule next '30 2 * * mon-fri' --zone Europe/Berlin",
        "holdfast schedule next nightly --queue reports -n 3",
        "holdfast schedule next '@every 90s' --json | jq '.times[].at'",
    ),
)
def schedule_next(
    what: Annotated[
        str,
        typer.Argument(
            metavar="EXPRESSION|NAME", help="An expression; with --queue the name of a schedule.", show_default=False
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="QUEUE",
            help="Of the schedule of that name in this queue.",
            show_default=False,
            autocompletion=complete_queue,
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=_TIMES_MAX, help="How many times.")] = 10,
    zone: _Zone = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show when an expression or a schedule fires next, as the clocks of its zone show it. Changes nothing.

    Each time has its offset from UTC, so that a change to or from daylight saving time can be seen.
    """
    time_zone = given_text("--zone", zone)
    if queue is not None and time_zone:
        raise usage("Expected --zone with an expression only, but there is --queue: a schedule has its own zone.")
    if queue is not None:
        found = schedule_calls.times_of_schedule(address, timeout_s, queue, what, count)
    else:
        found = _times_of_expression(address, timeout_s, what, time_zone, count)
    if as_json:
        records.print_json(schedule_output.times_json(found))
        return
    if not found.at_ms:
        output.print_line("Never again.")
        return
    schedule_output.print_times(found, time.time_ns() // 1_000_000)
    if found.paused:
        output.print_note(f"It is paused: `holdfast schedule resume {what} --queue {queue}` lets it go on.")


def _times_of_expression(address: str, timeout_s: float, what: str, zone: str, count: int) -> schedule_calls.Times:
    try:
        return schedule_calls.times_of_expression(address, timeout_s, what, zone, count)
    except InvalidArgument as error:
        is_a_word = len(what.split()) == 1 and not what.strip().startswith("@")
        if not error.field.endswith("expression") or not is_a_word:
            raise
        hint = f"If {what} is the name of a schedule, say of which queue: --queue QUEUE."
        raise CommandFailed(replace(problem_of(error), hint=hint)) from None


def add_to(app: typer.Typer) -> None:
    examples = ("holdfast schedule ls", "holdfast schedule next '0 3 * * *' --zone Europe/Berlin")
    app.add_typer(schedule_app, name="schedule", epilog=epilog(*examples))
