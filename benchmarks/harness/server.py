"""Real server processes: `holdfast dev` on free ports, a node of a cluster, each on a data directory of its own, or a
router."""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Self

from harness import probes
from harness.results import BrokenRunError

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
PAUSE_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01  # between two polls whether it is ready
LINES_KEPT = 40


class ServerProcess:
    """Made by `start`. Whoever starts it ends it: with `stop`, `kill`, or by leaving its `async with`."""

    def __init__(self, process: asyncio.subprocess.Process, data_dir: Path, started_s: float) -> None:
        self._process = process
        self._started_s = started_s
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._serving: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read_log())
        self.data_dir = data_dir
        self.start_seconds = 0.0  # from the start of the process until it served
        self.address = ""
        self._ops_port = 0
        self.led_at_s = 0.0  # when it last said that it leads

    @classmethod
    async def start(cls, data_dir: Path) -> Self:
        """A node alone."""
        return await cls._run(["dev", "--port", "0", "--data-dir", str(data_dir)], data_dir)

    @classmethod
    async def start_node(cls, config: Path, data_dir: Path) -> Self:
        """A node of a cluster, on the ports of its configuration."""
        return await cls._run(["broker", "--config", str(config), "--data-dir", str(data_dir)], data_dir)

    @classmethod
    async def start_router(cls, directory: Path, etcd_endpoint: str, cluster_name: str) -> Self:
        """A router, which has no data."""
        arguments = ["--port", "0", "--etcd-endpoints", etcd_endpoint, "--cluster-name", cluster_name]
        return await cls._run(["router", *arguments], directory)

    @classmethod
    async def _run(cls, arguments: Sequence[str], data_dir: Path) -> Self:
        command = [sys.executable, "-m", "holdfast.cli", *arguments, "--ops-port", "0", "--log-format", "json"]
        # Settings of the person who runs the benchmark must not change what is measured.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        started_s = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        server = cls(process, data_dir, started_s)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                event = await server._serving
        except BaseException:
            await server.kill()
            raise
        server.address = f"127.0.0.1:{event['port']}"
        server._ops_port = int(str(event["ops_port"]))
        return server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def last_line(self) -> str:
        """Of its log."""
        return self._lines[-1] if self._lines else ""

    def memory(self) -> probes.Memory:
        return probes.memory(self.pid)

    async def wait_ready(self) -> float:
        """Returns once /readyz says so: how many seconds after the start of the process that was."""
        while not await asyncio.to_thread(self._is_ready):
            if time.monotonic() > self._started_s + START_SECONDS_MAX:
                raise BrokenRunError(f"the server was not ready within {START_SECONDS_MAX:g} s:\n{self.last_line}")
            await asyncio.sleep(POLL_SECONDS)
        return time.monotonic() - self._started_s

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ops_port}/readyz", timeout=10) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return False

    async def stop(self) -> None:
        """A clean stop; raises if it was not one."""
        self._process.terminate()
        async with asyncio.timeout(STOP_SECONDS_MAX):
            code = await self._process.wait()
        await self._reader
        if code:
            raise BrokenRunError(f"the server ended with code {code}:\n" + "\n".join(self._lines))

    async def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._reader

    async def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing. Returns once it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PAUSE_SECONDS_MAX):
            await asyncio.to_thread(os.waitid, os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def scrape(self) -> dict[str, float]:
        """The metrics of the server, by series."""
        return await asyncio.to_thread(self._scrape)

    def _scrape(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ops_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        series = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    async def _read_log(self) -> None:
        """Follows the log to its end, so that the server never waits for its reader."""
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            if '"leading"' in line:
                self.led_at_s = time.monotonic()
            elif not self._serving.done() and '"serving"' in line:
                event = json.loads(line)
                if event.get("event") == "serving":
                    self.start_seconds = time.monotonic() - self._started_s
                    self._serving.set_result(event)
        if not self._serving.done():
            self._serving.set_exception(BrokenRunError("the server did not start:\n" + "\n".join(self._lines)))
