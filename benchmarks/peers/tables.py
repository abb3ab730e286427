"""A report as tables of Markdown."""

from collections.abc import Sequence

from peers.results import BATCHED, DRAIN, LIVES, PICKUP, SINGLE, WORKLOADS, Cell, Report, RowResult

NOT_MEASURED = "not measured"
BROKE = "broke"
BEHIND = "did not keep up"
PICKUP_KEPT_UP = 0.95  # of the rate that was asked for
PICKUP_RATE_PER_S = 200.0

_TITLES = {
    SINGLE: "W1 1×1, tasks/s (p50)",
    BATCHED: "W1 2×100, tasks/s (p50)",
    DRAIN: "W2 drain, tasks/s",
    LIVES: "W3 lives, tasks/s",
    PICKUP: "W4 pickup, p50 / p99",
}
_SHORT = {SINGLE: "W1 1×1", BATCHED: "W1 2×100", DRAIN: "W2", LIVES: "W3", PICKUP: "W4"}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """The first columns, so many as `words`, are not figures."""
    lines = [headers, ["---"] * words + ["---:"] * (len(headers) - words), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """With as many digits as a measurement on a shared machine deserves."""
    if value >= 10_000:
        return f"{round(value, -2):,.0f}"
    if value >= 100:
        return f"{round(value, -1):,.0f}" if value >= 1_000 else f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def kept_up(cell: Cell | None) -> bool:
    """Whether a cell of W4 had the rate that was asked for: latencies of one that had not only tell for how long."""
    rate = cell.median("rate_per_s") if cell is not None else None
    return rate is not None and rate >= PICKUP_KEPT_UP * PICKUP_RATE_PER_S


def percents(low: float, high: float) -> str:
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"


def of_cell(cell: Cell | None, workload: str) -> str:
    if cell is None:
        return NOT_MEASURED
    rate = cell.median("rate_per_s")
    if rate is None:
        return BROKE if cell.problem else NOT_MEASURED
    p50, p99 = cell.median("p50_ms"), cell.median("p99_ms")
    if workload == PICKUP and p50 is not None and p99 is not None:
        behind = "" if kept_up(cell) else f", only {number(rate)}/s"
        return f"{number(p50)} / {number(p99)} ms{behind}"
    return number(rate) if p50 is None else f"{number(rate)} ({number(p50)} ms)"


def measured(report: Report) -> list[RowResult]:
    return [row for row in report.rows if row.cells]


def figures_table(report: Report) -> str:
    headers = ["row", *(_TITLES[workload] for workload in WORKLOADS), "load of others"]
    rows = [
        [row.name, *(of_cell(row.cells.get(workload), workload) for workload in WORKLOADS), _others_of_row(row)]
        for row in measured(report)
    ]
    return table(headers, rows)


def _others_of_row(row: RowResult) -> str:
    values = [sample.others_percent for cell in row.cells.values() for sample in cell.samples]
    return percents(min(values), max(values)) if values else NOT_MEASURED


def others_table(report: Report) -> str:
    """Of each cell: what others used of the machine, and from the lowest to the highest of its samples."""

    def text(cell: Cell | None, workload: str) -> str:
        others = cell.spread("others_percent") if cell is not None else None
        values = cell.spread("p50_ms" if workload == PICKUP else "rate_per_s") if cell is not None else None
        if others is None or values is None:
            return NOT_MEASURED
        unit = " ms" if workload == PICKUP else ""
        span = number(values.low) if values.samples == 1 else f"{number(values.low)} to {number(values.high)}"
        return f"{others.median:.0f} %; {span}{unit}"

    rows = [
        [row.name, *(text(row.cells.get(workload), workload) for workload in WORKLOADS)] for row in measured(report)
    ]
    return table(["row", *(_SHORT[workload] for workload in WORKLOADS)], rows)


def ratio(report: Report, row: RowResult, workload: str) -> float | None:
    """How many times as well the row of Holdfast does it that it is compared with: more is better for Holdfast."""
    ours = report.row(row.compared_with)
    if ours is None:
        return None
    name = "p50_ms" if workload == PICKUP else "rate_per_s"
    mine, theirs = ours.median(workload, name), row.median(workload, name)
    if not mine or not theirs:
        return None
    return theirs / mine if workload == PICKUP else mine / theirs


def ratios_table(report: Report) -> str:
    def text(row: RowResult, workload: str) -> str:
        value, ours = ratio(report, row, workload), report.row(row.compared_with)
        if value is None or ours is None:
            return NOT_MEASURED
        cells = (ours.cells.get(workload), row.cells.get(workload))
        if workload == PICKUP and not all(kept_up(cell) for cell in cells):
            return BEHIND
        return f"{value:.2f} ×"

    rows = [
        [f"{row.compared_with} to {row.name}", *(text(row, workload) for workload in WORKLOADS)]
        for row in measured(report)
        if row.name != row.compared_with
    ]
    return table(["which to which", *(_SHORT[workload] for workload in WORKLOADS)], rows)


def cpu_table(report: Report) -> str:
    """CPU µs per task: all processes of the servers, and all of the clients."""

    def text(row: RowResult, workload: str) -> str:
        servers, clients = row.median(workload, "servers_us"), row.median(workload, "clients_us")
        if servers is None or clients is None:
            return NOT_MEASURED
        return f"{number(servers)} + {number(clients)}"

    rows = [[row.name, *(text(row, workload) for workload in WORKLOADS)] for row in measured(report)]
    return table(["row", *(f"{_SHORT[workload]}, µs" for workload in WORKLOADS)], rows)


def confirms_table(report: Report) -> str:
    lines = [f"| {row.name} | {row.confirm} | {row.ack} | {row.version or NOT_MEASURED} |" for row in report.rows]
    headers = ["| row | a confirm means | ack, or who runs the tasks | version |", "|---|---|---|---|"]
    return "\n".join([*headers, *lines])


def problems(report: Report) -> str:
    lines = [f"- {row.name}: {row.problem}" for row in report.rows if row.problem]
    for row in report.rows:
        lines += [f"- {row.name}, {name}: broke: {cell.problem}" for name, cell in row.cells.items() if cell.problem]
    return "\n".join(lines)


def origin(report: Report) -> str:
    """When, where and how it was measured."""
    machine = report.machine
    syncs = ", ".join(f"{size} p50 {took['p50']:.2f} ms" for size, took in machine["fdatasync_ms"].items())
    kind = "Quick run, which only shows that everything works. " if report.is_quick else ""
    times = "once each" if report.repeats == 1 else f"median of {report.repeats}"
    return (
        f"{kind}{report.date}, {machine['cores']} shared cores ({machine['cpu']}), {machine['memory_gb']:g} GB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, {machine['file_system']}, "
        f"write + fdatasync of {syncs}, load average {machine['load_average']:.1f} before; {times}. "
        f"Command: `{report.command}`."
    )


def as_text(report: Report) -> str:
    parts = [origin(report), figures_table(report), "Ratios of this run (more is better for Holdfast):"]
    parts += [ratios_table(report), "CPU µs per task, servers + clients:", cpu_table(report)]
    parts += ["CPU of the machine used by others; lowest to highest sample:", others_table(report)]
    parts += [confirms_table(report), problems(report)]
    return "\n\n".join(part for part in parts if part)
