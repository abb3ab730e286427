"""Load processes: starts them, lets them go together, reads what they did, and never leaves one behind."""

import asyncio
import dataclasses
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness.protocol import GO, PROGRESS, READY, RESULT, STOP, LoadResult
from harness.results import BrokenRunError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOAD_SCRIPT = Path(__file__).resolve().parent.parent / "load.py"
STALL_SECONDS_MAX = 60.0  # without a sign of life
LINE_BYTES_MAX = 64 * 1024 * 1024  # a result has every latency in it


class LoadProcess:
    """One load process. Made by `start`; leaving its `async with` ends it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self._errors: deque[str] = deque(maxlen=40)
        self._error_reader = asyncio.create_task(self._read_errors())
        self.done = 0  # tasks, as far as it has told

    @classmethod
    async def start(cls, name: str, spec: "DataclassInstance", script: Path = LOAD_SCRIPT) -> Self:
        """`script` is told the spec, and does what it says."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_BYTES_MAX
        )
        load = cls(name, process)
        load._say(json.dumps(dataclasses.asdict(spec)))
        return load

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._error_reader

    @property
    def pid(self) -> int:
        return self._process.pid

    async def until_ready(self) -> None:
        event = await self._next_event()
        if event["event"] != READY:
            raise BrokenRunError(f"{self.name} said {event['event']} before it was ready")

    def go(self) -> None:
        self._say(GO)

    def stop(self) -> None:
        """Ends a load that has no number of tasks of its own."""
        self._say(STOP)

    async def result(self, on_progress: Callable[[], None]) -> LoadResult:
        while True:
            event = await self._next_event()
            if event["event"] == PROGRESS:
                self.done = event["done"]
                on_progress()
            elif event["event"] == RESULT:
                result = LoadResult(**event["result"])
                self.done = result.done
                return result

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def _next_event(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(STALL_SECONDS_MAX):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise BrokenRunError(f"{self.name} made no progress for {STALL_SECONDS_MAX:g} s") from None
        if not line:
            await self._process.wait()
            await self._error_reader
            reasons = "\n".join(self._errors) or f"exit code {self._process.returncode}"
            raise BrokenRunError(f"{self.name} broke off:\n{reasons}")
        event: dict[str, Any] = json.loads(line)
        return event

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            self._errors.append(raw.decode(errors="replace").rstrip())


class Fleet:
    """Load processes that work at the same time."""

    def __init__(self, specs: "Mapping[str, DataclassInstance]", script: Path = LOAD_SCRIPT) -> None:
        self._specs = specs
        self._script = script
        self._stack = AsyncExitStack()
        self._loads: dict[str, LoadProcess] = {}

    async def __aenter__(self) -> Self:
        try:
            for name, spec in self._specs.items():
                self._loads[name] = await self._stack.enter_async_context(
                    await LoadProcess.start(name, spec, self._script)
                )
            for load in self._loads.values():
                await load.until_ready()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def pids(self) -> list[int]:
        return [load.pid for load in self._loads.values()]

    @property
    def names(self) -> list[str]:
        return list(self._loads)

    def stop(self) -> None:
        """Tells all to stop."""
        for load in self._loads.values():
            load.stop()

    async def run(
        self,
        *,
        on_progress: Callable[[int], None],
        counted: Sequence[str],
        tasks: int,
        stop_after: Sequence[str] = (),
    ) -> dict[str, LoadResult]:
        """Lets all go and returns what they did.

        `counted` are those whose tasks make the progress. When they have done `tasks`, those in `stop_after` are told
        to stop.
        """
        stopped = False

        def progressed() -> None:
            nonlocal stopped
            done = sum(self._loads[name].done for name in counted)
            on_progress(done)
            if done >= tasks and not stopped:
                stopped = True
                for name in stop_after:
                    self._loads[name].stop()

        for load in self._loads.values():
            load.go()
        async with asyncio.TaskGroup() as group:
            waits = {name: group.create_task(load.result(progressed)) for name, load in self._loads.items()}
        return {name: wait.result() for name, wait in waits.items()}
