"""Everything this library raises on purpose.

HoldfastError
├── InvalidAddress       the address is not host:port, nor several of that kind
├── ClientClosed         the client was closed before or during the call
├── ClientForked         the process was forked while a client was in use
├── ConnectionFailed     no connection to a server, or it broke during the call
├── DeadlineExceeded     the server did not answer in time
├── UnexpectedAnswer     whatever answered does not speak this API
├── NoToken              the token of the client cannot be read
├── NotJson              arguments or a result that JSON cannot hold
├── Unreadable           a payload or a result that the codec of this client cannot read
│   └── KeyMissing       because it has no key of that id
├── NotAllAccepted       some calls of many were refused: accepted, refused, repeatable
├── OpsPortFailed        a worker's port for probes and metrics cannot be opened
├── ResultTimeout        the task did not finish in the time given
├── ResultExpired        the result of a task that has succeeded was not kept for so long
├── TaskFailed           the result of a task that is dead
├── TaskCancelled        the result of a task that was cancelled
└── Rejected             the server said no: reason, message, field, retry_after_ms, metadata
    ├── InvalidArgument  MALFORMED_REQUEST MISSING_FIELD INVALID_FIELD OUT_OF_RANGE TOO_LARGE BATCH_TOO_LARGE
    ├── NotFound         TASK_NOT_FOUND QUEUE_NOT_FOUND SHARD_NOT_FOUND PROBE_NOT_FOUND NODE_NOT_FOUND PLAN_NOT_FOUND
    │                    SCHEDULE_NOT_FOUND BACKUP_NOT_FOUND WORKER_NOT_FOUND
    ├── Conflict         CHANGE_REFUSED NO_CLUSTER CLUSTER_EXISTS NOT_ENOUGH_NODES PLAN_REFUSED PLAN_UNDER_WAY CONFLICT
    │   │                SCHEDULE_EXISTS VERSION_TOO_OLD BAD_RECORD RESTORE_REFUSED
    │   ├── StaleToken       STALE_TOKEN
    │   ├── TaskFinished     TASK_FINISHED
    │   ├── NotWaiting       TASK_NOT_WAITING
    │   ├── NotDead          NOT_DEAD
    │   └── RequestIdConflict  REQUEST_ID_CONFLICT
    ├── Overloaded       OVERLOADED OUTBOX_FULL
    ├── WorkerAtLimit    WORKER_AT_LIMIT
    ├── Unavailable      DISK_LOW SHUTTING_DOWN NOT_LEADER STALE_MAP WRONG_SHARD ETCD_UNAVAILABLE
    ├── Unauthenticated  UNAUTHENTICATED
    ├── PermissionDenied PERMISSION_DENIED
    ├── OutcomeUnknown   OUTCOME_UNKNOWN
    └── ServerError      INTERNAL

HandlerSignal            raised by handlers to tell the worker what to do
├── GiveUp               no attempt can succeed: make the task a dead letter now
└── RetryAfter           try again after this delay instead of the server's back-off

After a `Rejected` nothing has changed, save for `OutcomeUnknown`, `ServerError` and, of an operator's call, the reason
ETCD_UNAVAILABLE: such a call may be made again. After `ConnectionFailed`,
`DeadlineExceeded`, `OutcomeUnknown` or `ServerError` the call may or may not have taken effect: repeat it, an enqueue
with its `request_id`, a reserve with its `claim_request_id`. No message ever holds a payload or a token.
"""
# ruff: noqa: N818 - the names say what happened; half of them are read as results of a batch, not raised

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

NO_LEADER = "no leader: a majority must run; see `holdfast shard ls`"  # said of a cluster of which some nodes answer

STALE_MAP = "STALE_MAP"

_NONE: Mapping[Any, Any] = MappingProxyType({})
_RETRY_AFTER_MS = 200  # of a server that was out of reach


def _instant(instant_ms: int) -> str:
    try:
        return f"at {datetime.fromtimestamp(instant_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # whatever a server says, an error can be shown
        return f"{instant_ms} ms after the epoch"


class HoldfastError(Exception):
    """The root of the tree: catch it to catch everything this library raises on purpose."""


class InvalidAddress(HoldfastError, ValueError):
    """The address of the server cannot be used, or one of several."""

    def __init__(self, address: str, part: str | None = None) -> None:
        super().__init__(address, part)
        self.address = address
        self.part = address if part is None else part  # the one of several that is wrong

    def __str__(self) -> str:
        where = "" if self.part == self.address else f" in {self.address!r}"
        return (
            "Expected an address of the form host:port, e.g. localhost:7400, or several with commas between them, "
            f"but got {self.part!r}{where}."
        )


class ClientClosed(HoldfastError):
    """The client was closed before or during the call."""

    def __str__(self) -> str:
        return "The client is closed: open another one."


