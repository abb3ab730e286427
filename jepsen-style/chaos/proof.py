"""Deliberate bugs in real servers and workers, each of which the harness must find. `--prove` of `chaos.run` prints a
table with the time that each took."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bugs.sitecustomize import BUGS

# The smallest system that shows most bugs: no fault is needed for them.
SMALL = ("--brokers", "1", "--shards", "2", "--routers", "1", "--workers", "1")
CALLS = (*SMALL, "--workload", "calls", "--fault", "none", "--seconds", "20", "--drain", "5")
LIFE = ("--brokers", "3", "--shards", "8", "--workload", "lifecycle", "--seconds", "60", "--drain", "20")
LONE_LIFE = (*SMALL, "--workload", "lifecycle", "--fault", "none", "--seconds", "20", "--drain", "5")
ONE_REPLICA = ("--replication", "1")
# What else a bug takes to be seen.
TRIALS: dict[str, tuple[str, ...]] = {
    # Only the end of a run tells.
    **dict.fromkeys(
        ("task-dropped", "tick-lost", "tick-twice", "results-mixed-up", "index-forgotten"), (*CALLS, "--seconds", "4")
    ),
    "cap-doubled": (*SMALL, "--workload", "limits", "--fault", "none", "--seconds", "20", "--drain", "5"),
    "sync-lies": (*CALLS, "--fault", "power-cut", "--seconds", "6"),
    **dict.fromkeys(("lease-of-the-wait", "wait-at-the-router-not-told"), (*LIFE, "--fault", "none")),
    # Little to do, so that workers wait when they are stopped: what comes then is given to them.
    "leases-not-looked-at": (*LIFE, "--fault", "pause-worker", "--pace", "4", "--seconds", "90"),
    "ready-while-stalled": (*LIFE, *ONE_REPLICA, "--fault", "disk-stall"),  # or another replica would lead soon
    # One replica of each shard: with its broker some shards are away, and all others must not notice.
    # Few shards, so that each worker holds tasks of all of them.
    "acks-wait-for-the-slowest": (*LIFE, *ONE_REPLICA, "--shards", "3", "--workload", "steady", "--fault", "host-dies"),
    "enqueues-wait-for-the-slowest": (*LIFE, *ONE_REPLICA, "--fault", "host-dies"),
    # Innocents are dead after as many lost workers as the guilty.
    "suspects-off": (*LIFE, "--workload", "killers", "--fault", "none", "--seconds", "20", "--drain", "10"),
    "waits-share-the-budget": (*LONE_LIFE, "--workload", "idlers,lifecycle"),
    "rounds-without-budget": (*LIFE, "--fault", "none", "--shards", "32"),
    "replicas-differ": (*CALLS, "--brokers", "3", "--seconds", "2"),
    "ticks-not-made-up": (*CALLS, "--fault", "kill", "--seconds", "12"),
}
_RUN_S_MAX = 600.0


@dataclass(frozen=True)
class Found:
    """What came of one bug."""

    bug: str
    kind: str  # that was expected
    kinds: tuple[str, ...]  # that were found
    detected_s: float | None

    @property
    def is_caught(self) -> bool:
        return self.detected_s is not None

    def row(self) -> str:
        instead = f", but {', '.join(self.kinds)}" if self.kinds else ""
        when = f"not found{instead}" if self.detected_s is None else f"{self.detected_s:.0f} s"
        return f"| {self.bug} | `{self.kind}` | {when} |"


def trial(bug: str, seed: int, directory: Path | None = None, *more: str) -> Found:
    """One run with one bug, until it is found."""
    kind = BUGS[bug][1]
    arguments = [*TRIALS.get(bug, CALLS), "--bug", bug, "--until", kind, "--seed", str(seed), "--json", *more]
    if directory is not None:
        arguments += ["--directory", str(directory)]
    path = ":".join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "chaos.run", *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=_RUN_S_MAX, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if not lines:
        raise RuntimeError(f"Expected a verdict on {bug}, but the harness ended with {done.returncode}:\n{done.stderr}")
    verdict = json.loads(lines[-1])
    kinds = tuple(sorted({violation.partition(":")[0] for violation in verdict["violations"]}))
    return Found(bug, kind, kinds, verdict["detected_s"])


def prove(bugs: Iterable[str], seed: int) -> int:
    """All of these, one after the other; 0 only if each was found."""
    print("| bug | broken promise | found after |\n|---|---|---|", flush=True)
    missed = 0
    for bug in bugs:
        found = trial(bug, seed)
        missed += not found.is_caught
        print(found.row(), flush=True)
    return 1 if missed else 0
