"""A shard whose rounds a test makes by hand, so that it decides what is on its way at which moment."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import ShardClock
from holdfast.broker.leader.leader import Leadership
from holdfast.broker.leader.reserver import ReserveWanted
from holdfast.broker.leader.roles import NodeContext, OtherShards
from holdfast.broker.leader.webhooks import Notifier, NoWebhooks
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.shard import Shard
from holdfast.machine import entries, run_entries
from holdfast.machine.entries import AckItem, ClaimRef, Entry
from holdfast.machine.ids import SECRET_BITS, SECRET_MAX, format_task_id, later_task_id
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import Machine
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, AcceptedRun, Claimed, Outcome
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.raft.messages import NO_CONFIGURATION, EntryKind, LogEntry
from holdfast.serving.metrics import Total
from holdfast.serving.refusals import RefusedError, disk_low, not_leader
from holdfast.storage.rocksdb import StateFullError
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE, START_MS, new_run, new_task

WAIT_MS = 60_000  # no test waits for its end
TURNS = 10  # of the loop: enough for every task to reach what it waits for

Result = TypeVar("Result")


class StillTime:
    """Clocks that stand unless they are moved."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class MemoryLog:
    """A Replicator without a disk, alone in its group, that leads until it is told otherwise."""

    is_alone = True
    configuration = NO_CONFIGURATION

    def __init__(self) -> None:
        self.term = 1
        self.serves = True
        self.accepts = True
        self.commit_index = 0
        self._entries: list[LogEntry] = []
        self._taken = 0  # a test may run a round while an earlier one is stuck

    @property
    def ready_index(self) -> int:
        return self.commit_index

    def propose(self, command: bytes) -> int:
        self._entries.append(LogEntry(len(self._entries) + 1, self.term, EntryKind.REGULAR, command))
        return len(self._entries)

    def flushed(self) -> None:
        self.commit_index = len(self._entries)

    def aborted(self) -> None:
        del self._entries[self.commit_index :]

    def committed(self, entries_max: int) -> list[LogEntry]:
        taken = self._entries[self._taken : min(self.commit_index, self._taken + entries_max)]
        self._taken += len(taken)
        return taken

    def take_again(self, applied_index: int) -> None:
        """A round ended before all that it had taken was applied."""
        self._taken = applied_index

    def applied(self, index: int) -> None:
        """Nobody asks."""

    def begin_read(self) -> int:
        return 1

    def may_read(self, number: int) -> bool:
        return self.serves


