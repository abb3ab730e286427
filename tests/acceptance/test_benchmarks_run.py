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


class Report:
    """Of a short run, which leaves nothing else behind."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        path = directory / "out" / "report.json"
        done = run_benchmarks(directory, *arguments, "--quick", "--repeat", "1", "--json", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
        self.content: dict[str, Any] = json.loads(path.read_text())
        self.scenarios: dict[str, dict[str, Any]] = {
            scenario["name"]: scenario for scenario in self.content["scenarios"]
        }
        assert brokers_in(directory) == []
        assert list(directory.iterdir()) == [directory / "out"]

    def counts(self, scenario: str) -> dict[str, int]:
        found: dict[str, int] = self.scenarios[scenario]["counts"]
        return found

    def figures(self, scenario: str) -> dict[str, dict[str, Any]]:
        return {figure["name"]: figure for figure in self.scenarios[scenario]["figures"]}

    def reached(self, scenario: str) -> dict[str, float]:
        """The median of each figure."""
        return {name: figure["reached"]["median"] for name, figure in self.figures(scenario).items()}

    def target(self, scenario: str, figure: str) -> str:
        return str(self.figures(scenario)[figure]["target"])


def test_throughput_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "enqueue", "lifecycle", "--tasks", "1000")
    assert report.content["machine"]["cores"] >= 1
    assert set(report.content["machine"]["fdatasync_ms"]) == {"4 KB", "100 KB"}
    assert report.counts("enqueue") == {"enqueued": 1000}
    assert report.counts("lifecycle") == {"enqueued": 1000, "succeeded": 1000}
    for name, scenario in report.scenarios.items():
        assert scenario["broken"] == ""
        assert report.reached(name)["rate"] > 0
        assert report.target(name, "rate").startswith("≥")
        assert report.figures(name)["rate"]["met"] in (True, False)
        assert {"server", "server: event loop", "producer"} <= set(scenario["cpu_us"])
        assert scenario["stages"]["apply, µs per task"]["median"] > 0
        assert scenario["stages"]["log sync, ms each"]["median"] > 0
    assert {"consumer 1", "consumer 2"} <= set(report.scenarios["lifecycle"]["cpu_us"])


@long_only
def test_app_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "worker", "caller", "--tasks", "500")
    assert report.counts("worker") == {"enqueued": 500, "succeeded": 500}
    assert report.counts("caller") == {"enqueued": 500}
    reached = report.reached("worker")
    assert min(reached["producer process"], reached["worker process"], report.reached("caller")["call, p50"]) > 0
    assert report.target("worker", "rate").startswith("≥")


@long_only
def test_latency_and_backlog_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    sizes = ("--seconds", "1", "--samples", "10", "--backlog", "1000")
    report = Report(tmp_path, "single", "pickup", "backlog", "single-backlog", *sizes)
    assert report.counts("single") == {"enqueued": 200}
    assert report.counts("pickup") == {"enqueued": 10, "succeeded": 10}
    assert report.target("single", "p99") == "≤ 5 ms"
    assert report.reached("pickup")["p50"] > 0
    for name in ("backlog", "single-backlog"):
        assert report.counts(name) == {"enqueued": 1100, "succeeded": 100}
        for figure in ("claim+ack, large backlog to empty queue, server CPU", "ready after SIGKILL"):
            assert report.reached(name)[figure] > 0
            assert report.target(name, figure)


@long_only
def test_the_overload_scenario_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "overload", "--seconds", "2")
    assert report.scenarios["overload"]["broken"] == ""
    assert report.counts("overload")["accepted"] > 0
    reached = report.reached("overload")
    assert reached["peak RSS"] >= max(reached["RSS before"], reached["RSS after"]) > 0


@long_only
def test_replicated_throughput_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "replicated-enqueue", "replicated-lifecycle", "--tasks", "500")
    assert report.counts("replicated-enqueue") == {"enqueued": 500}
    assert report.counts("replicated-lifecycle") == {"enqueued": 500, "succeeded": 500}
    for name, scenario in report.scenarios.items():
        assert report.target(name, "rate").startswith("≥")
        reached = report.reached(name)
        spent_us = {who: reached[who] for who in ("leader", "follower", "clients")}
        assert min(spent_us.values()) > 0
        in_all_us = spent_us["leader"] + 2 * spent_us["follower"] + spent_us["clients"]
        assert reached["all processes"] == pytest.approx(in_all_us)
        assert scenario["stages"]["follower 2: apply, µs per task"]["median"] > 0


@long_only
def test_replicated_latency_and_idle_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "replicated-single", "idle-shards", "--seconds", "1")
    assert report.counts("replicated-single") == {"three replicas": 100, "one replica": 100}
    single = report.reached("replicated-single")
    assert single["three to one, p50"] == pytest.approx(single["three replicas, p50"] / single["one replica, p50"])
    assert report.target("replicated-single", "three to one, p50") == "≤ 3 ×"
    assert report.counts("idle-shards") == {"nodes": 3, "shards": 64}
    item = report.figures("idle-shards")["each node, CPU"]["reached"]
    assert report.reached("idle-shards")["busiest node, CPU"] == item["high"] > 0


@long_only
@pytest.mark.parametrize(
    ("scenario", "next_one", "next_target", "slowest_target"),
    [("failover", "next write", "≤ 2 s", "≤ 5 s"), ("router-failover", "next task", "≤ 1 s", "≤ 2 s")],
)
def test_fail_over_scenarios_count_and_report_everything(
    tmp_path: Path, scenario: str, next_one: str, next_target: str, slowest_target: str
) -> None:
    """Of producers at brokers, and of a worker behind a router."""
    report = Report(tmp_path, scenario, "--trials", "1")
    assert report.counts(scenario)["fail-overs"] == 2
    assert scenario != "failover" or report.counts(scenario)["enqueued"] > 0
    for kind in ("SIGKILL", "SIGSTOP"):
        samples = report.figures(scenario)[f"{kind}, {next_one}"]["reached"]["samples"]
        assert samples == 1 if scenario == "failover" else samples >= 1
        assert report.target(scenario, f"{kind}, {next_one}") == next_target
        assert report.target(scenario, f"{kind}, slowest of all") == slowest_target


@long_only
def test_the_scenario_of_workers_that_wait_at_a_broker_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "waiting", "--workers", "50", "--samples", "20")
    assert report.counts("waiting") == {"workers": 50, "picked up": 20}
    assert report.reached("waiting")["broker, RSS"] > 0
    assert report.target("waiting", "pickup, p50") == "≤ 3 ms"


@long_only
def test_the_scenario_of_being_watched_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "watching")
    assert report.counts("watching") == {"workers": 100, "listed": 5_000}
    assert report.reached("watching")["heartbeat, router, CPU"] > 0
    assert report.target("watching", "large to small, page of 100, CPU") == "≤ 1.5 ×"


@long_only
def test_the_scenario_of_many_shards_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "many-shards", "--seconds", "2")
    for shards in (16, 64):
        assert report.counts("many-shards")[f"tasks of {shards} shards"] > 0
        assert report.target("many-shards", f"{shards} shards, leader changes") == "≤ 0"
        assert report.reached("many-shards")[f"{shards} shards, outcomes unknown"] == 0
        assert report.reached("many-shards")[f"{shards} shards, round, p99"] > 0


def test_the_router_scenario_of_batches_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "router-enqueue", "--tasks", "500")
    assert report.counts("router-enqueue") == {"enqueued": 2 * 500}
    batches = report.reached("router-enqueue")
    assert min(batches.values()) > 0
    ratio = batches["router"] / batches["brokers, direct"]
    assert batches["router to all brokers, CPU"] == pytest.approx(ratio)
    assert batches["router to the leader, CPU"] > ratio > batches["router to brokers and client, CPU"]
    assert report.target("router-enqueue", "router to all brokers, CPU") == "≤ 0.4 ×"
    # Nothing passes the router when clients go straight to the leader: it does less then than any broker.
    spent_us = {name: spread["median"] for name, spread in report.scenarios["router-enqueue"]["cpu_us"].items()}
    assert spent_us["direct, router"] < min(spent_us["direct, leader"], spent_us["through the router, router"])


@long_only
def test_the_router_scenario_of_single_tasks_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "router-single", "--seconds", "1")
    assert report.counts("router-single") == {"enqueued": 2 * 100}
    single = report.reached("router-single")
    assert single["router to direct, p50"] == pytest.approx(single["p50, through the router"] / single["p50, direct"])
    assert report.target("router-single", "router to direct, p50") == "≤ 2 ×"


@long_only
def test_move_and_router_start_scenarios_count_and_report_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "move", "router-start", "--mb", "5", "--seconds", "1")
    counts = report.counts("move")
    assert (counts["filled"], counts["moves"]) == (306, 1)  # × 16 KiB
    assert counts["enqueued"] > 100
    move = report.reached("move")
    assert min(move.values()) > 0
    assert move["p99 while moving to before"] == pytest.approx(move["p99, while moving"] / move["p99, before"])
    assert report.target("move", "p99 while moving to before") == "≤ 3 ×"
    assert report.counts("router-start") == {"shards": 100, "queues": 1000, "starts": 1}
    assert min(report.reached("router-start").values()) > 0
    assert report.target("router-start", "exec to ready") == "≤ 2 s"
    assert report.target("router-start", "RSS at its peak") == "≤ 300 MB"


@long_only
def test_the_limits_scenario_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "limits", "--tasks", "500")
    limits = report.reached("limits")
    together = "tenants, caps and priorities"
    kinds = ("plain", "priorities", "tenants", "caps", "rates", together, "everything, a lane for each task")
    limited_runs = len(kinds) - 1 + 2  # what the aim is for comes three times
    plain_runs = limited_runs + 1  # one before all others, and one after each
    assert report.counts("limits") == {"succeeded": (plain_runs + limited_runs) * 500}
    for kind in kinds:
        assert min(limits[f"{what}, {kind}"] for what in ("rate", "server", "clients")) > 0
    assert report.target("limits", f"cost of {together}") == "≤ 25 %"
    plain, rates = (report.figures("limits")[f"rate, {kind}"]["reached"] for kind in ("plain", together))
    assert plain["samples"] == plain_runs
    least, most = 100 * (1 - rates["high"] / plain["low"]), 100 * (1 - rates["low"] / plain["high"])
    assert least <= limits[f"cost of {together}"] <= most, "against the mean of two plain runs"
    assert all(limits[f"cost of {kind}, by CPU"] < 100 for kind in kinds[1:])


@long_only
def test_limits_are_measured_on_three_replicas_too(tmp_path: Path) -> None:
    report = Report(tmp_path, "replicated-limits", "--tasks", "500")
    assert report.counts("replicated-limits") == {"succeeded": 7 * 500}
    figures = report.figures("replicated-limits")
    together = "tenants, caps and priorities"
    assert report.target("replicated-limits", f"cost of {together}") == "≤ 25 %"
    assert figures[f"cost of {together}"]["reached"]["samples"] == 3
    for kind in ("plain", together):
        assert min(figures[f"{what}, {kind}"]["reached"]["low"] for what in ("rate", "leader")) > 0


@long_only
def test_the_scenario_of_many_tenants_counts_and_reports_everything(tmp_path: Path) -> None:
    report = Report(tmp_path, "many-tenants", "--tenants", "1000", "--seconds", "1")
    counts = report.counts("many-tenants")
    assert set(counts) == {"idle", "plain", "tenants", "tenants with tasks"}
    assert counts["tenants with tasks"] == 1000
    assert min(counts.values()) > 50  # a second of a probe
    tenants = report.reached("many-tenants")
    assert min(tenants.values()) > 0
    for name, beside in (("idle", "idle"), ("none", "workers, no tenants")):
        ratio = tenants["p99, workers, many tenants"] / tenants[f"p99, {beside}"]
        assert tenants[f"p99 with many tenants to {name}"] == pytest.approx(ratio)
    assert report.target("many-tenants", "p99 with many tenants to idle") == "≤ 5 ×"


@long_only
@pytest.mark.parametrize(("name", "what"), [("due-storm", "promoted"), ("expiry-storm", "expired")])
def test_storm_scenarios_count_and_report_everything(tmp_path: Path, name: str, what: str) -> None:
    report = Report(tmp_path, name, "--tasks", "5000", "--seconds", "1")
    assert report.counts(name)[what] == 5000
    assert report.counts(name)["enqueued"] > 200  # before, and for a second after
    storm = report.reached(name)
    assert min(storm.values()) > 0
    idle_ms = min(storm["p99, before"], storm["p99, after"])
    assert storm["p99 meanwhile to idle"] == pytest.approx(storm["p99, meanwhile"] / idle_ms)
    assert storm[what] == pytest.approx(5000 / storm[f"until all are {what}"])
    assert report.target(name, "p99 meanwhile to idle") == "≤ 5 ×"
    assert report.scenarios[name]["stages"]["apply, µs per task"]["median"] > 0


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
