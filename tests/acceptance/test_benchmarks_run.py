"""The benchmarks run to their end with the right counts. How fast is not a matter for a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RUN = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"


def run_benchmarks(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Below the limit of the test itself, so that what the run said is shown.
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


def scenarios_of(directory: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole report of a run, and its scenarios by name."""
    report = directory / "out" / "report.json"
    done = run_benchmarks(directory, *arguments, "--quick", "--repeat", "1", "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    content: dict[str, Any] = json.loads(report.read_text())
    return content, {scenario["name"]: scenario for scenario in content["scenarios"]}


def figures_of(scenario: dict[str, Any]) -> dict[str, Any]:
    return {figure["name"]: figure for figure in scenario["figures"]}


def test_throughput_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    content, scenarios = scenarios_of(tmp_path, "enqueue", "lifecycle", "--tasks", "1000")
    assert content["machine"]["cores"] >= 1
    assert set(content["machine"]["fdatasync_ms"]) == {"4 KB", "100 KB"}
    assert scenarios["enqueue"]["counts"] == {"enqueued": 1000}
    assert scenarios["lifecycle"]["counts"] == {"enqueued": 1000, "succeeded": 1000}
    for scenario in scenarios.values():
        assert scenario["broken"] == ""
        rate = figures_of(scenario)["rate"]
        assert rate["reached"]["median"] > 0
        assert rate["target"].startswith("≥")
        assert rate["met"] in (True, False)
        assert {"server", "server: event loop", "producer"} <= set(scenario["cpu_us"])
        assert scenario["stages"]["apply, µs per task"]["median"] > 0
        assert scenario["stages"]["log sync, ms each"]["median"] > 0
    assert {"consumer 1", "consumer 2"} <= set(scenarios["lifecycle"]["cpu_us"])
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]  # nothing is left behind


def test_app_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "worker", "caller", "--tasks", "500")
    assert scenarios["worker"]["counts"] == {"enqueued": 500, "succeeded": 500}
    assert scenarios["caller"]["counts"] == {"enqueued": 500}
    for name in ("producer process", "worker process"):
        assert figures_of(scenarios["worker"])[name]["reached"]["median"] > 0
    assert figures_of(scenarios["worker"])["rate"]["target"].startswith("≥")
    assert figures_of(scenarios["caller"])["call, p50"]["reached"]["median"] > 0


def test_latency_and_backlog_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    sizes = ("--seconds", "1", "--samples", "10", "--backlog", "1000")
    _, scenarios = scenarios_of(tmp_path, "single", "pickup", "backlog", *sizes)
    assert scenarios["single"]["counts"] == {"enqueued": 200}
    assert scenarios["pickup"]["counts"] == {"enqueued": 10, "succeeded": 10}
    assert scenarios["backlog"]["counts"] == {"enqueued": 1000, "succeeded": 1000}
    assert figures_of(scenarios["single"])["p99"]["target"] == "≤ 5 ms"
    assert figures_of(scenarios["pickup"])["p50"]["reached"]["median"] > 0
    backlog = figures_of(scenarios["backlog"])
    for name in ("large to small, server CPU", "start after SIGKILL", "start after a clean stop"):
        assert backlog[name]["reached"]["median"] > 0
        assert backlog[name]["target"]
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_an_unknown_scenario_is_refused_by_name(tmp_path: Path) -> None:
    done = run_benchmarks(tmp_path, "fly")
    assert done.returncode == 2
    assert "no such scenario: fly" in done.stderr
