"""What a start does before it serves: open the log, open the state, and apply what the state is missing."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.broker.log.node_log import NodeLog
from holdfast.machine.entries import decode
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine

COMMIT_BYTES = 1024 * 1024  # how much of the log is applied between two commits


class RecoveryError(RuntimeError):
    """Log and state do not belong together; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Recovered:
    machine: Machine
    entries_replayed: int


def recover_shard(
    log: NodeLog, kv: OrderedKV, shard: int, *, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> Recovered:
    """The machine of a shard, with everything applied that is in the log."""
    machine = Machine(kv, shard=shard)
    applied = machine.meta.applied_index
    _check_together(log, shard, applied)
    last = log.last_index(shard)
    replayed = 0
    waiting_bytes = 0
    for record in log.entries(shard, applied):
        machine.apply(record.index, record.term, decode(record.payload))
        replayed += 1
        waiting_bytes += len(record.payload)
        if waiting_bytes >= COMMIT_BYTES:
            machine.commit()
            on_progress(record.index, last)
            waiting_bytes = 0
    if waiting_bytes:
        machine.commit()
    return Recovered(machine, replayed)


def _check_together(log: NodeLog, shard: int, applied_index: int) -> None:
    """An entry is durable in the log before it is applied, and is cut only once the state has it for good."""
    first, last = log.first_index(shard), log.last_index(shard)
    if applied_index and shard not in log.hard_states:
        raise RecoveryError(
            f"Expected the log to know shard {shard}, of which the state has applied {applied_index} entries, but it "
            "does not: the log directory was lost or belongs to another node. Restore it from a backup."
        )
    if last and last < applied_index:
        raise RecoveryError(
            f"Expected the log of shard {shard} to reach entry {applied_index}, which the state has applied, but it "
            f"ends at {last}: synced entries were lost. Restore the data directory from a backup."
        )
    if first > applied_index + 1:
        raise RecoveryError(
            f"Expected the log of shard {shard} to begin at entry {applied_index + 1} or before, but it begins at "
            f"{first}: the state is older than the log. Restore the data directory from a backup."
        )
