"""A group of one, put together as a node does it, on whatever disk, state and clocks a test has."""

import time
from collections.abc import Callable

from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import ShardClock, TimeSource
from holdfast.broker.leader.roles import NodeContext
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.replica import Replica
from holdfast.broker.replica.shard import Shard
from holdfast.machine.entries import decode
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.raft.codec import decode_payload
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import found
from holdfast.raft.library import Timing
from holdfast.raft.messages import EntryKind
from holdfast.raft.node_journal import NodeJournal
from holdfast.serving.refusals import RefusedError, not_leader
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.startup_checks import recover_shard
from holdfast.wal.node_log import NodeLog

SHARD = 0
ME = "n1/" + "0" * 32


class LoneHost:
    """A node with nothing but one replica, and nobody beside it."""

    def __init__(
        self,
        commit_loop: CommitLoop,
        guard: DiskGuard,
        source: TimeSource,
        config: BrokerConfig | None = None,
        metrics: Metrics | None = None,
        *,
        me: str = ME,
        timing: Timing | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = lambda: 0.5,
    ) -> None:
        config = config or BrokerConfig()
        self._context = NodeContext(config, metrics or Metrics(), guard, StaticClusterView(config))
        self._commit_loop = commit_loop
        self._source = source
        self._me = me
        self._timing = timing or Timing()
        self._monotonic = monotonic
        self._draw = draw

    def make_engine(self, journal: NodeJournal, applied_index: int, shard_time_ms: Callable[[], int]) -> ShardRaft:
        return ShardRaft(
            self._me, journal, now_s=self._monotonic(), applied_index=applied_index, timing=self._timing,
            draw=self._draw, shard_time_ms=shard_time_ms,
        )  # fmt: skip

    def make_shard(self, raft: ShardRaft, machine: Machine) -> Shard:
        return Shard(machine, raft, self, self._context)

    def replica_polled(self, number: int, now_s: float) -> None:
        """Nothing changes slowly."""

    def snapshot_message(self, number: int, sender: str, data: bytes) -> None:
        """Nobody lags."""

    def log_needed_after(self, number: int) -> int | None:
        return None

    def make_clock(self, number: int, last_applied_ms: int) -> ShardClock:
        return ShardClock(self._source, last_applied_ms)

    def wake(self, number: int) -> None:
        self._commit_loop.wake(number)

    def redirect(self, number: int) -> RefusedError:
        return not_leader(number, 0, None)

    def leading_changed(self, number: int, leads: bool) -> None:
        """Nobody has to know."""

    def probe_reached(self, number: int, index: int) -> None:
        """Nobody hashes."""


def lone_replica(
    log: NodeLog,
    kv: OrderedKV,
    commit_loop: CommitLoop,
    guard: DiskGuard,
    source: TimeSource,
    config: BrokerConfig,
    metrics: Metrics,
    *,
    monotonic: Callable[[], float],
    draw: Callable[[], float],
) -> Replica:
    journal = NodeJournal.load(log, SHARD)
    if journal is None:
        journal = NodeJournal.create(log, SHARD, group=1, state_name="s")
        machine = recover_shard(journal, log, kv, SHARD)
        found(journal, [ME])
    else:
        machine = recover_shard(journal, log, kv, SHARD)

    host = LoneHost(commit_loop, guard, source, config, metrics, monotonic=monotonic, draw=draw)
    replica = Replica(SHARD, log, journal, kv, machine, host)
    commit_loop.attach(replica)
    return replica


def replay(log: NodeLog, kv: OrderedKV) -> None:
    """Everything that is in the log, from its beginning."""
    machine = Machine(kv, shard=SHARD)
    for record in log.entries(SHARD, 0):
        entry = decode_payload(record.index, record.term, record.payload)
        if entry.kind == EntryKind.REGULAR:
            machine.apply(entry.index, entry.term, decode(entry.command))
        else:
            machine.pass_over(entry.index, entry.term)
    machine.commit()
