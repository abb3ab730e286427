"""What a shard is told about itself: which entries may be used, what its queues do in their own way, and the ledger of
a limit that is allocated to several shards."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import MACHINE_LEVEL, RaiseLevel, SetQueue
from holdfast.machine.operator_entries import SetAllocations
from holdfast.machine.outcomes import Changed, Outcome
from holdfast.machine.rejections import old_level, old_version
from holdfast.machine.rows import AllocationRow, SettingsRow


class UnknownLevelError(RuntimeError):
    """The log will have entries that this version does not know: the replica must stop before it meets them."""


def apply_raise_level(draft: Draft, entry: RaiseLevel) -> list[Outcome]:
    if entry.level > MACHINE_LEVEL:
        raise UnknownLevelError(
            f"the log needs a machine of level {entry.level}, but this version has {MACHINE_LEVEL}; upgrade it"
        )
    if entry.level <= draft.meta.machine_level:
        return [old_level(draft.meta.machine_level)]
    draft.meta.machine_level = entry.level
    return [Changed(entry.level)]


def apply_set_queue(draft: Draft, entry: SetQueue) -> list[Outcome]:
    """Settings are taken only forward: a leader that saw an old copy of them cannot bring it back."""
    key = keys.settings(entry.queue)
    row = draft.get(key)
    known = SettingsRow.decode(row) if row is not None else SettingsRow(0, b"")
    if entry.version <= known.version:
        return [old_version(known.version)]
    rates_since_ms = draft.now_ms if entry.changes_rates else known.rates_since_ms
    draft.put(key, SettingsRow(entry.version, entry.policy, rates_since_ms).encode())
    draft.effects.settings.append(entry.queue)
    return [Changed(entry.version)]


def apply_set_allocations(draft: Draft, entry: SetAllocations) -> list[Outcome]:
    for shard, body in entry.allocations:
        key = keys.allocation(entry.queue, entry.what, shard)
        if body:
            draft.put(key, AllocationRow(body).encode())
        else:
            draft.delete(key)
    return [Changed(len(entry.allocations))]
