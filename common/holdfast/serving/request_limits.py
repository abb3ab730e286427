"""What one request of each method may be: how many bytes, and how many fields before anybody parses it. Pure.

Every method has its own bounds: asking for one task takes no 4 MiB. Everything that is repeated has one, wherever it
stands in a request: the descriptors say what there is, and a field without a bound here is an error at the start.
"""

import sys
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from holdfast.serving.refusals import BATCH_TOO_LARGE, MALFORMED_REQUEST, TOO_LARGE, RefusedError
from holdfast.serving.scanner import BrokenBytesError, Packed, Shape, TooManyFieldsError, scan

ITEMS_MAX = 1000  # in one call, whatever is set
FOLLOW_UPS_MAX = 100  # of one ack
HEADERS_MAX = 64  # of one task
NON_RETRYABLE_MAX = 64  # types of errors
QUEUES_PER_RESERVE_MAX = 64
QUEUES_PER_STATS_MAX = 100
LEASES_PER_RESERVE_MAX = 100
TASK_SPARE_BYTES = 64 * 1024  # what a task may have beside its payload: headers, names, types of errors

_SHARDS_MAX = 1024
_KIB = 1024
# Beside what is repeated: every field once, those of newer clients, and room for one more item than allowed, which the
# validation refuses with more to say.
_FIELDS_SPARE = 64

# How often what is repeated may be there, in the message that it stands in.
_REPEATED_MAX = {
    "EnqueueRequest.tasks": ITEMS_MAX,
    "EnqueueRequest.runs": ITEMS_MAX,
    "TaskRun.payloads": ITEMS_MAX,
    "TaskRun.request_ids": ITEMS_MAX,
    "TaskSpec.headers": HEADERS_MAX,
    "RetryPolicy.non_retryable": NON_RETRYABLE_MAX,
    "ReserveRequest.queues": QUEUES_PER_RESERVE_MAX,
    "ReserveRequest.queue_tasks_max": QUEUES_PER_RESERVE_MAX,
    "ReserveRequest.type_lease_ms": LEASES_PER_RESERVE_MAX,
    "ReserveRequest.held_at": _SHARDS_MAX,
    "AwaitTasksRequest.queues": QUEUES_PER_RESERVE_MAX,
    "AckRequest.items": ITEMS_MAX,
    "AckRequest.ranges": ITEMS_MAX,
    "AckItem.follow_ups": FOLLOW_UPS_MAX,
    "FailRequest.items": ITEMS_MAX,
    "ExtendRequest.items": ITEMS_MAX,
    "ReleaseRequest.claims": ITEMS_MAX,
    "CancelRequest.task_ids": ITEMS_MAX,
    "UpdateTasksRequest.items": ITEMS_MAX,
    "WaitTasksRequest.task_ids": ITEMS_MAX,
    "QueueStatsRequest.queues": QUEUES_PER_STATS_MAX,
    "RetryDeadLettersRequest.task_ids": ITEMS_MAX,
    "DiscardDeadLettersRequest.task_ids": ITEMS_MAX,
    "HeartbeatRequest.queues": QUEUES_PER_RESERVE_MAX,
    "TaskFilter.states": 64,
    "GetTopologyRequest.queues": ITEMS_MAX,
    "ListQueueSettingsRequest.queues": ITEMS_MAX,
    "SetQueueRequest.clear": 256,
    "QueuePolicy.non_retryable": NON_RETRYABLE_MAX,
    "QueuePolicy.tenants": 256,
    "ShardList.shards": _SHARDS_MAX,
    "Plan.steps": 10_000,
    "RestoreClusterRequest.incarnations": 4096,
    "RestoreQueuesRequest.queues": ITEMS_MAX,
    "RestoreFiles.files": 20_000,  # of one shard's state
    "ReceiveTasksRequest.messages": ITEMS_MAX,
    "AllocateRequest.reports": ITEMS_MAX,
}
# How many items all lists of a message have together: no more than one of them alone may have.
_TOGETHER_MAX = {"EnqueueRequest": ITEMS_MAX, "AckRequest": ITEMS_MAX}
# How often what is repeated inside of what is repeated may be there, in a whole request.
_TOTAL_MAX = {"AckItem.follow_ups": ITEMS_MAX, "TaskRun.payloads": ITEMS_MAX, "TaskRun.request_ids": ITEMS_MAX}
_NUMBER_BYTES = {  # all others are varints
    **dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), 8),
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), 4),
}

# Methods that bring payloads, results or errors, whose bytes only the configuration bounds.
_LARGE = frozenset({"Enqueue", "Ack", "Fail", "RestoreShard", "RestoreQueues", "ReceiveTasks"})
_ONE_TASK = frozenset({"PutSchedule"})
_SMALL_BYTES_MAX = 64 * _KIB
_BYTES_MAX = {
    **dict.fromkeys(
        ("Extend", "Release", "Cancel", "UpdateTasks", "WaitTasks", "RetryDeadLetters", "DiscardDeadLetters"),
        512 * _KIB,
    ),
    "GetTopology": 512 * _KIB,
    "ListQueueSettings": 512 * _KIB,
    "QueueStats": 256 * _KIB,
    "Allocate": 1024 * _KIB,
    "SetQueue": 512 * _KIB,
    "StartPlan": 1024 * _KIB,
    "SetAccess": 576 * _KIB,
}
# In bodies up to this size, what is inside the items takes the parser less than 30 ms, and nobody looks. For tasks, in
# which no message is repeated but the entries of a map, it takes less.
_SHALLOW_BYTES_MAX = 64 * _KIB
_SHALLOW_TASKS_BYTES_MAX = 256 * _KIB
_BRINGS_TASKS = frozenset({"Enqueue", "ReceiveTasks"})

