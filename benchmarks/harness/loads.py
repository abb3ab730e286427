"""What a load process does: producers and consumers over the client library, as a user would write them."""

import asyncio
import dataclasses
import json
import os
import random
import struct
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from harness.protocol import CONSUME, GO, PACE, PICK_UP, PRODUCE, PROGRESS, READY, RESULT, STOP, LoadResult, LoadSpec
from harness.results import BrokenRunError
from holdfast.client import AsyncClient, HoldfastError, NewTask, Rejected

PROGRESS_SECONDS = 0.25
SIGN_SECONDS = 10.0  # without progress, e.g. of one who waits: it is alive
CALL_SECONDS_MAX = 60.0
LEASE_MS = 60_000
WAIT_MS = 20_000
POLL_MS = 30_000  # as workers of the library wait
WARM_UP_CALLS = 20
WARM_UP_BYTES_MAX = 1024  # of a payload: ten of the largest would be more than a call may carry
PAYLOADS = 64  # different ones that a producer takes turns with

_STAMP = struct.Struct(">d")  # when a task was sent, at the start of its payload


class Control:
    """The parent's words."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._buffer = b""
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            os._exit(1)  # the parent is gone, and nobody wants a result
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if line == STOP.encode() and not self._stop.done():
                self._stop.set_result(None)
            else:
                self._lines.put_nowait(line.decode())

    async def next_line(self) -> str:
        return await self._lines.get()

    async def until_stop(self) -> None:
        await self._stop


def report(event: str, **more: object) -> None:
    """The parent, in one line."""
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def tenant_name(number: int) -> str:
    return f"tenant-{number}"


def options_of(spec: LoadSpec) -> Callable[[int], dict[str, Any]] | None:
    """What the task with a number has besides its payload; None if it has nothing."""
    tenants, priorities, limit_keys = spec.tenants, spec.priorities, spec.limit_keys
    if not (tenants or priorities or limit_keys or spec.run_at_ms or spec.request_ids):
        return None
    process = uuid.uuid4().hex  # producers follow each other in one queue

    def options(number: int) -> dict[str, Any]:
        # Mixed so that every tenant has tasks of every priority.
        made: dict[str, Any] = {}
        if tenants:
            made["tenant"] = tenant_name(number % tenants)
        if priorities:
            made["priority"] = (number // 97 + number) % priorities
        if limit_keys:
            made["limit_key"] = f"key-{(number // 89 * spec.limit_keys_mixed + number) % limit_keys}"
        if spec.run_at_ms:
            made["run_at_ms"] = spec.run_at_ms
        if spec.request_ids:
            made["request_id"] = f"{process}-{number}"
        return made

    return options


class Load:
    """The work of one process and what it counts."""

    def __init__(self, spec: LoadSpec, client: AsyncClient, control: Control) -> None:
        self.spec = spec
        self.client = client
        self.control = control
        self.result = LoadResult()
        draw = random.Random(0)
        self._payloads = [draw.randbytes(spec.payload_bytes) for _ in range(PAYLOADS)]
        self._options = options_of(spec)
        self._made = 0

    def new_tasks(self, count: int) -> list[NewTask]:
        """Made anew for each call, as a producer's are."""
        queue, payloads, first = self.spec.queue, self._payloads, self._made
        self._made += count
        numbers = range(first, first + count)
        if self._options is None:
            return [NewTask(queue, "bench", payloads[n % PAYLOADS]) for n in numbers]
        return [NewTask(queue, "bench", payloads[n % PAYLOADS], **self._options(n)) for n in numbers]

    def stamped_task(self) -> NewTask:
        [task] = self.new_tasks(1)
        return dataclasses.replace(task, payload=_STAMP.pack(time.monotonic()) + task.payload[_STAMP.size :])

    def count(self, tasks: int) -> None:
        self.result.done += tasks
        self.result.ended_s = time.monotonic()

    async def warm_up(self) -> None:
        """Connects and passes through the code once, in a queue that nobody counts."""
        for _ in range(WARM_UP_CALLS):
            tasks = [NewTask("warm-up", "bench", payload[:WARM_UP_BYTES_MAX]) for payload in self._payloads[:10]]
            all_done(await self.client.enqueue_many(tasks))
            if self.spec.role in (CONSUME, PICK_UP):
                claims = await self.client.reserve(["warm-up"], max_tasks=10, lease_ms=LEASE_MS)
                all_done(await self.client.ack_many(claims))


