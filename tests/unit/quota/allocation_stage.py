"""Shards that share the limits of a spread queue: machines, coordinators, managers, and a net that may lose calls."""

import asyncio
import random
from collections.abc import Sequence

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import Policies
from holdfast.broker.quota.allocation_manager import AllocationManager
from holdfast.broker.quota.coordinator import CONCURRENCY, QuotaCoordinator
from holdfast.broker.scheduler.allocation_use import Outlook
from holdfast.broker.scheduler.limiter import Allowance
from holdfast.limits.equal_parts import WHOLE, Part
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine import entries, keys
from holdfast.machine.entries import Entry, LeaderStarted
from holdfast.machine.kv import MemoryKV
from holdfast.machine.outcomes import Outcome
from holdfast.machine.rows import Queue
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from tests.unit.machine.machine_shard import QUEUE, START_MS, Shard, new_task

HOME = 0
HELD_UP = Outlook(is_open=True, was_short_of_slots=True, was_short_of_rate=True, most_in_use=0)


class LostError(Exception):
    """Nobody answers."""


class Time:
    """True time; the clocks of shards run a little off it."""

    def __init__(self) -> None:
        self.now_ms = 0


class Member:
    """A shard and its present leader. Its scheduler knows the allowance that it was last told of, and no newer one."""

    def __init__(self, number: int, time: Time, stage: "Stage", percent: int = 100) -> None:
        self.number = number
        self.shard = Shard(shard=number)
        self.kv: MemoryKV = self.shard.kv
        self.stage = stage
        self._time = time
        self._percent = percent  # of true time is how fast its clocks run
        self.stepped_ms = 0  # by how much shard time was moved
        self.held: list[tuple[bytes, int]] = []  # claims
        self.ready: list[bytes] = []
        self.reported = Allowance(None, None)
        self.writes_fail = False
        self.writes = 0
        self.term = 0
        self.version = 0
        self.on_their_way = 0  # claims
        self.is_home_known = True
        self.part: Part = WHOLE

    def set_policy(self, **policy: object) -> None:
        self.version += 1
        message = QueuePolicy(**policy).SerializeToString()  # type: ignore[arg-type]
        self.shard.apply(entries.SetQueue(self.shard_ms(), QUEUE, self.version, message))
        if self.term:
            self.policies.changed([QUEUE])
            self.limits_changed(QUEUE)

    def lead(self) -> None:
        """A new leader: it has the state, and nothing else."""
        self.term += 1
        self.shard.apply(LeaderStarted(self.shard_ms(), False))
        self.policies = Policies(self.shard.machine.reader, BrokerConfig())
        self.coordinator = QuotaCoordinator(
            self.shard.machine, self.policies, now_ms=self.shard_ms, submit=self.submit
        )  # fmt: skip
        self.manager = AllocationManager(
            self.term, self.shard.machine, self.policies, self.coordinator, view=self, others=self.stage,
            handing_out=self, now_s=self.own_s,
        )  # fmt: skip
        self.limits_changed(QUEUE)

    def home_if_spread(self, queue: bytes) -> int | None:
        return HOME if self.is_home_known else None

    def part_of(self, here: int, queue: bytes) -> Part:
        return self.part

    def coming(self, queue: bytes) -> int:
        return self.on_their_way

    def limits_changed(self, queue: bytes) -> None:
        assert queue == QUEUE
        self.reported = self.manager.allowance(queue)

    def outlook(self, queue: bytes) -> Outlook:
        assert queue == QUEUE
        return HELD_UP

    def own_s(self) -> float:
        return 1000 + self._time.now_ms * self._percent / 100_000

    def shard_ms(self) -> int:
        return START_MS + self.stepped_ms + self._time.now_ms * self._percent // 100

    def step_clock(self, by_ms: int) -> None:
        self.stepped_ms += by_ms
        self.shard.apply(LeaderStarted(self.shard_ms(), True))

    async def allocate(self, shard: int, reports: Sequence[LimitReport]) -> list[LimitGrant]:
        return await self.coordinator.allocate(shard, reports, self.manager)

    async def submit(self, entry: Entry) -> list[Outcome]:
        await asyncio.sleep(0)
        if self.writes_fail:
            raise LostError
        self.writes += 1
        return self.shard.apply(entry)

    # Tasks.

    def enqueue(self, count: int) -> None:
        accepted = self.shard.enqueue_all(*[new_task(run_at_ms=0)] * count)
        self.ready += [task.task_id for task in accepted]

    def claim(self) -> None:
        """Claims all it may."""
        row = self.row
        while self.ready and (self.reported.concurrency is None or row.claimed < self.reported.concurrency):
            task_id = self.ready.pop()
            self.held.append((task_id, self.shard.claim(task_id)))

    def finish(self, count: int = 1) -> None:
        for _ in range(min(count, len(self.held))):
            self.shard.ack(*self.held.pop(0))

    @property
    def row(self) -> Queue:
        row = self.shard.machine.queue(QUEUE)
        assert row is not None
        return row


class Stage:
    def __init__(
        self,
        shards: int,
        seed: int = 0,
        *,
        lost: float = 0.0,
        drift: bool = False,
        member: type[Member] = Member,
        **policy: object,
    ) -> None:
        self.chance = random.Random(seed)
        self.time = Time()
        self.lost = lost
        self.deaf: set[int] = set()  # shards that hear nothing of others
        self.asked = 0
        percents = [self.chance.choice((90, 100, 110)) if drift else 100 for _ in range(shards)]
        self.members = [member(number, self.time, self, percents[number]) for number in range(shards)]
        for item in self.members:
            item.set_policy(**policy)
            item.enqueue(1)
            item.shard.cancel(item.ready.pop())  # its row is there, and nothing waits
            item.lead()

    async def allocate(self, destination: int, source: int, reports: Sequence[LimitReport]) -> Sequence[LimitGrant]:
        self.asked += 1
        if source in self.deaf or self.chance.random() < self.lost / 2:
            raise LostError
        grants = await self.members[destination].allocate(source, reports)
        if self.chance.random() < self.lost / 2:
            raise LostError  # on its way back
        return grants

    async def poll(self, ms: int = 0, *, work: bool = True) -> None:
        """Some time passes, all shards look, and hand out what they may."""
        self.time.now_ms += ms
        for member in self.members:
            member.shard.now_ms = member.shard_ms()
            member.manager.poll()
        await asyncio.gather(*(task for member in self.members for task in member.manager.asking.values()))
        for member in self.members:
            assert member.manager.failed() is None
            if work:
                member.claim()

    async def pass_time(self, ms: int, step_ms: int = 500, *, work: bool = True) -> None:
        for _ in range(ms // step_ms):
            await self.poll(step_ms, work=work)

    @property
    def claimed(self) -> int:
        return sum(member.row.claimed for member in self.members)

    @property
    def allowed(self) -> list[int | None]:
        return [member.reported.concurrency for member in self.members]


def report(number: int, *, holds: int = 0, uses: int = 0, demand: int = 0, what: str = CONCURRENCY) -> LimitReport:
    return LimitReport(QUEUE, what, holds, uses, demand, (1 << 32) + number)


def ledger_rows(home: Member) -> int:
    prefix = keys.allocations_of(QUEUE, 0x63)
    return len(home.kv.scan(prefix, keys.after_prefix(prefix), 100))
