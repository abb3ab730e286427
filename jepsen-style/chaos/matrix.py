"""Workloads × faults, each combination a run of its own, and one table of all verdicts. `--matrix` of `chaos.run`."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.play import TIME_OVER

WORKLOADS = ("lifecycle", "calls", "storms,limits", "chains,lifecycle,calls")
FAULTS = ("kills", "pauses", "cuts", "links,disks", "power,damage", "clocks,etcd")
# They take turns along the table, so that each workload and each group of faults meets most of them.
OPERATIONS = ("spread", "move", "none", "rolling-restart", "move,spread", "drain", "add,transfer")
SYSTEMS: tuple[Mapping[str, int], ...] = (
    {"brokers": 3, "shards": 8, "etcds": 1},
    {"brokers": 4, "shards": 16, "etcds": 1},
    {"brokers": 5, "shards": 8, "etcds": 3},
    {"brokers": 3, "shards": 32, "etcds": 3},
    {"brokers": 4, "shards": 8, "etcds": 3},
)
# Replicas move only where there are more brokers than a shard has replicas: at least so many.
MOVES_REPLICAS = frozenset({"move", "drain", "add"})
MOVES_BROKERS = 4
# One row has as many shards as a cluster that is to grow.
MANY_SHARDS = {("storms,limits", "cuts"): 64}
_SPARE_S = 500.0  # for start, liveness, drain and comparing, beside the time of faults


@dataclass(frozen=True)
class Combination:
    """One run."""

    name: str
    workload: str
    fault: str
    operation: str
    seed: int
    system: Mapping[str, int] = field(default_factory=dict)

    def arguments(self, seconds: float) -> list[str]:
        sizes = [text for name, count in self.system.items() for text in (f"--{name}", str(count))]
        operation = "" if self.operation == "none" else self.operation
        return [
            "--workload", self.workload, "--fault", self.fault, "--operation", operation, "--seed", str(self.seed),
            "--seconds", f"{seconds:g}", *sizes,
        ]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What came of it."""

    combination: Combination
    ok: bool
    violations: Sequence[str]
    counts: Mapping[str, int]
    worst_shard_s: Mapping[str, float] | None
    took_s: float
    skipped: Mapping[str, int] = field(default_factory=dict)  # steps by name that had nobody to strike, or no answer
    done: Mapping[str, int] = field(default_factory=dict)  # operations that came to their end; strikes at moves
    cannot: Sequence[str] = ()  # faults that are not possible on that system or machine

    def row(self) -> str:
        one = self.combination
        system = "/".join(str(one.system.get(name, "")) for name in ("brokers", "shards", "etcds"))
        kinds = Counter(text.partition(":")[0] for text in self.violations)
        verdict = "held" if self.ok else ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        worst = self.worst_shard_s
        outage = f"{worst['median']:.1f} / {worst['max']:.1f}" if worst else ""
        done = f"{self.counts.get('tasks', 0)} | {self.counts.get('handlers', 0)} | {self.counts.get('faults', 0)}"
        asked = f"{one.workload} | {one.fault} | {one.operation} | {system} | {one.seed}"
        return f"| {asked} | {done} | {self._meanwhile()} | {outage} | {verdict} |"

    def _meanwhile(self) -> str:
        parts = [_counted(self.done)] if self.done else []
        parts += [f"skipped: {_counted(self.skipped)}"] if self.skipped else []
        parts += [f"not possible: {', '.join(self.cannot)}"] if self.cannot else []
        return "; ".join(parts)


HEAD = (
    "| workload | faults | operations | brokers/shards/etcd | seed | tasks | handlers | strikes | done meanwhile |"
    " worst shard away (s), median / max | promises |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def combinations(seed: int) -> list[Combination]:
    """Every workload with every group of faults."""
    found = []
    for row, workload in enumerate(WORKLOADS):
        for column, fault in enumerate(FAULTS):
            number = row * len(FAULTS) + column
            operation = OPERATIONS[number % len(OPERATIONS)]
            system = dict(SYSTEMS[number % len(SYSTEMS)])
            if MOVES_REPLICAS & set(operation.split(",")):
                system["brokers"] = max(system["brokers"], MOVES_BROKERS)
            system["shards"] = MANY_SHARDS.get((workload, fault), system["shards"])
            name = f"{number + 1:02}-{workload}-{fault}".replace(",", "+")
            found.append(Combination(name, workload, fault, operation, seed + number, system))
    return found


def run_matrix(directory: Path, seed: int, seconds: float, more: Sequence[str]) -> int:
    """All of them, one after the other. Those whose verdict is in the directory already are not run again."""
    directory.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for combination in combinations(seed):
        reported = directory / f"{combination.name}.json"
        if reported.exists():
            results.append(read_result(reported))
        else:
            results.append(_run(combination, directory / combination.name, seconds, more))
            reported.write_text(json.dumps(asdict(results[-1]), default=dict), encoding="utf-8")
        print(results[-1].row(), flush=True)
        table = "\n".join([HEAD, *(result.row() for result in results)])
        (directory / "matrix.md").write_text(table + "\n", encoding="utf-8")
    bad = [result for result in results if not result.ok]
    print(f"{len(results) - len(bad)} of {len(results)} held every promise; the table is in {directory / 'matrix.md'}")
    return 1 if bad else 0


def _run(combination: Combination, directory: Path, seconds: float, more: Sequence[str]) -> Result:
    begins_s = time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)  # of a run that was broken off
    arguments = [*combination.arguments(seconds), "--directory", str(directory), "--json", *more]
    command = [sys.executable, "-m", "chaos.run", *arguments]
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds + _SPARE_S, check=False)
        lines, problem = done.stdout.splitlines(), done.stderr[-2000:]
    except subprocess.TimeoutExpired:
        lines, problem = [], f"it took longer than {seconds + _SPARE_S:g} s"
    took_s = round(time.monotonic() - begins_s, 1)
    if not lines:
        return Result(combination, False, [f"harness: {problem}"], {}, None, took_s)
    reported: dict[str, Any] = json.loads(lines[-1])
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    return Result(
        combination, reported["ok"], reported["violations"], reported["counts"], report["worst_shard_s"], took_s,
        skipped_steps(reported["skipped"]), reported["done"], [text.partition(" ")[0] for text in reported["cannot"]],
    )  # fmt: skip


def skipped_steps(sentences: Sequence[str]) -> dict[str, int]:
    """By name. Those that were left when the time was over are no loss: more are drawn than a run has time for."""
    names = (text.partition(" ")[0].rstrip(":") for text in sentences if not text.endswith(TIME_OVER))
    return dict(sorted(Counter(names).items()))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def read_result(path: Path) -> Result:
    reported = json.loads(path.read_text(encoding="utf-8"))
    return Result(**reported | {"combination": Combination(**reported["combination"])})
