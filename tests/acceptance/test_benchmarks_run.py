"""The benchmarks run to their end with the right counts. How fast is not a matter for a test."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server import wait_until
from tests.long import long_only

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


@long_only
def test_app_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "worker", "caller", "--tasks", "500")
    assert scenarios["worker"]["counts"] == {"enqueued": 500, "succeeded": 500}
    assert scenarios["caller"]["counts"] == {"enqueued": 500}
    for name in ("producer process", "worker process"):
        assert figures_of(scenarios["worker"])[name]["reached"]["median"] > 0
    assert figures_of(scenarios["worker"])["rate"]["target"].startswith("≥")
    assert figures_of(scenarios["caller"])["call, p50"]["reached"]["median"] > 0


@long_only
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


@long_only
def test_the_overload_scenario_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "overload", "--seconds", "2")
    assert scenarios["overload"]["broken"] == ""
    assert scenarios["overload"]["counts"]["accepted"] > 0
    overload = {name: figure["reached"]["median"] for name, figure in figures_of(scenarios["overload"]).items()}
    assert overload["peak RSS"] >= max(overload["RSS before"], overload["RSS after"]) > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_replicated_throughput_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "replicated-enqueue", "replicated-lifecycle", "--tasks", "500")
    assert scenarios["replicated-enqueue"]["counts"] == {"enqueued": 500}
    assert scenarios["replicated-lifecycle"]["counts"] == {"enqueued": 500, "succeeded": 500}
    for scenario in scenarios.values():
        figures = figures_of(scenario)
        assert figures["rate"]["target"].startswith("≥")
        spent_us = {who: figures[who]["reached"]["median"] for who in ("leader", "follower", "clients")}
        assert min(spent_us.values()) > 0
        in_all_us = spent_us["leader"] + 2 * spent_us["follower"] + spent_us["clients"]
        assert figures["all processes"]["reached"]["median"] == pytest.approx(in_all_us)
        assert scenario["stages"]["follower 2: apply, µs per task"]["median"] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_replicated_latency_and_idle_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "replicated-single", "idle-shards", "--seconds", "1")
    assert scenarios["replicated-single"]["counts"] == {"three replicas": 100, "one replica": 100}
    single = figures_of(scenarios["replicated-single"])
    ratio = single["three replicas, p50"]["reached"]["median"] / single["one replica, p50"]["reached"]["median"]
    assert single["three to one, p50"]["reached"]["median"] == pytest.approx(ratio)
    assert single["three to one, p50"]["target"] == "≤ 3 ×"
    assert scenarios["idle-shards"]["counts"] == {"nodes": 3, "shards": 64}
    idle = figures_of(scenarios["idle-shards"])
    assert idle["busiest node, CPU"]["reached"]["median"] == idle["each node, CPU"]["reached"]["high"] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_the_scenario_of_a_worker_behind_a_router_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "router-failover", "--trials", "1")
    assert scenarios["router-failover"]["counts"]["fail-overs"] == 2
    figures = figures_of(scenarios["router-failover"])
    for kind in ("SIGKILL", "SIGSTOP"):
        assert figures[f"{kind}, next task"]["reached"]["samples"] >= 1
        assert figures[f"{kind}, next task"]["target"] == "≤ 1 s"
        assert figures[f"{kind}, slowest of all"]["target"] == "≤ 2 s"


@long_only
def test_the_scenario_of_being_watched_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "watching")
    assert scenarios["watching"]["counts"] == {"workers": 100, "listed": 5_000}
    figures = figures_of(scenarios["watching"])
    assert figures["heartbeat, router, CPU"]["reached"]["median"] > 0
    assert figures["large to small, page of 100, CPU"]["target"] == "≤ 1.5 ×"


@long_only
def test_the_scenario_of_many_shards_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "many-shards", "--seconds", "2")
    figures = figures_of(scenarios["many-shards"])
    for shards in (16, 64):
        assert scenarios["many-shards"]["counts"][f"tasks of {shards} shards"] > 0
        assert figures[f"{shards} shards, leader changes"]["target"] == "≤ 0"
        assert figures[f"{shards} shards, outcomes unknown"]["reached"]["median"] == 0
        assert figures[f"{shards} shards, round, p99"]["reached"]["median"] > 0


@long_only
def test_the_fail_over_scenario_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "failover", "--trials", "1")
    assert scenarios["failover"]["counts"]["fail-overs"] == 2
    assert scenarios["failover"]["counts"]["enqueued"] > 0
    failover = figures_of(scenarios["failover"])
    for kind in ("SIGKILL", "SIGSTOP"):
        assert failover[f"{kind}, next write"]["reached"]["samples"] == 1
        assert failover[f"{kind}, next write"]["target"] == "≤ 2 s"
        assert failover[f"{kind}, slowest of all"]["target"] == "≤ 5 s"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_the_router_scenario_of_batches_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "router-enqueue", "--tasks", "500")
    assert scenarios["router-enqueue"]["counts"] == {"enqueued": 2 * 500}
    batches = {name: figure["reached"]["median"] for name, figure in figures_of(scenarios["router-enqueue"]).items()}
    assert min(batches.values()) > 0
    ratio = batches["router"] / batches["brokers, direct"]
    assert batches["router to all brokers, CPU"] == pytest.approx(ratio)
    assert batches["router to the leader, CPU"] > ratio > batches["router to brokers and client, CPU"]
    assert figures_of(scenarios["router-enqueue"])["router to all brokers, CPU"]["target"] == "≤ 0.4 ×"
    # Nothing passes the router when clients go straight to the leader: it does less then than any broker.
    spent_us = {name: spread["median"] for name, spread in scenarios["router-enqueue"]["cpu_us"].items()}
    assert spent_us["direct, router"] < min(spent_us["direct, leader"], spent_us["through the router, router"])
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_the_router_scenario_of_single_tasks_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "router-single", "--seconds", "1")
    assert scenarios["router-single"]["counts"] == {"enqueued": 2 * 100}
    single = figures_of(scenarios["router-single"])
    ratio = single["p50, through the router"]["reached"]["median"] / single["p50, direct"]["reached"]["median"]
    assert single["router to direct, p50"]["reached"]["median"] == pytest.approx(ratio)
    assert single["router to direct, p50"]["target"] == "≤ 2 ×"
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_move_and_router_start_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "move", "router-start", "--mb", "5", "--seconds", "1")
    counts = scenarios["move"]["counts"]
    assert counts["filled"] == 306  # × 16 KiB
    assert counts["enqueued"] > 100
    assert counts["moves"] == 1
    move = {name: figure["reached"]["median"] for name, figure in figures_of(scenarios["move"]).items()}
    assert min(move.values()) > 0
    assert move["p99 while moving to before"] == pytest.approx(move["p99, while moving"] / move["p99, before"])
    assert figures_of(scenarios["move"])["p99 while moving to before"]["target"] == "≤ 3 ×"
    assert scenarios["router-start"]["counts"] == {"shards": 100, "queues": 1000, "starts": 1}
    start = figures_of(scenarios["router-start"])
    assert min(figure["reached"]["median"] for figure in start.values()) > 0
    assert start["exec to ready"]["target"] == "≤ 2 s"
    assert start["RSS at its peak"]["target"] == "≤ 300 MB"
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_the_limits_scenario_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "limits", "--tasks", "500")
    limits = {name: figure["reached"]["median"] for name, figure in figures_of(scenarios["limits"]).items()}
    together = "tenants, caps and priorities"
    kinds = ("plain", "priorities", "tenants", "caps", "rates", together, "everything, a lane for each task")
    limited_runs = len(kinds) - 1 + 2  # what the aim is for comes three times
    plain_runs = limited_runs + 1  # one before all others, and one after each
    assert scenarios["limits"]["counts"] == {"succeeded": (plain_runs + limited_runs) * 500}
    for kind in kinds:
        assert min(limits[f"{what}, {kind}"] for what in ("rate", "server", "clients")) > 0
    cost = figures_of(scenarios["limits"])[f"cost of {together}"]
    assert cost["target"] == "≤ 25 %"
    plain = figures_of(scenarios["limits"])["rate, plain"]["reached"]
    assert plain["samples"] == plain_runs
    rates = figures_of(scenarios["limits"])[f"rate, {together}"]["reached"]
    least, most = 100 * (1 - rates["high"] / plain["low"]), 100 * (1 - rates["low"] / plain["high"])
    assert least <= cost["reached"]["median"] <= most, "against the mean of two plain runs"
    assert all(limits[f"cost of {kind}, by CPU"] < 100 for kind in kinds[1:])
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_limits_are_measured_on_three_replicas_too(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "replicated-limits", "--tasks", "500")
    found = scenarios["replicated-limits"]
    assert found["counts"] == {"succeeded": 7 * 500}
    figures = figures_of(found)
    together = "tenants, caps and priorities"
    assert figures[f"cost of {together}"]["target"] == "≤ 25 %"
    assert figures[f"cost of {together}"]["reached"]["samples"] == 3
    for kind in ("plain", together):
        assert min(figures[f"{what}, {kind}"]["reached"]["low"] for what in ("rate", "leader")) > 0
    assert brokers_in(tmp_path) == []


@long_only
def test_the_scenario_of_many_tenants_counts_and_reports_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "many-tenants", "--tenants", "1000", "--seconds", "1")
    counts = scenarios["many-tenants"]["counts"]
    assert set(counts) == {"idle", "plain", "tenants", "tenants with tasks"}
    assert counts["tenants with tasks"] == 1000
    assert min(counts.values()) > 50  # a second of a probe
    figures = figures_of(scenarios["many-tenants"])
    tenants = {name: figure["reached"]["median"] for name, figure in figures.items()}
    assert min(tenants.values()) > 0
    for name, beside in (("idle", "idle"), ("none", "workers, no tenants")):
        ratio = tenants["p99, workers, many tenants"] / tenants[f"p99, {beside}"]
        assert tenants[f"p99 with many tenants to {name}"] == pytest.approx(ratio)
    assert figures["p99 with many tenants to idle"]["target"] == "≤ 5 ×"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@long_only
def test_storm_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    _, scenarios = scenarios_of(tmp_path, "due-storm", "expiry-storm", "--tasks", "5000", "--seconds", "1")
    for name, what in (("due-storm", "promoted"), ("expiry-storm", "expired")):
        assert scenarios[name]["counts"][what] == 5000
        assert scenarios[name]["counts"]["enqueued"] > 200  # before, and for a second after
        storm = {figure: values["reached"]["median"] for figure, values in figures_of(scenarios[name]).items()}
        assert min(storm.values()) > 0
        idle_ms = min(storm["p99, before"], storm["p99, after"])
        assert storm["p99 meanwhile to idle"] == pytest.approx(storm["p99, meanwhile"] / idle_ms)
        assert storm[what] == pytest.approx(5000 / storm[f"until all are {what}"])
        assert figures_of(scenarios[name])["p99 meanwhile to idle"]["target"] == "≤ 5 ×"
        assert scenarios[name]["stages"]["apply, µs per task"]["median"] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "failover"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        try:
            wait_until(lambda: len(brokers_in(tmp_path)) == 3, "three brokers")
        finally:
            run.terminate()
        assert run.wait(timeout=60) == 1
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def brokers_in(directory: Path) -> list[str]:
    """Command lines of processes that have to do with this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(directory) in line]


def test_an_unknown_scenario_is_refused_by_name(tmp_path: Path) -> None:
    done = run_benchmarks(tmp_path, "fly")
    assert done.returncode == 2
    assert "no such scenario: fly" in done.stderr
