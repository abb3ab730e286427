"""The server and the workers of the demo: real processes, started as anybody would start them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from examples.demo.tasks import RECORD_VARIABLE

REPO = Path(__file__).resolve().parents[2]
CONCURRENCY = 20

_HOLDFAST = (sys.executable, "-m", "holdfast.cli")
_POLL_EVERY_S = 0.05
_LOG_LINES_SHOWN = 10


class DemoError(Exception):
    """The demo cannot go on."""


class Clock:
    """The time limit of the whole demo: whatever waits, waits through it."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._limit_s - self.elapsed_s)

    def wait_until(self, done: Callable[[], object], what: str) -> None:
        while not done():
            self.check(what)
            time.sleep(_POLL_EVERY_S)

    def check(self, what: str) -> None:
        if not self.left_s:
            raise DemoError(f"{what} did not happen within the demo's time limit of {self._limit_s:g} s")


class _Process:
    """One process with a log file. In a group of its own: Ctrl-C is for the demo, which then ends the others."""

    def __init__(self, what: str, arguments: list[str], log_path: Path, settings: dict[str, str]) -> None:
        # Settings of the person who runs the demo must not change what it shows.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.what = what
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._log_starts = log.tell()
            self._process = subprocess.Popen(
                [*_HOLDFAST, *arguments],
                cwd=REPO,
                env=environment | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log_text(self) -> str:
        return self.log_path.read_bytes()[self._log_starts :].decode(errors="replace")

    def check(self) -> None:
        """Raises if it has ended although nobody asked it to."""
        code = self._process.poll()
        if code is not None:
            tail = "\n".join(self.log_text.splitlines()[-_LOG_LINES_SHOWN:])
            raise DemoError(f"{self.what} has ended with code {code}:\n{tail}")

    def kill(self) -> None:
        """SIGKILL: no warning, no clean-up."""
        self._process.kill()
        self._process.wait()

    def stop(self, clock: Clock) -> None:
        """SIGTERM, and the exit code that a clean stop has."""
        self._process.send_signal(signal.SIGTERM)
        clock.wait_until(lambda: self._process.poll() is not None, f"the end of {self.what}")
        if self._process.returncode:
            self.check()

    def end(self) -> None:
        """Whatever it does: it is gone after this."""
        if self._process.poll() is None:
            self.kill()


class Server(_Process):
    """`holdfast dev`. With port 0 it takes a free one."""

    def __init__(self, data_dir: Path, log_path: Path, port: int = 0) -> None:
        arguments = ["dev", "--port", str(port), "--ops-port", "0", "--data-dir", str(data_dir)]
        super().__init__("the server", [*arguments, "--log-format", "json"], log_path, {})
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serves(self) -> bool:
        self.check()
        for line in self.log_text.splitlines():
            if '"serving"' in line and line.endswith("}"):
                self.port = int(json.loads(line)["port"])
                return True
        return False


class Worker(_Process):
    """`holdfast worker`."""

    def __init__(self, name: str, address: str, record_dir: Path, log_path: Path) -> None:
        arguments = ["worker", "examples.demo.tasks:app", "-c", str(CONCURRENCY), "--name", name, "--grace", "10s"]
        settings = {"HOLDFAST_ADDRESS": address, RECORD_VARIABLE: str(record_dir)}
        super().__init__(name, arguments, log_path, settings)
        self.name = name

    @property
    def record_name(self) -> str:
        return f"worker-{self.pid}"

    def serves(self) -> bool:
        self.check()
        return " serves " in self.log_text
