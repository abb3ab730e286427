"""A group of one, put together as a node does it, on whatever disk, state and clocks a test has."""

from collections.abc import Callable

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import ShardClock, TimeSource
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
from holdfast.raft.messages import Kind
from holdfast.raft.node_journal import NodeJournal
from holdfast.serving.refusals import not_leader
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.startup_checks import recover_shard
from holdfast.wal.node_log import NodeLog

SHARD = 0
ME = "n1/" + "0" * 32


def lone_replica(
    log: NodeLog,
    kv: OrderedKV,
    rounds: CommitLoop,
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

    def make_engine(journal: NodeJournal, applied_index: int) -> ShardRaft:
        return ShardRaft(ME, journal, now_s=monotonic(), applied_index=applied_index, timing=Timing(), draw=draw)

    def make_shard(_replica: Replica, raft: ShardRaft) -> Shard:
        return Shard(
            kv, machine, raft, config, metrics,
            make_clock=lambda applied_ms: ShardClock(source, applied_ms),
            wake_rounds=lambda: rounds.wake(SHARD), check_disk=guard.check, found_full=guard.found_full,
            redirect=lambda: not_leader(SHARD, 0, None),
        )  # fmt: skip

    replica = Replica(SHARD, log, journal, make_engine, make_shard, machine.meta.applied_index)
    rounds.attach(replica)
    return replica


def replay(log: NodeLog, kv: OrderedKV) -> None:
    """Everything that is in the log, from its beginning."""
    machine = Machine(kv, shard=SHARD)
    for record in log.entries(SHARD, 0):
        entry = decode_payload(record.index, record.term, record.payload)
        if entry.kind == Kind.REGULAR:
            machine.apply(entry.index, entry.term, decode(entry.command))
        else:
            machine.pass_over(entry.index, entry.term)
    machine.commit()
