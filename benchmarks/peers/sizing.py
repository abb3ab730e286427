"""What a rate would need, by multiplication of what one task took: cores, and bytes that reach disks."""

from peers.results import BATCHED, LIVES, SINGLE, Report, RowResult
from peers.tables import NOT_MEASURED, number, table

ENQUEUES_PER_S = 100_000
EXECUTIONS_PER_S = 50_000
HOLDFAST = "holdfast"  # what names of its rows begin with


def cores(us_per_task: float, rate_per_s: float) -> float:
    return us_per_task * rate_per_s / 1e6


def mb_per_s(bytes_per_task: float, rate_per_s: float) -> float:
    return bytes_per_task * rate_per_s / 1e6


def tasks_per_sync_min(sync_ms: float, rate_per_s: float) -> float:
    """Of one log that syncs without a pause."""
    return rate_per_s * sync_ms / 1000


def sizing(report: Report) -> str:
    rows = [row for row in report.rows if row.name.startswith(HOLDFAST) and row.cells]
    needs = [
        *(_needs(row, BATCHED, "enqueues, 100 per call", ENQUEUES_PER_S) for row in rows),
        *(_needs(row, SINGLE, "enqueues, one after the other", ENQUEUES_PER_S) for row in rows),
        *(_needs(row, LIVES, "executions: enqueue, claim, ack", EXECUTIONS_PER_S) for row in rows),
    ]
    headers = ("what", "servers", "clients", "to disk, all nodes together")
    return "\n\n".join([table(headers, [need for need in needs if need], words=len(headers)), _syncs(report)])


def _needs(row: RowResult, workload: str, what: str, rate_per_s: int) -> list[str]:
    if workload not in row.cells:
        return []
    title = f"{row.name}: {rate_per_s:,} {what}"
    servers, clients = row.median(workload, "servers_us"), row.median(workload, "clients_us")
    written = row.median(workload, "written_bytes")
    if servers is None or clients is None or written is None:
        return [title, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    rate = f"{rate_per_s:,}/s"
    return [
        title,
        *(f"{number(us)} µs × {rate} = {number(cores(us, rate_per_s))} cores" for us in (servers, clients)),
        f"{number(written)} B × {rate} = {number(mb_per_s(written, rate_per_s))} MB/s",
    ]


def _syncs(report: Report) -> str:
    lines = []
    for size, took in report.machine["fdatasync_ms"].items():
        least = tasks_per_sync_min(took["p50"], ENQUEUES_PER_S)
        lines.append(
            f"A write of {size} and its fdatasync took {took['p50']:.2f} ms (p50) here, so one log does at most "
            f"{number(1000 / took['p50'])} of them a second: {ENQUEUES_PER_S:,} enqueues/s in one log need "
            f"{number(least)} tasks per sync or more, in n logs on n disks an n-th of that."
        )
    return "\n".join(lines)
