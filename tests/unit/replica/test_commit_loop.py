"""Rounds over a real log on a fake disk: one sync for all that waits, and what happens when there is no room."""

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica import commit_loop as rounds_module
from holdfast.broker.replica import shard as shard_module
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.replica import TIME_SECONDS
from holdfast.broker.replica.sync_mode import TRIAL_SYNCS, SyncMode
from holdfast.machine.entries import Enqueue, Purge
from holdfast.machine.kv import MemoryKV, state_hash
from holdfast.machine.outcomes import Accepted, Outcome
from holdfast.raft.messages import EntryKind, LogEntry
from holdfast.raft.node_journal import NodeJournal
from holdfast.serving.refusals import DISK_LOW, RefusedError
from holdfast.storage.checkpoints import Checkpointer, Flushable
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.rocksdb import StateError
from holdfast.storage.startup_checks import RecoveryError
from holdfast.wal.errors import DiskFailedError, DiskFullError
from holdfast.wal.node_log import NodeLog
from holdfast.wal.writer import RoundPosition, RoundWriter
from tests.simulation.fake_disk import FakeDisk
from tests.simulation.lone_replica import lone_replica, replay
from tests.simulation.syncs import Beside, beside
from tests.unit.machine.machine_shard import QUEUE, START_MS, new_task
from tests.unit.replica.small_shard import StillTime, settle
from tests.unit.wal.node_logs import flush

SEGMENT_BYTES = 16 * 1024


class Held:
    """Stands for the thread: blocking work is done only when the test lets it."""

    def __init__(self) -> None:
        self.is_open = True
        self.done = 0
        self.done_in_line = 0
        self.on_begin: Callable[[], None] = lambda: None
        self._opened = asyncio.Event()

    def run(self, work: Callable[[], None]) -> Awaitable[None]:
        self.on_begin()
        return self._run(work)

    async def _run(self, work: Callable[[], None]) -> None:
        if not self.is_open:
            self._opened.clear()
            await self._opened.wait()
        work()
        self.done += 1

    def let_one_through(self) -> None:
        self._opened.set()

    def open(self) -> None:
        self.is_open = True
        self._opened.set()


class HeldSync(Beside):
    """Whoever waits for it in line has it done, if the test lets it."""

    def __init__(self, thread: Held, work: Callable[[], None]) -> None:
        super().__init__(thread.run(work))
        self._thread, self._work = thread, work

    def wait(self, seconds_max: float) -> None:
        if self.done() or not self._thread.is_open:
            return
        self._running.cancel()  # it has not begun
        self._running = asyncio.get_running_loop().create_future()
        try:
            self._work()
        except (DiskFailedError, DiskFullError) as error:
            self._running.set_exception(error)
        else:
            self._running.set_result(None)
            self._thread.done += 1
            self._thread.done_in_line += 1


class AlwaysBeside(SyncMode):
    def is_in_line(self, size_bytes: int) -> bool:
        return False


class AlwaysInLine(SyncMode):
    def is_in_line(self, size_bytes: int) -> bool:
        return True


