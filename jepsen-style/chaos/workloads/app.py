"""The app of the real workers: `holdfast worker chaos.workloads.app:app`. Each handler writes down when it starts and
how it ends; what it does in between is in its name and its arguments."""

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.workloads import recorder
from chaos.workloads.kinds import LEASES_S
from holdfast.client import Holdfast, current_task

_recorder = recorder.install()
app = Holdfast(direct=bool(os.environ.get("CHAOS_DIRECT")))


class ExpectedFailureError(Exception):
    """Of a task that is to fail."""


@contextmanager
def _recorded(value: str) -> Iterator[None]:
    run = _recorder.started(value)
    how = "raised"
    try:
        yield
        how = "done"
    finally:
        _recorder.ended(run, how)


@app.task(name="quick", lease=LEASES_S["quick"])
def quick(value: str, seconds: float = 0.0) -> str:
    """A blocking handler."""
    with _recorded(value):
        time.sleep(seconds)
    return value


@app.task(name="quick-async", lease=LEASES_S["quick-async"])
async def quick_async(value: str, seconds: float = 0.0) -> str:
    with _recorded(value):
        await asyncio.sleep(seconds)
    return value


@app.task(name="long", lease=LEASES_S["long"])
def long(value: str, seconds: float) -> str:
    """Longer than its lease: only heartbeats keep it."""
    with _recorded(value):
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s and not current_task().should_stop:
            time.sleep(0.05)
    return value


@app.task(name="long-async", lease=LEASES_S["long-async"])
async def long_async(value: str, seconds: float) -> str:
    with _recorded(value):
        await asyncio.sleep(seconds)
    return value


@app.task(name="steady", lease=LEASES_S["steady"])
async def steady(value: str, seconds: float) -> str:
    with _recorded(value):
        await asyncio.sleep(seconds)
    return value


@app.task(name="flaky", lease=LEASES_S["flaky"])
def flaky(value: str, failures: int) -> str:
    """Fails so many times before it succeeds."""
    with _recorded(value):
        if current_task().attempt <= failures:
            raise ExpectedFailureError(value)
    return value


@app.task(name="poison", lease=LEASES_S["poison"])
def poison(value: str) -> None:
    """No attempt helps."""
    with _recorded(value):
        raise ExpectedFailureError(value)


@app.task(name="slow-first", lease=LEASES_S["slow-first"])
async def slow_first(value: str, seconds: float) -> str:
    """Takes longer than its timeout in its first attempt."""
    with _recorded(value):
        await asyncio.sleep(seconds if current_task().attempt == 1 else 0)
    return value


@app.task(name="killer", lease=LEASES_S["killer"])
def killer(value: str) -> None:
    """Kills its worker, as an out-of-memory killer would."""
    run = _recorder.started(value)
    del run
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="staller", lease=LEASES_S["staller"])
def staller(value: str, seconds: float) -> None:
    """Holds the interpreter lock, so that nothing else of its worker runs."""
    with _recorded(value):
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
