"""Which queues and tenants a request is about, and of which an answer tells. One table each, by message.

What is about a task that is there already names neither: the broker that has the task looks (broker/api/scoped.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from holdfast.access.permits import Permit
from holdfast.access.rights import EVERY_TENANT

SOME_TENANT: Final = "\0some"  # in the place of a tenant: any will do, and the answer has only what may be seen

# A field of the request, the queue that it names, and the tenant.
Named = tuple[str, str, str | None]
_Names = Callable[[Any], Iterator[Named]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a kind of request. `fields`: the paths of all its fields that name queues or tenants."""

    fields: frozenset[str]
    names: _Names


@dataclass(frozen=True, slots=True)
class Items:
    """A batch whose items name queues and tenants of their own, and are refused one by one. It needs the right to
    enqueue for them."""

    fields: frozenset[str]
    lists: dict[str, _Names]  # what an item of each list names
    pairs: Callable[[Any], set[tuple[str, str]]]  # queue and tenant of all of them together


def _whole_queue(request: Any) -> Iterator[Named]:
    yield "queue", request.queue, EVERY_TENANT


def _whole_queues(request: Any) -> Iterator[Named]:
    for index, queue in enumerate(request.queues):
        yield f"queues[{index}]", queue, EVERY_TENANT


def _routes(request: Any) -> Iterator[Named]:
    for index, queue in enumerate(request.queues):
        yield f"queues[{index}]", queue, SOME_TENANT


def _queue_if_any(request: Any) -> Iterator[Named]:
    if request.queue:
        yield "queue", request.queue, SOME_TENANT


def _filtered(request: Any) -> Iterator[Named]:
    if request.queue:
        yield "queue", request.queue, request.filter.tenant or SOME_TENANT


def _schedule(request: Any) -> Iterator[Named]:
    yield "queue", request.queue, SOME_TENANT


def _new_schedule(request: Any) -> Iterator[Named]:
    task = request.spec.task
    yield "spec.task.tenant", request.queue, task.tenant
    if task.queue:
        yield "spec.task.queue", task.queue, task.tenant


def _of_task(item: Any) -> Iterator[Named]:
    yield "queue", item.queue, item.tenant


def _of_run(item: Any) -> Iterator[Named]:
    yield "task.queue", item.task.queue, item.task.tenant


def _of_follow_ups(item: Any) -> Iterator[Named]:
    for index, task in enumerate(item.follow_ups):
        yield f"follow_ups[{index}].queue", task.queue, task.tenant


def _of_nothing(_item: Any) -> Iterator[Named]:
    yield from ()


def _enqueued(request: Any) -> set[tuple[str, str]]:
    found = {(task.queue, task.tenant) for task in request.tasks}
    if request.runs:
        found |= {(run.task.queue, run.task.tenant) for run in request.runs}
    return found


def _followed_up(request: Any) -> set[tuple[str, str]]:
    return {(task.queue, task.tenant) for item in request.items for task in item.follow_ups}


_QUEUE: Final = frozenset({"queue"})
_QUEUES: Final = frozenset({"queues"})
_WHOLE_QUEUES: Final = Asked(_QUEUES, _whole_queues)
_SCHEDULE: Final = Asked(_QUEUE, _schedule)
_FILTERED: Final = Asked(frozenset({"queue", "filter.tenant"}), _filtered)

