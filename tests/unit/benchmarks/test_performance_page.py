"""The page of measured tables, and the arithmetic on it."""

from typing import Any

import pytest

from peers import scenarios
from peers.page import NOTHING, fill, split
from peers.sizing import cores, mb_per_s, sizing, tasks_per_sync_min
from peers.tables import NOT_MEASURED
from performance import PAGE, parts
from tests.unit.benchmarks.report_parts import cell, report, row

TEXT = "a\n<!-- measured: one -->\nold\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"


def test_parts_are_written_anew_and_the_rest_stays() -> None:
    filled = fill(TEXT, {"one": "| new |", "two": "2"})
    assert filled == (
        "a\n<!-- measured: one -->\n\n| new |\n\n<!-- end -->\nb\n<!-- measured: two -->\n\n2\n\n<!-- end -->\n"
    )
    assert fill(filled, {"one": "| new |", "two": "2"}) == filled


@pytest.mark.parametrize("given", [{"one": ""}, {"one": "", "two": "", "three": ""}])
def test_a_part_without_a_place_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected a page with the parts"):
        fill(TEXT, given)


def test_the_page_has_a_place_for_every_part() -> None:
    assert sorted(split(PAGE.read_text(encoding="utf-8"))) == sorted(parts(None, None))
    assert set(parts(None, None).values()) == {NOTHING}


def test_a_rate_needs_the_cpu_of_one_task_times_the_rate() -> None:
    assert cores(50.0, 100_000) == 5.0
    assert mb_per_s(1_100.0, 100_000) == 110.0
    assert tasks_per_sync_min(0.5, 100_000) == 50.0
    text = sizing(report(row("holdfast-1", W1B=cell(30_000), W3=cell(8_000)), row("other", W3=cell(9_000))))
    assert "| 50.0 µs × 100,000/s = 5.00 cores | 20.0 µs × 100,000/s = 2.00 cores |" in text
    assert "1,100 B × 50,000/s = 55.0 MB/s" in text
    assert "need 50.0 tasks per sync or more" in text
    assert "other" not in text


def test_what_broke_needs_nothing_that_anybody_knows() -> None:
    text = sizing(report(row("holdfast-1", W3=cell(problem="it fell over"))))
    assert text.count(NOT_MEASURED) == 3


def scenario(name: str, *, broken: str = "") -> dict[str, Any]:
    spread = {"median": 12.0, "low": 10.0, "high": 20.0, "samples": 3}
    return {
        "name": name, "broken": broken, "others_percent": spread, "calibration_ms": spread,
        "cpu_us": {"server": spread}, "stages": {"apply, µs per task": {**spread, "samples": 1}},
        "figures": [{"name": "rate", "unit": "tasks/s", "reached": spread}],
    }  # fmt: skip


def test_scenarios_that_were_not_run_or_broke_are_not_measured() -> None:
    found = {"enqueue": scenario("enqueue"), "lifecycle": scenario("lifecycle", broken="it fell over")}
    lines = scenarios.stages_table(found).splitlines()
    assert "| enqueue | server, CPU µs per task | 12.0 | 10.0 to 20.0 | 10 to 20 % |" in lines
    assert "| enqueue | apply, µs per task | 12.0 | one sample | 10 to 20 % |" in lines
    assert f"| lifecycle |  | {NOT_MEASURED} |  |  |" in lines
    figures = scenarios.figures_table({"payloads": scenario("payloads")}, ("payloads", "batch-sizes"))
    assert "| payloads: rate, tasks/s | 12.0 | 10.0 to 20.0 | 10 to 20 % |" in figures
    assert f"| batch-sizes | {NOT_MEASURED} |  |  |" in figures


def test_a_run_of_scenarios_fills_its_parts() -> None:
    content = {
        "date": "2030-01-02 03:04 UTC", "command": "make bench", "quick": False, "machine": report().machine,
        "scenarios": [scenario("enqueue")],
    }  # fmt: skip
    made = parts(None, content)
    assert "2030-01-02 03:04 UTC, 2 shared cores" in made["stages"]
    assert NOT_MEASURED in made["payloads"]
    assert made["figures"] == NOTHING
