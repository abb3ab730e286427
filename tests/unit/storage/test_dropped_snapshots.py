"""A snapshot whose round finds no room is taken back: what is known of its state says nothing of the one before."""

import asyncio
import random
from collections.abc import Callable

from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.replica import NewState, Replica
from holdfast.machine import entries
from holdfast.machine.machine import Machine
from holdfast.raft.codec import configuration_entry, encode
from holdfast.raft.library import Timing
from holdfast.raft.messages import Append, Configuration, EntryKind, LogEntry
from holdfast.raft.node_journal import NodeJournal
from holdfast.storage.checkpoints import Checkpointer
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.startup_checks import recover_shard
from holdfast.wal.errors import DiskFullError
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.simulation.lone_replica import LoneHost
from tests.simulation.syncs import beside
from tests.simulation.world import VolatileKV
from tests.unit.machine.machine_shard import START_MS, new_task
from tests.unit.replica.small_shard import StillTime

SHARD, GROUP = 0, 1
ME, LEADER, THIRD = (f"n{n}/" + str(n) * 32 for n in (1, 2, 3))
MEMBERS = Configuration.of(1, [ME, LEADER, THIRD])
PATIENT = Timing(heartbeat_s=60, election_s_min=300, election_s_max=600, silence_s_max=290)  # nothing by time alone
APPLIED, IN_SNAPSHOT = 20, 100


def _entry(index: int) -> LogEntry:
    if index == 1:
        return configuration_entry(1, 1, MEMBERS)
    return LogEntry(index, 1, EntryKind.REGULAR, entries.encode(entries.Enqueue(START_MS + index, [new_task()])))


ENTRIES = [_entry(index) for index in range(1, IN_SNAPSHOT + 1)]


class Follower:
    """A replica, the rounds that drive it and the checkpointer that flushes it, on a disk that can be full."""

    def __init__(self) -> None:
        self.disk = FakeDisk(random.Random(0))
        self.log = NodeLog.open(self.disk, segment_bytes=64 * 1024)
        self.kv = VolatileKV()
        self.sync_begins, self.sync_may_end = asyncio.Event(), asyncio.Event()
        self.sync_may_end.set()
        self.is_full = False
        self.frames = 0
        guard = DiskGuard(self.disk.free_bytes, 0)
        self.commit_loop = CommitLoop(self.log, Metrics(), begin_sync=beside(self._sync), disk=guard)
        journal = NodeJournal.create(self.log, SHARD, group=GROUP, state_name="s")
        machine = recover_shard(journal, self.log, self.kv, SHARD)

        host = LoneHost(self.commit_loop, guard, StillTime(), me=ME, timing=PATIENT)
        self.replica = Replica(SHARD, self.log, journal, self.kv, machine, host)
        self.commit_loop.attach(self.replica)
        self.checkpointer = Checkpointer(
            self.log, lambda: [self.replica], log_bytes_max=1 << 30, age_seconds_max=0.0, keep_bytes=0,
            run_blocking=_at_once,
        )  # fmt: skip
        self.running = asyncio.ensure_future(self.commit_loop.run())

    async def _sync(self, work: Callable[[], None]) -> None:
        self.sync_begins.set()
        await self.sync_may_end.wait()
        if self.is_full:
            self.is_full = False
            raise DiskFullError("no room for the segment that this round needs")
        work()

    def hears(self, previous: int, sent: list[LogEntry], commit: int) -> None:
        self.frames += 1
        term = 1 if previous else 0
        message = Append(1, previous, term, tuple(sent), commit, self.frames)
        self.commit_loop.receive(LEADER, [(SHARD, GROUP, encode(message))])

    async def is_offered_a_snapshot(self, ended: Callable[[bool], None]) -> None:
        """Returns when the round that takes it is being synced."""
        kv = VolatileKV()
        machine = Machine(kv)
        for entry in ENTRIES:
            if entry.kind == EntryKind.REGULAR:
                machine.apply(entry.index, entry.term, entries.decode(entry.command))
            else:
                machine.pass_over(entry.index, entry.term)
        machine.commit()
        self.sync_may_end.clear()
        self.sync_begins.clear()
        self.replica.offer_state(
            NewState(LEADER, 1, IN_SNAPSHOT, 1, MEMBERS, "s-100", kv, machine, lambda taken, _unneeded: ended(taken))
        )
        self.commit_loop.wake(SHARD)
        await self.sync_begins.wait()

    async def crash(self) -> NodeLog:
        self.commit_loop.stop()
        self.commit_loop.wake(SHARD)
        await self.running
        self.kv.crash(random.Random(0))
        return NodeLog.open(self.disk, segment_bytes=64 * 1024)


async def _at_once(work: Callable[[], None]) -> None:
    work()


async def test_the_log_is_not_cut_by_what_was_flushed_of_a_snapshot_that_was_taken_back() -> None:
    follower = Follower()
    follower.hears(0, ENTRIES[:APPLIED], APPLIED)
    while follower.replica.applied_index < APPLIED:
        await follower.replica.next_round()
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    await follower.is_offered_a_snapshot(ended.set_result)
    await follower.checkpointer.poll()  # flushes the state that came
    follower.is_full = True
    follower.sync_may_end.set()
    assert not await ended
    assert follower.replica.applied_index == APPLIED, "the state before is back"

    follower.checkpointer.compact(follower.replica)
    follower.hears(APPLIED, [ENTRIES[APPLIED]], APPLIED + 1)
    while follower.replica.applied_index == APPLIED or not follower.replica.journal.is_durable:
        await follower.replica.next_round()
    assert follower.replica.durable_base_index == 0, "nothing of this state was ever flushed"
    log = await follower.crash()
    journal = NodeJournal.load(log, SHARD)
    assert journal is not None
    machine = recover_shard(journal, log, follower.kv, SHARD)
    assert machine.meta.applied_index + len(list(log.entries(SHARD, machine.meta.applied_index))) == APPLIED + 1
