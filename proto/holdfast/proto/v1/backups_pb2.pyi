from holdfast.proto.v1 import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueRecordCopy(_message.Message):
    __slots__ = ("queue", "record")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    queue: str
    record: bytes
    def __init__(self, queue: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...

class ReadMapRequest(_message.Message):
    __slots__ = ("page_token",)
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    def __init__(self, page_token: _Optional[str] = ...) -> None: ...

class ReadMapResponse(_message.Message):
    __slots__ = ("cluster_id", "name", "shards", "replication", "queues", "next_page_token")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    name: str
    shards: int
    replication: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueRecordCopy]
    next_page_token: str
    def __init__(self, cluster_id: _Optional[str] = ..., name: _Optional[str] = ..., shards: _Optional[int] = ..., replication: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueRecordCopy, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class BeginBackupRequest(_message.Message):
    __slots__ = ("shard", "id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    id: int
    def __init__(self, shard: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class BeginBackupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CopyShardRequest(_message.Message):
    __slots__ = ("shard", "id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    id: int
    def __init__(self, shard: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class CopyShardResponse(_message.Message):
    __slots__ = ("index", "term", "shard_time_ms", "incarnation", "node", "format", "version")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SHARD_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    shard_time_ms: int
    incarnation: int
    node: str
    format: int
    version: str
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., shard_time_ms: _Optional[int] = ..., incarnation: _Optional[int] = ..., node: _Optional[str] = ..., format: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ResumeDeliveriesRequest(_message.Message):
    __slots__ = ("shard", "id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    id: int
    def __init__(self, shard: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class ResumeDeliveriesResponse(_message.Message):
    __slots__ = ("were_held",)
    WERE_HELD_FIELD_NUMBER: _ClassVar[int]
    were_held: bool
    def __init__(self, were_held: bool = ...) -> None: ...

class ListBackupFilesRequest(_message.Message):
    __slots__ = ("shard", "id", "wait_ms")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    id: int
    wait_ms: int
    def __init__(self, shard: _Optional[int] = ..., id: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class BackupFile(_message.Message):
    __slots__ = ("name", "size_bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class ListBackupFilesResponse(_message.Message):
    __slots__ = ("is_ready", "files")
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    is_ready: bool
    files: _containers.RepeatedCompositeFieldContainer[BackupFile]
    def __init__(self, is_ready: bool = ..., files: _Optional[_Iterable[_Union[BackupFile, _Mapping]]] = ...) -> None: ...

class ReadBackupFileRequest(_message.Message):
    __slots__ = ("shard", "id", "name", "offset", "length")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    shard: int
    id: int
    name: str
    offset: int
    length: int
    def __init__(self, shard: _Optional[int] = ..., id: _Optional[int] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ReadBackupFileResponse(_message.Message):
    __slots__ = ("data", "crc32")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    crc32: int
    def __init__(self, data: _Optional[bytes] = ..., crc32: _Optional[int] = ...) -> None: ...

class EndBackupRequest(_message.Message):
    __slots__ = ("shard", "id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    id: int
    def __init__(self, shard: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class EndBackupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreClusterRequest(_message.Message):
    __slots__ = ("backup_id", "replication", "incarnations")
    BACKUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    backup_id: str
    replication: int
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, backup_id: _Optional[str] = ..., replication: _Optional[int] = ..., incarnations: _Optional[_Iterable[int]] = ...) -> None: ...

class RestoreClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "shards")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    shards: _containers.RepeatedCompositeFieldContainer[RestoredShard]
    def __init__(self, cluster_id: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[RestoredShard, _Mapping]]] = ...) -> None: ...

class RestoredShard(_message.Message):
    __slots__ = ("shard", "node", "address", "is_founded")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_FOUNDED_FIELD_NUMBER: _ClassVar[int]
    shard: int
    node: str
    address: str
    is_founded: bool
    def __init__(self, shard: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., is_founded: bool = ...) -> None: ...

class RestoreQueuesRequest(_message.Message):
    __slots__ = ("backup_id", "queues")
    BACKUP_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    backup_id: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueRecordCopy]
    def __init__(self, backup_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueRecordCopy, _Mapping]]] = ...) -> None: ...

class RestoreQueuesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreFile(_message.Message):
    __slots__ = ("name", "size_bytes", "crc32")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    crc32: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class RestoreShardRequest(_message.Message):
    __slots__ = ("shard", "backup_id", "id", "index", "term", "files", "chunk")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BACKUP_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    shard: int
    backup_id: str
    id: int
    index: int
    term: int
    files: RestoreFiles
    chunk: RestoreChunk
    def __init__(self, shard: _Optional[int] = ..., backup_id: _Optional[str] = ..., id: _Optional[int] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., files: _Optional[_Union[RestoreFiles, _Mapping]] = ..., chunk: _Optional[_Union[RestoreChunk, _Mapping]] = ...) -> None: ...

class RestoreFiles(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[RestoreFile]
    def __init__(self, files: _Optional[_Iterable[_Union[RestoreFile, _Mapping]]] = ...) -> None: ...

class RestoreChunk(_message.Message):
    __slots__ = ("file_number", "offset", "crc32", "data")
    FILE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file_number: int
    offset: int
    crc32: int
    data: bytes
    def __init__(self, file_number: _Optional[int] = ..., offset: _Optional[int] = ..., crc32: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RestoreShardResponse(_message.Message):
    __slots__ = ("is_installed", "file_number", "offset")
    IS_INSTALLED_FIELD_NUMBER: _ClassVar[int]
    FILE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    is_installed: bool
    file_number: int
    offset: int
    def __init__(self, is_installed: bool = ..., file_number: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