class Broker:
    def __init__(self, disk: FakeDisk, kv: MemoryKV, sync_mode: SyncMode | None = None) -> None:
        self.disk, self.kv, self.thread = disk, kv, Held()
        self.log = NodeLog.open(disk, segment_bytes=SEGMENT_BYTES)
        self.guard = DiskGuard(disk.free_bytes, 0)
        self.metrics = Metrics()
        self.begin_sync: Callable[[Callable[[], None]], Beside] = partial(HeldSync, self.thread)
        self.commit_loop = CommitLoop(
            self.log, self.metrics, begin_sync=lambda work: self.begin_sync(work), disk=self.guard,
            sync_mode=sync_mode,
        )  # fmt: skip
        self.replica = lone_replica(
            self.log, kv, self.commit_loop, self.guard, StillTime(), BrokerConfig(), Metrics(),
            monotonic=time.monotonic, draw=lambda: 0.5,
        )  # fmt: skip
        self.shard = self.replica.shard
        self.running = asyncio.ensure_future(self.commit_loop.run())

    async def serving(self) -> "Broker":
        while not self.shard.serves:
            await self.replica.next_round()
        return self

    def enqueue(self, size_bytes: int = 10) -> "asyncio.Future[list[Accepted]]":
        entry = Enqueue(START_MS, [new_task(envelope=bytes(size_bytes))])
        return asyncio.ensure_future(self.shard.submit(entry))  # type: ignore[arg-type]  # an enqueue is never rejected

    async def stop(self) -> None:
        if not self.running.done():
            self.commit_loop.stop()
            await self.running

    @property
    def enqueued_total(self) -> int:
        counted = self.shard.queue(QUEUE)
        assert counted is not None
        return counted.enqueued_total


async def enqueue_for_ever(broker: Broker) -> None:
    while True:
        await broker.enqueue(size_bytes=4000)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(random.Random(0))


