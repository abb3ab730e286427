"""Which shard a call belongs to, by what its request names. The messages are those of the wire API, which this package
does not know.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Items(NamedTuple):
    """What a call has one of for each task."""

    field: str  # of the request; it is repeated
    task_id: Callable[[Any], str]  # of an item


def _of_claim(item: Any) -> str:
    task_id: str = item.claim.task_id
    return task_id


def _of_item(item: Any) -> str:
    task_id: str = item.task_id
    return task_id


# Calls on tasks that are there already.
BY_TASK = {
    "Ack": Items("items", _of_claim),
    "Fail": Items("items", _of_claim),
    "Extend": Items("items", _of_claim),
    "Release": Items("claims", _of_item),
    "Cancel": Items("task_ids", str),
    "UpdateTasks": Items("items", _of_item),
    "WaitTasks": Items("task_ids", str),
    "RetryDeadLetters": Items("task_ids", str),
    "DiscardDeadLetters": Items("task_ids", str),
}
# Calls on a schedule: it lives on the home of its queue.
BY_SCHEDULE = frozenset({"PutSchedule", "GetSchedule", "DeleteSchedule", "PauseSchedule", "TriggerSchedule"})
# Calls on a worker: what is known of it is at the home of its name.
BY_WORKER = frozenset({"Heartbeat", "SignalWorker"})
