from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("version", "expects", "caller", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    expects: str
    caller: str
    token: str
    def __init__(self, version: _Optional[int] = ..., expects: _Optional[str] = ..., caller: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "server", "methods", "frame_bytes_max", "window_bytes", "calls_max")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CALLS_MAX_FIELD_NUMBER: _ClassVar[int]
    version: int
    server: str
    methods: _containers.RepeatedScalarFieldContainer[str]
    frame_bytes_max: int
    window_bytes: int
    calls_max: int
    def __init__(self, version: _Optional[int] = ..., server: _Optional[str] = ..., methods: _Optional[_Iterable[str]] = ..., frame_bytes_max: _Optional[int] = ..., window_bytes: _Optional[int] = ..., calls_max: _Optional[int] = ...) -> None: ...
