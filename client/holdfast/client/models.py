"""What goes in and comes out of the client: frozen values, no behaviour. Here are tasks; `queue_models`, `schedules`
and `cluster_models` have the rest.

Instants are milliseconds since the Unix epoch, durations are milliseconds, and names end with the unit. Payloads,
results, headers and tokens are left out of every `repr`, so that they do not end up in logs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self

from holdfast.client._lazy import LazyList


class TaskState(StrEnum):
    """Where a task is in its life."""

    READY = "READY"  # waiting for a worker
    CLAIMED = "CLAIMED"  # a worker holds it
    DELAYED = "DELAYED"  # waits for its time
    RETRY_PENDING = "RETRY_PENDING"  # failed, waits for its next attempt
    SUCCEEDED = "SUCCEEDED"
    DEAD = "DEAD"  # its budget is spent, or a worker gave it up
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # a state that only a newer client knows

    @property
    def is_final(self) -> bool:
        """Whether the task has finished: succeeded, dead or cancelled."""
        return self in _FINAL_STATES


_FINAL_STATES = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED})


class Choice(StrEnum):
    """One of several, which may also be named in small letters and with dashes."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls.__members__.get(value.upper().replace("-", "_")) if isinstance(value, str) else None


class RetryShape(Choice):
    """How the pause before another attempt grows with the failures of a task.

    >>> RetryShape("fixed")
    <RetryShape.FIXED: 'FIXED'>
    """

    EXPONENTIAL = "EXPONENTIAL"  # base, base x factor, base x factor², ...
    LINEAR = "LINEAR"  # base, 2 x base, 3 x base, ...
    FIXED = "FIXED"  # base, always
    UNKNOWN = "UNKNOWN"  # one that only a newer client knows


