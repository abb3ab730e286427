"""Which shard a call belongs to, by what its request names. The messages are those of the wire API, which this package
does not know.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple


class Items(NamedTuple):
    """What a call has one of for each task, or for several that follow each other."""

    field: str  # of the request; it is repeated
    task_id: Callable[[Any], str]  # of an item, or of its first task


_of_claim: Callable[[Any], str] = attrgetter("claim.task_id")
_of_item: Callable[[Any], str] = attrgetter("task_id")
# Calls on tasks that are there already, by all their lists of such items.
BY_TASK = {
    "Ack": (Items("items", _of_claim), Items("ranges", _of_item)),
    "Fail": (Items("items", _of_claim),),
    "Extend": (Items("items", _of_claim),),
    "Release": (Items("claims", _of_item),),
    "Cancel": (Items("task_ids", str),),
    "UpdateTasks": (Items("items", _of_item),),
    "WaitTasks": (Items("task_ids", str),),
    "RetryDeadLetters": (Items("task_ids", str),),
    "DiscardDeadLetters": (Items("task_ids", str),),
}
# New tasks, and runs of them.
ENQUEUED = ("tasks", "runs")
# Calls on a schedule: it lives on the home of its queue.
BY_SCHEDULE = frozenset({"PutSchedule", "GetSchedule", "DeleteSchedule", "PauseSchedule", "TriggerSchedule"})
# Calls on a worker: what is known of it is at the home of its name.
BY_WORKER = frozenset({"Heartbeat", "SignalWorker"})


def task_ids_of(name: str, request: Any) -> Iterator[str]:
    """Of a call in BY_TASK: that of each item, one list behind the other."""
    for field, task_id in BY_TASK[name]:
        yield from map(task_id, getattr(request, field))
