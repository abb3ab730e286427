"""Servers and workers of other projects: started, waited for, and stopped by their ids."""

import asyncio
import os
import pwd
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from harness.results import BrokenRunError

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 15.0
TRY_SECONDS = 0.1
LOG_CHARACTERS = 600  # of the end of a log, when something went wrong


class Processes:
    """Those that one row has started. Each has a session of its own: Ctrl-C reaches only whoever started them, who
    then ends them, with all that they have started themselves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "output.log"
        self._running: list[tuple[asyncio.subprocess.Process, signal.Signals]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process, _ in self._running]

    @property
    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_CHARACTERS:] if self._log.exists() else ""

    async def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *map(str, arguments),
                cwd=self._directory,
                env={**os.environ, **(env or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        self._running.append((process, stop_signal))

    async def stop(self) -> None:
        """All of them, at once; nothing is left of their sessions."""
        for process, stop_signal in self._running:
            if process.returncode is None:
                process.send_signal(stop_signal)
        for process, _ in self._running:
            try:
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await process.wait()
            except TimeoutError:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            await process.wait()
        self._running.clear()

    async def until(self, what: str, works: Callable[[], Awaitable[object]]) -> None:
        """Returns once `works` neither raises nor returns False."""
        ends_s = time.monotonic() + START_SECONDS_MAX
        trouble = "it said no"
        while time.monotonic() < ends_s:
            gone = [process.returncode for process, _ in self._running if process.returncode is not None]
            if gone:
                raise BrokenRunError(f"{what} ended with code {gone[0]}: {self.log_end}")
            try:
                if await works() is not False:
                    return
            except Exception as error:  # noqa: BLE001 - each library has its own way to say that nobody answers yet
                trouble = repr(error)
            await asyncio.sleep(TRY_SECONDS)
        raise BrokenRunError(f"{what} was not ready within {START_SECONDS_MAX:g} s: {trouble}; {self.log_end}")


def own_directory(path: Path, user: str | None) -> Path:
    """A new directory that belongs to the user of a server."""
    path.mkdir(parents=True)
    if user:
        shutil.chown(path, user, pwd.getpwnam(user).pw_gid)
    return path


async def run_once(arguments: Sequence[str], *, directory: Path, user: str | None, env: Mapping[str, str]) -> str:
    """A program that ends by itself; returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=directory,
        env={**os.environ, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BrokenRunError(f"{arguments[0]} ended with {process.returncode}: {printed.decode()[-LOG_CHARACTERS:]}")
    return printed.decode()
