"""What the commands print for people: tables, progress bars, problems. The only file that knows rich.

Results go to standard output, everything else to standard error. Whatever producers, workers and servers wrote passes
through `printable` on its way to the terminal.
"""

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from holdfast.cli.options import word
from holdfast.cli.problems import Problem
from holdfast.cli.times import shown_duration, shown_instant, shown_latency
from holdfast.client import (
    Accepted,
    Attempt,
    Cancelled,
    NewTask,
    NodeReport,
    ReplicaHash,
    ReplicaInfo,
    ReplicaRole,
    RetryPolicy,
    ShardHash,
    TaskInfo,
    TaskState,
    Updated,
)
from holdfast.client._coded import description, is_sealed_text

_SHOWN_CHARS_MAX = 4_000
_ERROR_CHARS_MAX = 120
_PIPE_COLUMNS = 10_000
_COLUMN_GAP = 3
_REDRAWS_PER_SECOND = 4

Shown = RenderableType  # a part of what is shown: made here, put together elsewhere

_STATE_STYLES = {
    TaskState.READY: "cyan",
    TaskState.CLAIMED: "blue",
    TaskState.DELAYED: "magenta",
    TaskState.RETRY_PENDING: "yellow",
    TaskState.SUCCEEDED: "green",
    TaskState.DEAD: "red",
    TaskState.CANCELLED: "dim",
}


def print_problem(problem: Problem) -> None:
    line = Text.assemble(("error: ", "bold red"), printable(" ".join(problem.message.split("\n"))))
    if problem.hint:
        line.append(f"\n       {printable(problem.hint)}", "dim")
    _error_console().print(line, soft_wrap=True)


def print_note(text: str) -> None:
    """A remark that is not part of the result."""
    _error_console().print(Text(printable(text), "dim"), soft_wrap=True)


