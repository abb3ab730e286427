"""What the commands print: tables for people, one line of JSON for programs. The only file that knows rich.

Keys of JSON output are an interface: add some, but never rename or drop one.
"""

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.problems import Problem
from holdfast.cli.times import shown_duration, shown_instant
from holdfast.client import Accepted, NewTask, QueueStats, TaskInfo, TaskState

_SHOWN_CHARS_MAX = 4_000
_PIPE_COLUMNS = 10_000

_STATE_STYLES = {
    TaskState.READY: "cyan",
    TaskState.CLAIMED: "blue",
    TaskState.DELAYED: "magenta",
    TaskState.RETRY_PENDING: "yellow",
    TaskState.SUCCEEDED: "green",
    TaskState.DEAD: "red",
    TaskState.CANCELLED: "dim",
}


# ---------------------------------------------------------------------------------------------- programs


def print_json(value: Mapping[str, object]) -> None:
    print(json.dumps(value, separators=(",", ":")))


def accepted_json(accepted: Accepted, task: NewTask) -> dict[str, object]:
    return {
        "task_id": accepted.task_id,
        "duplicate": accepted.duplicate,
        "queue": task.queue,
        "type": task.type,
    }


def stats_json(stats: Sequence[QueueStats]) -> dict[str, object]:
    return {"queues": [asdict(each) for each in stats]}


def task_json(info: TaskInfo) -> dict[str, object]:
    """All fields of the task; bytes are given as base64 and, where they are JSON, also as the value they hold."""
    task = info.task
    values: dict[str, object] = {
        "task_id": info.task_id,
        "state": str(info.state),
        "queue": info.queue,
        "type": task.type if task else None,
        "priority": info.priority,
        "tenant": task.tenant if task else None,
        "request_id": task.request_id if task else None,
        "headers": dict(task.headers) if task else None,
        "failures": info.failures,
        "max_attempts": info.max_attempts,
        "claims": info.claims,
        "max_claims": info.max_claims,
        "enqueued_at_ms": info.enqueued_at_ms,
        "changed_at_ms": info.changed_at_ms,
        "due_at_ms": info.due_at_ms,
        "lease_expires_at_ms": info.lease_expires_at_ms,
        "purge_at_ms": info.purge_at_ms,
        "worker": info.worker,
        "cancel_requested": info.cancel_requested,
        "dead_reason": info.dead_reason,
        "last_error": asdict(info.last_error) if info.last_error else None,
    }
    values |= _bytes_json("payload", task.payload if task else None)
    values |= _bytes_json("result", info.result)
    return values


def _bytes_json(name: str, data: bytes | None) -> dict[str, object]:
    encoded = None if data is None else base64.b64encode(data).decode("ascii")
    try:
        value = json.loads(data) if data else None
    except (ValueError, RecursionError):
        value = None
    return {f"{name}_base64": encoded, f"{name}_json": value}


def problem_json(problem: Problem) -> dict[str, object]:
    return {
        "error": {
            "reason": problem.reason,
            "message": problem.message,
            "hint": problem.hint,
            "field": problem.field,
            "retry_after_ms": problem.retry_after_ms,
        },
        "exit_code": int(problem.exit_code),
    }


# ------------------------------------------------------------------------------------------------ people


def print_problem(problem: Problem, *, as_json: bool) -> None:
    """On standard error, so that it never mixes with results."""
    if as_json:
        print(json.dumps(problem_json(problem), separators=(",", ":")), file=sys.stderr)
        return
    console = Console(stderr=True, highlight=False)
    line = Text.assemble(("error: ", "bold red"), _printable(problem.message))
    if problem.hint:
        line.append(f"\n       {_printable(problem.hint)}", "dim")
    console.print(line, soft_wrap=True)


def print_accepted(accepted: Accepted, task: NewTask) -> None:
    if accepted.duplicate:
        print(f"Already there: task {accepted.task_id} has this request id. Nothing was added.")
    else:
        print(f"Accepted task {accepted.task_id} into queue {_printable(task.queue)}.")


def print_stats(stats: Sequence[QueueStats]) -> None:
    now = _table("queue", "ready", "claimed", "delayed", "retrying", "dead", "oldest", "waiting")
    totals = _table("total of", "enqueued", "claimed", "succeeded", "failed", "expired", "cancelled", "dead")
    for each in stats:
        counts = (each.ready, each.claimed, each.delayed, each.retrying, each.dead)
        age = shown_duration(each.oldest_ready_age_ms)
        now.add_row(_printable(each.queue), *(f"{n:,}" for n in counts), age, f"{each.waiting_reserves:,}")
        sums = (each.enqueued_total, each.claimed_total, each.succeeded_total, each.failed_total)
        more = (each.expired_total, each.cancelled_total, each.dead_total)
        totals.add_row(_printable(each.queue), *(f"{n:,}" for n in (*sums, *more)))
    console = _console()
    console.print(now)
    console.print()
    console.print(totals)


def print_task(info: TaskInfo) -> None:
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in _task_rows(info):
        style = _STATE_STYLES.get(info.state, "") if label == "state" else ""
        grid.add_row(label, Text(_printable(value), style=style))
    _console().print(grid)


def _task_rows(info: TaskInfo) -> list[tuple[str, str]]:
    task = info.task
    rows = [("task", info.task_id), ("state", str(info.state)), ("queue", info.queue)]
    if task is not None:
        rows.append(("type", task.type))
    rows += [
        ("priority", str(info.priority)),
        ("failures", f"{info.failures} of {info.max_attempts} allowed"),
        ("claims", f"{info.claims} of {info.max_claims} allowed"),
        ("enqueued", shown_instant(info.enqueued_at_ms)),
        ("in this state since", shown_instant(info.changed_at_ms)),
    ]
    optional = [
        ("due", shown_instant(info.due_at_ms) if info.due_at_ms else ""),
        ("lease ends", shown_instant(info.lease_expires_at_ms) if info.lease_expires_at_ms else ""),
        ("forgotten after", shown_instant(info.purge_at_ms) if info.purge_at_ms else ""),
        ("last worker", info.worker),
        ("cancellation", "asked for; the worker will be told" if info.cancel_requested else ""),
        ("dead because", info.dead_reason),
        ("tenant", task.tenant if task else ""),
        ("request id", task.request_id if task else ""),
        ("headers", ", ".join(f"{name}: {value}" for name, value in task.headers.items()) if task else ""),
        ("last error", f"{info.last_error.type}: {info.last_error.message}" if info.last_error else ""),
        ("traceback", info.last_error.traceback if info.last_error else ""),
        ("payload", _shown_bytes(task.payload) if task else ""),
        ("result", "" if info.result is None else _shown_bytes(info.result)),
    ]
    return rows + [(label, value) for label, value in optional if value]


def print_version(version: Mapping[str, str]) -> None:
    print(f"holdfast {version['version']} (Python {version['python']})")


def _console() -> Console:
    # Into a file or a pipe nothing is folded: whoever reads it there does not look at a terminal 80 columns wide.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(name, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", overflow="fold")
    return table


def _shown_bytes(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes that are not text; --json has them"
    if len(text) > _SHOWN_CHARS_MAX:
        return f"{text[:_SHOWN_CHARS_MAX]}… ({len(data)} bytes; --json has them all)"
    return text or "(empty)"


def _printable(text: str) -> str:
    """Whatever a producer or a server wrote must not steer the terminal of whoever looks at it."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