REQUESTS: Final[dict[str, Asked]] = {
    "ReserveRequest": _WHOLE_QUEUES,
    "AwaitTasksRequest": _WHOLE_QUEUES,
    "HeartbeatRequest": _WHOLE_QUEUES,
    "QueueStatsRequest": _WHOLE_QUEUES,
    "ListQueueSettingsRequest": _WHOLE_QUEUES,
    "PurgeQueueRequest": Asked(_QUEUE, _whole_queue),
    "SetQueueRequest": Asked(_QUEUE | {"policy.tenants", "policy.tenants.tenant"}, _whole_queue),
    "GetTopologyRequest": Asked(_QUEUES, _routes),
    "ListTasksRequest": _FILTERED,
    "ListDeadLettersRequest": _FILTERED,
    "ListDiscardsRequest": Asked(_QUEUE, _queue_if_any),
    "ListSchedulesRequest": Asked(_QUEUE, _queue_if_any),
    "PreviewScheduleRequest": Asked(_QUEUE, _queue_if_any),
    "PutScheduleRequest": Asked(_QUEUE | {"spec.task.queue", "spec.task.tenant"}, _new_schedule),
    "GetScheduleRequest": _SCHEDULE,
    "DeleteScheduleRequest": _SCHEDULE,
    "PauseScheduleRequest": _SCHEDULE,
    "TriggerScheduleRequest": _SCHEDULE,
}
BATCHES: Final[dict[str, Items]] = {
    "EnqueueRequest": Items(
        frozenset({"tasks.queue", "tasks.tenant", "runs.task.queue", "runs.task.tenant"}),
        {"tasks": _of_task, "runs": _of_run}, _enqueued,
    ),
    "AckRequest": Items(
        frozenset({"items.follow_ups.queue", "items.follow_ups.tenant"}),
        {"items": _of_follow_ups, "ranges": _of_nothing}, _followed_up,
    ),
}  # fmt: skip
# Requests that only those may make who may do everything: what they name need not be looked at.
OF_EVERYTHING: Final = frozenset({"RestoreQueuesRequest"})


def is_allowed(permit: Permit, queue: str, tenant: str | None) -> bool:
    return permit.allows_some(queue) if tenant is SOME_TENANT else permit.allows(queue, tenant)


def first_denied(permit: Permit, request: Any) -> Named | None:
    """What the request names and the permit does not cover."""
    asked = REQUESTS.get(type(request).__name__)
    for named in asked.names(request) if asked is not None else ():
        if not is_allowed(permit, named[1], named[2]):
            return named
    return None


def denied_items(batch: Items, permit: Permit, request: Any) -> dict[str, dict[int, Named]]:
    """By list and place: what an item names and the permit does not cover. Nearly always there is none, and items are
    mostly of one queue and tenant."""
    if all(permit.allows(queue, tenant) for queue, tenant in batch.pairs(request)):
        return {}
    denied: dict[str, dict[int, Named]] = {}
    for field, names in batch.lists.items():
        for index, item in enumerate(getattr(request, field)):
            for where, queue, tenant in names(item):
                if not permit.allows(queue, tenant):
                    denied.setdefault(field, {}).setdefault(index, (where, queue, tenant))
    return denied


# --- answers


def _task(item: Any) -> tuple[str, str | None]:
    return item.queue, item.tenant


def _of_schedule(item: Any) -> tuple[str, str | None]:
    return item.queue, item.spec.task.tenant


def _counts(item: Any) -> tuple[str, str | None]:
    return item.queue, EVERY_TENANT


def _settings(item: Any) -> tuple[str, str | None]:
    return item.route.queue, EVERY_TENANT


# Lists from which is taken what the caller may not see: the field, and what an item of it is about.
LISTS: Final[dict[str, tuple[str, Callable[[Any], tuple[str, str | None]]]]] = {
    "ListTasksResponse": ("tasks", _task),
    "ListDeadLettersResponse": ("tasks", _task),
    "ListDiscardsResponse": ("discards", _task),
    "ListSchedulesResponse": ("schedules", _of_schedule),
    "ListQueuesResponse": ("queues", _counts),
    "ListQueueSettingsResponse": ("queues", _settings),
}


def narrow(permit: Permit, response: Any) -> None:
    """Leaves in an answer only what the permit covers."""
    kind = type(response).__name__
    if kind == "ListWorkersResponse":
        _narrow_workers(permit, response)
    elif kind in LISTS:
        field, about = LISTS[kind]
        items = getattr(response, field)
        kept = [item for item in items if permit.allows(*about(item))]
        if len(kept) < len(items):
            copies = [type(item).FromString(item.SerializeToString()) for item in kept]
            del items[:]
            items.extend(copies)


def _narrow_workers(permit: Permit, response: Any) -> None:
    """Those that have asked for tasks of a queue that may be seen; of their queues only such."""
    for index in reversed(range(len(response.workers))):
        worker = response.workers[index]
        seen = [queue for queue in worker.queues if permit.allows(queue, EVERY_TENANT)]
        if not seen:
            del response.workers[index]
        elif len(seen) < len(worker.queues):
            worker.queues[:] = seen
            worker.ClearField("claims")  # of all its queues
