from holdfast.proto.v1 import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_ROLE_UNSPECIFIED: _ClassVar[ReplicaRole]
    REPLICA_ROLE_LEADER: _ClassVar[ReplicaRole]
    REPLICA_ROLE_FOLLOWER: _ClassVar[ReplicaRole]
    REPLICA_ROLE_LEARNER: _ClassVar[ReplicaRole]
    REPLICA_ROLE_CANDIDATE: _ClassVar[ReplicaRole]
    REPLICA_ROLE_BLANK: _ClassVar[ReplicaRole]
REPLICA_ROLE_UNSPECIFIED: ReplicaRole
REPLICA_ROLE_LEADER: ReplicaRole
REPLICA_ROLE_FOLLOWER: ReplicaRole
REPLICA_ROLE_LEARNER: ReplicaRole
REPLICA_ROLE_CANDIDATE: ReplicaRole
REPLICA_ROLE_BLANK: ReplicaRole

class Membership(_message.Message):
    __slots__ = ("version", "voters", "learners")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    voters: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., voters: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("shard", "role", "term", "leader", "commit_index", "applied_index", "last_index", "lag", "log_bytes", "snapshot_age_ms", "membership", "problem", "state_bytes", "caught_up")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    shard: int
    role: ReplicaRole
    term: int
    leader: str
    commit_index: int
    applied_index: int
    last_index: int
    lag: int
    log_bytes: int
    snapshot_age_ms: int
    membership: Membership
    problem: str
    state_bytes: int
    caught_up: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, shard: _Optional[int] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., term: _Optional[int] = ..., leader: _Optional[str] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_index: _Optional[int] = ..., lag: _Optional[int] = ..., log_bytes: _Optional[int] = ..., snapshot_age_ms: _Optional[int] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ..., problem: _Optional[str] = ..., state_bytes: _Optional[int] = ..., caught_up: _Optional[_Iterable[str]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class DescribeNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeNodeResponse(_message.Message):
    __slots__ = ("name", "node_id", "version", "nodes", "replicas", "is_stopping")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IS_STOPPING_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_id: str
    version: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    is_stopping: bool
    def __init__(self, name: _Optional[str] = ..., node_id: _Optional[str] = ..., version: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., is_stopping: bool = ...) -> None: ...

class FindLeaderRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class FindLeaderResponse(_message.Message):
    __slots__ = ("epoch", "leader", "address")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    leader: str
    address: str
    def __init__(self, epoch: _Optional[int] = ..., leader: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("shard", "to")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    shard: int
    to: str
    def __init__(self, shard: _Optional[int] = ..., to: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader", "epoch")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    leader: str
    epoch: int
    def __init__(self, leader: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ProbeShardRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class ProbeShardResponse(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class ReadProbeRequest(_message.Message):
    __slots__ = ("shard", "index", "wait_ms")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    wait_ms: int
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReadProbeResponse(_message.Message):
    __slots__ = ("state_hash", "applied_index")
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    state_hash: bytes
    applied_index: int
    def __init__(self, state_hash: _Optional[bytes] = ..., applied_index: _Optional[int] = ...) -> None: ...
