from holdfast.proto.v1 import rules_pb2 as _rules_pb2
from holdfast.proto.v1 import tasks_pb2 as _tasks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_RUNNING: _ClassVar[WorkerState]
    WORKER_STATE_QUIET: _ClassVar[WorkerState]
    WORKER_STATE_STOPPING: _ClassVar[WorkerState]
    WORKER_STATE_GONE: _ClassVar[WorkerState]
    WORKER_STATE_DRAINED: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_RUNNING: WorkerState
WORKER_STATE_QUIET: WorkerState
WORKER_STATE_STOPPING: WorkerState
WORKER_STATE_GONE: WorkerState
WORKER_STATE_DRAINED: WorkerState

class PurgeQueueRequest(_message.Message):
    __slots__ = ("queue", "page_token", "dry_run")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    page_token: str
    dry_run: bool
    def __init__(self, queue: _Optional[str] = ..., page_token: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class PurgeQueueResponse(_message.Message):
    __slots__ = ("purged", "next_page_token")
    PURGED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    purged: int
    next_page_token: str
    def __init__(self, purged: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TaskFilter(_message.Message):
    __slots__ = ("states", "type", "tenant", "worker", "min_age_ms")
    STATES_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MIN_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[_tasks_pb2.TaskState]
    type: str
    tenant: str
    worker: str
    min_age_ms: int
    def __init__(self, states: _Optional[_Iterable[_Union[_tasks_pb2.TaskState, str]]] = ..., type: _Optional[str] = ..., tenant: _Optional[str] = ..., worker: _Optional[str] = ..., min_age_ms: _Optional[int] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("queue", "filter", "page_size", "page_token", "partial")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    queue: str
    filter: TaskFilter
    page_size: int
    page_token: str
    partial: bool
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[TaskFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., partial: bool = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token", "missing_shards")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_tasks_pb2.TaskInfo]
    next_page_token: str
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tasks: _Optional[_Iterable[_Union[_tasks_pb2.TaskInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker", "claims", "last_seen_ms", "queues", "is_waiting", "state", "slots", "version", "desired")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_WAITING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    claims: int
    last_seen_ms: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    is_waiting: bool
    state: WorkerState
    slots: int
    version: str
    desired: WorkerState
    def __init__(self, worker: _Optional[str] = ..., claims: _Optional[int] = ..., last_seen_ms: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., is_waiting: bool = ..., state: _Optional[_Union[WorkerState, str]] = ..., slots: _Optional[int] = ..., version: _Optional[str] = ..., desired: _Optional[_Union[WorkerState, str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker", "state", "slots", "version", "queues")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    state: WorkerState
    slots: int
    version: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., slots: _Optional[int] = ..., version: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("desired", "next_ms")
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    desired: WorkerState
    next_ms: int
    def __init__(self, desired: _Optional[_Union[WorkerState, str]] = ..., next_ms: _Optional[int] = ...) -> None: ...

class SignalWorkerRequest(_message.Message):
    __slots__ = ("worker", "desired")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    desired: WorkerState
    def __init__(self, worker: _Optional[str] = ..., desired: _Optional[_Union[WorkerState, str]] = ...) -> None: ...

class SignalWorkerResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: WorkerState
    def __init__(self, state: _Optional[_Union[WorkerState, str]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "partial")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    partial: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., partial: bool = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "next_page_token", "missing_shards")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    next_page_token: str
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...
