from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
RULE_FIELD_NUMBER: _ClassVar[int]
rule: _descriptor.FieldDescriptor

class MethodRule(_message.Message):
    __slots__ = ("right", "reach")
    class Right(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[MethodRule.Right]
        ENQUEUE: _ClassVar[MethodRule.Right]
        WORK: _ClassVar[MethodRule.Right]
        OBSERVE: _ClassVar[MethodRule.Right]
        OPERATE: _ClassVar[MethodRule.Right]
        ADMINISTER: _ClassVar[MethodRule.Right]
        ANY: _ClassVar[MethodRule.Right]
    NONE: MethodRule.Right
    ENQUEUE: MethodRule.Right
    WORK: MethodRule.Right
    OBSERVE: MethodRule.Right
    OPERATE: MethodRule.Right
    ADMINISTER: MethodRule.Right
    ANY: MethodRule.Right
    class Reach(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOWHERE: _ClassVar[MethodRule.Reach]
        TASKS: _ClassVar[MethodRule.Reach]
        QUEUES: _ClassVar[MethodRule.Reach]
        CLUSTER: _ClassVar[MethodRule.Reach]
        ROUTES: _ClassVar[MethodRule.Reach]
    NOWHERE: MethodRule.Reach
    TASKS: MethodRule.Reach
    QUEUES: MethodRule.Reach
    CLUSTER: MethodRule.Reach
    ROUTES: MethodRule.Reach
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    right: MethodRule.Right
    reach: MethodRule.Reach
    def __init__(self, right: _Optional[_Union[MethodRule.Right, str]] = ..., reach: _Optional[_Union[MethodRule.Reach, str]] = ...) -> None: ...
