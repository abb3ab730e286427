"""Whole nodes of a group on simulated machines: real rounds, replicas, shards, journals, logs and checkpoints.

Disks forget what was not synced, states forget what was not flushed, the network loses, repeats, reorders and is cut,
processes are stopped, killed or lose their power, and disks are slow or full, wherever the seed says. What every
replica applies is compared while it is applied.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.leader.clock import ShardClock, carried_on
from holdfast.broker.leader.reserver import Applied
from holdfast.broker.leader.roles import NodeContext
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.commit_loop import CommitLoop, Message
from holdfast.broker.replica.replica import NewState, Replica
from holdfast.broker.replica.shard import Shard
from holdfast.machine import machine as state_machine
from holdfast.machine.effects import Effects
from holdfast.machine.entries import Entry
from holdfast.machine.kv import MemoryKV, OrderedKV, Rows, rows_of, state_hash
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import found
from holdfast.raft.library import Timing
from holdfast.raft.messages import NO_CONFIGURATION, Configuration, LogEntry
from holdfast.raft.node_journal import NodeJournal
from holdfast.serving.refusals import RefusedError, not_leader
from holdfast.storage.checkpoints import Checkpointer
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.startup_checks import recover_shard
from holdfast.wal.errors import DiskFullError
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.simulation.group_plan import Plan
from tests.simulation.syncs import beside
from tests.simulation.world import ROOMY_BYTES, BrokenPromiseError, SimulatedProcess, SimulatedTime, VolatileKV

SHARDS = (0, 1)
WATCH_SECONDS = 0.3
HASHED_ENTRIES = 11  # states are compared after every so many
FOUNDING = "founding"  # the name of a replica's first state

Result = TypeVar("Result")

_METRICS = Metrics()
_TIMING = Timing()


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class Watch:
    """Compares what the replicas apply, and who leads. Raises BrokenPromiseError at the first contradiction."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], LogEntry] = {}  # by shard and index
        self._hashes: dict[tuple[int, int], str] = {}
        self.leaders: dict[tuple[int, int], str] = {}  # by shard and term
        self.compared = 0  # states that were the same
        self.snapshots = 0
        self.dropped_rounds = 0

    def applied(self, shard: int, who: str, entry: LogEntry) -> None:
        known = self._entries.setdefault((shard, entry.index), entry)
        if known != entry:
            raise BrokenPromiseError(
                f"{who} applied another entry {entry.index} of shard {shard}: of term {entry.term}, not {known.term}"
            )

    def state(self, shard: int, who: str, index: int, state: Rows) -> None:
        if index % HASHED_ENTRIES:
            return
        digest = state_hash(state)
        known = self._hashes.setdefault((shard, index), digest)
        if known != digest:
            raise BrokenPromiseError(f"{who} has another state of shard {shard} at entry {index}")
        self.compared += 1

    def leads(self, shard: int, term: int, who: str) -> None:
        if (shard, term) in self.leaders:
            raise BrokenPromiseError(
                f"{who} serves shard {shard} in term {term}, which {self.leaders[shard, term]} has served"
            )
        self.leaders[shard, term] = who


@dataclass
class _WatchedDisk:
    """As the rounds have it: those that find no room are counted."""

    guard: DiskGuard
    watch: Watch

    def check(self, entry: Entry) -> None:
        self.guard.check(entry)

    def has_room_for(self, size_bytes: int) -> bool:
        return self.guard.has_room_for(size_bytes)

    def found_full(self) -> RefusedError:
        self.watch.dropped_rounds += 1
        return self.guard.found_full()


class WatchedShard(Shard):
    """A shard that takes a while to apply something, and tells what it was."""

    watch: Watch
    who: str
    take_a_while: Callable[[], Awaitable[None]]

    async def apply_committed(self, *, callers_first: bool = False) -> bool:
        await self.take_a_while()
        return await super().apply_committed(callers_first=callers_first)

    def _apply_slice(self, committed: Sequence[LogEntry], start: int, started: float) -> tuple[int, Applied]:
        to, applied = super()._apply_slice(committed, start, started)
        for entry in committed[start:to]:
            self.watch.applied(self.number, self.who, entry)
        return to, applied

    def _follow(self, effects: Effects, applied: Applied) -> None:
        super()._follow(effects, applied)
        self.watch.state(self.number, self.who, self.applied_index, self.reader)