class ClientForked(HoldfastError):
    """This process was forked from one in which a client was in use: gRPC cannot work here."""

    def __str__(self) -> str:
        return (
            "No client works in a process that was forked while a client was in use: "
            "open clients after the fork, or start processes with `spawn`."
        )


class NoToken(HoldfastError):
    """The client was told where its token is, and there is none."""

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where  # e.g. the file
        self.cause = cause

    def __str__(self) -> str:
        return f"Expected a token in {self.where}, but there is none ({self.cause}): ask an administrator for one."


class ConnectionFailed(HoldfastError):
    """No connection to a server, or it broke during the call: then its effect is unknown."""

    def __init__(self, address: str, cause: str = "", *, sent: bool = True) -> None:
        super().__init__(address, cause)
        self.address = address  # or all that were tried
        # A few words, e.g. "connection refused"; of several servers what happened at each.
        self.cause = cause
        self.sent = sent  # False if it is certain that the server did not get the call

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        advice = "start one with `holdfast dev`, or check the address."
        if "," in self.address:
            advice = "check the addresses, and that a majority of the nodes runs."
        return f"No answer from a Holdfast server at {self.address}{cause}: {advice}"


class DeadlineExceeded(HoldfastError):
    """The server did not answer in time; the call may still take effect."""

    def __init__(self, address: str, timeout_s: float, cause: str = "") -> None:
        super().__init__(address, timeout_s, cause)
        self.address = address  # or all that were tried
        self.timeout_s = timeout_s
        self.cause = cause  # of several servers what happened at each

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return (
            f"The server at {self.address} did not answer within {self.timeout_s:g} s{cause}: "
            "try again, or allow more time with a longer timeout."
        )


class UnexpectedAnswer(HoldfastError):
    """Whatever answered does not speak this API: another service, or another version of Holdfast."""

    def __init__(self, problem: str, address: str = "") -> None:
        super().__init__(problem, address)
        self.problem = problem
        self.address = address

    def __str__(self) -> str:
        where = f" at {self.address}" if self.address else ""
        return (
            f"The server{where} gave an answer this client does not understand ({self.problem}): "
            "check the address and that client and server have versions that fit."
        )


class NotJson(HoldfastError, TypeError):
    """Arguments and results of tasks travel as JSON, and this value does not fit."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what = what  # e.g. "the arguments of send_mail"
        self.problem = problem

    def __str__(self) -> str:
        return f"Expected {self.what} to be JSON, but {self.problem}: pass text, numbers, lists and dictionaries."


class Unreadable(HoldfastError):
    """The codec of this client cannot read a payload or a result: see `Codec`."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what = what  # e.g. "the payload"
        self.why = why

    def __str__(self) -> str:
        return f"Cannot read {self.what}: {self.why}."


class KeyMissing(Unreadable):
    """There is no key with this id: give it to the codec of this client, or wait until it has it."""

    def __init__(self, key_id: str, what: str = "", cause: str = "") -> None:
        super().__init__(what, cause)
        self.args = key_id, what, cause
        self.key_id = key_id

    def __str__(self) -> str:
        doing = f"read {self.what}: it is encrypted" if self.what else "encrypt: it is to be done"
        cause = self.why or "the codec has no such key"
        return f"Cannot {doing} with key {self.key_id}, and {cause}. Add it to `keys` of the codec."


class NotAllAccepted(HoldfastError):
    """Some calls that were handed over together were refused; the others are accepted. See `Enqueued`."""

    def __init__(
        self, accepted: Sequence[Any] = (), refused: Mapping[int, "Rejected"] = _NONE, repeatable: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.accepted = list(accepted)  # the handles of those that are, in order
        self.refused = dict(refused)  # the others by their places
        self.repeatable = list(repeatable)  # places of those that may well be handed over again

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle belongs to the app of its process: on the way to another one its task's id is left of it.
        ids = [getattr(task, "id", task) for task in self.accepted]
        return type(self), (ids, self.refused, self.repeatable)

    def __str__(self) -> str:
        count = f"{len(self.refused)} of {len(self.accepted) + len(self.refused)}"
        first = "".join(f" The first, tasks[{place}]: {self.refused[place]}" for place in sorted(self.refused)[:1])
        return f"{count} calls were refused; `accepted` has the handles of the others, `refused` says why.{first}"


class OpsPortFailed(HoldfastError, OSError):
    """The HTTP port on which a worker shows its health and its metrics cannot be opened."""

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(host, port, cause)
        self.host = host
        self.port = port
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"Cannot listen for HTTP on {self.host} port {self.port} ({self.cause}): "
            "choose another port, or 0 for a free one."
        )


