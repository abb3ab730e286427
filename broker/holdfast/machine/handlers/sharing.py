"""The books of a limit that is dealt to several shards: what each of them may use."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.operator_entries import DealShares
from holdfast.machine.outcomes import Changed, Outcome
from holdfast.machine.rows import Share


def apply_deal_shares(draft: Draft, entry: DealShares) -> list[Outcome]:
    for shard, body in entry.shares:
        key = keys.share(entry.queue, entry.what, shard)
        if body:
            draft.put(key, Share(body).encode())
        else:
            draft.delete(key)
    return [Changed(len(entry.shares))]
