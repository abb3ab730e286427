"""A real server process: started, killed and stopped by a test, and watched through its log and its HTTP port.

Nothing here sleeps for a fixed time: `wait_until` looks again and again until something holds or a deadline passes.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.integration import preloaded

DEADLINE_S = 30.0  # generous, because the machine may be busy; nothing waits that long unless it is broken
POLL_EVERY_S = 0.01

T = TypeVar("T")

# Small files and no watermark, so that tests need neither much disk nor a disk with room to spare.
DEFAULTS: dict[str, object] = {"segment_bytes": 8 * 1024 * 1024, "free_bytes_min": 0}


def wait_until(poll: Callable[[], T], what: str, *, deadline_s: float = DEADLINE_S) -> T:
    """The first true value that `poll` returns. Blocks: in asynchronous tests call it in a thread."""
    give_up = time.monotonic() + deadline_s
    while True:
        found = poll()
        if found:
            return found
        if time.monotonic() > give_up:
            raise AssertionError(f"Expected {what} within {deadline_s:g} s, but it did not happen.")
        time.sleep(POLL_EVERY_S)


class Closed(ABC):
    """What is ended with its block, whatever the test did."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TestedProcess(Closed):
    """A process that a test starts, signals and waits for."""

    _process: subprocess.Popen[bytes] | preloaded.Forked | None = None

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def wait_for_exit(self, deadline_s: float = DEADLINE_S) -> int:
        return self._running().wait(deadline_s)

    def close(self) -> None:
        """Leaves nothing running, whatever the test did."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._running().poll()

    @property
    def pid(self) -> int:
        return self._running().pid

    def _running(self) -> subprocess.Popen[bytes] | preloaded.Forked:
        assert self._process is not None, "it was never started"
        return self._process


class ServerProcess(TestedProcess):
    """One server on one data directory. Its settings are names of the configuration, given through the environment."""

    def __init__(
        self,
        directory: Path,
        *,
        data_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        open_files_max: int | None = None,
        **settings: object,
    ) -> None:
        self.data_dir = data_dir or directory / "data"
        self.settings = DEFAULTS | settings
        self.port = 0
        self.frames_port = 0
        self.ops_port = 0
        self.env = dict(env or {})
        self._prefix = () if open_files_max is None else ("sh", "-c", f'ulimit -n {open_files_max}; exec "$0" "$@"')
        self._log_path = directory / "server.log"
        self._life_starts = 0  # where in the log the present life of the server begins

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts it and waits until it serves."""
        self.launch()
        self.wait_serving()
        return self

    def wait_serving(self) -> None:
        wait_until(lambda: self.events("serving") or self.exit_code is not None, "the server to serve or to end")
        if not self.events("serving"):
            raise AssertionError(f"Expected a server, but it ended with {self.exit_code}:\n{self.log_text}")
        [serving] = self.events("serving")
        self.port, self.frames_port, self.ops_port = (serving[name] for name in ("port", "frames_port", "ops_port"))

    def launch(self) -> None:
        """Starts it and returns at once."""
        assert self._process is None or self.exit_code is not None, "it is running already"
        ports = ["--port", "0", "--ops-port", "0"]
        self._launch("dev", *ports, "--log-format", "json", "--data-dir", str(self.data_dir))

    def _launch(self, *arguments: str, **settings: object) -> None:
        """`holdfast` with these arguments, and settings beside its own."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        wanted = self.settings | settings
        environment |= {f"HOLDFAST_{name.upper()}": str(value) for name, value in wanted.items()}
        directory = self._log_path.parent
        with self._log_path.open("ab") as log:
            self._life_starts = log.tell()
            if not self.env and not self._prefix:  # they change how Python or the system load it
                self._process = preloaded.start(arguments, environment, directory, log, log)
                return
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "holdfast.cli", *arguments],
                env=environment | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
            )

    def kill(self) -> None:
        """SIGKILL: no warning, no clean-up."""
        self._running().kill()
        self._running().wait()

    def stop(self) -> int:
        """SIGTERM; waits for the end and returns the exit code."""
        self.ask_to_stop()
        return self.wait_for_exit()

    def ask_to_stop(self) -> None:
        self.signal(signal.SIGTERM)

    # --- what it says -----------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_text(self) -> str:
        """What it has written since its last start."""
        with self._log_path.open("rb") as log:
            log.seek(self._life_starts)
            return log.read().decode()

    @property
    def whole_log_text(self) -> str:
        """What it has written in all its lives."""
        return self._log_path.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event since the last start."""
        named = [line for line in self.log_text.splitlines() if f'"{name}"' in line]  # cheaper than to read them all
        lines = [json.loads(line) for line in named if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line.get("event") == name]

    def wait_for_event(self, name: str) -> dict[str, Any]:
        """The last log line of this event; waits for one if there is none yet."""
        return wait_until(lambda: self.events(name), f"the event {name} in the log")[-1]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the HTTP port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ops_port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """One value as /metrics has it at this moment; 0 for a labelled one that was never counted."""
        status, body = self.get("/metrics")
        assert status == 200
        for line in body.splitlines():
            metric, _, value = line.rpartition(" ")
            if metric == name:
                return float(value)
        return 0.0

    @property
    def entries_written(self) -> int:
        """How many log entries this life of the server has written: it grows with every change, also with those that
        time brings about: leases that end, request ids that are renewed or forgotten.

        Up to date once the round is over; `holdfast_applied_index` is renewed only once a second.
        """
        return int(self.metric("holdfast_round_entries_sum"))