class ResultTimeout(HoldfastError, TimeoutError):
    """The task did not finish in the time given. It goes on; wait again if you like."""

    def __init__(self, task_id: str, timeout_s: float) -> None:
        super().__init__(task_id, timeout_s)
        self.task_id = task_id
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return (
            f"Task {self.task_id} did not finish within {self.timeout_s:g} s: it goes on, and can be waited for again."
        )


class ResultExpired(HoldfastError):
    """The task has succeeded, but what it returned is gone: its time to live is over."""

    def __init__(self, task_id: str, expired_at_ms: int) -> None:
        super().__init__(task_id, expired_at_ms)
        self.task_id = task_id
        self.expired_at_ms = expired_at_ms

    def __str__(self) -> str:
        return (
            f"Task {self.task_id} has succeeded, but its result expired {_instant(self.expired_at_ms)}: "
            "get results sooner, or have them kept for longer with `result_ttl`."
        )


class TaskFailed(HoldfastError):
    """There is no result: the task is dead."""

    def __init__(self, task_id: str, dead_reason: str = "", error_type: str = "", error_message: str = "") -> None:
        super().__init__(task_id, dead_reason, error_type, error_message)
        self.task_id = task_id
        self.dead_reason = dead_reason  # e.g. ATTEMPTS_SPENT
        self.error_type = error_type  # of the last attempt, e.g. the class of the exception
        self.error_message = error_message

    def __str__(self) -> str:
        cause = f"{self.error_type}: {self.error_message}" if self.error_type else "no error was reported"
        return (
            f"Task {self.task_id} is dead ({self.dead_reason or 'no reason given'}; {cause}): "
            f"see `holdfast dlq show {self.task_id}`."
        )


