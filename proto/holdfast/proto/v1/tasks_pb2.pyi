from holdfast.proto.v1 import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetryShape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETRY_SHAPE_UNSPECIFIED: _ClassVar[RetryShape]
    RETRY_SHAPE_EXPONENTIAL: _ClassVar[RetryShape]
    RETRY_SHAPE_LINEAR: _ClassVar[RetryShape]
    RETRY_SHAPE_FIXED: _ClassVar[RetryShape]

class UniqueScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNIQUE_SCOPE_UNSPECIFIED: _ClassVar[UniqueScope]
    UNIQUE_SCOPE_UNTIL_DONE: _ClassVar[UniqueScope]
    UNIQUE_SCOPE_WHILE_WAITING: _ClassVar[UniqueScope]

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_READY: _ClassVar[TaskState]
    TASK_STATE_CLAIMED: _ClassVar[TaskState]
    TASK_STATE_DELAYED: _ClassVar[TaskState]
    TASK_STATE_RETRY_PENDING: _ClassVar[TaskState]
    TASK_STATE_SUCCEEDED: _ClassVar[TaskState]
    TASK_STATE_DEAD: _ClassVar[TaskState]
    TASK_STATE_CANCELLED: _ClassVar[TaskState]
RETRY_SHAPE_UNSPECIFIED: RetryShape
RETRY_SHAPE_EXPONENTIAL: RetryShape
RETRY_SHAPE_LINEAR: RetryShape
RETRY_SHAPE_FIXED: RetryShape
UNIQUE_SCOPE_UNSPECIFIED: UniqueScope
UNIQUE_SCOPE_UNTIL_DONE: UniqueScope
UNIQUE_SCOPE_WHILE_WAITING: UniqueScope
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_READY: TaskState
TASK_STATE_CLAIMED: TaskState
TASK_STATE_DELAYED: TaskState
TASK_STATE_RETRY_PENDING: TaskState
TASK_STATE_SUCCEEDED: TaskState
TASK_STATE_DEAD: TaskState
TASK_STATE_CANCELLED: TaskState

class RetryPolicy(_message.Message):
    __slots__ = ("shape", "base_ms", "factor", "cap_ms", "jitter", "non_retryable")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    BASE_MS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    CAP_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_FIELD_NUMBER: _ClassVar[int]
    NON_RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    shape: RetryShape
    base_ms: int
    factor: float
    cap_ms: int
    jitter: float
    non_retryable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, shape: _Optional[_Union[RetryShape, str]] = ..., base_ms: _Optional[int] = ..., factor: _Optional[float] = ..., cap_ms: _Optional[int] = ..., jitter: _Optional[float] = ..., non_retryable: _Optional[_Iterable[str]] = ...) -> None: ...

