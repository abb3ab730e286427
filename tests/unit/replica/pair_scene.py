"""A replica of a group of two, driven by rounds: the other is a real engine on a journal in memory."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.commit_loop import CommitLoop, Message
from holdfast.broker.replica.replica import Replica
from holdfast.broker.replica.sync_mode import SyncMode
from holdfast.machine.entries import Enqueue
from holdfast.machine.kv import MemoryKV
from holdfast.machine.outcomes import Outcome
from holdfast.raft.codec import decode, encode
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import MemoryJournal, found
from holdfast.raft.library import Timing
from holdfast.raft.node_journal import NodeJournal
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.startup_checks import recover_shard
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.simulation.lone_replica import LoneHost
from tests.simulation.syncs import beside
from tests.unit.machine.machine_shard import START_MS, new_task
from tests.unit.replica.small_shard import StillTime

SHARD, GROUP = 0, 1
ME, OTHER = "n1/" + "1" * 32, "n2/" + "2" * 32
PATIENT = Timing(heartbeat_s=60, election_s_min=300, election_s_max=600, silence_s_max=290)  # nothing by time alone


class OtherNode:
    """Takes what it is sent, makes it durable at once and answers; or does not listen."""

    def __init__(self) -> None:
        self.listens = True
        self.commit_loop: CommitLoop | None = None
        self.raft = ShardRaft(OTHER, MemoryJournal(), now_s=-1e9, timing=PATIENT, draw=lambda: 0.5)
        self.heard = 0
        self.drops: list[tuple[str, str]] = []

    def send(self, identities: Sequence[str], messages: list[Message]) -> None:
        assert list(identities) == [OTHER]
        if not self.listens:
            return
        for _shard, _group, data in messages:
            self.heard += 1
            self.raft.receive(ME, decode(data), time.monotonic())
        self.raft.synced()
        answers = self.raft.ready.take()
        assert self.commit_loop is not None
        self.commit_loop.receive(OTHER, [(SHARD, GROUP, encode(message)) for _to, message in answers])

    def drop(self, identity: str, detail: str) -> None:
        self.drops.append((identity, detail))

    def pause_reading(self) -> None:
        """It says little."""

    def resume_reading(self) -> None:
        """It says little."""


class Scene:
    def __init__(self, sync_mode: SyncMode | None = None) -> None:
        self.disk = FakeDisk(random.Random(0))
        self.log = NodeLog.open(self.disk, segment_bytes=64 * 1024)
        self.other = OtherNode()
        self.unknown_senders: list[Message] = []  # messages of shards that are not here
        self.guard = DiskGuard(self.disk.free_bytes, 0)
        self.begin_sync = beside(at_once)
        self.metrics = Metrics()
        self.commit_loop = CommitLoop(
            self.log, self.metrics, begin_sync=lambda work: self.begin_sync(work), disk=self.guard, wire=self.other,
            sync_mode=sync_mode,
        )  # fmt: skip
        self.other.commit_loop = self.commit_loop
        kv = self.kv = MemoryKV()
        journal = NodeJournal.create(self.log, SHARD, group=GROUP, state_name="s")
        machine = recover_shard(journal, self.log, kv, SHARD)
        found(journal, [ME, OTHER])

        self.host = LoneHost(self.commit_loop, self.guard, StillTime(), me=ME, timing=PATIENT)
        self.replica = Replica(SHARD, self.log, journal, kv, machine, self.host)
        self.shard = self.replica.shard
        self.commit_loop.attach(self.replica)
        self.running = asyncio.ensure_future(self.commit_loop.run(self))

    @property
    def rounds(self) -> int:
        """That have ended."""
        samples = (sample for metric in self.metrics.round_seconds.collect() for sample in metric.samples)
        return next(int(sample.value) for sample in samples if sample.name.endswith("_count"))

    def join(self, _sender: str, message: Message) -> None:
        self.unknown_senders.append(message)

    def note_other_group(self, sender: str, number: int) -> None:
        """There is one group."""

    async def leading(self) -> "Scene":
        self.replica.raft.election_deadline_s = 0.0
        self.commit_loop.wake(SHARD)
        while not self.shard.serves:
            await self.replica.next_round()
        return self

    def enqueue(self, size_bytes: int = 10) -> "asyncio.Task[list[Outcome]]":
        entry = Enqueue(START_MS, [new_task(envelope=bytes(size_bytes))])
        return asyncio.ensure_future(self.shard.submit(entry))

    async def enqueue_for_ever(self) -> None:
        while True:
            await self.enqueue(size_bytes=4000)

    async def stop(self) -> None:
        await self.shard.stop()
        if not self.running.done():
            self.commit_loop.stop()
            self.commit_loop.wake(SHARD)
            await self.running


async def at_once(work: Callable[[], None]) -> None:
    work()
