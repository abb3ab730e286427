"""What one request of each method may be: how many bytes, and how many fields before anybody parses it. Pure.

Every method has its own bounds: asking for one task takes no 4 MiB.
"""

from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast.serving.refusals import BATCH_TOO_LARGE, MALFORMED_REQUEST, TOO_LARGE, RefusedError
from holdfast.serving.scanner import BrokenBytesError, Shape, TooManyFieldsError, scan

ITEMS_MAX = 1000  # in one call, whatever is set
FOLLOW_UPS_MAX = 100  # of one ack
HEADERS_MAX = 64  # of one task
SNAPSHOT_FILES_MAX = 20_000  # of one shard's state

_KIB = 1024
# Beside what is repeated: every field once, those of newer clients, and room for one more item than allowed, which the
# validation refuses with more to say.
_FIELDS_SPARE = 64
_TASK = Shape(HEADERS_MAX + 3 * _FIELDS_SPARE)
_ACK_ITEM = Shape(FOLLOW_UPS_MAX + _FIELDS_SPARE, {3: _TASK})
_FEW = Shape(_FIELDS_SPARE)
_MANY = Shape(ITEMS_MAX + _FIELDS_SPARE)

# Of the methods that bring payloads, results or errors, whose bytes only the configuration bounds. In bodies up to
# the size that is named here, what is inside the items takes the parser less than 30 ms.
_LARGE = {
    "Enqueue": Shape(_MANY.fields_max, {1: _TASK}, shallow_bytes_max=256 * _KIB),
    "Ack": Shape(_MANY.fields_max, {1: _ACK_ITEM}, shallow_bytes_max=64 * _KIB),
    "Fail": _MANY,
    "PutSchedule": _FEW,
    "RestoreShard": Shape(_FIELDS_SPARE, {6: Shape(SNAPSHOT_FILES_MAX + _FIELDS_SPARE)}),
    "RestoreQueues": _MANY,
    "ReceiveTasks": Shape(_MANY.fields_max, {6: Shape(_FIELDS_SPARE, {1: _TASK})}, shallow_bytes_max=256 * _KIB),
}
_SMALL_BYTES_MAX = 64 * _KIB
_SMALL: dict[str, tuple[int, Shape]] = {
    **dict.fromkeys(
        ("Extend", "Release", "Cancel", "UpdateTasks", "WaitTasks", "RetryDeadLetters", "DiscardDeadLetters"),
        (512 * _KIB, _MANY),
    ),
    "GetTopology": (512 * _KIB, _MANY),
    "ListQueueSettings": (512 * _KIB, _MANY),
    "QueueStats": (256 * _KIB, _MANY),
    "Reserve": (_SMALL_BYTES_MAX, Shape(8 * _FIELDS_SPARE)),
    "Heartbeat": (_SMALL_BYTES_MAX, Shape(8 * _FIELDS_SPARE)),
    "AwaitTasks": (_SMALL_BYTES_MAX, Shape(8 * _FIELDS_SPARE)),
    "DealShares": (1024 * _KIB, _MANY),
    "SetQueue": (512 * _KIB, Shape(8 * _FIELDS_SPARE)),
    "StartPlan": (1024 * _KIB, _FEW),
    "RestoreCluster": (_SMALL_BYTES_MAX, Shape(4096 + _FIELDS_SPARE)),
}

MessageT = TypeVar("MessageT", bound=Message)


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


def request_limit(method: str, request: type[Message], *, large_bytes_max: int) -> RequestLimit:
    """`large_bytes_max`: of a call that may be as large as any."""
    if method in _LARGE:
        return RequestLimit(request, large_bytes_max, _LARGE[method])
    bytes_max, shape = _SMALL.get(method, (_SMALL_BYTES_MAX, _FEW))
    return RequestLimit(request, min(bytes_max, large_bytes_max), shape)


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
    if error.limit == _MANY.fields_max and found is not None and found.is_repeated:
        sentence = f"Expected at most {ITEMS_MAX} items in {{field}}, but there are more."
        return RefusedError(BATCH_TOO_LARGE, sentence, name, str(ITEMS_MAX))
    sentence = f"Expected at most {error.limit} fields, but there are more, most of them {{field}}."
    return RefusedError(TOO_LARGE, sentence, name, str(error.limit))
