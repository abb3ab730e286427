"""Numbers to watch: rates and latencies of queues, and who works on them.

All of it is counted as things happen and costs the same however long a queue is. It is soft state of the leader: a new
one begins at nothing, while the counters of the state go on.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import NamedTuple

from holdfast.broker.histograms import LatencyHistogram
from holdfast.common.service import Service
from holdfast.machine import keys
from holdfast.machine.effects import READY_TO_CLAIM, Effects, StateDuration
from holdfast.machine.machine import Machine

SAMPLE_SECONDS = 5.0
SAMPLES_MAX = 13  # the first and the last are a minute apart
RATED_QUEUES_MAX = 10_000
TIMED_QUEUES_MAX = 1_000
TYPES_MAX = 50  # of a queue that are told apart
OTHER_TYPES = b"(other)"
WORKERS_MAX = 10_000
WORKER_QUEUES_MAX = 64
TIMED_KEEP_MS = 10 * 60 * 1000  # how long a queue has its place among those that are timed, once all are taken
WORKER_KEEP_MS = 60 * 60 * 1000  # after which a worker that nothing is heard of and that holds nothing is forgotten
WORKER_SILENT_MS = 60 * 1000  # after which a worker is gone if it has heartbeats here, and otherwise not listed
_IDLE_SCANNED = 32  # workers that are looked at for one that holds nothing, if one must be forgotten

# States of workers: the numbers of the wire API.
NO_STATE = 0  # it has no heartbeats
RUNNING = 1
QUIET = 2
STOPPING = 3
GONE = 4
DRAINED = 5

_Pair = tuple[LatencyHistogram, LatencyHistogram]  # from ready to claim, from claim to ack
_Totals = tuple[int, int, int, int]  # enqueued, claimed, succeeded, failed
_NOTHING: _Totals = (0, 0, 0, 0)
_STILL = (0.0, 0.0, 0.0, 0.0)


class Heartbeat(NamedTuple):
    """What a worker says of itself."""

    worker: bytes
    state: int
    slots: int
    version: bytes
    queues: tuple[bytes, ...]


class WorkerSeen(NamedTuple):
    """A worker, as the leader of one shard knows it."""

    name: bytes
    claims: int  # that it holds
    last_seen_ms: int
    queues: tuple[bytes, ...]
    is_waiting: bool
    state: int
    slots: int
    version: bytes
    desired: int


class _Worker:
    __slots__ = ("desired", "last_seen_ms", "queues", "slots", "state", "version", "waiting")

    def __init__(self) -> None:
        self.last_seen_ms = 0
        self.queues: tuple[bytes, ...] = ()
        self.waiting = 0  # calls of it that wait at this moment
        self.state = NO_STATE  # as its last heartbeat said; this and the following are known at its home shard only
        self.slots = 0
        self.version = b""
        self.desired = NO_STATE  # what operators want of it, until it has heard of that

    def is_silent(self, now_ms: int) -> bool:
        return self.last_seen_ms < now_ms - WORKER_SILENT_MS and not self.waiting

    def state_at(self, now_ms: int) -> int:
        """It is gone if it has said so, or if nothing was heard of it for long."""
        return GONE if self.state != NO_STATE and self.is_silent(now_ms) else self.state


class Rates:
    """Changes of a queue's totals over the last minute. Queues that are left alone for so long cost nothing more."""

    def __init__(self, totals_of: Callable[[bytes], _Totals | None], now_ms: Callable[[], int]) -> None:
        self._totals_of = totals_of
        self._now_ms = now_ms
        self.watched: dict[bytes, deque[tuple[int, _Totals]]] = {}
        self.resting: OrderedDict[bytes, _Totals] = OrderedDict()  # those that were left alone, and how they were

    def touch(self, queue: bytes, enqueued: int = 0) -> None:
        """Begins to watch a queue that something has just happened in: so many tasks of it are new."""
        if queue in self.watched:
            return
        totals = self._totals_of(queue)
        if totals is None or len(self.watched) >= RATED_QUEUES_MAX:
            return
        # The totals have what has just happened. How many tasks there were before is known; of claims and their ends it
        # is if the queue rested or is new.
        before = self.resting.pop(queue, totals)
        if totals[0] <= enqueued:
            before = _NOTHING
        self.watched[queue] = deque([(self._now_ms(), (totals[0] - enqueued, *before[1:]))], SAMPLES_MAX)

    def sample(self) -> None:
        """To be called every SAMPLE_SECONDS."""
        now_ms = self._now_ms()
        for queue, samples in list(self.watched.items()):
            samples.append((now_ms, self._totals_of(queue) or _NOTHING))
            if len(samples) == SAMPLES_MAX and samples[0][1] == samples[-1][1]:
                del self.watched[queue]
                self.resting[queue] = samples[-1][1]
                if len(self.resting) > RATED_QUEUES_MAX:
                    self.resting.popitem(last=False)

    def per_second(self, queue: bytes) -> tuple[float, ...]:
        """Enqueued, claimed, succeeded, failed. Who asks for a queue makes it watched."""
        self.touch(queue)
        samples, totals = self.watched.get(queue), self._totals_of(queue)
        if not samples or totals is None:
            return _STILL
        began_ms, began = samples[0]
        span_ms = max(self._now_ms() - began_ms, int(SAMPLE_SECONDS * 1000))
        return tuple(1000 * (now - then) / span_ms for now, then in zip(totals, began, strict=True))


