"""What was measured: samples, cells of several samples, rows of cells, and a report of rows, which is kept as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.results import Spread

SINGLE = "W1 1×1"
BATCHED = "W1 2×100"
DRAIN = "W2"
LIVES = "W3"
PICKUP = "W4"
WORKLOADS = (SINGLE, BATCHED, DRAIN, LIVES, PICKUP)
LIBRARY_WORKLOADS = (SINGLE, DRAIN, LIVES)  # what makes sense for a library of tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement of one workload. What a workload does not have is None."""

    tasks: int  # in the time that was measured
    seconds: float
    servers_us: float  # CPU per task, all processes of the servers
    clients_us: float  # the same of producers, consumers and workers
    written_bytes: float  # per task, by the servers
    others_percent: float  # of the machine's CPU, used by others meanwhile
    p50_ms: float | None = None  # of a call; of W4 from the enqueue to the pickup
    p99_ms: float | None = None

    @property
    def rate_per_s(self) -> float:
        return self.tasks / self.seconds


@dataclass(slots=True, kw_only=True)
class Cell:
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""  # why there are no more samples

    def spread(self, name: str) -> Spread | None:
        """Of one field of the samples, or None if it was not measured."""
        values = [value for sample in self.samples if (value := getattr(sample, name)) is not None]
        return Spread.of(values) if values else None

    def median(self, name: str) -> float | None:
        spread = self.spread(name)
        return spread.median if spread is not None else None


@dataclass(slots=True, kw_only=True)
class RowResult:
    name: str
    confirm: str
    ack: str
    compared_with: str
    version: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)  # by workload
    problem: str = ""  # why it was left out, or what broke it
    is_broken: bool = False

    def median(self, workload: str, name: str) -> float | None:
        cell = self.cells.get(workload)
        return cell.median(name) if cell is not None else None


@dataclass(slots=True, kw_only=True)
class Report:
    date: str
    command: str
    is_quick: bool
    repeats: int
    machine: dict[str, Any]
    rows: list[RowResult] = field(default_factory=list)

    def row(self, name: str) -> RowResult | None:
        return next((row for row in self.rows if row.name == name), None)


def write_report(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(report), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = [_row_of(row) for row in content.pop("rows")]
    return Report(**content, rows=rows)


def _row_of(content: dict[str, Any]) -> RowResult:
    cells = {workload: _cell_of(cell) for workload, cell in content.pop("cells").items()}
    return RowResult(**content, cells=cells)


def _cell_of(content: dict[str, Any]) -> Cell:
    samples: Sequence[dict[str, Any]] = content["samples"]
    return Cell(samples=[Sample(**sample) for sample in samples], problem=content["problem"])