def confirmed(question: str) -> bool:
    """Asks on standard error, so that the result can go into a pipe; anything but yes is no."""
    print(f"{printable(question)} [y/N]: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_line(text: str) -> None:
    print(printable(text))


def print_line_at_once(text: str) -> None:
    """More will follow, and whoever reads it should not have to wait for that."""
    print(printable(text), flush=True)


def known_task(accepted: Accepted) -> str:
    """Which task a duplicate is of. One is forgotten only once it has ended; its request id is kept for longer."""
    state = "ended, and known no more" if accepted.state is None else str(accepted.state)
    return f"task {accepted.task_id} ({state})"


def print_accepted(accepted: Accepted, task: NewTask) -> None:
    if accepted.duplicate:
        names = [name for name, value in (("request id", task.request_id), ("unique key", task.unique_key)) if value]
        has = " or ".join(names) or "unique key"
        print(f"Already there: {known_task(accepted)} has this {has}. Nothing was added.")
    else:
        print(f"Accepted task {accepted.task_id} into queue {printable(task.queue)}.")


def print_updated(updated: Mapping[str, Updated]) -> None:
    for task_id, outcome in updated.items():
        print(f"Task {task_id} is changed: it is {outcome.state}.")


def print_task(info: TaskInfo) -> None:
    _print_grid(_task_rows(info), _STATE_STYLES.get(info.state, ""))
    if info.attempts:
        print()
        _print_table(
            ("attempt by", "began", "took", "ended", "error"), list(map(_attempt_cells, info.attempts)), left=5
        )


def _attempt_cells(attempt: Attempt) -> tuple[str, ...]:
    took_ms = max(0, attempt.ended_at_ms - attempt.claimed_at_ms)
    error = _first_line(": ".join(part for part in (attempt.error_type, attempt.error_message) if part))
    began = shown_instant(attempt.claimed_at_ms).rpartition(".")[0]
    return (attempt.worker or "-", began or "-", shown_latency(took_ms), attempt.how.lower() or "-", error or "-")


def print_waited(info: TaskInfo) -> None:
    """How a task ended, without its payload."""
    rows = [("task", info.task_id), ("state", str(info.state))]
    if info.state is TaskState.SUCCEEDED:
        rows.append(("result", _shown_result(info) or "(none)"))
    _print_grid(rows, _STATE_STYLES.get(info.state, ""))


def print_cancelled(cancelled: Mapping[str, Cancelled]) -> None:
    for task_id, outcome in cancelled.items():
        if outcome.state is TaskState.CANCELLED:
            print(f"Task {task_id} is cancelled.")
        else:
            print(f"Task {task_id} is running: its worker will be told to stop.")


def print_audit(rows: Sequence[Sequence[str]]) -> None:
    _print_table(("entry", "when", "who", "from", "what", "on", "result"), rows, numbers=False, left=7)


def print_dead_letters(letters: Sequence[TaskInfo]) -> None:
    rows = []
    for letter in letters:
        error = letter.last_error
        cause = _first_line(f"{error.type}: {error.message}") if error else "-"
        died = shown_instant(letter.changed_at_ms).rpartition(".")[0]
        rows.append((letter.task_id, _type_of(letter) or "-", died, letter.dead_reason, cause))
    _print_table(("task", "type", "died", "because", "last error"), rows, numbers=False)


def _type_of(info: TaskInfo) -> str:
    return info.type or (info.task.type if info.task else "")


def print_replicas(reports: Sequence[NodeReport]) -> None:
    """A row per replica, by shard and node; nodes that did not answer at the end."""
    rows = [
        (replica.shard, report.name, replica)
        for report in reports
        if report.node is not None
        for replica in report.node.replicas
    ]
    rows.sort(key=lambda row: row[:2])
    cells = [_replica_cells(node, replica) for _, node, replica in rows]
    silent = [report for report in reports if report.node is None]
    cells += [("-", report.name or report.address, "unreachable", *("-" * 6)) for report in silent]
    names = ("shard", "node", "role", "term", "commit", "applied", "lag", "log", "snapshot")
    _print_table(names, cells, left=3)
    for _, node, replica in rows:
        if replica.problem:
            print_line(f"Shard {replica.shard} on {node} does not serve: {replica.problem}")


def _replica_cells(node: str, replica: ReplicaInfo) -> tuple[str, ...]:
    numbers = (replica.term, replica.commit_index, replica.applied_index, replica.lag)
    age = "never" if replica.snapshot_age_ms is None else shown_duration(max(1, replica.snapshot_age_ms))
    role = replica.role.lower()
    if replica.role in (ReplicaRole.FOLLOWER, ReplicaRole.LEARNER) and not replica.knows_leader:
        role += ", no leader"
    role += " (!)" if replica.problem else ""
    return (str(replica.shard), node, role, *(f"{n:,}" for n in numbers), shown_size(replica.log_bytes), age)


def print_hashes(hashes: Sequence[ShardHash]) -> None:
    rows = [
        (str(of_shard.shard), f"{of_shard.index:,}", replica.node, _hash_cell(replica))
        for of_shard in hashes
        for replica in of_shard.replicas
    ]
    _print_table(("shard", "index", "node", "state hash"), rows, left=4)
    for shard_hash in hashes:
        if shard_hash.different:
            verdict = "the replicas are DIFFERENT"
        elif not shard_hash.complete:
            reported = sum(replica.state_hash is not None for replica in shard_hash.replicas)
            verdict = f"{reported} of {len(shard_hash.replicas)} replicas have told, and those are equal"
        else:
            verdict = (
                f"all {len(shard_hash.replicas)} replicas are equal"
                if len(shard_hash.replicas) > 1
                else "there is 1 replica"
            )
        print_line(f"Shard {shard_hash.shard}: {verdict} at index {shard_hash.index:,}.")


def _hash_cell(replica: ReplicaHash) -> str:
    if replica.state_hash is not None:
        return replica.state_hash
    return "missing" if replica.error is not None else f"missing: it is at index {replica.applied_index:,} only"


def shown_size(size_bytes: int) -> str:
    """A number of bytes for people.

    >>> shown_size(0), shown_size(1_536), shown_size(300 * 1024 * 1024)
    ('0 B', '1.5 KiB', '300.0 MiB')
    """
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """A label and a value on each line."""
    _print_grid(rows)


def print_banner(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """On standard error: standard output belongs to the handlers."""
    console = _error_console()
    console.print(Text(printable(title), "bold"), soft_wrap=True)
    for label, value in rows:
        console.print(Text.assemble((f"  {label:<12} ", "dim"), printable(value)), soft_wrap=True)


def _print_grid(rows: Sequence[tuple[str, str]], state_style: str = "") -> None:
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(label, Text(printable(value), style=state_style if label == "state" else ""))
    _console().print(grid)


def _task_rows(info: TaskInfo) -> list[tuple[str, str]]:
    task = info.task
    rows = [("task", info.task_id), ("state", str(info.state)), ("queue", info.queue)]
    if _type_of(info):
        rows.append(("type", _type_of(info)))
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
        ("tenant", info.tenant or (task.tenant if task else "")),
        ("limit key", info.limit_key or (task.limit_key if task else "")),
        ("unique key", _unique(info)),
        ("time for an attempt", shown_duration(info.timeout_ms) if info.timeout_ms else ""),
        ("dead unless started", shown_instant(info.start_by_ms) if info.start_by_ms else ""),
        ("retries", shown_retry(task.retry) if task and task.retry else ""),
        ("request id", task.request_id if task else ""),
        ("headers", ", ".join(f"{name}: {value}" for name, value in task.headers.items()) if task else ""),
        ("last error", f"{info.last_error.type}: {_shown_text(info.last_error.message)}" if info.last_error else ""),
        ("traceback", _shown_text(info.last_error.traceback) if info.last_error else ""),
        ("payload", shown_bytes(task.payload) if task else ""),
        ("result", _shown_result(info)),
    ]
    return rows + [(label, value) for label, value in optional if value]


def _shown_result(info: TaskInfo) -> str:
    if info.result_expired_at_ms is not None:
        return f"(expired at {shown_instant(info.result_expired_at_ms)}; --result-ttl keeps results for longer)"
    return "" if info.result is None else shown_bytes(info.result)


def _unique(info: TaskInfo) -> str:
    key = info.unique_key or (info.task.unique_key if info.task else "")
    return f"{key} ({word(info.task.unique_scope)})" if key and info.task is not None else key


def shown_retry(retry: RetryPolicy) -> str:
    """What a task says about its retries; the rest is as its queue says."""
    parts = [
        word(retry.shape) if retry.shape is not None else "",
        f"base {shown_duration(retry.base_ms) if retry.base_ms else '0'}" if retry.base_ms is not None else "",
        f"factor {retry.factor:g}" if retry.factor is not None else "",
        f"cap {shown_duration(retry.cap_ms) if retry.cap_ms else '0'}" if retry.cap_ms is not None else "",
        f"jitter {retry.jitter:g}" if retry.jitter is not None else "",
        f"not after {', '.join(retry.non_retryable)}" if retry.non_retryable else "",
    ]
    return ", ".join(part for part in parts if part)


def print_version(version: Mapping[str, str]) -> None:
    print(f"holdfast {version['version']} (Python {version['python']})")


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that the given function moves on; nothing where nobody is watching."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_error_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(printable(what), total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def byte_progress(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """The same for bytes, with how fast they go."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=_error_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(printable(what), total=total_bytes)
        yield lambda count: bar.advance(task, count)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on standard error that this takes a while; nothing where nobody is watching."""
    if not sys.stderr.isatty():
        yield
        return
    with _error_console().status(Text(printable(what))):
        yield


def _error_console() -> Console:
    return Console(stderr=True, highlight=False, markup=False)


def _console() -> Console:
    # Into a file or a pipe nothing is folded: whoever reads it there does not look at a terminal 80 columns wide.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True, left: int = 1) -> None:
    _console().print(table(names, rows, numbers=numbers, left=left), soft_wrap=False)


def table(names: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True, left: int = 1) -> Shown:
    """A table; on a terminal too narrow for it, a line per row that wraps between words. The first `left` columns are
    words, the others numbers."""
    shown = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    console = _console()
    if sum(widths) + _COLUMN_GAP * (len(widths) - 1) > console.width:
        return Group(*(_wrapped_row(names, row, console.width) for row in shown))
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        grid.add_column(name, justify="right" if numbers and index >= left else "left", no_wrap=True)
    for row in shown:
        grid.add_row(*row)
    return grid


def text(words: str, style: str = "") -> Shown:
    return Text(printable(words), style)


def show(parts: Sequence[Shown]) -> None:
    for part in parts:
        _console().print(part, soft_wrap=isinstance(part, Text))


@contextmanager
def redrawn(*, on_errors: bool = False) -> Iterator[Callable[[Sequence[Shown]], None]]:
    """The given function replaces what it showed before, at a terminal; elsewhere it shows nothing. `on_errors`: it is
    not the result but how far it is, so it goes to standard error, and away in the end."""
    if not is_watched(on_errors=on_errors):
        yield lambda parts: None
        return
    console = _error_console() if on_errors else _console()
    with Live(console=console, refresh_per_second=_REDRAWS_PER_SECOND, transient=on_errors) as live:
        yield lambda parts: live.update(Group(*parts), refresh=True)


def is_watched(*, on_errors: bool = False) -> bool:
    """Whether there is a terminal on which something can be replaced."""
    stream = sys.stderr if on_errors else sys.stdout
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _wrapped_row(names: Sequence[str], row: Sequence[str], width: int) -> Text:
    # A no-break space, so that a number stays with its name; textwrap respects it, rich does not.
    cells = ", ".join(f"{name}\N{NO-BREAK SPACE}{cell}" for name, cell in zip(names[1:], row[1:], strict=True))
    lines = textwrap.wrap(f"{row[0]}: {cells}", width, subsequent_indent="  ", break_on_hyphens=False)
    text = Text("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "))
    text.stylize("bold", 0, len(row[0]))
    return text


def shown_bytes(data: bytes) -> str:
    if (coded := description(data)) is not None:
        return f"{len(data)} bytes, {coded}; programs with that codec can read it"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes that are not text; --json has them"
    if len(text) > _SHOWN_CHARS_MAX:
        return f"{text[:_SHOWN_CHARS_MAX]}… ({len(data)} bytes; --json has them all)"
    return text or "(empty)"


def _shown_text(text: str) -> str:
    """Of an error, which whoever reported it may have encrypted."""
    return "(encrypted; programs with that codec can read it)" if is_sealed_text(text) else text


def _first_line(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= _ERROR_CHARS_MAX else f"{line[:_ERROR_CHARS_MAX]}…"


def printable(text: str) -> str:
    """Whatever a producer or a server wrote must not steer the terminal of whoever looks at it."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
