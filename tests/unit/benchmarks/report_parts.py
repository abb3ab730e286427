"""Reports made by hand, for the tests of what is made of them."""

from typing import Any

from peers.results import Cell, Report, RowResult, Sample


def sample(rate: float = 1_000, **more: float) -> Sample:
    given: dict[str, Any] = {"servers_us": 50.0, "clients_us": 20.0, "written_bytes": 1_100.0, "others_percent": 5.0}
    return Sample(tasks=round(rate * 2), seconds=2.0, **{**given, **more})


def cell(*rates: float, problem: str = "", **more: float) -> Cell:
    return Cell(samples=[sample(rate, **more) for rate in rates], problem=problem)


def row(name: str, compared_with: str = "", *, problem: str = "", **cells: Cell) -> RowResult:
    """Cells by workload, without what cannot stand in a keyword: W1, W1B, W2, W3, W4."""
    names = {"W1": "W1 1×1", "W1B": "W1 2×100"}
    return RowResult(
        name=name,
        confirm="it is durable",
        ack="durable too",
        compared_with=compared_with or name,
        version="1.0",
        problem=problem,
        cells={names.get(key, key): value for key, value in cells.items()},
    )


def report(*rows: RowResult, is_quick: bool = False, repeats: int = 3) -> Report:
    machine = {
        "cores": 2, "cpu": "Some CPU", "memory_gb": 8.0, "kernel": "6.1", "python": "3.11", "file_system": "ext4",
        "load_average": 0.5, "fdatasync_ms": {"4 KB": {"p50": 0.5, "p99": 2.0}},
    }  # fmt: skip
    return Report(
        date="2030-01-02 03:04 UTC", command="make bench-peers", is_quick=is_quick, repeats=repeats, machine=machine,
        rows=list(rows),
    )  # fmt: skip
