"""How fast this server is, seen from here: producers enqueue, consumers take and finish, and every task is counted.

All of it runs in one event loop and in a queue of its own. Each task carries its number, so that at the end it is known
whether every one came back exactly once. Memory does not grow with the length of the run, save for a byte per task.
When it is stopped, producers stop at once and consumers go on until the queue is empty.
"""

import asyncio
import contextlib
import random
import secrets
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.cli import calls, connecting
from holdfast.client import Acked, AsyncClient, ClaimedTask, HoldfastError, NewTask, Rejected

PAYLOAD_BYTES_MIN = 8  # the number of the task
TASKS_MAX = 10_000_000

_NUMBER = struct.Struct(">Q")
_LEASE_MS = 15_000  # what a consumer held when it failed comes back after that
POLL_MS = 500
STALL_S = 60.0  # without a single task finished for so long, the rest is taken for lost
_DRAIN_S = 30.0
_SAMPLES_MAX = 100_000
_SEEN_MAX = 255

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is asked for."""

    tasks: int
    batch: int  # tasks per call
    payload_bytes: int
    producers: int
    consumers: int
    queue: str = field(default_factory=lambda: f"holdfast-bench-{secrets.token_hex(4)}")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What came out."""

    accepted: int
    finished: int
    missing: int  # accepted, but never handed out or never finished
    repeated: int  # handed out more than once
    seconds: float  # from the first enqueue to the last ack
    enqueue_tasks_per_s: float
    end_to_end_tasks_per_s: float
    enqueue_p50_ms: float  # of one call
    enqueue_p99_ms: float
    cpu_us_per_task: float  # of this process: producers and consumers together
    interrupted: bool
    left_behind: int  # tasks that are still in the queue


