"""What the state takes of whole lives: entries are decoded, applied and written as a follower does, in this process.

That is what an overlay in front of RocksDB could save at most, if it cost nothing itself.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.bench import Bench
from harness.results import Aim, Measured
from holdfast.machine import keys
from holdfast.machine.entries import Ack, AckItem, Claim, Enqueue, Entry, LeaderStarted, Mark, decode, encode
from holdfast.machine.ids import task_id_sequence
from holdfast.machine.machine import Machine
from holdfast.machine.new_runs import NewRun, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, AcceptedRun, Claimed, Outcome
from holdfast.machine.run_entries import AckRange, AckRanges, EnqueueRuns
from holdfast.storage.rocksdb import RocksState

QUEUE = b"bench"
PAYLOAD = bytes(range(256)) * 4
HEADER = b"h" * 20
PRIORITY = 4
START_MS = 1_700_000_000_000
LEASE_MS = 60_000
KEEP_MS = 600_000
WINDOW_MS = 86_400_000
TICK_MS = 3
SCAN_ROWS = 1000


class Shape(NamedTuple):
    """How tasks come. Single ones have request ids of their own."""

    name: str
    tasks: int  # of a call
    as_run: bool
    calls: int = 1  # in one batch of the state


SHAPES = (
    Shape("runs of 100", 100, as_run=True),
    Shape("100 single tasks", 100, as_run=False),
    Shape("one task", 1, as_run=False),
    Shape("ten calls of one task", 1, as_run=False, calls=10),
)


def _aims(shape: Shape) -> Iterable[Aim]:
    yield Aim(f"{shape.name}: all of a life", "µs CPU")
    yield Aim(f"{shape.name}: of it in RocksDB", "µs CPU")
    yield Aim(f"{shape.name}: threads of RocksDB", "µs CPU")
    yield Aim(f"{shape.name}: rows changed", "per life")
    yield Aim(f"{shape.name}: rows left", "per life")


AIMS = tuple(aim for shape in SHAPES for aim in _aims(shape))


class MeteredState:
    """A state, and what it takes of the thread that uses it."""

    def __init__(self, state: RocksState) -> None:
        self._state = state
        self._clock_ns = _clock_cost_ns()
        self.spent_ns = 0
        self.rows_written = 0

    def get(self, key: bytes) -> bytes | None:
        began_ns = time.thread_time_ns()
        row = self._state.get(key)
        self._spent(began_ns)
        return row

    def get_many(self, wanted: list[bytes]) -> list[bytes | None]:
        began_ns = time.thread_time_ns()
        rows = self._state.get_many(wanted)
        self._spent(began_ns)
        return rows

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        began_ns = time.thread_time_ns()
        rows = self._state.scan(start, stop, limit)
        self._spent(began_ns)
        return rows

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        began_ns = time.thread_time_ns()
        self._state.write(changes)
        self._spent(began_ns)
        self.rows_written += len(changes)

    def _spent(self, began_ns: int) -> None:
        self.spent_ns += time.thread_time_ns() - began_ns - self._clock_ns


def _clock_cost_ns() -> int:
    """What looking at the clock takes."""
    costs = []
    for _ in range(1000):
        began_ns = time.thread_time_ns()
        costs.append(time.thread_time_ns() - began_ns)
    return sorted(costs)[len(costs) // 2]


class Follower:
    """Applies what a leader would have decided; it plays that leader too, and is not measured with it."""

    def __init__(self, state: MeteredState, shape: Shape) -> None:
        self._machine = Machine(state)
        self._shape = shape
        self._index = 0
        self._calls = 0
        self._now_ms = START_MS
        self.spent_ns = 0
        self._apply([LeaderStarted(START_MS, stepped=False)])

    def live(self) -> None:
        """The tasks of some calls come, are claimed, and are acked."""
        self._now_ms += TICK_MS
        accepted = self._apply([self._enqueue() for _ in range(self._shape.calls)])
        claimed = self._apply([self._claim(outcomes) for outcomes in accepted])
        self._apply([self._ack(outcomes) for outcomes in claimed])

    def _apply(self, entries: list[Entry]) -> list[list[Outcome]]:
        log = [encode(entry) for entry in entries]
        began_ns = time.thread_time_ns()
        outcomes = []
        for data in log:
            self._index += 1
            outcomes.append(self._machine.apply(self._index, 1, decode(data)))
        self._machine.commit()
        self.spent_ns += time.thread_time_ns() - began_ns
        return outcomes

    def _enqueue(self) -> Entry:
        self._calls += 1
        count, first = self._shape.tasks, self._calls * self._shape.tasks
        if self._shape.as_run:
            run = NewRun(
                QUEUE, PRIORITY, b"call-%d" % self._calls, WINDOW_MS, 10, 20, 0, b"bench", 0, 0, HEADER,
                pack_sizes([len(PAYLOAD)] * count), PAYLOAD * count,
            )  # fmt: skip
            return EnqueueRuns(self._now_ms, [run])
        tasks = [
            NewTask(
                QUEUE, PRIORITY, b"", b"task-%d" % number, WINDOW_MS, 0, 10, 20, 0, HEADER + PAYLOAD, b"bench", digest=1
            )
            for number in range(first, first + count)
        ]  # fmt: skip
        return Enqueue(self._now_ms, tasks)

    def _claim(self, accepted: list[Outcome]) -> Entry:
        self._calls += 1
        task_ids = [outcome.task_id for outcome in accepted if isinstance(outcome, Accepted | AcceptedRun)]
        counts = [self._shape.tasks] if self._shape.as_run else []
        queue = self._machine.queue(QUEUE)
        assert queue is not None
        behind = task_id_sequence(task_ids[-1]) + sum(counts or [1])
        return Claim(
            self._now_ms, self._now_ms + LEASE_MS, b"worker", b"claim-%d" % self._calls, self._now_ms + KEEP_MS,
            task_ids, [Mark(QUEUE, queue.mark_version, PRIORITY, behind)], secret=self._calls, counts=counts,
        )  # fmt: skip

    def _ack(self, outcomes: list[Outcome]) -> Entry:
        claims = [outcome for outcome in outcomes if isinstance(outcome, Claimed)]
        if self._shape.as_run:
            ranges = [AckRange(claim.task_id, claim.token, claim.tasks) for claim in claims]
            return AckRanges(self._now_ms, KEEP_MS, ranges)
        return Ack(self._now_ms, KEEP_MS, [AckItem(claim.task_id, claim.token, None, ()) for claim in claims])


async def measure(bench: Bench) -> Measured:
    measured = Measured()
    for shape in SHAPES:
        async with bench.data_dir() as path:
            with bench.display.progress(shape.name, bench.sizes.lifecycle_tasks) as on_progress:
                figures = await asyncio.to_thread(_measure, path, shape, bench.sizes.lifecycle_tasks, on_progress)
        measured.figures |= {
            aim.name: [figure] for aim, figure in zip(_aims(shape), figures, strict=True)
        }  # fmt: skip
    return measured


def _measure(path: Path, shape: Shape, tasks: int, on_progress: Callable[[int], None]) -> tuple[float, ...]:
    """Blocks. By life, in the order of the aims."""
    state = RocksState(path / "state")
    metered = MeteredState(state)
    follower = Follower(metered, shape)
    metered.spent_ns = metered.rows_written = follower.spent_ns = 0
    threads_s = _threads_s()
    each = shape.tasks * shape.calls
    rounds = max(1, tasks // each)
    for done in range(rounds):
        follower.live()
        on_progress((done + 1) * each)
    state.flush()
    threads_us = (_threads_s() - threads_s) * 1e6
    left = _count_rows(state)
    state.close()
    lives = rounds * each
    spent_us = (follower.spent_ns / 1000, metered.spent_ns / 1000, threads_us)
    return tuple(figure / lives for figure in (*spent_us, metered.rows_written, left))


def _threads_s() -> float:
    """CPU time of RocksDB's threads in this process."""
    spent_s = 0.0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("rocksdb"):
            spent_s += int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent_s


def _count_rows(state: RocksState) -> int:
    count, start, stop = 0, keys.family_start(0), keys.family_start(0xFF)
    while rows := state.scan(start, stop, SCAN_ROWS):
        count += len(rows)
        start = rows[-1][0] + b"\0"
    return count
