"""Tables of the comparison: medians, ratios, and never a figure that nobody has measured."""

from pathlib import Path

import pytest

from harness.commands import as_typed
from peers import tables
from peers.results import BATCHED, DRAIN, PICKUP, SINGLE, Cell, read_report, write_report
from peers.tables import NOT_MEASURED, number, of_cell, ratio
from tests.unit.benchmarks.report_parts import cell, report, row, sample


def cells_of(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [item.strip() for item in line.strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("value", "text"),
    [(123_456, "123,500"), (9_876, "9,880"), (543.2, "543"), (99.94, "99.9"), (9.987, "9.99"), (0.0, "0.00")],
)
def test_figures_have_as_many_digits_as_they_deserve(value: float, text: str) -> None:
    assert number(value) == text


def test_the_median_of_the_samples_counts() -> None:
    assert cell(1_000, 5_000, 2_000).median("rate_per_s") == 2_000
    assert cell(1_000, 2_000).median("rate_per_s") == 1_500
    assert cell(1_000).median("p50_ms") is None


@pytest.mark.parametrize(
    ("found", "workload", "text"),
    [
        (None, DRAIN, NOT_MEASURED),
        (Cell(), DRAIN, NOT_MEASURED),
        (cell(problem="it fell over"), DRAIN, "broke"),
        (cell(12_345), DRAIN, "12,300"),
        (cell(1_000, p50_ms=1.25, p99_ms=9), SINGLE, "1,000 (1.25 ms)"),
        (cell(199, p50_ms=1.25, p99_ms=9), PICKUP, "1.25 / 9.00 ms"),
        (cell(120, p50_ms=1.25, p99_ms=9), PICKUP, "1.25 / 9.00 ms, only 120/s"),
    ],
)
def test_a_cell_says_what_it_has(found: Cell | None, workload: str, text: str) -> None:
    assert of_cell(found, workload) == text


def test_ratios_are_between_rows_of_one_run_and_more_is_better() -> None:
    ours = row("holdfast-1", W1B=cell(30_000), W4=cell(200, p50_ms=4.0, p99_ms=8.0))
    theirs = row("other", "holdfast-1", W1B=cell(20_000), W4=cell(200, p50_ms=2.0, p99_ms=8.0))
    both = report(ours, theirs)
    assert ratio(both, theirs, BATCHED) == 1.5
    assert ratio(both, theirs, PICKUP) == 0.5
    assert ratio(both, theirs, DRAIN) is None
    assert ratio(report(theirs), theirs, BATCHED) is None
    text = tables.ratios_table(both)
    assert cells_of(text, "holdfast-1 to other") == [NOT_MEASURED, "1.50 ×", NOT_MEASURED, NOT_MEASURED, "0.50 ×"]
    assert "| holdfast-1 to holdfast-1 |" not in text


def test_latencies_of_who_did_not_keep_up_are_not_compared() -> None:
    ours = row("holdfast-1", W4=cell(120, p50_ms=900.0, p99_ms=999.0))
    theirs = row("other", "holdfast-1", W4=cell(200, p50_ms=2.0, p99_ms=8.0))
    assert cells_of(tables.ratios_table(report(ours, theirs)), "holdfast-1 to other")[4] == "did not keep up"


def test_each_table_has_the_rows_that_were_measured() -> None:
    quiet, busy = sample(1_000, others_percent=2.0), sample(3_000, others_percent=60.0)
    known = report(row("one", W2=Cell(samples=[quiet, busy])), row("two", problem="no server"))
    assert cells_of(tables.figures_table(known), "one") == [
        NOT_MEASURED, NOT_MEASURED, "2,000", NOT_MEASURED, NOT_MEASURED, "2 to 60 %",
    ]  # fmt: skip
    assert cells_of(tables.others_table(known), "one")[2] == "31 %; 1,000 to 3,000"
    assert cells_of(tables.cpu_table(known), "one")[2] == "50.0 + 20.0"
    assert "| two |" not in tables.figures_table(known)
    assert cells_of(tables.confirms_table(known), "two")[0] == "it is durable"
    assert tables.problems(known) == "- two: no server"


def test_a_report_says_when_where_and_how() -> None:
    text = tables.as_text(report(row("one", W2=cell(problem="it fell over")), is_quick=True, repeats=1))
    for part in ("2030-01-02 03:04 UTC", "2 shared cores", "once each", "`make bench-peers`", "Quick run"):
        assert part in text
    assert "- one, W2: broke: it fell over" in text
    assert "median of 3" in tables.origin(report())


def test_a_report_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    before = report(row("one", W1=cell(1, 2, p50_ms=1.0, p99_ms=2.0)), row("two", problem="no server"))
    write_report(before, tmp_path / "new" / "report.json")
    assert read_report(tmp_path / "new" / "report.json") == before


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], "make bench-peers"),
        (["--json", "a.json"], "make bench-peers"),
        (["--quick", "--json=a.json", "--only", "a,b"], 'make bench-peers ARGS="--quick --only a,b"'),
    ],
)
def test_the_command_is_told_without_where_the_report_goes(argv: list[str], command: str) -> None:
    assert as_typed("bench-peers", argv) == command
