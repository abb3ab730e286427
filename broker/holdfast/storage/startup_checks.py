"""What a start checks before it serves: that log and state belong together. What is committed is applied later, by the
rounds, once the group has agreed on how much that is."""

from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.raft.node_journal import NodeJournal
from holdfast.routing.groups import incarnation_of
from holdfast.wal.node_log import NodeLog


class RecoveryError(RuntimeError):
    """Log and state do not belong together; nothing was changed."""


def recover_shard(journal: NodeJournal, log: NodeLog, kv: OrderedKV, shard: int) -> Machine:
    """The machine of a shard, as far as its state reaches. An empty one's incarnation is its group's, on every node."""
    machine = Machine(kv, shard=shard, incarnation=incarnation_of(journal.group))
    _check_together(journal, log, shard, machine.meta.applied_index)
    return machine


def _check_together(journal: NodeJournal, log: NodeLog, shard: int, applied_index: int) -> None:
    """An entry is durable in the log before it is applied, and is cut only once the state has it for good."""
    if journal.last_index < applied_index:
        raise RecoveryError(
            f"Expected the log of shard {shard} to reach entry {applied_index}, which the state has applied, but it "
            f"ends at {journal.last_index}: synced entries were lost."
        )
    first = log.first_index(shard)
    if applied_index < journal.base_index or (journal.last_index > applied_index and first > applied_index + 1):
        raise RecoveryError(
            f"Expected the log of shard {shard} to begin at entry {applied_index + 1} or before, but it begins at "
            f"{max(first, journal.base_index + 1)}: the state is older than the log."
        )