class TaskCancelled(HoldfastError):
    """There is no result: the task was cancelled."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"Task {self.task_id} was cancelled."


class HandlerSignal(Exception):
    """What a handler raises to tell the worker more than that this attempt failed."""

    def _checked_s(self, delay: float | timedelta) -> float:
        # Where it is raised, so that the traceback leads there: a wrong delay is a failure like any other.
        delay_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
        name = type(self).__name__
        if not isinstance(delay_s, int | float) or isinstance(delay_s, bool):
            raise TypeError(f"Expected {name} with a number of seconds or a timedelta, but got {delay!r}.")
        if not 0 <= delay_s < math.inf:  # also for NaN
            raise ValueError(f"Expected {name} with at least 0 seconds and an end, but got {delay_s}.")
        return delay_s


class GiveUp(HandlerSignal):
    """Raise it in a handler when no attempt can succeed: the task becomes a dead letter now."""


class RetryAfter(HandlerSignal):
    """Raise it in a handler to fail this attempt and have the next one after `delay_s` seconds."""

    def __init__(self, delay_s: float | timedelta, message: str = "") -> None:
        super().__init__(delay_s, message)
        self.delay_s = self._checked_s(delay_s)
        self.message = message

    def __str__(self) -> str:
        return self.message or f"to be tried again after {self.delay_s} s"


class Rejected(HoldfastError):
    """The server said no. Batches return these in place of an outcome; single calls raise them."""

    # Every argument has a default so that pickle, which passes only `args`, can carry the error to another process.
    def __init__(
        self,
        message: str = "",
        *,
        reason: str = "",
        field: str = "",
        retry_after_ms: int = 0,
        metadata: Mapping[str, str] = _NONE,
    ) -> None:
        super().__init__(message)
        self.message = message  # one sentence for people
        self.reason = reason  # for programs, e.g. STALE_TOKEN
        self.field = field  # the offending field of a bad request, e.g. tasks[3].priority
        self.retry_after_ms = retry_after_ms  # 0 if trying again cannot help
        self.metadata = dict(metadata)  # what else the server said, e.g. the shard

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field and self.field not in self.message else ""
        return f"{where}{self.message or 'The server refused without a sentence.'} ({self.reason or 'no reason given'})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, reason={self.reason!r}, field={self.field!r})"


class InvalidArgument(Rejected, ValueError):
    """The request itself is wrong; sending it again cannot help."""


class NotFound(Rejected):
    """There is no such task, queue, schedule, shard, node or plan, or no longer."""


class Conflict(Rejected):
    """The task, the shard or the cluster is not in a state that allows this."""


class StaleToken(Conflict):
    """The claim has ended: its lease ran out, it was already finished, or another worker holds the task now."""


class TaskFinished(Conflict):
    """The task has already finished."""


class NotWaiting(Conflict):
    """The task does not wait any more: a worker has it."""


class NotDead(Conflict):
    """The task is not a dead letter."""


class RequestIdConflict(Conflict):
    """The request_id was used before, for a task with other content: another type, payload, header, tenant or key."""


class Overloaded(Rejected):
    """Too much is waiting; try again after `retry_after_ms`.

    OUTBOX_FULL of an ack: follow-ups of other queues cannot leave this shard fast enough, because theirs does not take
    them. The task is still claimed: ack it again before its lease ends."""


class WorkerAtLimit(Rejected):
    """This worker holds as many claims as it may: finish some first."""


class Unavailable(Rejected):
    """The server takes no such calls at the moment: it is shutting down, its disk is nearly full, etcd does not answer
    it, it has not heard yet where the shards of a queue are, or it does not lead and nobody who was asked knows who
    does."""


class Unauthenticated(Rejected):
    """The server does not know who calls: a token is missing, was revoked, or has expired."""


class PermissionDenied(Rejected):
    """The caller has no role that allows this. `metadata` says which right, and on which queue."""


class OutcomeUnknown(Rejected):
    """The server cannot say whether the call took effect; repeat it to find out."""


class ServerError(Rejected):
    """A fault in the server; its log says more."""


BY_REASON: dict[str, type[Rejected]] = {
    "MALFORMED_REQUEST": InvalidArgument,
    "MISSING_FIELD": InvalidArgument,
    "INVALID_FIELD": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "TOO_LARGE": InvalidArgument,
    "BATCH_TOO_LARGE": InvalidArgument,
    "TASK_NOT_FOUND": NotFound,
    "QUEUE_NOT_FOUND": NotFound,
    "SHARD_NOT_FOUND": NotFound,
    "PROBE_NOT_FOUND": NotFound,
    "BACKUP_NOT_FOUND": NotFound,
    "NODE_NOT_FOUND": NotFound,
    "PLAN_NOT_FOUND": NotFound,
    "SCHEDULE_NOT_FOUND": NotFound,
    "WORKER_NOT_FOUND": NotFound,
    "CHANGE_REFUSED": Conflict,
    "RESTORE_REFUSED": Conflict,
    "NO_CLUSTER": Conflict,
    "VERSION_TOO_OLD": Conflict,
    "BAD_RECORD": Conflict,
    "CLUSTER_EXISTS": Conflict,
    "NOT_ENOUGH_NODES": Conflict,
    "PLAN_REFUSED": Conflict,
    "PLAN_UNDER_WAY": Conflict,
    "CONFLICT": Conflict,
    "SCHEDULE_EXISTS": Conflict,
    "STALE_TOKEN": StaleToken,
    "TASK_FINISHED": TaskFinished,
    "TASK_NOT_WAITING": NotWaiting,
    "NOT_DEAD": NotDead,
    "REQUEST_ID_CONFLICT": RequestIdConflict,
    "OVERLOADED": Overloaded,
    "OUTBOX_FULL": Overloaded,
    "WORKER_AT_LIMIT": WorkerAtLimit,
    "DISK_LOW": Unavailable,
    "SHUTTING_DOWN": Unavailable,
    "NOT_LEADER": Unavailable,
    STALE_MAP: Unavailable,
    "WRONG_SHARD": Unavailable,
    "ETCD_UNAVAILABLE": Unavailable,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "OUTCOME_UNKNOWN": OutcomeUnknown,
    "INTERNAL": ServerError,
}

# For reasons that a newer server knows and this client does not: the gRPC status code still says what kind it is.
_BY_STATUS: dict[str, type[Rejected]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": Conflict,
    "FAILED_PRECONDITION": Conflict,
    "ABORTED": Conflict,
    "RESOURCE_EXHAUSTED": Overloaded,
    "UNAVAILABLE": Unavailable,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "INTERNAL": ServerError,
}


def rejected(
    reason: str,
    message: str,
    *,
    field: str = "",
    retry_after_ms: int = 0,
    metadata: Mapping[str, str] = _NONE,
    status: str = "",
) -> Rejected:
    """The error of the right type for a reason; `status` is the gRPC status code by name, if there was one."""
    kind = BY_REASON.get(reason) or _BY_STATUS.get(status, Rejected)
    return kind(message, reason=reason, field=field, retry_after_ms=retry_after_ms, metadata=metadata)


def as_rejected(error: HoldfastError) -> Rejected:
    """What a call that failed as a whole means for each of its items."""
    if isinstance(error, Rejected):
        return error
    if isinstance(error, ConnectionFailed) and not error.sent:
        return rejected("NOT_LEADER", str(error), retry_after_ms=_RETRY_AFTER_MS)
    if isinstance(error, KeyMissing):  # before anything was sent
        return rejected("KEY_MISSING", str(error), retry_after_ms=_RETRY_AFTER_MS)
    # A lost connection, or silence: the call may have taken effect.
    return rejected("OUTCOME_UNKNOWN", str(error), retry_after_ms=1)
