from holdfast.proto.v1 import tasks_pb2 as _tasks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutboxMessage(_message.Message):
    __slots__ = ("task", "run_at_ms")
    TASK_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    task: _tasks_pb2.TaskSpec
    run_at_ms: int
    def __init__(self, task: _Optional[_Union[_tasks_pb2.TaskSpec, _Mapping]] = ..., run_at_ms: _Optional[int] = ...) -> None: ...

class ReceiveTasksRequest(_message.Message):
    __slots__ = ("cluster_id", "destination_shard", "source_shard", "source_incarnation", "first_sequence", "messages")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    destination_shard: int
    source_shard: int
    source_incarnation: int
    first_sequence: int
    messages: _containers.RepeatedCompositeFieldContainer[OutboxMessage]
    def __init__(self, cluster_id: _Optional[str] = ..., destination_shard: _Optional[int] = ..., source_shard: _Optional[int] = ..., source_incarnation: _Optional[int] = ..., first_sequence: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[OutboxMessage, _Mapping]]] = ...) -> None: ...

class ReceiveTasksResponse(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...

class AllocationReport(_message.Message):
    __slots__ = ("queue", "what", "holds", "uses", "demand", "number", "version")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    what: str
    holds: int
    uses: int
    demand: int
    number: int
    version: int
    def __init__(self, queue: _Optional[str] = ..., what: _Optional[str] = ..., holds: _Optional[int] = ..., uses: _Optional[int] = ..., demand: _Optional[int] = ..., number: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class AllocationGrant(_message.Message):
    __slots__ = ("queue", "what", "amount", "lease_ms", "unlimited", "number", "version")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    what: str
    amount: int
    lease_ms: int
    unlimited: bool
    number: int
    version: int
    def __init__(self, queue: _Optional[str] = ..., what: _Optional[str] = ..., amount: _Optional[int] = ..., lease_ms: _Optional[int] = ..., unlimited: bool = ..., number: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("cluster_id", "destination_shard", "source_shard", "reports")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SHARD_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    destination_shard: int
    source_shard: int
    reports: _containers.RepeatedCompositeFieldContainer[AllocationReport]
    def __init__(self, cluster_id: _Optional[str] = ..., destination_shard: _Optional[int] = ..., source_shard: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[AllocationReport, _Mapping]]] = ...) -> None: ...

class AllocateResponse(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[AllocationGrant]
    def __init__(self, grants: _Optional[_Iterable[_Union[AllocationGrant, _Mapping]]] = ...) -> None: ...

class SettingsNewsRequest(_message.Message):
    __slots__ = ("cluster_id", "after_version")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    after_version: int
    def __init__(self, cluster_id: _Optional[str] = ..., after_version: _Optional[int] = ...) -> None: ...

class QueueVersion(_message.Message):
    __slots__ = ("queue", "version")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    version: int
    def __init__(self, queue: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class SettingsNewsResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueVersion]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueVersion, _Mapping]]] = ...) -> None: ...
