"""A shard's state begins another incarnation: of a copy that was restored, or of what one replica had left.

Whoever claimed a task in the former one may still be at work, and believes in its token. So all claims are given back,
which spends nothing, and the incarnation grows: tokens of the new one are larger than all of the former one.

Other shards know a source of tasks by its number and its incarnation (INBOX). When all shards begin another one
together, what each had received of the others is carried over to their new incarnations: what comes again is known.
When one shard does so alone, it does not know any more what it had received after the end of what is left of it, nor do
the sources: it forgets all of them, and takes from each what that brings next.
"""

from collections.abc import Iterator, Mapping

from holdfast.machine import keys
from holdfast.machine.entries import ENTRY_ITEMS_MAX, ClaimRef, Release
from holdfast.machine.entry_parts import DEPARTING_BYTES_MAX, departing_bytes, in_parts
from holdfast.machine.ids import later_task_id
from holdfast.machine.kv import OrderedKV, rows_of
from holdfast.machine.machine import Machine
from holdfast.machine.rows import Inbox, Meta

KEEP_MS = 600_000  # for which a task that was to be cancelled is kept, as by a leader

_EXPIRY_BYTES = 9  # of a CLAIM_EXPIRY key: the family and the time


def begin_incarnation(kv: OrderedKV, incarnation: int, sources: Mapping[int, tuple[int, int]]) -> Meta:
    """Changes the state, which nobody else has open; what it says of itself then. `sources`: by shard, the former and
    the new incarnation of those that begin another one together with this one."""
    machine = Machine(kv)
    if incarnation <= machine.meta.incarnation:
        raise ValueError(f"Expected an incarnation above {machine.meta.incarnation}, but got {incarnation}.")
    _give_claims_back(kv, machine)
    meta = machine.meta
    meta.incarnation = incarnation
    changes: dict[bytes, bytes | None] = {keys.META_KEY: meta.encode()}
    for source, former, inbox in inboxes(kv):
        changes[keys.inbox(source, former)] = None
        if source in sources and sources[source][0] == former:
            changes[keys.inbox(source, sources[source][1])] = inbox.encode()
    kv.write(changes)
    return meta


def _give_claims_back(kv: OrderedKV, machine: Machine) -> None:
    """By entries, as if a leader had proposed them after the last one."""
    start, stop = keys.family_start(keys.CLAIM_EXPIRY), keys.family_start(keys.CLAIM_EXPIRY + 1)
    while rows := kv.scan(start, stop, ENTRY_ITEMS_MAX):
        ranges = machine.reader.ranges_at([key[_EXPIRY_BYTES:] for key, _row in rows])
        task_ids = [later_task_id(first, index) for first, count in ranges for index in range(count)][:ENTRY_ITEMS_MAX]
        claimed = zip(task_ids, machine.executions(task_ids), strict=True)
        held = [(ClaimRef(task_id, task.token), departing_bytes(task)) for task_id, task in claimed if task is not None]
        part = in_parts(range(len(held)), [size for _, size in held], DEPARTING_BYTES_MAX)[0]
        items = [held[place][0] for place in part]
        meta = machine.meta
        machine.apply(meta.applied_index + 1, meta.applied_term, Release(meta.now_ms, KEEP_MS, items))
        machine.commit()
        if kv.get(rows[0][0]) is not None:
            raise ValueError(
                f"Expected the claim of task {task_ids[0].hex()} to end when it is given back, but it did not."
            )


def inboxes(kv: OrderedKV) -> Iterator[tuple[int, int, Inbox]]:
    """Source, its incarnation, and how far its messages have come."""
    for key, row in rows_of(kv, keys.family_start(keys.INBOX), keys.family_start(keys.INBOX + 1)):
        source, incarnation = keys.inbox_parts(key)
        yield source, incarnation, Inbox.decode(row)
