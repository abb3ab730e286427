"""Tasks that cross shards: accepted at once with the ack that made them, brought in order, taken in exactly once.

The outbox numbers the messages to each destination without a gap. The destination remembers the last number of each
source, so a message that is brought again is known, and one that is brought too early is refused.
"""

from collections import Counter
from collections.abc import Iterable

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import ENTRY_ITEMS_MAX, Delivered, Receive, RemoteFollowUp
from holdfast.machine.handlers.accepting import accept_dead, accept_task
from holdfast.machine.handlers.request_ids import stands_for_another
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, Changed, Outcome, Received
from holdfast.machine.rejections import Rejection, not_waiting, out_of_order, outbox_full
from holdfast.machine.rows import Inbox, Outbox, OutboxMessage


def _outbox(draft: Draft, destination: int) -> Outbox:
    row = draft.get(keys.outbox(destination, 0))
    return Outbox() if row is None else Outbox.decode(row)


def refuse_outbox(draft: Draft, remote_follow_ups: Iterable[RemoteFollowUp], waiting_max: int) -> Rejection | None:
    """Why follow-ups for other shards cannot be taken into the outbox, if they cannot."""
    for destination, count in Counter(remote.destination for remote in remote_follow_ups).items():
        if _outbox(draft, destination).waiting + count > waiting_max:
            return outbox_full(destination, waiting_max)
    return None


def put_into_outbox(draft: Draft, remote_follow_ups: Iterable[RemoteFollowUp]) -> None:
    """Puts follow-ups for other shards into the outbox, each behind what is there for its destination."""
    for remote in remote_follow_ups:
        box = _outbox(draft, remote.destination)
        sequence = box.last + 1
        draft.put(keys.outbox(remote.destination, sequence), OutboxMessage(remote.run_at_ms, remote.envelope).encode())
        draft.put(keys.outbox(remote.destination, 0), box._replace(last=sequence).encode())
        draft.effects.outbox.add(remote.destination)


def apply_delivered(draft: Draft, entry: Delivered) -> list[Outcome]:
    box = _outbox(draft, entry.destination)
    if not box.delivered < entry.sequence <= box.last:
        return [not_waiting()]
    delivered = min(entry.sequence, box.delivered + ENTRY_ITEMS_MAX)
    for sequence in range(box.delivered + 1, delivered + 1):
        draft.delete(keys.outbox(entry.destination, sequence))
    draft.put(keys.outbox(entry.destination, 0), box._replace(delivered=delivered).encode())
    return [Changed(delivered)]


def apply_receive(draft: Draft, entry: Receive) -> list[Outcome]:
    key = keys.inbox(entry.source, entry.incarnation)
    row = draft.get(key)
    # Whoever never heard of a source begins where the source is: this shard may have been created anew since.
    last = entry.first_sequence - 1 if row is None else Inbox.decode(row).last
    if entry.first_sequence > last + 1:
        return [out_of_order(last)]
    fresh = entry.tasks[last + 1 - entry.first_sequence :]
    accepted = tuple(_take_in(draft, new, entry.dead_keep_ms) for new in fresh)
    if fresh:
        last += len(fresh)
        draft.put(key, Inbox(last).encode())
    return [Received(last, accepted)]


def _take_in(draft: Draft, new: NewTask, dead_keep_ms: int) -> Accepted:
    """Never refused: the ack that brought it has succeeded long ago."""
    known = stands_for_another(draft, new)
    return accept_task(draft, new) if known is None else accept_dead(draft, new, known, dead_keep_ms)