@pytest.fixture(params=[AlwaysBeside, AlwaysInLine])
async def broker(disk: FakeDisk, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """In both modes the same is promised."""
    broker = await Broker(disk, MemoryKV(), request.param()).serving()
    yield broker
    await broker.stop()


async def test_what_waits_during_a_sync_shares_the_next(broker: Broker) -> None:
    await broker.enqueue()
    broker.thread.is_open = False
    first = broker.enqueue()
    await settle()
    others = [broker.enqueue() for _ in range(20)]
    await settle()
    before = broker.thread.done
    broker.thread.open()
    await asyncio.gather(first, *others)
    assert broker.thread.done - before == 2


async def test_a_fast_disk_is_waited_for_in_line_after_a_while(disk: FakeDisk) -> None:
    broker = await Broker(disk, MemoryKV()).serving()
    for _ in range(2 * TRIAL_SYNCS):
        await broker.enqueue()
    assert broker.thread.done_in_line >= TRIAL_SYNCS / 2
    shown = re.search(r"^holdfast_fsyncs_in_line_total (\S+)", broker.metrics.render().decode(), re.MULTILINE)
    assert shown is not None
    assert float(shown[1]) == broker.thread.done_in_line
    await broker.stop()


async def test_a_sync_in_line_that_takes_long_goes_on_beside_the_loop(disk: FakeDisk) -> None:
    broker = await Broker(disk, MemoryKV(), AlwaysInLine()).serving()
    in_line = broker.thread.done_in_line
    broker.thread.is_open = False
    call = broker.enqueue()
    await settle()  # the loop goes on
    assert not call.done()
    broker.thread.open()
    await call
    assert broker.thread.done_in_line == in_line
    await broker.stop()


async def test_nothing_is_answered_before_its_sync(broker: Broker) -> None:
    broker.thread.is_open = False
    call = asyncio.ensure_future(broker.enqueue())
    await settle()
    assert not call.done()
    assert broker.shard.queue(QUEUE) is None
    broker.thread.open()
    await call


async def test_followers_hear_the_time_as_soon_as_somebody_serves(broker: Broker) -> None:
    """Whoever leads next begins with it: one who had heard none began late, and the next of the next moved time on."""
    await broker.enqueue()
    assert broker.replica.raft.shard_time_ms() >= START_MS


async def test_the_time_that_followers_hear_goes_on_between_looks_at_the_clock(broker: Broker) -> None:
    await broker.enqueue()
    await broker.stop()
    now_s = time.monotonic() + 2 * TIME_SECONDS
    broker.replica.step(now_s)
    polled_ms = broker.replica.raft.shard_time_ms()
    broker.replica.step(now_s + TIME_SECONDS * 0.8)
    assert broker.replica.raft.shard_time_ms() == pytest.approx(
        polled_ms + TIME_SECONDS * 0.8 * 900, abs=1
    )  # at its slowest
    broker.replica.step(now_s + TIME_SECONDS)
    assert broker.replica.raft.shard_time_ms() == polled_ms, "the clock stands, so only it was asked"


def purge(broker: Broker) -> "asyncio.Future[list[Outcome]]":
    return asyncio.ensure_future(broker.shard.submit_housekeeping(Purge(START_MS, [])))


async def test_callers_have_their_answers_before_housekeeping_of_their_round_is_applied(broker: Broker) -> None:
    broker.thread.is_open = False
    chore, call = purge(broker), broker.enqueue()
    await settle()
    broker.thread.open()
    await call
    assert not chore.done()
    await chore


async def test_housekeeping_is_applied_beside_the_sync_of_callers_who_came_meanwhile(broker: Broker) -> None:
    broker.thread.is_open = False
    chore = purge(broker)
    await settle()
    before, applied = broker.shard.applied_index, []
    broker.thread.on_begin = lambda: applied.append(broker.shard.applied_index)
    calls = [broker.enqueue()]  # comes while the housekeeping is synced
    await settle()
    broker.thread.let_one_through()
    while not applied:
        await asyncio.sleep(0)
        calls.append(broker.enqueue())  # and more and more of them come
    assert applied == [before], "the sync of the callers waited for housekeeping"
    await settle()
    assert chore.done(), "callers who keep coming held it up for longer than a round"
    assert not any(call.done() for call in calls)
    broker.thread.open()
    await asyncio.gather(*calls)


async def test_callers_who_cannot_be_taken_do_not_hold_up_housekeeping(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.thread.is_open = False
    chore = purge(broker)
    await settle()
    call = broker.enqueue()
    await settle()
    with monkeypatch.context() as handing_over:
        handing_over.setattr(type(broker.replica.raft), "accepts", False)
        broker.thread.open()
        await chore
        assert not call.done()
    broker.commit_loop.wake(broker.replica.number)
    await call


async def test_without_room_a_round_is_refused_and_changes_nothing(broker: Broker, disk: FakeDisk) -> None:
    await broker.enqueue()
    disk.capacity_bytes -= disk.free_bytes()
    with pytest.raises(RefusedError) as refused:
        await enqueue_for_ever(broker)
    assert refused.value.reason == DISK_LOW
    accepted = broker.enqueued_total
    disk.capacity_bytes = 1 << 40
    assert broker.guard.poll()
    await broker.enqueue()
    await broker.stop()
    replayed = MemoryKV()
    replay(NodeLog.open(disk, segment_bytes=SEGMENT_BYTES), replayed)
    assert state_hash(replayed) == state_hash(broker.kv)
    assert broker.enqueued_total == accepted + 1


@pytest.mark.parametrize("nth", range(1, 7))
async def test_whichever_round_has_no_room_it_serves_once_there_is_some(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The founding of a shard, its election and the first entry of its term are rounds like any other."""
    write, calls = RoundWriter.write, itertools.count(1)

    def full_once(
        writer: RoundWriter, buffers: list[bytes], size_bytes: int, hard: Mapping[int, bytes]
    ) -> RoundPosition:
        if next(calls) == nth:
            raise DiskFullError("there is no room")
        return write(writer, buffers, size_bytes, hard)

    monkeypatch.setattr(RoundWriter, "write", full_once)
    async with asyncio.timeout(20):
        broker = await Broker(disk, MemoryKV()).serving()
        accepted = 0
        while accepted < 5:
            try:
                await broker.enqueue()
            except RefusedError:
                broker.guard.poll()
                continue
            accepted += 1
    assert broker.enqueued_total == accepted
    await broker.stop()


async def test_what_is_in_the_log_is_not_refused_because_a_later_round_has_no_room(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "APPLY_SECONDS_MAX", 0.0)  # one entry in each turn
    monkeypatch.setattr(rounds_module, "APPLY_SECONDS_MAX", 0.0)  # and one turn in each round
    monkeypatch.setattr(shard_module, "SLICE_SECONDS", 0.0)
    broker.thread.is_open = False
    calls = [broker.enqueue() for _ in range(8)]
    await settle()
    later = broker.enqueue()
    run = broker.thread.run

    async def full_then(work: Callable[[], None]) -> None:
        if calls[0].done() and not later.done():
            raise DiskFullError("there is no room")
        await run(work)

    monkeypatch.setattr(broker, "begin_sync", beside(full_then))
    broker.thread.open()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
    await asyncio.gather(later, return_exceptions=True)
    assert broker.enqueued_total == 8 + (not later.exception())


async def test_a_failed_sync_ends_the_rounds(broker: Broker, disk: FakeDisk) -> None:
    await broker.enqueue()
    disk.fail_next_sync = True
    call = asyncio.ensure_future(broker.enqueue())
    with pytest.raises(DiskFailedError):
        await broker.running
    assert not call.done(), "nobody knows how it ended"
    call.cancel()


async def test_a_stop_finishes_what_waits(broker: Broker) -> None:
    broker.thread.is_open = False
    calls = [asyncio.ensure_future(broker.enqueue()) for _ in range(3)]
    await settle()
    broker.commit_loop.stop()
    broker.thread.open()
    await broker.running
    assert all(call.done() for call in calls)


# --- checkpoints ------------------------------------------------------------------------------------------------------


class State:
    """The replica, as the checkpointer sees it, and its state in one, which may refuse to be flushed."""

    number = 0
    is_alone = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.state: Flushable = self
        self.flushes = 0
        self.fails = False

    @property
    def applied_index(self) -> int:
        return self._broker.shard.applied_index

    @property
    def durable_base_index(self) -> int:
        return self._broker.replica.durable_base_index

    def compact(self, index: int) -> None:
        self._broker.replica.compact(index)
        self._broker.commit_loop.wake(0)

    def flush(self) -> None:
        if self.fails:
            raise StateError("no")
        self.flushes += 1


class Moments:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def checkpointer(
    broker: Broker, state: State, clock: Moments, thread: Held | None = None, **limits: float
) -> Checkpointer:
    wanted = {"log_bytes_max": 1 << 30, "age_seconds_max": 1e9} | limits
    return Checkpointer(
        broker.log, lambda: [state], run_blocking=(thread or broker.thread).run, monotonic=clock, keep_bytes=0,
        log_bytes_max=int(wanted["log_bytes_max"]), age_seconds_max=wanted["age_seconds_max"],
    )  # fmt: skip


async def flush_and_cut(one: Checkpointer, state: State, broker: Broker) -> None:
    await one.flush(state)
    await broker.enqueue()  # a round makes the new beginning of the log durable
    await one.cut()


async def test_a_checkpoint_is_due_by_age_and_only_if_something_changed(broker: Broker) -> None:
    clock, state = Moments(), State(broker)
    one = checkpointer(broker, state, clock, age_seconds_max=10)
    await one.flush(state)
    clock.now = 10
    assert not one.is_due(state)
    await broker.enqueue()
    assert one.is_due(state)
    await one.flush(state)
    assert (state.flushes, one.is_due(state)) == (2, False)
    await broker.enqueue()
    assert not one.is_due(state)
    clock.now = 20
    assert one.is_due(state)


async def test_a_checkpoint_is_due_by_size(broker: Broker) -> None:
    state = State(broker)
    one = checkpointer(broker, state, Moments(), log_bytes_max=20_000)
    await one.flush(state)
    await broker.enqueue()
    assert not one.is_due(state)
    for _ in range(5):
        await broker.enqueue(size_bytes=4000)
    assert one.is_due(state)


async def test_the_log_is_cut_only_below_what_was_applied_before_the_flush(broker: Broker) -> None:
    thread, state = Held(), State(broker)
    one = checkpointer(broker, state, Moments(), thread)
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    captured = broker.shard.applied_index
    thread.is_open = False
    running = asyncio.ensure_future(one.flush(state))
    await settle()
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    thread.open()
    await running
    await broker.enqueue()
    await one.cut()
    assert 1 < broker.log.first_index(0) <= captured + 1


async def test_the_log_of_a_node_without_replicas_is_cut(broker: Broker) -> None:
    one = Checkpointer(
        broker.log, list, run_blocking=broker.thread.run, keep_bytes=0, log_bytes_max=1, age_seconds_max=1
    )
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    before = broker.log.size_bytes
    await one.cut()
    assert broker.log.size_bytes == before, "who is not listed and still there needs everything"
    await broker.commit_loop.forget(broker.replica)
    await one.cut()
    assert broker.log.size_bytes < before / 2


async def test_a_cut_that_comes_late_takes_nothing_from_who_came_back(broker: Broker) -> None:
    """What it goes by is of a former incarnation, which had more than the new one has yet."""
    thread, state = Held(), State(broker)
    one = checkpointer(broker, state, Moments(), thread)
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    await flush_and_cut(one, state, broker)
    await broker.enqueue()
    broker.replica.durable_base_index += 1  # so that there is something to cut
    thread.is_open = False
    late = asyncio.ensure_future(one.cut())
    await settle()
    await broker.commit_loop.forget(broker.replica)
    journal = NodeJournal.create(broker.log, 0, group=1, state_name="s-2")
    for index in range(1, 10):
        journal.append(LogEntry(index, 1, EntryKind.REGULAR, bytes(4000)))
        flush(broker.log)
    thread.open()
    await late
    assert broker.log.first_index(0) == 1


async def test_a_flush_of_another_state_cuts_nothing(broker: Broker) -> None:
    """A snapshot that could not be kept was taken back while it was flushed. Meanwhile the old state has got as far."""
    thread, state = Held(), State(broker)
    one = checkpointer(broker, state, Moments(), thread)
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    state.state = State(broker)
    thread.is_open = False
    running = asyncio.ensure_future(one.flush(state))
    await settle()
    state.state = state
    thread.open()
    await running
    await broker.enqueue()
    await one.cut()
    assert broker.log.first_index(0) == 1


async def test_a_flush_that_fails_cuts_nothing(broker: Broker) -> None:
    state = State(broker)
    one = checkpointer(broker, state, Moments(), log_bytes_max=1)
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    state.fails = True
    await flush_and_cut(one, state, broker)
    assert broker.log.first_index(0) == 1
    assert one.is_due(state), "it is tried again"
    state.fails = False
    await flush_and_cut(one, state, broker)
    assert broker.log.first_index(0) > 1


# --- log and state that do not belong together ------------------------------------------------------------------------


async def test_a_state_that_is_ahead_of_the_log_is_refused(broker: Broker, disk: FakeDisk) -> None:
    await broker.enqueue()
    older = disk.copy()
    await broker.enqueue()
    await broker.stop()
    with pytest.raises(RecoveryError, match="synced entries were lost"):
        Broker(older, broker.kv)


async def test_a_state_without_its_log_is_refused(broker: Broker) -> None:
    await broker.enqueue()
    await broker.stop()
    with pytest.raises(RecoveryError, match="synced entries were lost"):
        Broker(FakeDisk(random.Random(0)), broker.kv)


async def test_a_log_whose_beginning_the_state_has_not_seen_is_refused(broker: Broker, disk: FakeDisk) -> None:
    for _ in range(20):
        await broker.enqueue(size_bytes=4000)
    state = State(broker)
    await flush_and_cut(checkpointer(broker, state, Moments()), state, broker)
    await broker.stop()
    with pytest.raises(RecoveryError, match="older than the log"):
        Broker(disk, MemoryKV())
