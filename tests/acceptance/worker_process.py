"""A real worker process that does the chores of `apps/chores.py`, and what its handlers say about it.

It is started through the library (`Worker(app, …).run()`) or through the command (`holdfast worker`).
"""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from holdfast.client import WorkerReport
from tests.acceptance.apps import chores
from tests.integration import preloaded
from tests.integration.server import TestedProcess, wait_until

REPO = Path(__file__).resolve().parents[2]
APPS = "tests.acceptance.apps"


class WorkerProcess(TestedProcess):
    """One worker. Whatever its handlers write to their journal can be waited for."""

    def __init__(
        self,
        directory: Path,
        address: str,
        queues: Sequence[str] | Mapping[str, int | None],
        *,
        concurrency: int = 10,
        grace: float = 25.0,
        lease: float = 20.0,  # none runs out because the machine is busy for a moment
        command: bool = False,
        options: Sequence[str] = (),  # more arguments of the command
    ) -> None:
        directory.mkdir()
        self._journal_path = directory / "journal"
        self._log_path = directory / "worker.log"
        self._report_path = directory / "report"
        self._address = address
        self._limits = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
        self._concurrency = concurrency
        self._grace = grace
        self._lease = lease
        self._through_command = command or bool(options)
        self._options = options

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts it and waits until it is about to claim."""
        self._journal_path.touch()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment |= {
            "HOLDFAST_ADDRESS": self._address,
            chores.JOURNAL: str(self._journal_path),
            chores.LEASE_S: str(self._lease),
        }
        module, *arguments = self._command_arguments() if self._through_command else self._library_arguments()
        with self._log_path.open("wb") as log, self._report_path.open("wb") as report:
            self._process = preloaded.start(arguments, environment, REPO, report, log, module)
        wait_until(lambda: " serves " in self.log_text or self.exit_code is not None, "the worker to begin or to end")
        return self

    def _library_arguments(self) -> list[str]:
        settings = {"queues": self._limits, "concurrency": self._concurrency, "grace": self._grace}
        return [f"{APPS}.run_worker", json.dumps(settings)]

    def _command_arguments(self) -> list[str]:
        arguments = ["holdfast.cli", "worker", f"{APPS}.chores:app", "--json"]
        for queue, limit in self._limits.items():
            arguments += ["-q", queue if limit is None else f"{queue}:{limit}"]
        return [*arguments, "-c", str(self._concurrency), "--grace", f"{self._grace:g}s", *self._options]

    def stop(self) -> WorkerReport:
        """SIGTERM; waits for the end, which must be a good one."""
        self.signal(signal.SIGTERM)
        exit_code = self.wait_for_exit()
        assert exit_code == 0, self.log_text
        return self.report

    # --- what it says -----------------------------------------------------------------------------------------

    @property
    def log_text(self) -> str:
        return self._log_path.read_text()

    @property
    def report(self) -> WorkerReport:
        """What it printed at its end."""
        return WorkerReport(**json.loads(self._report_path.read_text().splitlines()[-1]))

    def journal(self, what: str = "", task_id: str = "") -> list[dict[str, Any]]:
        """What handlers wrote: lines of one kind, and of one task, if that is asked for."""
        whole = self._journal_path.read_bytes().rpartition(b"\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if what in ("", line["what"]) and task_id in ("", line["id"])]

    def wait_for(self, what: str, number: int = 1, task_id: str = "") -> list[dict[str, Any]]:
        """Waits until the journal has that many such lines."""

        def poll() -> list[dict[str, Any]] | None:
            lines = self.journal(what, task_id)
            return lines if len(lines) >= number else None

        return wait_until(poll, f"{number} times {what!r} in the journal") or []
