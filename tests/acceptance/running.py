"""Real `holdfast` and `python` processes for acceptance tests, started as a person would start them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.integration.server import DEADLINE_S, wait_until

REPO = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """This one without settings of Holdfast and make, with the commands of this virtual environment, and `settings`."""
    strange = ("HOLDFAST_", "MAKE", "MFLAGS", "ARGS")  # a make that runs the tests passes its own on
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    # The width of a terminal, so that what is printed does not depend on who runs the tests.
    wide = {"COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
    return inherited | wide | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | dict(settings or {})


class Running:
    """A process that is to run for a while; its output is in a file."""

    def __init__(self, command: list[str], directory: Path, output: Path, env: Mapping[str, str]) -> None:
        self.command = " ".join(command)
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,  # of its own: signals reach exactly what was started here
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output or self.exit_code is not None, f"{text!r} from `{self.command}`")
        assert text in self.output, f"`{self.command}` ended with {self.exit_code}:\n{self.output}"

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def interrupt(self) -> int:
        """SIGINT to all of it, as Ctrl-C does; the exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(DEADLINE_S)

    def close(self) -> None:
        """Leaves nothing running."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def run_demo(command: list[str], directory: Path, timeout_s: float = 110) -> "subprocess.CompletedProcess[str]":
    """To its end. What it makes is in this directory."""
    return subprocess.run(
        command, cwd=REPO, env=environment({"TMPDIR": str(directory)}), capture_output=True, text=True, check=False,
        timeout=timeout_s,
    )  # fmt: skip


def interrupt_demo(command: list[str], directory: Path, until: str, deadline_s: float = DEADLINE_S) -> tuple[int, str]:
    """Ctrl-C once it has said something; its exit code and all that it said. It leaves nothing behind."""
    output, made = directory / "output", directory / "made"
    made.mkdir()
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=REPO, env=environment({"TMPDIR": str(made)}), stdout=file)
    try:
        wait_until(lambda: until in output.read_text() or process.poll() is not None, until, deadline_s=deadline_s)
        process.send_signal(signal.SIGINT)
        exit_code = process.wait(2 * DEADLINE_S)
    finally:
        _end(process)
    assert list(made.iterdir()) == []
    return exit_code, output.read_text()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """However the test ended: the process is gone after this, and had the time to end what it had started itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running(command: list[str], directory: Path, output: Path, env: Mapping[str, str]) -> Iterator[Running]:
    process = Running(command, directory, output, env)
    try:
        yield process
    finally:
        process.close()