class UniqueScope(Choice):
    """How long a unique key keeps other tasks out.

    >>> UniqueScope("while-waiting")
    <UniqueScope.WHILE_WAITING: 'WHILE_WAITING'>
    """

    UNTIL_DONE = "UNTIL_DONE"  # until the task has succeeded, died or was cancelled
    WHILE_WAITING = "WHILE_WAITING"  # until it is claimed; a task that waits again takes the key back if it is free
    UNKNOWN = "UNKNOWN"  # one that only a newer client knows


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed task is tried again. What is not given is as the queue says; how often is `NewTask.max_attempts`.

    >>> RetryPolicy(shape=RetryShape.LINEAR, base_ms=500, cap_ms=60_000, non_retryable=["PaymentRefused"])
    RetryPolicy(shape=<RetryShape.LINEAR: 'LINEAR'>, base_ms=500, factor=None, cap_ms=60000, jitter=None, \
non_retryable=['PaymentRefused'])
    """

    shape: RetryShape | None = None
    base_ms: int | None = None  # the first pause
    factor: float | None = None  # 1-100; of RetryShape.EXPONENTIAL
    cap_ms: int | None = None  # no pause is longer
    jitter: float | None = None  # 0-1; 0.2: up to 20 % less or more
    non_retryable: Sequence[
        str
    ] = ()  # types of errors after which the task is dead at once; besides those of the queue


class Claim(Protocol):
    """What ack, fail, extend and release need: a `ClaimedTask`, or a `ClaimRef` made from stored parts."""

    @property
    def task_id(self) -> str: ...
    @property
    def token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NewTask:
    """What a producer hands over. It never changes once accepted.

    >>> NewTask("mail", "welcome", b'{"to": "ada@example.org"}', delay_ms=5_000)
    NewTask(queue='mail', type='welcome', priority=None, tenant='', request_id=None, \
request_id_ttl_ms=None, run_at_ms=None, delay_ms=5000, max_attempts=None, max_claims=None, result_ttl_ms=None, \
retry=None, unique_key='', unique_scope=<UniqueScope.UNTIL_DONE: 'UNTIL_DONE'>, limit_key='', timeout_ms=None, \
ttl_ms=None)
    """

    queue: str  # 1-128 of [A-Za-z0-9._-]
    type: str  # names the handler
    payload: bytes = field(default=b"", repr=False)  # opaque to the server
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    priority: int | None = None  # 0-9, higher first; the server's default is 5
    tenant: str = ""  # may be empty
    # One task per (queue, request_id): makes the enqueue safe to retry. None: the client makes one up for its own
    # retries, of the form ~0.x.0, which no other may have. Empty: none, and an enqueue whose connection is lost is not
    # repeated.
    request_id: str | None = None
    request_id_ttl_ms: int | None = None  # how long a given request_id is remembered, and at least while the task lives
    run_at_ms: int | None = None  # not before this instant; at most one of run_at_ms and delay_ms
    delay_ms: int | None = None  # counted from acceptance
    max_attempts: int | None = None  # failures allowed before the task is dead
    max_claims: int | None = None  # claims allowed, however each ended
    result_ttl_ms: int | None = None  # how long a result is kept
    retry: RetryPolicy | None = None  # None: as the queue says
    # At most one task of the queue at a time has this key: another one is answered with the task that has it.
    unique_key: str = ""
    unique_scope: UniqueScope = UniqueScope.UNTIL_DONE
    limit_key: str = ""  # the queue's caps per key count by it; tasks of one key run in order
    timeout_ms: int | None = None  # how long one attempt may run, however often its lease is extended; 1 s to 30 days
    ttl_ms: int | None = None  # not started so long after it could have been: dead; 1 s to a year


@dataclass(frozen=True, slots=True)
class Accepted:
    """The task is durable."""

    task_id: str  # a UUID; empty for a follow-up that is still on its way to another shard: see `Acked`
    # The request_id was seen before, or the unique_key is taken: task_id is that task. With a unique_key and no
    # request_id it may be the task of this very call, if the connection was lost and the client has repeated it.
    duplicate: bool = False
    state: TaskState | None = None  # of a duplicate: what that task is now; None if it has ended and is known no more


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Names a claim by its parts."""

    task_id: str  # a UUID
    token: int = field(repr=False)  # the fencing token


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A task this worker holds until its lease ends."""

    task_id: str  # a UUID
    token: int = field(repr=False)  # the fencing token: proves that the claim is the current one
    queue: str
    type: str  # names the handler
    payload: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    priority: int | None = None  # as the producer gave it
    tenant: str = ""
    request_id: str = ""
    attempt: int = 1  # 1 for the first
    claims: int = 1  # how many of its claims are spent, this one included
    max_attempts: int | None = None  # as the producer gave it
    limit_key: str = ""
    unique_key: str = ""
    timeout_ms: int | None = None  # of one attempt, as the producer gave it
    enqueued_at_ms: int = 0
    lease_ms: int = 0  # what was left of the lease when the server answered
    lease_ends_s: float = 0.0  # when it ends, on this machine's time.monotonic(), however long the call had waited
    # Its last worker fell silent: claim nothing else before it is settled, so that it is known whose fault it is if
    # this one does, too.
    alone: bool = False


class Claims(LazyList[ClaimedTask]):
    """What one call has claimed.

    `run_dry_s` is not 0 if tasks that must run alone wait for a worker that holds nothing: claim nothing more until all
    is settled, or for so many seconds, then ask for them with `empty_handed` and `suspects_only`.
    `unsettled_shards` did not answer in time, and may have claimed for this call or an earlier attempt of it, beside
    the claims that are here. Ask for other tasks with another `claim_request_id`, and with this one, `held_only` and
    `held_at` for what was claimed, again and again until an answer names no more; otherwise their leases end.
    `suggested_wait_ms` is not 0 if very many workers wait at the server: the next call had better wait so long.
    """

    def __init__(
        self,
        claims: Iterable[ClaimedTask] = (),
        run_dry_s: float = 0.0,
        unsettled_shards: Sequence[int] = (),
        suggested_wait_ms: int = 0,
    ) -> None:
        super().__init__(claims)
        self.run_dry_s = run_dry_s
        self.unsettled_shards = unsettled_shards
        self.suggested_wait_ms = suggested_wait_ms

    def __reduce__(self) -> tuple[Any, ...]:
        return Claims, ([*self], self.run_dry_s, self.unsettled_shards, self.suggested_wait_ms)


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an attempt failed."""

    type: str = ""  # e.g. the class of the exception
    message: str = ""
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """One item of `ack_many` that has a result or follow-up tasks. A bare claim will do where there is neither."""

    claim: Claim
    result: bytes | None = field(default=None, repr=False)  # kept for the task's result_ttl_ms
    follow_ups: Sequence[NewTask] = ()  # accepted together with the ack or not at all