class Network:
    """Frames between nodes. Each takes its own time, so one may overtake another."""

    def __init__(self, rng: random.Random, plan: Plan) -> None:
        self._rng = rng
        self.latency_seconds = plan.latency_seconds
        self.loss = plan.loss
        self.repetition = plan.repetition
        self.cuts: list[frozenset[tuple[str, str]]] = []  # ways from one to another on which nothing comes through
        self.nodes: dict[str, Node] = {}  # that run, by identity

    def is_cut(self, source: str, target: str) -> bool:
        return any((source, target) in ways for ways in self.cuts)

    def send(self, source: str, target: str, messages: list[Message]) -> None:
        rng, loop = self._rng, asyncio.get_running_loop()
        for _copy in range(2 if rng.random() < self.repetition else 1):
            if rng.random() >= self.loss:
                loop.call_later(rng.expovariate(1 / self.latency_seconds), self._deliver, source, target, messages)

    def _deliver(self, source: str, target: str, messages: list[Message]) -> None:
        node = self.nodes.get(target)
        if node is not None and not self.is_cut(source, target):
            node.commit_loop.receive(source, messages)

    def heal(self) -> None:
        self.cuts.clear()
        self.loss = self.repetition = 0.0


class NodeWire:
    def __init__(self, network: Network, me: str) -> None:
        self._network = network
        self._me = me

    def send(self, identities: Sequence[str], messages: list[Message]) -> None:
        for identity in identities:
            self._network.send(self._me, identity, messages)

    def drop(self, identity: str, detail: str) -> None:
        raise ValueError(f"Expected no message of {identity} to be refused, for it is correct, but one was: {detail}.")

    def pause_reading(self) -> None:
        """Everything fits."""

    def resume_reading(self) -> None:
        """Nothing was paused."""


class PausableRounds(CommitLoop):
    """The rounds of a process that can be stopped and continued, as by SIGSTOP and SIGCONT."""

    going: asyncio.Event

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unread: list[tuple[str, list[Message]]] = []  # what came while it was stopped

    async def _wait(self) -> None:
        await super()._wait()
        await self.going.wait()
        self._read()

    def receive(self, sender: str, messages: list[Message]) -> None:
        self._unread.append((sender, messages))
        self._want_round()
        self._read()

    def _read(self) -> None:
        if self.going.is_set():
            unread, self._unread = self._unread, []
            for sender, messages in unread:
                super().receive(sender, messages)

    def _beat(self) -> None:
        if self.going.is_set():
            super()._beat()
        else:
            self._beats = None  # it comes again with the next round


