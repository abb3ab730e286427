"""Refusals of single items in the answer to a call that was sent before and may have taken effect.

A server that says of an item "nothing was done, try again" speaks of the attempt that it got. If the answer to an
earlier one was lost, nobody knows that of the call, and whoever believed it would hand over the same task twice.
"""

from itertools import chain

from google.protobuf.message import Message

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.splitting import rejections_of

# Reasons that say nothing about the item itself. Other servers of the same cluster, or a later moment, may take it.
PASSING = frozenset(
    {"NOT_LEADER", "SHUTTING_DOWN", "SHARD_NOT_FOUND", "OVERLOADED", "DISK_LOW", "OUTBOX_FULL", "STALE_MAP"}
)
# The calls that change tasks or schedules. No refusal of a later attempt says what became of the first: e.g. it may
# come from a server with other limits, or without a map.
CHANGES = frozenset(
    {
        "Enqueue", "Reserve", "Ack", "Fail", "Extend", "Release", "Cancel", "UpdateTasks", "RetryDeadLetters",
        "DiscardDeadLetters", "PurgeQueue", "PutSchedule", "DeleteSchedule", "PauseSchedule", "TriggerSchedule",
    }
)  # fmt: skip
_UNKNOWN = "OUTCOME_UNKNOWN"

# Of calls that change something, item by item.
_ANSWERS = (
    pb.EnqueueResponse,
    pb.AckResponse,
    pb.FailResponse,
    pb.ExtendResponse,
    pb.ReleaseResponse,
    pb.CancelResponse,
    pb.UpdateTasksResponse,
    pb.RetryDeadLettersResponse,
    pb.DiscardDeadLettersResponse,
)


def mark_unknown(answer: Message) -> None:
    """Makes OUTCOME_UNKNOWN of each refusal that may pass."""
    if not isinstance(answer, _ANSWERS):
        return
    outcomes = chain(answer.outcomes, getattr(answer, "runs", ()), getattr(answer, "ranges", ()))
    for refused in chain.from_iterable(map(rejections_of, outcomes)):
        if refused.reason != _UNKNOWN and (refused.retry_after_ms > 0 or refused.reason in PASSING):
            refused.message = (
                f"An earlier attempt may have taken effect; the last one was refused with {refused.reason}: "
                f"{refused.message}"
            )
            refused.reason = _UNKNOWN
            refused.retry_after_ms = max(1, refused.retry_after_ms)
