"""What a person sees: progress while it runs, tables at the end. The only file here that knows rich."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness.machine import Machine
from harness.results import Figure, Outcome, Spread

REFRESHES_PER_S = 2  # few: drawing takes CPU from what is measured
WIDTH_WITHOUT_TERMINAL = 132


class Display:
    """Progress goes to stderr and only to a terminal, the report to stdout."""

    def __init__(self) -> None:
        self._progress_console = Console(stderr=True, highlight=False)
        out = Console(highlight=False)
        self._out = out if out.is_terminal else Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar; the function it gives takes how much is done."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = self._progress_console
        with Progress(
            *columns,
            console=console,
            transient=True,
            refresh_per_second=REFRESHES_PER_S,
            disable=not console.is_terminal,
        ) as bars:
            bar = bars.add_task(what, total=total)
            yield lambda done: bars.update(bar, completed=done)

    def say(self, line: str) -> None:
        self._progress_console.print(Text(line))

    def report(self, machine: Machine, outcomes: Sequence[Outcome], *, quick: bool) -> None:
        out = self._out
        out.print(Text(_machine_line(machine)))
        if machine.file_system == "tmpfs":
            out.print(Text("The data is on a tmpfs: syncs cost nothing there, so these figures mean little."))
        if quick:
            out.print(Text("Quick run: smaller than the targets assume, so its figures only show that it works."))
        out.print(_figures_table(outcomes))
        out.print(_noise_table(outcomes))
        for outcome in outcomes:
            if outcome.cpu_us or outcome.stages:
                out.print(_details_table(outcome))
        for outcome in outcomes:
            if outcome.broken:
                out.print(Text(f"{outcome.name} broke: {outcome.broken}"))


def _machine_line(machine: Machine) -> str:
    syncs = ", ".join(
        f"{size} p50 {took['p50']:.2f} p99 {took['p99']:.2f} ms" for size, took in machine.fdatasync_ms.items()
    )
    return (
        f"{machine.cores} cores ({machine.cpu}), {machine.memory_gb:g} GB, Linux {machine.kernel}, "
        f"Python {machine.python}, load average {machine.load_average:.2f} before\n"
        f"{machine.file_system}; write + fdatasync of {syncs}"
    )


def _figures_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Figures (median of the samples counts)", title_justify="left")
    for header in ("scenario", "figure"):
        table.add_column(header, no_wrap=True)
    for header in ("target", "median", "best", "lowest to highest", "samples", "met"):
        table.add_column(header, justify="right")
    for outcome in outcomes:
        if outcome.broken:
            table.add_row(outcome.name, "broken, see below")
        for index, figure in enumerate(outcome.figures):
            table.add_row(outcome.name if not index else "", *_figure_cells(figure))
        table.add_section()
    return table


def _noise_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Noise: how far to trust them", title_justify="left")
    table.add_column("scenario", no_wrap=True)
    table.add_column("CPU of the machine used by others, %", justify="right")
    table.add_column("CPU time of one fixed work, ms", justify="right")
    for outcome in outcomes:
        if outcome.others_percent is not None and outcome.calibration_ms is not None:
            table.add_row(outcome.name, _spread_cell(outcome.others_percent), _spread_cell(outcome.calibration_ms))
    return table


def _spread_cell(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"


def _figure_cells(figure: Figure) -> Sequence[str]:
    reached = figure.reached
    met = {True: "yes", False: "NO", None: ""}[figure.met]
    spread = f"{_number(reached.low)} to {_number(reached.high)}" if reached.samples > 1 else ""
    label = f"{figure.name}, {figure.unit}"
    return label, figure.target, _number(reached.median), _number(figure.best), spread, str(reached.samples), met


def _details_table(outcome: Outcome) -> Table:
    table = Table(title=f"{outcome.name}: {outcome.title}", title_justify="left")
    table.add_column("where", no_wrap=True)
    table.add_column("median", justify="right")
    table.add_column("lowest to highest", justify="right")

    def rows(values: dict[str, Spread], suffix: str) -> None:
        for name, spread in values.items():
            table.add_row(name + suffix, _number(spread.median), f"{_number(spread.low)} to {_number(spread.high)}")

    rows(outcome.cpu_us, ", CPU µs per task")
    table.add_section()
    rows(outcome.stages, "")
    return table


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
