"""One process on a host: started, killed, paused, and read through its log. Everything here blocks."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.system.hosts import Host

WAIT_S_MAX = 60.0  # generous: the machine may be busy; nothing waits that long unless it is broken
STOP_S_MAX = 40.0
_POLL_EVERY_S = 0.05


class ProcessError(AssertionError):
    """A process did not do what it was asked for; a sentence."""


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float = WAIT_S_MAX) -> None:
    give_up_s = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > give_up_s:
            raise ProcessError(f"Expected {what} within {seconds_max:g} s, but it did not happen.")
        time.sleep(_POLL_EVERY_S)


class Process:
    """It keeps its command line, its host and its log file through all its lives."""

    def __init__(self, name: str, host: Host, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.host = host
        self.log = log
        self.paused = False
        self.lives = 0
        self.env = dict(env)
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._life_starts = 0  # where in the log the present life begins
        self._read_to = 0  # how far the log was read
        self._events: list[dict[str, Any]] = []  # of all lives, as far as it was read
        self._life_events = 0  # how many of them are of earlier lives

    # --- life -------------------------------------------------------------------------------------------------

    def launch(self, *more: str, env: Mapping[str, str] | None = None) -> None:
        assert not self.is_up, f"{self.name} is running already"
        self.paused = False
        self.lives += 1
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._read()
            self._life_starts, self._life_events = log.tell(), len(self._events)
            self._process = subprocess.Popen(
                self.host.command(*self._command, *more), env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=self.log.parent, start_new_session=True,
            )  # fmt: skip

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def signal(self, number: int) -> None:
        if self.is_up:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL. One that hangs in the kernel is left behind after a while; then it is up still."""
        self.signal(signal.SIGKILL)
        self.wait_for_end(STOP_S_MAX)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        self.signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self.paused = False

    def ask_to_stop(self) -> None:
        self.signal(signal.SIGTERM)

    def wait_for_end(self, seconds_max: float = STOP_S_MAX) -> int:
        assert self._process is not None
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"Expected {self.name} to end within {seconds_max:g} s, but it runs still.") from None

    def wait_serving(self, seconds_max: float = WAIT_S_MAX) -> None:
        wait_until(lambda: self.has_said("serving") or not self.is_up, f"{self.name} to serve", seconds_max)
        if not self.has_said("serving"):
            raise ProcessError(f"Expected {self.name} to serve, but it ended with {self.exit_code}: {self.last_words}")

    # --- what it says -----------------------------------------------------------------------------------------

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Lines of its log in all lives; of these events, or all."""
        self._read()
        return [event for event in self._events if not names or event.get("event") in names]

    def has_said(self, name: str) -> bool:
        """In its present life."""
        self._read()
        return any(event.get("event") == name for event in self._events[self._life_events :])

    def said_since_start(self, *names: str) -> list[dict[str, Any]]:
        self._read()
        return [event for event in self._events[self._life_events :] if event.get("event") in names]

    @property
    def last_words(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._life_starts)
            return log.read()[-1500:].decode(errors="replace")

    def _read(self) -> None:
        """Only what is new: logs are looked at often."""
        if not self.log.exists():
            return
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                try:
                    self._events.append(json.loads(line))
                except ValueError:
                    continue
