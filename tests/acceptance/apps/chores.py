"""The tasks that the workers of acceptance tests do. Handlers say in a journal what they do, and wait at gates.

A gate is a file: handlers wait until it is there. The environment names the journal (CHORES_JOURNAL) and says how long
leases last (CHORES_LEASE_S).
"""

import asyncio
import ctypes
import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.client import GiveUp, Holdfast, RetryAfter, current_task

JOURNAL = "CHORES_JOURNAL"
LEASE_S = "CHORES_LEASE_S"
POLL_EVERY_S = 0.01

_lock = threading.Lock()
_running: Counter[str] = Counter()  # handlers that run at this moment, by queue


def journal(what: str, **more: object) -> None:
    """One line; short writes to a file opened for appending do not mix."""
    task = current_task()
    line = {"what": what, "id": task.id, "type": task.type, "attempt": task.attempt, "at_s": time.monotonic(), **more}
    with open(os.environ[JOURNAL], "ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


@contextmanager
def journalled(**more: object) -> Iterator[None]:
    """Says when a handler begins and ends, and how many run then, in all and of its queue."""
    queue = current_task().queue
    with _lock:
        _running[queue] += 1
        journal("begin", running=_running.total(), running_of_queue=_running[queue], queue=queue, **more)
    try:
        yield
    finally:
        with _lock:
            _running[queue] -= 1
            journal("end", queue=queue, **more)


def is_open(gate: str) -> bool:
    return Path(gate).exists()


# --- arguments and results --------------------------------------------------------------------------------------------


def echo(value: object = None) -> object:
    return value


async def echo_async(value: object = None) -> object:
    return value


def show(first: object, second: object = "two", *rest: object, key: object = "k", **others: object) -> list[object]:
    return [first, second, list(rest), key, others]


def show_positional(first: object, /, second: object = "two") -> list[object]:
    return [first, second]


def text_of(length: int) -> str:
    return "x" * length


def no_json() -> object:
    with journalled():
        return {1, 2}


def no_number() -> float:
    return float("nan")


# --- what there is to know in a handler -------------------------------------------------------------------------------


def _who() -> dict[str, object]:
    task = current_task()
    return {
        "id": task.id,
        "key": task.idempotency_key,
        "queue": task.queue,
        "type": task.type,
        "attempt": task.attempt,
        "tenant": task.tenant,
        "headers": task.headers,
        "flags": [task.cancel_requested, task.lease_lost, task.should_stop],
        "thread": threading.current_thread().name,
    }


def who(failures: int = 0) -> dict[str, object]:
    journal("asked", **_who())
    if current_task().attempt <= failures:
        raise ValueError("not yet")
    return _who()


async def who_async(failures: int = 0) -> dict[str, object]:
    return who(failures)


def log_line(text: str) -> str:
    logging.getLogger("chores.log").info(text)
    return current_task().id


async def log_line_async(text: str) -> str:
    await asyncio.to_thread(log_line, text)
    return log_line(text)


# --- endings ----------------------------------------------------------------------------------------------------------


def fail(failures: int, message: str = "on purpose") -> int:
    """Fails so often, then returns the number of the attempt."""
    with journalled():
        if current_task().attempt <= failures:
            raise ValueError(message)
        return current_task().attempt


async def fail_async(failures: int, message: str = "on purpose") -> int:
    return fail(failures, message)


def give_up() -> None:
    raise GiveUp("no such address")


def retry_after(delay_s: float) -> int:
    with journalled():
        if current_task().attempt == 1:
            raise RetryAfter(delay_s, "come back later")
        return current_task().attempt


_DELAYS_S = {"never": float("nan"), "in the next century": 1e10}


def retry_oddly(when: str) -> None:
    raise RetryAfter(_DELAYS_S[when], "come back later")


async def retry_oddly_async(when: str) -> None:
    retry_oddly(when)


class OddResult(dict[str, int]):
    """What JSON makes of it fails in a way of its own, like that of a dictionary that others change meanwhile."""

    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def odd_result() -> OddResult:
    return OddResult(a=1)


async def odd_result_async() -> OddResult:
    return OddResult(a=1)


_EXITS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
}


