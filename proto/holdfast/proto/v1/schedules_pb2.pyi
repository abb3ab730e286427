from holdfast.proto.v1 import rules_pb2 as _rules_pb2
from holdfast.proto.v1 import tasks_pb2 as _tasks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CatchUp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATCH_UP_UNSPECIFIED: _ClassVar[CatchUp]
    CATCH_UP_NONE: _ClassVar[CatchUp]
    CATCH_UP_ONE: _ClassVar[CatchUp]
    CATCH_UP_ALL: _ClassVar[CatchUp]

class Overlap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLAP_UNSPECIFIED: _ClassVar[Overlap]
    OVERLAP_ALLOW: _ClassVar[Overlap]
    OVERLAP_SKIP: _ClassVar[Overlap]
    OVERLAP_REPLACE: _ClassVar[Overlap]
CATCH_UP_UNSPECIFIED: CatchUp
CATCH_UP_NONE: CatchUp
CATCH_UP_ONE: CatchUp
CATCH_UP_ALL: CatchUp
OVERLAP_UNSPECIFIED: Overlap
OVERLAP_ALLOW: Overlap
OVERLAP_SKIP: Overlap
OVERLAP_REPLACE: Overlap

class ScheduleSpec(_message.Message):
    __slots__ = ("expression", "time_zone", "catch_up", "overlap", "task")
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    expression: str
    time_zone: str
    catch_up: CatchUp
    overlap: Overlap
    task: _tasks_pb2.TaskSpec
    def __init__(self, expression: _Optional[str] = ..., time_zone: _Optional[str] = ..., catch_up: _Optional[_Union[CatchUp, str]] = ..., overlap: _Optional[_Union[Overlap, str]] = ..., task: _Optional[_Union[_tasks_pb2.TaskSpec, _Mapping]] = ...) -> None: ...

class ScheduleInfo(_message.Message):
    __slots__ = ("queue", "name", "spec", "paused", "next_at_ms", "last_at_ms", "last_task_id", "fired_total", "skipped_total", "version")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FIRED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    spec: ScheduleSpec
    paused: bool
    next_at_ms: int
    last_at_ms: int
    last_task_id: str
    fired_total: int
    skipped_total: int
    version: int
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., paused: bool = ..., next_at_ms: _Optional[int] = ..., last_at_ms: _Optional[int] = ..., last_task_id: _Optional[str] = ..., fired_total: _Optional[int] = ..., skipped_total: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class PutScheduleRequest(_message.Message):
    __slots__ = ("queue", "name", "spec", "must_be_new", "paused")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MUST_BE_NEW_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    spec: ScheduleSpec
    must_be_new: bool
    paused: bool
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., must_be_new: bool = ..., paused: bool = ...) -> None: ...

class PutScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: ScheduleInfo
    def __init__(self, schedule: _Optional[_Union[ScheduleInfo, _Mapping]] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("queue", "name")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: ScheduleInfo
    def __init__(self, schedule: _Optional[_Union[ScheduleInfo, _Mapping]] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("queue", "page_size", "page_token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    page_size: int
    page_token: str
    def __init__(self, queue: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "next_page_token")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleInfo]
    next_page_token: str
    def __init__(self, schedules: _Optional[_Iterable[_Union[ScheduleInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("queue", "name")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseScheduleRequest(_message.Message):
    __slots__ = ("queue", "name", "paused")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    paused: bool
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., paused: bool = ...) -> None: ...

class PauseScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: ScheduleInfo
    def __init__(self, schedule: _Optional[_Union[ScheduleInfo, _Mapping]] = ...) -> None: ...

class TriggerScheduleRequest(_message.Message):
    __slots__ = ("queue", "name", "request_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    request_id: str
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class TriggerScheduleResponse(_message.Message):
    __slots__ = ("task_id", "duplicate", "is_of_another", "state")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    IS_OF_ANOTHER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    duplicate: bool
    is_of_another: bool
    state: _tasks_pb2.TaskState
    def __init__(self, task_id: _Optional[str] = ..., duplicate: bool = ..., is_of_another: bool = ..., state: _Optional[_Union[_tasks_pb2.TaskState, str]] = ...) -> None: ...

class PreviewScheduleRequest(_message.Message):
    __slots__ = ("expression", "time_zone", "count", "after_ms", "queue", "name")
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    expression: str
    time_zone: str
    count: int
    after_ms: int
    queue: str
    name: str
    def __init__(self, expression: _Optional[str] = ..., time_zone: _Optional[str] = ..., count: _Optional[int] = ..., after_ms: _Optional[int] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class PreviewScheduleResponse(_message.Message):
    __slots__ = ("at_ms",)
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    at_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at_ms: _Optional[_Iterable[int]] = ...) -> None: ...
