"""The commands of the demo: the `holdfast` that anybody has, with its JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from examples.demo.processes import REPO, Clock, DemoError

_HOLDFAST = (sys.executable, "-m", "holdfast.cli")
_ERROR_CHARS_MAX = 2_000


class Commands:
    """Runs one command after the other, each within the time that the demo has left."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self.address = ""  # of the router, once the cluster is up

    def run(self, *arguments: str) -> dict[str, Any]:
        """What a command says; `DemoError` if it fails."""
        done = self._run(*arguments)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_ERROR_CHARS_MAX:]
            raise DemoError(f"`holdfast {' '.join(arguments)}` ended with {done.returncode}: {said}")
        return self._parsed(done.stdout)

    def look(self, *arguments: str) -> dict[str, Any] | None:
        """What a command says that may fail for now; None if it says nothing."""
        done = self._run(*arguments)
        return self._parsed(done.stdout) if done.stdout.strip() else None

    def up(self, *arguments: str) -> dict[str, Any]:
        report = self.run("cluster", "up", "--dir", str(self._directory), *arguments)
        self.address = str(report["address"])
        return report

    def down(self) -> None:
        """Whatever has happened: nothing of the cluster is left after this, not even if there is no time left."""
        self._start("cluster", "down", "--dir", str(self._directory), "--purge", timeout_s=90.0)

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        self._clock.check(f"`holdfast {arguments[0]}`")
        try:
            return self._start(*arguments, timeout_s=self._clock.left_s)
        except subprocess.TimeoutExpired:
            raise DemoError(f"`holdfast {' '.join(arguments)}` did not end in time") from None

    def _start(self, *arguments: str, timeout_s: float) -> "subprocess.CompletedProcess[str]":
        # Settings of the person who runs the demo must not change what it shows.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        if self.address:
            environment["HOLDFAST_ADDRESS"] = self.address
        return subprocess.run(
            [*_HOLDFAST, *arguments, "--json"],
            cwd=REPO, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=timeout_s, process_group=0,  # Ctrl-C is for the demo, which then stops the cluster
        )  # fmt: skip

    @staticmethod
    def _parsed(text: str) -> dict[str, Any]:
        value = json.loads(text.strip().splitlines()[-1])
        if not isinstance(value, dict):
            raise DemoError(f"Expected a JSON object, but got {text[:100]!r}")
        return value