class Machine:
    """What outlives a process."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.identity = f"n{number}/{str(number) * 32}"
        self.founds = number == 1
        self.rng = rng
        self.disk = FakeDisk(random.Random(rng.random()))
        self.states: dict[tuple[int, str], VolatileKV] = {}  # by shard and name
        self.sync_factor = 1.0  # how slow the disk is
        self.no_room = 0.0  # how likely a round finds none, while it is like that
        self.is_healed = False

    def lose(self, *, power_fails: bool) -> None:
        if power_fails:
            self.disk.crash()
        else:
            self.disk.restart()
        for state in self.states.values():
            state.crash(self.rng)

    def keep_only(self, shard: int, name: str | None) -> None:
        """Removes the other states of a shard: those that came to nothing, and those that were replaced."""
        for key in [key for key in self.states if key[0] == shard and key[1] != name]:
            del self.states[key]

    def fill(self, free_bytes: int) -> None:
        self.disk.capacity_bytes += free_bytes - self.disk.free_bytes()

    def heal(self) -> None:
        self.disk.capacity_bytes = ROOMY_BYTES
        self.disk.crash_after(1 << 60)
        self.disk.fail_next_sync = False
        self.sync_factor, self.no_room, self.is_healed = 1.0, 0.0, True
        for state in self.states.values():
            state.is_full = state.fail_next_flush = False


class Node(SimulatedProcess):
    """One process, from its start to its end."""

    watch_seconds = WATCH_SECONDS

    def __init__(self, plan: Plan, machine: Machine, network: Network, watch: Watch, voters: list[str]) -> None:
        super().__init__(machine.rng)
        self.machine = machine
        self.plan = plan
        self.network = network
        self.watch = watch
        self._voters = voters
        self._time = SimulatedTime()
        self.config = plan.config()
        self.replicas: dict[int, Replica] = {}
        self.copies: dict[int, Copies] = {}

    @property
    def me(self) -> str:
        return self.machine.identity

    # --- start ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """SimulatedCrash passes through."""
        machine, plan, loop = self.machine, self.plan, asyncio.get_running_loop()
        self.log = NodeLog.open(machine.disk, segment_bytes=plan.segment_bytes, random_bytes=machine.rng.randbytes)
        self.guard = DiskGuard(machine.disk.free_bytes, 0)
        self.commit_loop = PausableRounds(
            self.log, _METRICS, begin_sync=beside(self._sync), disk=_WatchedDisk(self.guard, self.watch),
            wire=NodeWire(self.network, self.me), monotonic=loop.time,
        )  # fmt: skip
        self.commit_loop.going = self.going
        self.checkpointer = Checkpointer(
            self.log, lambda: list(self.replicas.values()),
            log_bytes_max=plan.flush_bytes, age_seconds_max=plan.flush_age_seconds, keep_bytes=plan.keep_bytes,
            run_blocking=lambda function: self.run_blocking(function, plan.flush_seconds), monotonic=loop.time,
        )  # fmt: skip
        for number in SHARDS:
            self._open_known(number)
        if machine.founds and not self.replicas:
            for number in SHARDS:
                journal = self._create(number, number + 1)
                found(journal, self._voters)
                self._open(number, journal)
        for work in (self.commit_loop.run(self), self._watch(), self.checkpoint_now_and_then()):
            self.begin(work)
        self.network.nodes[self.me] = self

    def _open_known(self, number: int) -> None:
        journal = NodeJournal.load(self.log, number)
        self.machine.keep_only(number, journal.state_name if journal is not None else FOUNDING)
        if journal is not None:
            self._open(number, journal)
        elif (number, FOUNDING) in self.machine.states:
            state = self.machine.states.pop((number, FOUNDING))
            if state_machine.Machine(state).meta.applied_index:
                raise BrokenPromiseError(f"{self.me} has a state of shard {number}, but its log knows nothing of it")

    def _create(self, number: int, group: int) -> NodeJournal:
        self.machine.states[number, FOUNDING] = VolatileKV()
        return NodeJournal.create(self.log, number, group=group, state_name=FOUNDING)

    def join(self, sender: str, message: Message) -> Replica:
        number, group, _data = message
        return self._open(number, self._create(number, group))

    def _open(self, number: int, journal: NodeJournal) -> Replica:
        kv = self.machine.states[number, journal.state_name]
        machine = recover_shard(journal, self.log, kv, number)
        replica = Replica(number, self.log, journal, kv, machine, self)
        self.copies[number] = Copies(self, replica)
        self.replicas[number] = replica
        self.commit_loop.attach(replica)
        return replica

    def make_engine(self, journal: NodeJournal, applied_index: int, shard_time_ms: Callable[[], int]) -> ShardRaft:
        return ShardRaft(
            self.me, journal, now_s=loop_time(), applied_index=applied_index, timing=_TIMING,
            draw=self.machine.rng.random, shard_time_ms=shard_time_ms,
        )  # fmt: skip

    def make_shard(self, raft: ShardRaft, machine: state_machine.Machine) -> Shard:
        context = NodeContext(self.config, _METRICS, self.guard, StaticClusterView(self.config))
        shard = WatchedShard(machine, raft, self, context)
        shard.watch, shard.who = self.watch, self.me
        shard.take_a_while = lambda: self.take_a_while(self.plan.apply_pause_seconds)
        return shard

    # --- what a replica needs ---------------------------------------------------------------------------------

    def note_other_group(self, sender: str, number: int) -> None:
        raise BrokenPromiseError(f"{sender} has another founding of shard {number}")

    def replica_polled(self, number: int, now_s: float) -> None:
        self.copies[number].poll(now_s)

    def snapshot_message(self, number: int, sender: str, data: bytes) -> None:
        raise AssertionError("snapshots come another way here")

    def log_needed_after(self, number: int) -> int | None:
        return self.copies[number].held_index

    # --- what a shard needs -----------------------------------------------------------------------------------

    def make_clock(self, number: int, last_applied_ms: int) -> ShardClock:
        raft = self.replicas[number].raft
        heard_ms_ago = (loop_time() - raft.leader_time_heard_s) * 1000
        return ShardClock(self._time, last_applied_ms, continued=carried_on(raft.leader_time_ms, heard_ms_ago))

    def wake(self, number: int) -> None:
        self.commit_loop.wake(number)

    def redirect(self, number: int) -> RefusedError:
        return not_leader(number, self.replicas[number].raft.term, None)

    def leading_changed(self, number: int, leads: bool) -> None:
        if leads:
            self.watch.leads(number, self.replicas[number].raft.term, self.me)

    def probe_reached(self, number: int, index: int) -> None:
        """Nobody hashes."""

    # --- life -------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        self.network.nodes.pop(self.me, None)
        await self.end_all(replica.shard for replica in self.replicas.values())

    async def _watch(self) -> None:
        while True:
            if self.guard.poll():
                for replica in self.replicas.values():
                    replica.shard.serve_all_waiters()
            for replica in self.replicas.values():
                failure = replica.shard.failed()
                if failure is not None:
                    raise failure
            await asyncio.sleep(WATCH_SECONDS)

    async def _sync(self, function: Callable[[], None]) -> None:
        machine = self.machine
        if machine.rng.random() < max(machine.no_room, 0.0 if machine.is_healed else self.plan.no_room):
            await self.take_a_while(self.plan.sync_seconds)
            raise DiskFullError("no room for the segment that this round needs")
        await self.run_blocking(function, self.plan.sync_seconds * machine.sync_factor)


@dataclass(frozen=True)
class Snapshot:
    sender: str
    term: int
    index: int
    index_term: int
    configuration: Configuration
    rows: dict[bytes, bytes]


class Copies:
    """The snapshots of one replica, both ways, as snapshot_transfers.py has them: but a state is copied row by row."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self._node = node
        self._replica = replica
        self._sending: dict[str, int] = {}  # to whom, and the entry that the snapshot ends with
        self._is_receiving = False
        self._received = 0

    @property
    def held_index(self) -> int | None:
        return min(self._sending.values(), default=None)

    def poll(self, _now_s: float) -> None:
        for peer in self._replica.raft.wants_snapshot():
            if peer not in self._sending:
                snapshot = self._take()
                self._sending[peer] = snapshot.index
                self._node.begin(self._send(peer, snapshot))

    def _take(self) -> Snapshot:
        replica = self._replica
        rows = dict(rows_of(replica.shard.reader, b"\x00", b"\xff"))
        meta = state_machine.Machine(MemoryKV(rows)).meta
        known = [
            configuration for index, configuration in replica.journal.configurations if index <= meta.applied_index
        ]
        configuration = known[-1] if known else NO_CONFIGURATION
        return Snapshot(self._node.me, replica.raft.term, meta.applied_index, meta.applied_term, configuration, rows)

    async def _send(self, peer: str, snapshot: Snapshot) -> None:
        node = self._node
        await asyncio.sleep(node.machine.rng.expovariate(1 / node.plan.copy_seconds))
        target = node.network.nodes.get(peer)
        if target is not None and not node.network.is_cut(node.me, peer) and not node.network.is_cut(peer, node.me):
            copies = target.copies.get(self._replica.number)
            if copies is not None:
                copies.receive(snapshot)
        await asyncio.sleep(node.machine.rng.random())  # the answer takes its time, too
        del self._sending[peer]

    def receive(self, snapshot: Snapshot) -> None:
        raft = self._replica.raft
        is_needed = snapshot.index > raft.commit_index and raft.term_at(snapshot.index) != snapshot.index_term
        if not self._is_receiving and is_needed and snapshot.term >= raft.term:
            self._is_receiving = True
            self._node.begin(self._install(snapshot))

    async def _install(self, snapshot: Snapshot) -> None:
        node, replica = self._node, self._replica
        self._received += 1
        name = f"{snapshot.index}-{snapshot.term}-{loop_time():.6f}-{self._received}"
        kv = node.machine.states[replica.number, name] = VolatileKV()
        kv.write(snapshot.rows)
        kv.flush()
        await node.take_a_while(node.plan.flush_seconds)
        ended: asyncio.Future[tuple[bool, OrderedKV]] = asyncio.get_running_loop().create_future()

        def end(taken: bool, unneeded: OrderedKV) -> None:
            ended.set_result((taken, unneeded))

        replica.offer_state(
            NewState(
                snapshot.sender, snapshot.term, snapshot.index, snapshot.index_term, snapshot.configuration, name,
                kv, state_machine.Machine(kv), end,
            )
        )  # fmt: skip
        node.commit_loop.wake(replica.number)
        taken, unneeded = await ended
        if taken:
            node.watch.snapshots += 1
            node.checkpointer.forget(replica.number)
        states = node.machine.states
        for key in [key for key, state in states.items() if state is unneeded]:
            del states[key]
        self._is_receiving = False