class FillingKV(MemoryKV):
    """A state that can be without room."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.is_full:
            raise StateFullError("there is no room")
        super().write(changes)


def counted(counter: Total) -> float:
    (family,) = counter.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_total"))


async def settle() -> None:
    """Lets everything run that can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class SmallView(StaticClusterView):
    """What a test says of the cluster."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config)
        self.owner: Callable[[NewTask], int | None] = lambda _new: None  # of a task that lives elsewhere
        self.knows_level: Callable[[int], bool] = lambda _level: True

    def owner_of(self, here: int, new: NewTask) -> int:
        owner = self.owner(new)
        return here if owner is None else owner

    def all_know_level(self, members: Collection[str], level: int) -> bool:
        return self.knows_level(level)


class SmallShard:
    """It is the node and the disk of its shard as well."""

    def __init__(
        self,
        *,
        kv: FillingKV | None = None,
        others: OtherShards | None = None,
        notifier: Notifier | None = None,
        **settings: Any,
    ) -> None:
        self.kv = kv or FillingKV()
        self.time = StillTime()
        self.refuses = False  # as a full disk does
        self.machine = Machine(self.kv)
        self.log = MemoryLog()
        self.config, self.metrics = BrokerConfig().model_copy(update=settings), Metrics()
        self.view = SmallView(self.config)
        self._led_term = 0
        self.said: list[bool] = []  # whether it leads, as its node was told
        context = NodeContext(self.config, self.metrics, self, self.view, others, notifier or NoWebhooks())
        self.shard = Shard(self.machine, self.log, self, context)
        self.lead()

    def follow_role(self) -> None:
        """Tells the shard whether it leads, as its replica does: only if that has changed."""
        term = self.log.term if self.log.serves else 0
        if term != self._led_term:
            self._led_term = term
            self.shard.role_changed(term)

    def lead(self) -> None:
        """As if the first entry of the term had been applied; without housekeeping, which tests do by hand."""
        self.follow_role()
        self.shard.proposals.drop_waiting()
        self.leadership.is_open = True

    def lose(self, term: int = 2) -> None:
        """Another one leads."""
        self.log.term, self.log.serves = term, False
        self.follow_role()

    @property
    def leadership(self) -> Leadership:
        assert self.shard.leading is not None
        return self.shard.leading

    # The node.

    def make_clock(self, number: int, last_applied_ms: int) -> ShardClock:
        return ShardClock(self.time, 0)

    def wake(self, number: int) -> None:
        """Rounds are made by hand."""

    def redirect(self, number: int) -> RefusedError:
        return not_leader(0, self.log.term, "elsewhere:1")

    def leading_changed(self, number: int, leads: bool) -> None:
        self.said.append(leads)

    def probe_reached(self, number: int, index: int) -> None:
        """Nobody hashes."""

    # Its disk.

    def check(self, _entry: Entry) -> None:
        if self.refuses:
            raise disk_low(0, 1)

    def found_full(self) -> RefusedError:
        return disk_low(0, 1)

    def has_room_for(self, size_bytes: int) -> bool:
        return not self.refuses

    # Rounds.

    async def round(self) -> None:
        """Everything that waits is written and applied, and its callers get their answers."""
        await settle()
        self.follow_role()
        self.shard.stage()
        self.log.flushed()
        while not await self.shard.apply_committed():  # a large entry on a busy machine takes too long for one go
            self.log.take_again(self.shard.applied_index)
        await settle()
        assert violations(self.kv) == []

    async def round_without_room(self) -> None:
        await settle()
        self.shard.stage()
        self.log.aborted()
        self.shard.aborted(disk_low(0, 1), self.log.commit_index)
        await settle()

    async def rounds_until(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.ensure_future(work)
        await settle()
        while not task.done():
            await self.round()
        return await task

    # Calls.

    async def submit(self, entry: Entry) -> list[Outcome]:
        return await self.rounds_until(self.shard.submit(entry))

    def begin(self, entry: Entry) -> asyncio.Task[list[Outcome]]:
        """A write that has begun; it is in the log, and answered, in a later round."""
        return asyncio.ensure_future(self.shard.submit(entry))

    def begin_enqueue(self, count: int = 1, **changes: Any) -> asyncio.Task[list[Outcome]]:
        return self.begin(entries.Enqueue(self.time.now_ms, [new_task(**changes)] * count))

    async def commit_staged(self) -> None:
        """What waits is written and applied; nobody has had an answer yet."""
        self.shard.stage()
        self.log.flushed()
        await self.shard.apply_committed()

    async def enqueue(self, count: int = 1, **changes: Any) -> list[bytes]:
        tasks = [new_task(**changes)] * count
        outcomes = await self.submit(entries.Enqueue(self.time.now_ms, tasks))
        return [outcome.task_id for outcome in outcomes if isinstance(outcome, Accepted)]

    async def enqueue_run(self, count: int, **changes: Any) -> list[bytes]:
        (accepted,) = await self.submit(run_entries.EnqueueRuns(self.time.now_ms, [new_run(count, **changes)]))
        assert isinstance(accepted, AcceptedRun)
        return [later_task_id(accepted.task_id, index) for index in range(count)]

    async def cancel(self, task_id: bytes) -> None:
        await self.submit(entries.Cancel(self.time.now_ms, KEEP_MS, [task_id]))

    async def ack(self, claim: Claimed) -> Outcome:
        item = AckItem(claim.task_id, claim.token, None, ())
        return (await self.submit(entries.Ack(self.time.now_ms, KEEP_MS, [item])))[0]

    async def release(self, claim: Claimed) -> None:
        await self.submit(entries.Release(self.time.now_ms, KEEP_MS, [ClaimRef(claim.task_id, claim.token)]))

    def reserve(
        self,
        *queues: bytes,
        tasks_max: int = 1,
        wait_ms: int = WAIT_MS,
        worker: bytes = b"worker",
        request_id: bytes = b"",
        queue_tasks_max: dict[bytes, int] | None = None,
        type_lease_ms: dict[bytes, int] | None = None,
        held_only: bool = False,
    ) -> asyncio.Task[list[Claimed]]:
        """A call that has begun; it gets its claims in a later round."""
        limits = queue_tasks_max or {}, type_lease_ms or {}
        wanted = ReserveWanted(
            list(queues or (QUEUE,)), tasks_max, 30_000, wait_ms, worker, request_id, *limits, held_only=held_only
        )
        return asyncio.ensure_future(self._claims(wanted))

    async def _claims(self, wanted: ReserveWanted) -> list[Claimed]:
        claims = await self.shard.reserve(wanted)
        assert isinstance(claims, list)
        return claims

    async def claim(self, *queues: bytes, **options: Any) -> list[Claimed]:
        """Claims what is there now."""
        return await self.rounds_until(_taken(self.reserve(*queues, wait_ms=0, **options)))


def claim_ref(task_id: bytes, token: int) -> pb.ClaimRef:
    """As a caller names a claim."""
    return pb.ClaimRef(task_id=format_task_id(task_id), token=token >> SECRET_BITS, secret=token & SECRET_MAX)


async def _taken(call: asyncio.Task[list[Claimed]]) -> list[Claimed]:
    return await call


async def refusal(call: asyncio.Task[list[Claimed]]) -> str:
    """The reason of a call that is refused at once."""
    await settle()
    assert call.done()
    try:
        await call
    except RefusedError as refused:
        return refused.reason
    return ""