class TaskSpec(_message.Message):
    __slots__ = ("queue", "type", "payload", "headers", "priority", "tenant", "request_id", "run_at_ms", "delay_ms", "max_attempts", "max_claims", "result_ttl_ms", "request_id_ttl_ms", "retry", "unique_key", "unique_scope", "limit_key", "timeout_ms", "ttl_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    RESULT_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    type: str
    payload: bytes
    headers: _containers.ScalarMap[str, str]
    priority: int
    tenant: str
    request_id: str
    run_at_ms: int
    delay_ms: int
    max_attempts: int
    max_claims: int
    result_ttl_ms: int
    request_id_ttl_ms: int
    retry: RetryPolicy
    unique_key: str
    unique_scope: UniqueScope
    limit_key: str
    timeout_ms: int
    ttl_ms: int
    def __init__(self, queue: _Optional[str] = ..., type: _Optional[str] = ..., payload: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., run_at_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., max_claims: _Optional[int] = ..., result_ttl_ms: _Optional[int] = ..., request_id_ttl_ms: _Optional[int] = ..., retry: _Optional[_Union[RetryPolicy, _Mapping]] = ..., unique_key: _Optional[str] = ..., unique_scope: _Optional[_Union[UniqueScope, str]] = ..., limit_key: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("reason", "message", "field", "retry_after_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    field: str
    retry_after_ms: int
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class TaskRun(_message.Message):
    __slots__ = ("task", "payloads", "request_ids", "behind")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    task: TaskSpec
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    behind: int
    def __init__(self, task: _Optional[_Union[TaskSpec, _Mapping]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., request_ids: _Optional[_Iterable[str]] = ..., behind: _Optional[int] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("tasks", "runs")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskSpec]
    runs: _containers.RepeatedCompositeFieldContainer[TaskRun]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskSpec, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[TaskRun, _Mapping]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("task_id", "duplicate", "state")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    duplicate: bool
    state: TaskState
    def __init__(self, task_id: _Optional[str] = ..., duplicate: bool = ..., state: _Optional[_Union[TaskState, str]] = ...) -> None: ...

class EnqueueOutcome(_message.Message):
    __slots__ = ("accepted", "rejection")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    rejection: Rejection
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class RefusedItem(_message.Message):
    __slots__ = ("at", "rejection")
    AT_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    at: int
    rejection: Rejection
    def __init__(self, at: _Optional[int] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class DuplicateItem(_message.Message):
    __slots__ = ("at", "accepted")
    AT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    at: int
    accepted: Accepted
    def __init__(self, at: _Optional[int] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ...) -> None: ...

class RunOutcome(_message.Message):
    __slots__ = ("first_task_id", "duplicate", "refused", "rejection", "duplicates")
    FIRST_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    first_task_id: str
    duplicate: bool
    refused: _containers.RepeatedCompositeFieldContainer[RefusedItem]
    rejection: Rejection
    duplicates: _containers.RepeatedCompositeFieldContainer[DuplicateItem]
    def __init__(self, first_task_id: _Optional[str] = ..., duplicate: bool = ..., refused: _Optional[_Iterable[_Union[RefusedItem, _Mapping]]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ..., duplicates: _Optional[_Iterable[_Union[DuplicateItem, _Mapping]]] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("outcomes", "generations", "runs")
    class GenerationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[EnqueueOutcome]
    generations: _containers.ScalarMap[str, int]
    runs: _containers.RepeatedCompositeFieldContainer[RunOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[EnqueueOutcome, _Mapping]]] = ..., generations: _Optional[_Mapping[str, int]] = ..., runs: _Optional[_Iterable[_Union[RunOutcome, _Mapping]]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("queues", "max_tasks", "lease_ms", "wait_ms", "claim_request_id", "worker", "queue_tasks_max", "type_lease_ms", "empty_handed", "suspects_only", "settles_later", "held_only", "held_at", "takes_runs")
    class TypeLeaseMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TASKS_MAX_FIELD_NUMBER: _ClassVar[int]
    TYPE_LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_HANDED_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    SETTLES_LATER_FIELD_NUMBER: _ClassVar[int]
    HELD_ONLY_FIELD_NUMBER: _ClassVar[int]
    HELD_AT_FIELD_NUMBER: _ClassVar[int]
    TAKES_RUNS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    max_tasks: int
    lease_ms: int
    wait_ms: int
    claim_request_id: str
    worker: str
    queue_tasks_max: _containers.RepeatedScalarFieldContainer[int]
    type_lease_ms: _containers.ScalarMap[str, int]
    empty_handed: bool
    suspects_only: bool
    settles_later: bool
    held_only: bool
    held_at: _containers.RepeatedScalarFieldContainer[int]
    takes_runs: bool
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., max_tasks: _Optional[int] = ..., lease_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., claim_request_id: _Optional[str] = ..., worker: _Optional[str] = ..., queue_tasks_max: _Optional[_Iterable[int]] = ..., type_lease_ms: _Optional[_Mapping[str, int]] = ..., empty_handed: bool = ..., suspects_only: bool = ..., settles_later: bool = ..., held_only: bool = ..., held_at: _Optional[_Iterable[int]] = ..., takes_runs: bool = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("task_id", "token", "task", "lease_ms", "attempt", "claims", "enqueued_at_ms", "secret", "alone")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: int
    task: TaskSpec
    lease_ms: int
    attempt: int
    claims: int
    enqueued_at_ms: int
    secret: int
    alone: bool
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[int] = ..., task: _Optional[_Union[TaskSpec, _Mapping]] = ..., lease_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., claims: _Optional[int] = ..., enqueued_at_ms: _Optional[int] = ..., secret: _Optional[int] = ..., alone: bool = ...) -> None: ...

class ClaimRun(_message.Message):
    __slots__ = ("task_id", "token", "secret", "task", "payloads", "request_ids", "at", "lease_ms", "attempt", "claims", "enqueued_at_ms", "alone")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: int
    secret: int
    task: TaskSpec
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    at: _containers.RepeatedScalarFieldContainer[int]
    lease_ms: int
    attempt: int
    claims: int
    enqueued_at_ms: int
    alone: bool
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[int] = ..., secret: _Optional[int] = ..., task: _Optional[_Union[TaskSpec, _Mapping]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., request_ids: _Optional[_Iterable[str]] = ..., at: _Optional[_Iterable[int]] = ..., lease_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., claims: _Optional[int] = ..., enqueued_at_ms: _Optional[int] = ..., alone: bool = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("claims", "waited_ms", "routed_ms", "run_dry_ms", "unsettled_shards", "suggested_wait_ms", "runs")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_DRY_MS_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_SHARDS_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    waited_ms: int
    routed_ms: int
    run_dry_ms: int
    unsettled_shards: _containers.RepeatedScalarFieldContainer[int]
    suggested_wait_ms: int
    runs: _containers.RepeatedCompositeFieldContainer[ClaimRun]
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., waited_ms: _Optional[int] = ..., routed_ms: _Optional[int] = ..., run_dry_ms: _Optional[int] = ..., unsettled_shards: _Optional[_Iterable[int]] = ..., suggested_wait_ms: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[ClaimRun, _Mapping]]] = ...) -> None: ...

class AwaitTasksRequest(_message.Message):
    __slots__ = ("queues", "wait_ms", "worker", "claim_request_id", "max_tasks", "callers", "empty_handed", "suspects_only")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CLAIM_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    CALLERS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_HANDED_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    worker: str
    claim_request_id: str
    max_tasks: int
    callers: int
    empty_handed: bool
    suspects_only: bool
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., wait_ms: _Optional[int] = ..., worker: _Optional[str] = ..., claim_request_id: _Optional[str] = ..., max_tasks: _Optional[int] = ..., callers: _Optional[int] = ..., empty_handed: bool = ..., suspects_only: bool = ...) -> None: ...

class AwaitTasksResponse(_message.Message):
    __slots__ = ("ready", "held", "tasks", "suspects")
    READY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    held: bool
    tasks: int
    suspects: bool
    def __init__(self, ready: bool = ..., held: bool = ..., tasks: _Optional[int] = ..., suspects: bool = ...) -> None: ...

class ClaimRef(_message.Message):
    __slots__ = ("task_id", "token", "secret")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: int
    secret: int
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[int] = ..., secret: _Optional[int] = ...) -> None: ...

class AckItem(_message.Message):
    __slots__ = ("claim", "result", "follow_ups")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_UPS_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    result: bytes
    follow_ups: _containers.RepeatedCompositeFieldContainer[TaskSpec]
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., result: _Optional[bytes] = ..., follow_ups: _Optional[_Iterable[_Union[TaskSpec, _Mapping]]] = ...) -> None: ...

class AckRange(_message.Message):
    __slots__ = ("task_id", "token", "secret", "count")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: int
    secret: int
    count: int
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[int] = ..., secret: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("items", "ranges")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AckItem]
    ranges: _containers.RepeatedCompositeFieldContainer[AckRange]
    def __init__(self, items: _Optional[_Iterable[_Union[AckItem, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[AckRange, _Mapping]]] = ...) -> None: ...

class Acked(_message.Message):
    __slots__ = ("follow_ups",)
    FOLLOW_UPS_FIELD_NUMBER: _ClassVar[int]
    follow_ups: _containers.RepeatedCompositeFieldContainer[Accepted]
    def __init__(self, follow_ups: _Optional[_Iterable[_Union[Accepted, _Mapping]]] = ...) -> None: ...

class AckOutcome(_message.Message):
    __slots__ = ("acked", "rejection")
    ACKED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    acked: Acked
    rejection: Rejection
    def __init__(self, acked: _Optional[_Union[Acked, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class RangeOutcome(_message.Message):
    __slots__ = ("refused", "rejection")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedItem]
    rejection: Rejection
    def __init__(self, refused: _Optional[_Iterable[_Union[RefusedItem, _Mapping]]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("outcomes", "ranges")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[AckOutcome]
    ranges: _containers.RepeatedCompositeFieldContainer[RangeOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[AckOutcome, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[RangeOutcome, _Mapping]]] = ...) -> None: ...

class TaskError(_message.Message):
    __slots__ = ("type", "message", "traceback")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    traceback: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class FailItem(_message.Message):
    __slots__ = ("claim", "error", "retry_delay_ms", "dead", "retry_at_ms")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_MS_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    error: TaskError
    retry_delay_ms: int
    dead: bool
    retry_at_ms: int
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., error: _Optional[_Union[TaskError, _Mapping]] = ..., retry_delay_ms: _Optional[int] = ..., dead: bool = ..., retry_at_ms: _Optional[int] = ...) -> None: ...

class FailRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[FailItem]
    def __init__(self, items: _Optional[_Iterable[_Union[FailItem, _Mapping]]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("state", "retry_at_ms")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_MS_FIELD_NUMBER: _ClassVar[int]
    state: TaskState
    retry_at_ms: int
    def __init__(self, state: _Optional[_Union[TaskState, str]] = ..., retry_at_ms: _Optional[int] = ...) -> None: ...

class FailOutcome(_message.Message):
    __slots__ = ("failed", "rejection")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    failed: Failed
    rejection: Rejection
    def __init__(self, failed: _Optional[_Union[Failed, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class FailResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[FailOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[FailOutcome, _Mapping]]] = ...) -> None: ...

class ExtendItem(_message.Message):
    __slots__ = ("claim", "lease_ms")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimRef
    lease_ms: int
    def __init__(self, claim: _Optional[_Union[ClaimRef, _Mapping]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ExtendItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ExtendItem, _Mapping]]] = ...) -> None: ...

class Extended(_message.Message):
    __slots__ = ("lease_ms", "cancel_requested", "draining", "waited_ms", "ends_attempt")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDS_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    cancel_requested: bool
    draining: bool
    waited_ms: int
    ends_attempt: bool
    def __init__(self, lease_ms: _Optional[int] = ..., cancel_requested: bool = ..., draining: bool = ..., waited_ms: _Optional[int] = ..., ends_attempt: bool = ...) -> None: ...

class ExtendOutcome(_message.Message):
    __slots__ = ("extended", "rejection")
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    extended: Extended
    rejection: Rejection
    def __init__(self, extended: _Optional[_Union[Extended, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("outcomes", "routed_ms")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    ROUTED_MS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ExtendOutcome]
    routed_ms: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ExtendOutcome, _Mapping]]] = ..., routed_ms: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("claims", "delay_ms")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[ClaimRef]
    delay_ms: int
    def __init__(self, claims: _Optional[_Iterable[_Union[ClaimRef, _Mapping]]] = ..., delay_ms: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: TaskState
    def __init__(self, state: _Optional[_Union[TaskState, str]] = ...) -> None: ...

class ReleaseOutcome(_message.Message):
    __slots__ = ("released", "rejection")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    released: Released
    rejection: Rejection
    def __init__(self, released: _Optional[_Union[Released, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ReleaseOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ReleaseOutcome, _Mapping]]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("task_ids",)
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: TaskState
    def __init__(self, state: _Optional[_Union[TaskState, str]] = ...) -> None: ...

class CancelOutcome(_message.Message):
    __slots__ = ("cancelled", "rejection")
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    cancelled: Cancelled
    rejection: Rejection
    def __init__(self, cancelled: _Optional[_Union[Cancelled, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CancelOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CancelOutcome, _Mapping]]] = ...) -> None: ...

class UpdateItem(_message.Message):
    __slots__ = ("task_id", "priority", "run_at_ms", "delay_ms")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    priority: int
    run_at_ms: int
    delay_ms: int
    def __init__(self, task_id: _Optional[str] = ..., priority: _Optional[int] = ..., run_at_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ...) -> None: ...

class UpdateTasksRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[UpdateItem]
    def __init__(self, items: _Optional[_Iterable[_Union[UpdateItem, _Mapping]]] = ...) -> None: ...

class Updated(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: TaskState
    def __init__(self, state: _Optional[_Union[TaskState, str]] = ...) -> None: ...

class UpdateOutcome(_message.Message):
    __slots__ = ("updated", "rejection")
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    updated: Updated
    rejection: Rejection
    def __init__(self, updated: _Optional[_Union[Updated, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class UpdateTasksResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[UpdateOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[UpdateOutcome, _Mapping]]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("worker", "claimed_at_ms", "ended_at_ms", "how", "error_type", "error_message")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    claimed_at_ms: int
    ended_at_ms: int
    how: str
    error_type: str
    error_message: str
    def __init__(self, worker: _Optional[str] = ..., claimed_at_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., how: _Optional[str] = ..., error_type: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class TaskInfo(_message.Message):
    __slots__ = ("task_id", "state", "queue", "task", "priority", "failures", "max_attempts", "claims", "max_claims", "enqueued_at_ms", "changed_at_ms", "due_at_ms", "lease_expires_at_ms", "worker", "cancel_requested", "last_error", "result", "purge_at_ms", "dead_reason", "result_omitted", "attempts", "type", "tenant", "limit_key", "unique_key", "timeout_ms", "start_by_ms", "suspect", "result_expired_at_ms")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PURGE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_REASON_FIELD_NUMBER: _ClassVar[int]
    RESULT_OMITTED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_BY_MS_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    RESULT_EXPIRED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    state: TaskState
    queue: str
    task: TaskSpec
    priority: int
    failures: int
    max_attempts: int
    claims: int
    max_claims: int
    enqueued_at_ms: int
    changed_at_ms: int
    due_at_ms: int
    lease_expires_at_ms: int
    worker: str
    cancel_requested: bool
    last_error: TaskError
    result: bytes
    purge_at_ms: int
    dead_reason: str
    result_omitted: bool
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    type: str
    tenant: str
    limit_key: str
    unique_key: str
    timeout_ms: int
    start_by_ms: int
    suspect: bool
    result_expired_at_ms: int
    def __init__(self, task_id: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., queue: _Optional[str] = ..., task: _Optional[_Union[TaskSpec, _Mapping]] = ..., priority: _Optional[int] = ..., failures: _Optional[int] = ..., max_attempts: _Optional[int] = ..., claims: _Optional[int] = ..., max_claims: _Optional[int] = ..., enqueued_at_ms: _Optional[int] = ..., changed_at_ms: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., lease_expires_at_ms: _Optional[int] = ..., worker: _Optional[str] = ..., cancel_requested: bool = ..., last_error: _Optional[_Union[TaskError, _Mapping]] = ..., result: _Optional[bytes] = ..., purge_at_ms: _Optional[int] = ..., dead_reason: _Optional[str] = ..., result_omitted: bool = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., type: _Optional[str] = ..., tenant: _Optional[str] = ..., limit_key: _Optional[str] = ..., unique_key: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., start_by_ms: _Optional[int] = ..., suspect: bool = ..., result_expired_at_ms: _Optional[int] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class GetTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: TaskInfo
    def __init__(self, task: _Optional[_Union[TaskInfo, _Mapping]] = ...) -> None: ...

class WaitTasksRequest(_message.Message):
    __slots__ = ("task_ids", "wait_ms")
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class WaitOutcome(_message.Message):
    __slots__ = ("task", "rejection")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    task: TaskInfo
    rejection: Rejection
    def __init__(self, task: _Optional[_Union[TaskInfo, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class WaitTasksResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[WaitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[WaitOutcome, _Mapping]]] = ...) -> None: ...

class QueueStatsRequest(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queues: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueCounts(_message.Message):
    __slots__ = ("queue", "ready", "claimed", "delayed", "retrying", "dead", "enqueued_total", "claimed_total", "succeeded_total", "failed_total", "expired_total", "cancelled_total", "dead_total", "oldest_ready_age_ms", "waiting_reserves", "paused", "enqueued_per_second", "claimed_per_second", "succeeded_per_second", "failed_per_second", "latencies", "dead_alert", "oldest_claim_age_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEAD_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OLDEST_READY_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_RESERVES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FAILED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_ALERT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_CLAIM_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    ready: int
    claimed: int
    delayed: int
    retrying: int
    dead: int
    enqueued_total: int
    claimed_total: int
    succeeded_total: int
    failed_total: int
    expired_total: int
    cancelled_total: int
    dead_total: int
    oldest_ready_age_ms: int
    waiting_reserves: int
    paused: bool
    enqueued_per_second: float
    claimed_per_second: float
    succeeded_per_second: float
    failed_per_second: float
    latencies: _containers.RepeatedCompositeFieldContainer[TypeLatency]
    dead_alert: bool
    oldest_claim_age_ms: int
    def __init__(self, queue: _Optional[str] = ..., ready: _Optional[int] = ..., claimed: _Optional[int] = ..., delayed: _Optional[int] = ..., retrying: _Optional[int] = ..., dead: _Optional[int] = ..., enqueued_total: _Optional[int] = ..., claimed_total: _Optional[int] = ..., succeeded_total: _Optional[int] = ..., failed_total: _Optional[int] = ..., expired_total: _Optional[int] = ..., cancelled_total: _Optional[int] = ..., dead_total: _Optional[int] = ..., oldest_ready_age_ms: _Optional[int] = ..., waiting_reserves: _Optional[int] = ..., paused: bool = ..., enqueued_per_second: _Optional[float] = ..., claimed_per_second: _Optional[float] = ..., succeeded_per_second: _Optional[float] = ..., failed_per_second: _Optional[float] = ..., latencies: _Optional[_Iterable[_Union[TypeLatency, _Mapping]]] = ..., dead_alert: bool = ..., oldest_claim_age_ms: _Optional[int] = ...) -> None: ...

class TypeLatency(_message.Message):
    __slots__ = ("type", "ready_to_claim", "claim_to_ack", "ready_to_claim_ms_total", "claim_to_ack_ms_total")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READY_TO_CLAIM_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TO_ACK_FIELD_NUMBER: _ClassVar[int]
    READY_TO_CLAIM_MS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TO_ACK_MS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    type: str
    ready_to_claim: _containers.RepeatedScalarFieldContainer[int]
    claim_to_ack: _containers.RepeatedScalarFieldContainer[int]
    ready_to_claim_ms_total: int
    claim_to_ack_ms_total: int
    def __init__(self, type: _Optional[str] = ..., ready_to_claim: _Optional[_Iterable[int]] = ..., claim_to_ack: _Optional[_Iterable[int]] = ..., ready_to_claim_ms_total: _Optional[int] = ..., claim_to_ack_ms_total: _Optional[int] = ...) -> None: ...

class QueueStatsOutcome(_message.Message):
    __slots__ = ("counts", "rejection")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    counts: QueueCounts
    rejection: Rejection
    def __init__(self, counts: _Optional[_Union[QueueCounts, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class QueueStatsResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[QueueStatsOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[QueueStatsOutcome, _Mapping]]] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "partial")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    partial: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., partial: bool = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_page_token", "missing_shards")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueCounts]
    next_page_token: str
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueCounts, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class DeadLetterFilter(_message.Message):
    __slots__ = ("type", "tenant", "error", "died_from_ms", "died_before_ms", "reason")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DIED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    DIED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    type: str
    tenant: str
    error: str
    died_from_ms: int
    died_before_ms: int
    reason: str
    def __init__(self, type: _Optional[str] = ..., tenant: _Optional[str] = ..., error: _Optional[str] = ..., died_from_ms: _Optional[int] = ..., died_before_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("queue", "page_size", "page_token", "filter")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    page_size: int
    page_token: str
    filter: DeadLetterFilter
    def __init__(self, queue: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetDeadLetterRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class GetDeadLetterResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: TaskInfo
    def __init__(self, task: _Optional[_Union[TaskInfo, _Mapping]] = ...) -> None: ...

class RetryDeadLettersRequest(_message.Message):
    __slots__ = ("task_ids",)
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DiscardDeadLettersRequest(_message.Message):
    __slots__ = ("task_ids", "by", "note")
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    by: str
    note: str
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ..., by: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class Discard(_message.Message):
    __slots__ = ("task_id", "queue", "type", "tenant", "dead_reason", "died_at_ms", "discarded_at_ms", "by", "note")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEAD_REASON_FIELD_NUMBER: _ClassVar[int]
    DIED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    queue: str
    type: str
    tenant: str
    dead_reason: str
    died_at_ms: int
    discarded_at_ms: int
    by: str
    note: str
    def __init__(self, task_id: _Optional[str] = ..., queue: _Optional[str] = ..., type: _Optional[str] = ..., tenant: _Optional[str] = ..., dead_reason: _Optional[str] = ..., died_at_ms: _Optional[int] = ..., discarded_at_ms: _Optional[int] = ..., by: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class ListDiscardsRequest(_message.Message):
    __slots__ = ("queue", "page_size", "page_token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    page_size: int
    page_token: str
    def __init__(self, queue: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDiscardsResponse(_message.Message):
    __slots__ = ("discards", "next_page_token")
    DISCARDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    discards: _containers.RepeatedCompositeFieldContainer[Discard]
    next_page_token: str
    def __init__(self, discards: _Optional[_Iterable[_Union[Discard, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeadLetterDone(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeadLetterOutcome(_message.Message):
    __slots__ = ("done", "rejection")
    DONE_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    done: DeadLetterDone
    rejection: Rejection
    def __init__(self, done: _Optional[_Union[DeadLetterDone, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class RetryDeadLettersResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[DeadLetterOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[DeadLetterOutcome, _Mapping]]] = ...) -> None: ...

class DiscardDeadLettersResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[DeadLetterOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[DeadLetterOutcome, _Mapping]]] = ...) -> None: ...