class BenchFailed(Exception):  # noqa: N818 - as CommandFailed
    """It could not go on; says what is left behind."""

    def __init__(self, error: HoldfastError, left_behind: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.left_behind = left_behind


def run(address: str, timeout_s: float, plan: BenchPlan, advance: Advance) -> BenchResult:
    """Raises `KeyboardInterrupt` if it was interrupted twice, and so could not clean up."""
    try:
        return calls.run_async(lambda: _Bench(address, timeout_s, plan, advance).run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class _Bench:
    """One run. All counts belong to the event loop."""

    def __init__(self, address: str, timeout_s: float, plan: BenchPlan, advance: Advance) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._plan = plan
        self._advance = advance
        self._filler = bytes(plan.payload_bytes - PAYLOAD_BYTES_MIN)
        self._seen = bytearray(plan.tasks)  # how often each task was handed out, up to 255
        self._latencies = _Samples()
        self._accepted = 0
        self._finished = 0
        self._producing = True
        self._interrupted = False
        self._all_done = asyncio.Event()
        self._last_enqueue_s = self._last_ack_s = 0.0

    async def run(self) -> BenchResult:
        # Says at once if there is no server, and has the connection's set-up out of the way.
        retry = calls.is_cluster(self._address)
        async with AsyncClient(self._address, timeout_s=self._timeout_s, retry=retry, tls=connecting.tls()) as client:
            await client.reserve([self._plan.queue])
        with self._signals_end_it():
            return await self._measure()

    @contextlib.contextmanager
    def _signals_end_it(self) -> Iterator[None]:
        main = asyncio.current_task()
        assert main is not None
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for number in numbers:
            loop.add_signal_handler(number, self._interrupt, main)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def _measure(self) -> BenchResult:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        self._last_enqueue_s = self._last_ack_s = began_s
        try:
            await self._produce_and_consume()
        except ExceptionGroup as errors:
            first = next(_leaves(errors))
            if not isinstance(first, HoldfastError):
                raise
            raise BenchFailed(first, await self._drain()) from None
        cpu_s = time.process_time() - cpu_began_s
        left_behind = await self._drain() if self._finished < self._accepted else 0
        return self._report(began_s, cpu_s, left_behind)

    def _interrupt(self, main: "asyncio.Task[BenchResult]") -> None:
        if self._interrupted:
            main.cancel()  # asked twice: leave everything as it is
        self._interrupted = True

    # ------------------------------------------------------------------------------------------------- load

    async def _produce_and_consume(self) -> None:
        plan = self._plan
        numbers = iter(range(0, plan.tasks, plan.batch))
        async with asyncio.TaskGroup() as consumers:
            consuming = [consumers.create_task(self._consume(number)) for number in range(plan.consumers)]
            async with asyncio.TaskGroup() as producers:
                for _ in range(plan.producers):
                    producers.create_task(self._produce(numbers))
            self._producing = False
            self._note_progress()
            await self._until_done()
            for consumer in consuming:
                consumer.cancel()

    async def _produce(self, starts: Iterator[int]) -> None:
        plan = self._plan
        async with AsyncClient(self._address, timeout_s=self._timeout_s, tls=connecting.tls()) as client:
            for start in starts:
                if self._interrupted:
                    return
                numbers = range(start, min(start + plan.batch, plan.tasks))
                # Without a request id: what is measured is the call itself. Nothing of a finished task is kept.
                tasks = [
                    NewTask(plan.queue, "bench", _NUMBER.pack(number) + self._filler, request_id="", result_ttl_ms=0)
                    for number in numbers
                ]
                began_s = time.perf_counter()
                outcomes = await client.enqueue_many(tasks)
                self._last_enqueue_s = time.perf_counter()
                self._latencies.add(self._last_enqueue_s - began_s)
                for outcome in outcomes:
                    if isinstance(outcome, Rejected):
                        raise outcome
                    self._accepted += 1

    async def _consume(self, number: int) -> None:
        plan = self._plan
        worker = f"{plan.queue}-{number}"
        async with AsyncClient(self._address, timeout_s=self._timeout_s, tls=connecting.tls()) as client:
            while True:
                claimed = await client.reserve(
                    [plan.queue], max_tasks=plan.batch, lease_ms=_LEASE_MS, wait_ms=POLL_MS, worker=worker
                )
                if claimed:
                    await self._finish(client, claimed)

    async def _finish(self, client: AsyncClient, claimed: list[ClaimedTask]) -> None:
        for task in claimed:
            [number] = _NUMBER.unpack_from(task.payload)
            self._seen[number] = min(_SEEN_MAX, self._seen[number] + 1)
        outcomes = await client.ack_many(claimed)
        finished = sum(isinstance(outcome, Acked) for outcome in outcomes)
        self._finished += finished
        self._last_ack_s = time.perf_counter()
        self._advance(finished)
        self._note_progress()

    def _note_progress(self) -> None:
        if not self._producing and self._finished >= self._accepted:
            self._all_done.set()

    async def _until_done(self) -> None:
        """Until everything accepted is finished, or nothing more happens."""
        while not self._all_done.is_set():
            finished = self._finished
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_done.wait(), STALL_S)
            if finished == self._finished:
                return

    async def _drain(self) -> int:
        """Finishes what is still in the queue; returns how many tasks could not be finished."""
        give_up_s = time.monotonic() + _DRAIN_S
        left = self._accepted - self._finished
        try:
            timeout_s = min(self._timeout_s, 5.0)
            async with AsyncClient(self._address, timeout_s=timeout_s, retry=False, tls=connecting.tls()) as client:
                while time.monotonic() < give_up_s:
                    claimed = await client.reserve(
                        [self._plan.queue], max_tasks=1_000, wait_ms=POLL_MS, worker=f"{self._plan.queue}-drain"
                    )
                    await client.ack_many(claimed)
                    stats = await client.queue_stats(self._plan.queue)
                    left = stats.ready + stats.claimed + stats.delayed + stats.retrying
                    if not left:
                        break
        except HoldfastError:
            pass  # the server has gone: what is left is all that can be said
        return left

    # ----------------------------------------------------------------------------------------------- result

    def _report(self, began_s: float, cpu_s: float, left_behind: int) -> BenchResult:
        enqueue_s = max(self._last_enqueue_s - began_s, 1e-9)
        total_s = max(self._last_ack_s - began_s, 1e-9)
        never, once = self._seen.count(0), self._seen.count(1)
        not_sent = self._plan.tasks - self._accepted
        return BenchResult(
            accepted=self._accepted,
            finished=self._finished,
            missing=max(never - not_sent, self._accepted - self._finished),
            repeated=self._plan.tasks - never - once,
            seconds=total_s,
            enqueue_tasks_per_s=self._accepted / enqueue_s,
            end_to_end_tasks_per_s=self._finished / total_s,
            enqueue_p50_ms=self._latencies.quantile(0.50) * 1000,
            enqueue_p99_ms=self._latencies.quantile(0.99) * 1000,
            cpu_us_per_task=cpu_s * 1e6 / max(1, self._finished),
            interrupted=self._interrupted,
            left_behind=left_behind,
        )


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class _Samples:
    """A fair sample of any number of values, in bounded memory."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._count = 0

    def add(self, value: float) -> None:
        self._count += 1
        if len(self._values) < _SAMPLES_MAX:
            self._values.append(value)
        elif (index := random.randrange(self._count)) < _SAMPLES_MAX:
            self._values[index] = value

    def quantile(self, share: float) -> float:
        if not self._values:
            return 0.0
        ordered = sorted(self._values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