class _Timed:
    """How long the tasks of one queue took, by type."""

    __slots__ = ("is_fresh", "types")

    def __init__(self) -> None:
        self.types: dict[bytes, _Pair] = {}
        self.is_fresh = True  # something was added since it was last asked


class Stats(Service):
    """What the leader of a shard counts. `follow` takes note of what was applied."""

    def __init__(
        self,
        machine: Machine,
        *,
        now_ms: Callable[[], int],
        on_sample: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(self._run)
        self._reader = machine.reader
        self._machine = machine
        self._now_ms = now_ms
        self._on_sample = on_sample  # for others that look at something once in a while
        self.rates = Rates(self._totals, now_ms)
        self._timings: dict[bytes, _Timed] = {}
        self._timings_kept_ms = 0
        self._workers: OrderedDict[bytes, _Worker] = OrderedDict()  # who was seen last is last

    # --- what happens -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.sample()

    def sample(self) -> None:
        self.rates.sample()
        self._forget_workers()
        if self._now_ms() >= self._timings_kept_ms and len(self._timings) >= TIMED_QUEUES_MAX:
            self._forget_timings()
            self._timings_kept_ms = self._now_ms() + TIMED_KEEP_MS
        self._on_sample()

    def follow(self, effects: Effects) -> None:
        watched = self.rates.watched
        for queue, count in effects.enqueued.items():
            if queue not in watched:
                self.rates.touch(queue, count)
        for task in effects.ready:  # they also come back, and at their time
            if task.queue not in watched:
                self.rates.touch(task.queue)
        for queue in effects.freed:
            if queue not in watched:
                self.rates.touch(queue)
        if effects.timings:
            self._add_timings(effects.timings)

    def _add_timings(self, timings: Iterable[StateDuration]) -> None:
        """Once for every claim and every ack, so it must cost next to nothing; a batch is mostly of one type."""
        queue = name = None
        pair: _Pair | None = None
        for its_queue, its_type, span, took_ms, tasks in timings:
            if its_type != name or its_queue != queue:
                if its_queue != queue and its_queue not in self.rates.watched:
                    self.rates.touch(its_queue)
                queue, name = its_queue, its_type
                pair = self._pair(queue, name)
            if pair is not None:
                pair[span != READY_TO_CLAIM].add(took_ms, tasks)

    def _pair(self, queue: bytes, name: bytes) -> _Pair | None:
        """Where the times of a type are counted; None if too many queues are timed, until some are forgotten."""
        timed = self._timings.get(queue)
        if timed is None:
            if len(self._timings) >= TIMED_QUEUES_MAX:
                return None
            timed = self._timings[queue] = _Timed()
        timed.is_fresh = True
        pair = timed.types.get(name)
        if pair is None:
            if len(timed.types) >= TYPES_MAX:
                name = OTHER_TYPES
            pair = timed.types.get(name)
            if pair is None:
                pair = timed.types[name] = (LatencyHistogram(), LatencyHistogram())
        return pair

    def _forget_timings(self) -> None:
        """There may be others that are timed in place of those that nothing was added to since the last time."""
        for queue, timed in list(self._timings.items()):
            if not timed.is_fresh:
                del self._timings[queue]
            timed.is_fresh = False

    @contextmanager
    def worker_asks(self, name: bytes, queues: list[bytes], now_ms: int) -> Iterator[None]:
        """A worker wants tasks; it waits for them until this ends."""
        worker = self.worker_seen(name, now_ms)
        if worker is None:
            yield
            return
        worker.queues = tuple(queues[:WORKER_QUEUES_MAX])
        worker.waiting += 1
        try:
            yield
        finally:
            worker.waiting -= 1

    def worker_seen(self, name: bytes, now_ms: int) -> _Worker | None:
        """A worker was heard of: it asks for tasks, or says something about those that it has. One without a name is
        nobody."""
        if not name:
            return None
        worker = self._workers.get(name)
        if worker is None:
            if len(self._workers) >= WORKERS_MAX:
                self._forget_one()
            worker = self._workers[name] = _Worker()
        else:
            self._workers.move_to_end(name)
        worker.last_seen_ms = now_ms
        return worker

    def heartbeat(self, beat: Heartbeat, now_ms: int) -> int:
        """Takes note of it; returns the state that is wanted of the worker, if it is another one."""
        worker = self.worker_seen(beat.worker, now_ms)
        assert worker is not None, "one with heartbeats has a name"
        worker.state, worker.slots, worker.version = beat.state, beat.slots, beat.version
        worker.queues = beat.queues or worker.queues
        if worker.desired == _as_asked(beat.state) or beat.state in (STOPPING, GONE):
            worker.desired = NO_STATE  # it has heard of it, or will not come back from where it is
        return worker.desired

    def signal(self, name: bytes, desired: int) -> int | None:
        """The worker is to hear of it with its next heartbeat. Returns what its last one said; None if there is no such
        worker."""
        worker = self._workers.get(name)
        if worker is None or worker.state_at(self._now_ms()) in (NO_STATE, GONE):
            return None
        worker.desired = NO_STATE if _as_asked(worker.state) in (desired, STOPPING) else desired
        return worker.state

    def _forget_one(self) -> None:
        """Of those that nothing was heard of for longest, one that holds nothing, if there is one."""
        oldest = list(islice(self._workers.items(), _IDLE_SCANNED))
        name = next((name for name, worker in oldest if self._is_idle(name, worker)), oldest[0][0])
        del self._workers[name]

    def _forget_workers(self) -> None:
        before_ms = self._now_ms() - WORKER_KEEP_MS
        silent = takewhile(lambda item: item[1].last_seen_ms < before_ms, self._workers.items())
        for name in [name for name, worker in silent if self._is_idle(name, worker)]:
            del self._workers[name]

    def _is_idle(self, name: bytes, worker: _Worker) -> bool:
        return not worker.waiting and not self._machine.worker_claims(name)

    # --- what is told -----------------------------------------------------------------------------------------

    def _totals(self, queue: bytes) -> _Totals | None:
        row = self._machine.queue(queue)
        if row is None:
            return None
        return row.enqueued_total, row.claimed_total, row.succeeded_total, row.failed_total

    def latencies_of(self, queue: bytes) -> list[tuple[bytes, LatencyHistogram, LatencyHistogram]]:
        """(type, from ready to claim, from claim to ack), by type."""
        timed = self._timings.get(queue)
        return [(name, *pair) for name, pair in sorted(timed.types.items())] if timed is not None else []

    def latencies(self) -> Iterator[tuple[bytes, bytes, LatencyHistogram, LatencyHistogram]]:
        """(queue, type, from ready to claim, from claim to ack) of all that is told apart."""
        for queue, timed in self._timings.items():
            for name, pair in timed.types.items():
                yield queue, name, *pair

    @property
    def worker_names(self) -> Iterable[bytes]:
        """Of those that were heard of lately."""
        return self._workers.keys()

    def workers_page(self, after: bytes, limit: int) -> tuple[list[WorkerSeen], bool]:
        """Workers by name: those that were seen lately, and those that hold claims; and whether there are more.

        Of those that are silent only the ones with heartbeats are told, which are gone: other shards may have seen them
        since. A shard without their heartbeats, or a new leader of the one that had them, cannot know whether there
        ever were any, so it tells of nobody who is silent and holds nothing."""
        now_ms = self._now_ms()
        family, stop = keys.family_start(keys.WORKER), keys.family_start(keys.WORKER + 1)
        start = keys.worker(after) + b"\0" if after else family
        names = {key[1:] for key, _ in self._reader.scan(start, stop, limit + 1)}
        seen = (name for name, worker in self._workers.items() if worker.state or not worker.is_silent(now_ms))
        names.update(sorted(name for name in seen if name > after)[: limit + 1])
        page = sorted(names)[: limit + 1]
        return [self._seen(name, now_ms) for name in page[:limit]], len(page) > limit

    def _seen(self, name: bytes, now_ms: int) -> WorkerSeen:
        worker = self._workers.get(name) or _Worker()
        return WorkerSeen(
            name, self._machine.worker_claims(name), worker.last_seen_ms, worker.queues, worker.waiting > 0,
            worker.state_at(now_ms), worker.slots, worker.version, worker.desired,
        )  # fmt: skip


def _as_asked(state: int) -> int:
    """A worker that has nothing left is quiet, as it was asked to be."""
    return QUIET if state == DRAINED else state