def leave(how: str) -> None:
    raise _EXITS[how]()


async def leave_async(how: str) -> None:
    await asyncio.sleep(0)
    raise _EXITS[how]()


# --- work that takes time ---------------------------------------------------------------------------------------------


def work(seconds: float) -> int:
    with journalled():
        time.sleep(seconds)
    return os.getpid()


async def work_async(seconds: float) -> int:
    with journalled():
        await asyncio.sleep(seconds)
    return os.getpid()


async def hog(seconds: float) -> int:
    """Async, but blocks its loop."""
    with journalled():
        time.sleep(seconds)  # noqa: ASYNC251 - what a handler should not do, and some will
    return os.getpid()


def hold_interpreter(seconds: float, gate: str) -> int:
    """Lets nothing else run for so long; not again once the gate is there, which it makes."""
    with journalled():
        if not is_open(gate):
            Path(gate).touch()
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # unlike CDLL it keeps the interpreter's lock
    return os.getpid()


def freeze(seconds: float) -> None:
    """Always: no lease of its worker is extended meanwhile."""
    with journalled():
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def kill_worker() -> None:
    """As a crash in a C extension would, or a lack of memory."""
    with journalled():
        os.kill(os.getpid(), signal.SIGKILL)


def wait_at(gate: str, *, obeys: bool = False) -> int:
    """Waits for the gate; if it obeys, it also ends when it is told to."""
    task = current_task()
    with journalled():
        while not is_open(gate):
            if obeys and task.should_stop:
                journal("reported", cancel_requested=task.cancel_requested, lease_lost=task.lease_lost)
                raise InterruptedError("told to stop")
            time.sleep(POLL_EVERY_S)
    return os.getpid()


async def wait_at_async(gate: str) -> int:
    with journalled():
        try:
            while not is_open(gate):
                await asyncio.sleep(POLL_EVERY_S)
        except asyncio.CancelledError:
            task = current_task()
            journal("interrupted", cancel_requested=task.cancel_requested, lease_lost=task.lease_lost)
            raise
    return os.getpid()


def fail_at(gate: str) -> None:
    wait_at(gate)
    raise ValueError("on purpose")


async def ignore_cancel(gate: str) -> int:
    """Goes on although it was cancelled."""
    with journalled():
        while not is_open(gate):
            try:
                await asyncio.sleep(POLL_EVERY_S)
            except asyncio.CancelledError:
                journal("ignored")
    return os.getpid()


# --- tasks that enqueue tasks -----------------------------------------------------------------------------------------


def parent(children: int) -> list[str]:
    return [app.tasks["echo"].enqueue(number).id for number in range(children)]


async def parent_async(children: int) -> list[str]:
    return [(await app.tasks["echo"].enqueue_async(number)).id for number in range(children)]


async def parent_blocking(children: int) -> list[str]:
    """Async, but calls what blocks: slow, and works all the same."""
    return parent(children)


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    echo, echo_async, show, show_positional, text_of, no_json, no_number, who, who_async, fail, fail_async, give_up,
    retry_after, retry_oddly, retry_oddly_async, odd_result, odd_result_async, log_line, log_line_async,
    leave, leave_async, work, work_async, hog, hold_interpreter, freeze, kill_worker, wait_at, wait_at_async,
    fail_at, ignore_cancel, parent, parent_async, parent_blocking,
)  # fmt: skip


def make_app(address: str | None = None, transport: str | None = None) -> Holdfast:
    made = Holdfast(address, transport=transport)
    for function in FUNCTIONS:
        made.task(lease=float(os.environ.get(LEASE_S, "1")))(function)
    return made


app = make_app()