def all_done(outcomes: Sequence[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Rejected):
            raise BrokenRunError(f"the server refused an item: {outcome}")


async def _produce(load: Load) -> None:
    """`calls_in_flight` callers, each with its next batch as soon as the last is accepted."""
    spec, result = load.spec, load.result
    left = spec.tasks

    async def caller() -> None:
        nonlocal left
        while left > 0:
            count = min(spec.batch_tasks, left)
            left -= count
            tasks = load.new_tasks(count)
            started_s = time.monotonic()
            all_done(await load.client.enqueue_many(tasks))
            result.call_ms.append((time.monotonic() - started_s) * 1000)
            load.count(count)

    await together(caller, spec.calls_in_flight)


async def _consume(load: Load) -> None:
    """Claims a batch, acks it, and so on: until all tasks are done, or until told to stop."""
    spec, result = load.spec, load.result
    left = spec.tasks or sys.maxsize

    async def caller() -> None:
        nonlocal left
        while left > 0:
            wanted = min(spec.batch_tasks, left)
            left -= wanted
            claims = await load.client.reserve(
                [spec.queue], max_tasks=wanted, lease_ms=LEASE_MS, wait_ms=WAIT_MS, worker=spec.worker
            )
            left += wanted - len(claims)
            started_s = time.monotonic()
            all_done(await load.client.ack_many(claims))
            if claims:
                result.call_ms.append((time.monotonic() - started_s) * 1000)
                load.count(len(claims))

    await _until_stop(load, together(caller, spec.calls_in_flight))


async def _pace(load: Load) -> None:
    """One task per tick of a schedule. Time counts from the tick, so a server that stalls cannot hide later ticks."""
    spec, result = load.spec, load.result
    first_s = time.monotonic() + 0.01

    async def send(tick_s: float) -> None:
        sent_s = time.monotonic()
        await load.client.enqueue(load.stamped_task())
        now_s = time.monotonic()
        result.call_ms.append((now_s - tick_s) * 1000)
        result.send_ms.append((now_s - sent_s) * 1000)
        load.count(1)

    async with asyncio.TaskGroup() as group:
        for tick in range(spec.tasks):
            tick_s = first_s + tick / spec.rate_per_s
            delay_s = tick_s - time.monotonic()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            group.create_task(send(tick_s))


async def _pick_up(load: Load) -> None:
    """Workers that wait for single tasks; measures from when each was sent until one has it."""
    spec, result = load.spec, load.result

    numbers = iter(range(spec.calls_in_flight))

    async def caller() -> None:
        worker = f"{spec.worker}-{next(numbers)}"
        wait_ms = POLL_MS
        while True:
            claims = await load.client.reserve([spec.queue], lease_ms=LEASE_MS, wait_ms=wait_ms, worker=worker)
            wait_ms = max(POLL_MS, claims.suggested_wait_ms)
            now_s = time.monotonic()
            for claim in claims:
                (sent_s,) = _STAMP.unpack_from(claim.payload)
                result.call_ms.append((now_s - sent_s) * 1000)
                await load.client.ack(claim)
                load.count(1)

    await _until_stop(load, together(caller, spec.calls_in_flight))


async def together(caller: Callable[[], Awaitable[None]], count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_as_coroutine(caller))


async def _as_coroutine(caller: Callable[[], Awaitable[None]]) -> None:
    await caller()


async def _until_stop(load: Load, work: Awaitable[None]) -> None:
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(load.control.until_stop())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


Role = Callable[[Load], Awaitable[None]]

ROLES: dict[str, Role] = {
    PRODUCE: _produce,
    CONSUME: _consume,
    PACE: _pace,
    PICK_UP: _pick_up,
}


async def report_progress(result: LoadResult) -> None:
    """Tells the parent now and then, until cancelled."""
    reported, reported_s = 0, 0.0
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        if result.done != reported or time.monotonic() - reported_s > SIGN_SECONDS:
            reported, reported_s = result.done, time.monotonic()
            report(PROGRESS, done=reported)


async def main(roles: Mapping[str, Role]) -> None:
    control = Control()
    spec = LoadSpec(**json.loads(await control.next_line()))
    async with AsyncClient(spec.address, timeout_s=CALL_SECONDS_MAX, retry=spec.retry, direct=spec.direct) as client:
        load = Load(spec, client, control)
        await load.warm_up()
        report(READY)
        if await control.next_line() != GO:
            raise BrokenRunError("expected the word to go")
        reporting = asyncio.create_task(report_progress(load.result))
        cpu_s = time.process_time()
        load.result.started_s = time.monotonic()
        try:
            await roles[spec.role](load)
        except* (HoldfastError, BrokenRunError) as group:
            sys.exit("; ".join(dict.fromkeys(str(error) for error in group.exceptions)))
        load.result.cpu_s = time.process_time() - cpu_s
        reporting.cancel()
        report(RESULT, result=dataclasses.asdict(load.result))