_READ_SPARE_BYTES = 4 * 1024 * _KIB

MessageT = TypeVar("MessageT", bound=Message)


def read_bytes_max(batch_bytes_max: int) -> int:
    """A batch that is somewhat too large is still read, to be refused by name."""
    return batch_bytes_max + max(batch_bytes_max // 2, _READ_SPARE_BYTES)


class RequestLimit:
    """Of one method."""

    def __init__(self, request: type[Message], bytes_max: int, shape: Shape) -> None:
        self.bytes_max = bytes_max
        self._request = request
        self._shape = shape

    def check(self, data: bytes) -> None:
        """Refuses what is too much to be parsed, and what certainly cannot be."""
        if len(data) > self.bytes_max:
            raise RefusedError(
                BATCH_TOO_LARGE,
                f"Expected a call of at most {self.bytes_max} bytes, but got {len(data)}.",
                "request",
                str(self.bytes_max),
            )
        try:
            scan(data, self._shape)
        except TooManyFieldsError as error:
            raise _too_many(self._request.DESCRIPTOR, error) from None
        except BrokenBytesError:
            raise malformed(self._request) from None


def request_limit(
    method: str, request: type[Message], *, large_bytes_max: int, payload_bytes_max: int | None = None
) -> RequestLimit:
    """`large_bytes_max`: of a call that may be as large as any. `payload_bytes_max`: of one task, if it is known."""
    bytes_max = large_bytes_max
    if method in _ONE_TASK and payload_bytes_max is not None:
        bytes_max = min(bytes_max, payload_bytes_max + TASK_SPARE_BYTES)
    elif method not in _LARGE | _ONE_TASK:
        bytes_max = min(bytes_max, _BYTES_MAX.get(method, _SMALL_BYTES_MAX))
    shallow_bytes_max = _SHALLOW_TASKS_BYTES_MAX if method in _BRINGS_TASKS else _SHALLOW_BYTES_MAX
    return RequestLimit(request, bytes_max, _shape_of(request.DESCRIPTOR, shallow_bytes_max=shallow_bytes_max))


def _shape_of(message: Any, **how: Any) -> Shape:
    """Of any message: no field is left out, at any depth."""
    inside: dict[int, Shape | Packed] = {}
    fields_max = _FIELDS_SPARE
    for field in message.fields:
        if field.is_repeated:
            fields_max += _repeated_max(field)
        total_max = _TOTAL_MAX.get(_name(field))
        if field.message_type is not None:
            inside[field.number] = _shape_of(field.message_type, is_single=not field.is_repeated, total_max=total_max)
        elif total_max is not None:
            inside[field.number] = Shape(sys.maxsize, total_max=total_max)  # only counted: it is no message
        elif field.is_packed:
            inside[field.number] = Packed(_repeated_max(field), _NUMBER_BYTES.get(field.type, 0))
    fields_max = min(fields_max, _FIELDS_SPARE + _TOGETHER_MAX.get(message.name, fields_max))
    return Shape(fields_max, inside, has_repeated=fields_max > _FIELDS_SPARE, **how)


def _repeated_max(field: Any) -> int:
    name = _name(field)
    if name not in _REPEATED_MAX:
        raise LookupError(f"{name} is repeated, and nothing says how often it may be in a request")
    return _REPEATED_MAX[name]


def _name(field: Any) -> str:
    return f"{field.containing_type.name}.{field.name}"


def parse(request: type[MessageT], data: bytes) -> MessageT:
    """To be called with what was checked."""
    try:
        return request.FromString(data)
    except DecodeError as error:
        raise malformed(request) from error


def malformed(request: type[Message]) -> RefusedError:
    return RefusedError(
        MALFORMED_REQUEST,
        f"Expected a {request.DESCRIPTOR.name} with UTF-8 texts, not compressed, but the bytes are not one.",
    )


def _too_many(request: Any, error: TooManyFieldsError) -> RefusedError:
    names: list[str] = []
    found: Any = None
    message = request
    for number in error.path:
        found = message.fields_by_number.get(number) if message is not None else None
        names.append(found.name if found is not None else f"field {number}")
        message = found.message_type if found is not None else None
    name = ".".join(names)
    if error.is_total:
        sentence = f"Expected at most {error.limit} of {{field}} in all, but there are more; send several calls."
        return RefusedError(BATCH_TOO_LARGE, sentence, name, str(error.limit))
    if found is not None and found.is_repeated and error.count > _repeated_max(found):
        limit = _repeated_max(found)
        sentence = f"Expected at most {limit} items in {{field}}, but there are more."
        return RefusedError(BATCH_TOO_LARGE if len(names) == 1 else TOO_LARGE, sentence, name, str(limit))
    if error.limit == 1:
        return RefusedError(TOO_LARGE, "Expected {field} once, but it is there again.", name, "1")
    sentence = f"Expected at most {error.limit} fields, but there are more, most of them {{field}}."
    return RefusedError(TOO_LARGE, sentence, name, str(error.limit))
