from holdfast.proto.v1 import tasks_pb2 as _tasks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Letter(_message.Message):
    __slots__ = ("task", "run_at_ms")
    TASK_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    task: _tasks_pb2.TaskSpec
    run_at_ms: int
    def __init__(self, task: _Optional[_Union[_tasks_pb2.TaskSpec, _Mapping]] = ..., run_at_ms: _Optional[int] = ...) -> None: ...

class ReceiveTasksRequest(_message.Message):
    __slots__ = ("cluster_id", "destination_shard", "source_shard", "source_incarnation", "first_sequence", "letters")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    destination_shard: int
    source_shard: int
    source_incarnation: int
    first_sequence: int
    letters: _containers.RepeatedCompositeFieldContainer[Letter]
    def __init__(self, cluster_id: _Optional[str] = ..., destination_shard: _Optional[int] = ..., source_shard: _Optional[int] = ..., source_incarnation: _Optional[int] = ..., first_sequence: _Optional[int] = ..., letters: _Optional[_Iterable[_Union[Letter, _Mapping]]] = ...) -> None: ...

class ReceiveTasksResponse(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...
