"""Runs of the chaos harness for tests: each is a process with namespaces of its own, where the machine allows it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.cluster import free_ports

REPO = Path(__file__).parents[2]
RUN_S_MAX = 280.0
_PORTS_EACH = 40


@dataclass(frozen=True)
class Ended:
    """What a run told."""

    exit_code: int
    summary: dict[str, Any]
    errors: str

    @property
    def violations(self) -> list[str]:
        found: list[str] = self.summary["violations"]
        return found

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.summary["counts"]
        return found


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{REPO / 'jepsen-style'}:{REPO}"}


def first_port() -> str:
    """Of a range for a machine without namespaces: away from those of other tests."""
    return str(28_000 + free_ports(1)[0] % 200 * _PORTS_EACH)


def run_chaos(directory: Path, *arguments: str) -> Ended:
    command = [sys.executable, "-m", "chaos.run", "--json", "--directory", str(directory), "--first-port", first_port()]
    done = subprocess.run(
        [*command, *arguments], env=environment(), capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert done.stdout, f"ended with {done.returncode}:\n{done.stderr}"
    return Ended(done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr)