@dataclass(frozen=True, slots=True)
class Acked:
    """The task has succeeded and is never handed out again.

    In a cluster with several shards a follow-up whose queue lives on another shard than the task goes there by itself,
    exactly once. It is durable, but gets its id only when it arrives: until then its `task_id` is empty."""

    follow_ups: tuple[Accepted, ...] = ()  # in the order of Ack.follow_ups


@dataclass(frozen=True, slots=True)
class Failure:
    """One item of `fail_many`."""

    claim: Claim
    error: TaskError = TaskError()
    retry_delay_ms: int | None = None  # overrides the server's back-off
    dead: bool = False  # no attempt can succeed: make it a dead letter now
    retry_at_ms: int | None = None  # overrides the server's back-off too; at most one of retry_at_ms and retry_delay_ms


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure is recorded."""

    state: TaskState  # RETRY_PENDING, DEAD or CANCELLED
    retry_at_ms: int | None = None  # for RETRY_PENDING


@dataclass(frozen=True, slots=True)
class Extension:
    """One item of `extend_many`."""

    claim: Claim
    lease_ms: int  # the new lease, counted from now


@dataclass(frozen=True, slots=True)
class Extended:
    """The lease is prolonged."""

    lease_ms: int  # what was left of the lease when the server answered
    lease_ends_s: float = 0.0  # when it ends, on this machine's time.monotonic()
    cancel_requested: bool = False  # stop working on it; ack, fail and release are still accepted
    draining: bool = False  # the server is shutting down
    ends_attempt: bool = False  # it is less than was asked for, because the attempt may take no longer


@dataclass(frozen=True, slots=True)
class Released:
    """The claim is given back and no attempt was spent."""

    state: TaskState  # READY, DELAYED if it was snoozed, or CANCELLED if a cancellation was waiting


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The cancellation is recorded."""

    state: TaskState  # CANCELLED, or CLAIMED if the worker that holds it will be told


@dataclass(frozen=True, slots=True)
class TaskUpdate:
    """One item of `update_tasks`: what is to change of a waiting task."""

    task_id: str
    _: KW_ONLY
    priority: int | None = None  # 0-9; a ready task joins the end of that line
    run_at_ms: int | None = None  # when it may start; in the past means now. At most one of run_at_ms and delay_ms
    delay_ms: int | None = None  # counted from now; 0 makes it ready at once


@dataclass(frozen=True, slots=True)
class Updated:
    """The change is recorded."""

    state: TaskState  # READY, DELAYED or RETRY_PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that came to nothing."""

    worker: str = ""
    claimed_at_ms: int = 0
    ended_at_ms: int = 0
    how: str = ""  # FAILED, LEASE_EXPIRED or TIMED_OUT
    error_type: str = ""
    error_message: str = ""  # its beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """All that the server knows about a task."""

    task_id: str  # a UUID
    state: TaskState
    queue: str
    task: NewTask | None = None  # as the producer gave it; None once the task has finished
    priority: int = 0
    failures: int = 0  # attempts that failed
    max_attempts: int = 0  # failures allowed
    claims: int = 0  # how often it has been handed out
    max_claims: int = 0  # claims allowed
    enqueued_at_ms: int = 0
    changed_at_ms: int = 0  # when it entered this state
    due_at_ms: int | None = None  # when a delayed or retrying task becomes ready
    lease_expires_at_ms: int | None = None  # of a claimed task
    worker: str = ""  # the last one that claimed it
    cancel_requested: bool = False
    last_error: TaskError | None = None
    result: bytes | None = field(default=None, repr=False)  # None: there was none, none was to be kept, or it expired
    suspect: bool = False  # its worker fell silent, and it was not heard of since: it is handed out alone
    result_expired_at_ms: int | None = None  # when the result went; None: it has not gone, or there was none
    purge_at_ms: int | None = None  # when a finished task is forgotten
    # Why a dead task died: ATTEMPTS_SPENT, CLAIMS_SPENT, WORKER_GAVE_UP, NON_RETRYABLE, TTL_PASSED or
    # REQUEST_ID_CONFLICT.
    dead_reason: str = ""
    attempts: tuple[Attempt, ...] = ()  # the newest that came to nothing; in get_task and get_dead_letter
    type: str = ""
    tenant: str = ""
    limit_key: str = ""
    unique_key: str = ""
    timeout_ms: int | None = None  # of one attempt
    start_by_ms: int | None = None  # when it dies unless it was started; None: never, or it was started
