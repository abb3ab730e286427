from holdfast.proto.v1 import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Handover(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOVER_UNSPECIFIED: _ClassVar[Handover]
    HANDOVER_ASKED: _ClassVar[Handover]
    HANDOVER_GRANTED: _ClassVar[Handover]

class StepState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_STATE_UNSPECIFIED: _ClassVar[StepState]
    STEP_STATE_WAITING: _ClassVar[StepState]
    STEP_STATE_COPYING: _ClassVar[StepState]
    STEP_STATE_LEAVING: _ClassVar[StepState]
    STEP_STATE_DONE: _ClassVar[StepState]
    STEP_STATE_OVERTAKEN: _ClassVar[StepState]
HANDOVER_UNSPECIFIED: Handover
HANDOVER_ASKED: Handover
HANDOVER_GRANTED: Handover
STEP_STATE_UNSPECIFIED: StepState
STEP_STATE_WAITING: StepState
STEP_STATE_COPYING: StepState
STEP_STATE_LEAVING: StepState
STEP_STATE_DONE: StepState
STEP_STATE_OVERTAKEN: StepState

class QueueRoute(_message.Message):
    __slots__ = ("queue", "home", "generation", "sets", "draining", "drained")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    home: int
    generation: int
    sets: _containers.RepeatedCompositeFieldContainer[QueueSet]
    draining: _containers.RepeatedScalarFieldContainer[int]
    drained: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue: _Optional[str] = ..., home: _Optional[int] = ..., generation: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ..., draining: _Optional[_Iterable[int]] = ..., drained: _Optional[_Iterable[int]] = ...) -> None: ...

class QueueSet(_message.Message):
    __slots__ = ("generation", "shards")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., shards: _Optional[_Iterable[int]] = ...) -> None: ...

class ShardLeader(_message.Message):
    __slots__ = ("shard", "node", "address", "epoch")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    shard: int
    node: str
    address: str
    epoch: int
    def __init__(self, shard: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetTopologyRequest(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queues: _Optional[_Iterable[str]] = ...) -> None: ...

class GetTopologyResponse(_message.Message):
    __slots__ = ("cluster_id", "revision", "shards", "leaders", "routes", "addresses")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    revision: int
    shards: int
    leaders: _containers.RepeatedCompositeFieldContainer[ShardLeader]
    routes: _containers.RepeatedCompositeFieldContainer[QueueRoute]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster_id: _Optional[str] = ..., revision: _Optional[int] = ..., shards: _Optional[int] = ..., leaders: _Optional[_Iterable[_Union[ShardLeader, _Mapping]]] = ..., routes: _Optional[_Iterable[_Union[QueueRoute, _Mapping]]] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterNode(_message.Message):
    __slots__ = ("name", "node_id", "address", "peer_address", "ops_address", "zone", "capacity", "version", "is_alive", "is_draining", "replicas", "leaders", "handover")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OPS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_id: str
    address: str
    peer_address: str
    ops_address: str
    zone: str
    capacity: int
    version: str
    is_alive: bool
    is_draining: bool
    replicas: int
    leaders: int
    handover: Handover
    def __init__(self, name: _Optional[str] = ..., node_id: _Optional[str] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ..., ops_address: _Optional[str] = ..., zone: _Optional[str] = ..., capacity: _Optional[int] = ..., version: _Optional[str] = ..., is_alive: bool = ..., is_draining: bool = ..., replicas: _Optional[int] = ..., leaders: _Optional[int] = ..., handover: _Optional[_Union[Handover, str]] = ...) -> None: ...

class ClusterShard(_message.Message):
    __slots__ = ("shard", "group", "replicas", "version", "voters", "learners", "leaving", "leader", "epoch")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    shard: int
    group: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    version: int
    voters: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    leaving: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    epoch: int
    def __init__(self, shard: _Optional[int] = ..., group: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., voters: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ..., leaving: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "name", "shards_count", "replication", "revision", "etcd_answers", "nodes", "shards", "plan", "age_ms", "rebalancing")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARDS_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCING_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    name: str
    shards_count: int
    replication: int
    revision: int
    etcd_answers: bool
    nodes: _containers.RepeatedCompositeFieldContainer[ClusterNode]
    shards: _containers.RepeatedCompositeFieldContainer[ClusterShard]
    plan: Plan
    age_ms: int
    rebalancing: Rebalancing
    def __init__(self, cluster_id: _Optional[str] = ..., name: _Optional[str] = ..., shards_count: _Optional[int] = ..., replication: _Optional[int] = ..., revision: _Optional[int] = ..., etcd_answers: bool = ..., nodes: _Optional[_Iterable[_Union[ClusterNode, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ClusterShard, _Mapping]]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., age_ms: _Optional[int] = ..., rebalancing: _Optional[_Union[Rebalancing, _Mapping]] = ...) -> None: ...

class Rebalancing(_message.Message):
    __slots__ = ("active", "is_paused", "why", "gone", "given_up")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    active: str
    is_paused: bool
    why: str
    gone: _containers.RepeatedCompositeFieldContainer[GoneNode]
    given_up: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, active: _Optional[str] = ..., is_paused: bool = ..., why: _Optional[str] = ..., gone: _Optional[_Iterable[_Union[GoneNode, _Mapping]]] = ..., given_up: _Optional[_Iterable[str]] = ...) -> None: ...

class GoneNode(_message.Message):
    __slots__ = ("name", "gone_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GONE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    gone_ms: int
    def __init__(self, name: _Optional[str] = ..., gone_ms: _Optional[int] = ...) -> None: ...

class InitClusterRequest(_message.Message):
    __slots__ = ("shards", "replication")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    shards: int
    replication: int
    def __init__(self, shards: _Optional[int] = ..., replication: _Optional[int] = ...) -> None: ...

class InitClusterResponse(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    def __init__(self, cluster_id: _Optional[str] = ...) -> None: ...

class QueuePolicy(_message.Message):
    __slots__ = ("max_attempts", "max_claims", "retry_base_ms", "retry_factor", "retry_cap_ms", "retry_jitter", "dedup_window_ms", "result_ttl_ms", "finished_retention_ms", "dead_retention_ms", "retry_shape", "non_retryable", "oldest_share_percent", "paused", "timeout_ms", "ttl_ms", "concurrency_max", "tenant_concurrency_max", "key_concurrency_max", "rate_per_second", "rate_burst", "tenant_rate_per_second", "tenant_rate_burst", "key_rate_per_second", "key_rate_burst", "dead_alert_at", "dead_alert_url", "tenants")
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    RETRY_BASE_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_FACTOR_FIELD_NUMBER: _ClassVar[int]
    RETRY_CAP_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_JITTER_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    RESULT_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_SHAPE_FIELD_NUMBER: _ClassVar[int]
    NON_RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SHARE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_MAX_FIELD_NUMBER: _ClassVar[int]
    TENANT_CONCURRENCY_MAX_FIELD_NUMBER: _ClassVar[int]
    KEY_CONCURRENCY_MAX_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    TENANT_RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TENANT_RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    KEY_RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    KEY_RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    DEAD_ALERT_AT_FIELD_NUMBER: _ClassVar[int]
    DEAD_ALERT_URL_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    max_attempts: int
    max_claims: int
    retry_base_ms: int
    retry_factor: float
    retry_cap_ms: int
    retry_jitter: float
    dedup_window_ms: int
    result_ttl_ms: int
    finished_retention_ms: int
    dead_retention_ms: int
    retry_shape: str
    non_retryable: _containers.RepeatedScalarFieldContainer[str]
    oldest_share_percent: int
    paused: bool
    timeout_ms: int
    ttl_ms: int
    concurrency_max: int
    tenant_concurrency_max: int
    key_concurrency_max: int
    rate_per_second: float
    rate_burst: int
    tenant_rate_per_second: float
    tenant_rate_burst: int
    key_rate_per_second: float
    key_rate_burst: int
    dead_alert_at: int
    dead_alert_url: str
    tenants: _containers.RepeatedCompositeFieldContainer[TenantPolicy]
    def __init__(self, max_attempts: _Optional[int] = ..., max_claims: _Optional[int] = ..., retry_base_ms: _Optional[int] = ..., retry_factor: _Optional[float] = ..., retry_cap_ms: _Optional[int] = ..., retry_jitter: _Optional[float] = ..., dedup_window_ms: _Optional[int] = ..., result_ttl_ms: _Optional[int] = ..., finished_retention_ms: _Optional[int] = ..., dead_retention_ms: _Optional[int] = ..., retry_shape: _Optional[str] = ..., non_retryable: _Optional[_Iterable[str]] = ..., oldest_share_percent: _Optional[int] = ..., paused: bool = ..., timeout_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., concurrency_max: _Optional[int] = ..., tenant_concurrency_max: _Optional[int] = ..., key_concurrency_max: _Optional[int] = ..., rate_per_second: _Optional[float] = ..., rate_burst: _Optional[int] = ..., tenant_rate_per_second: _Optional[float] = ..., tenant_rate_burst: _Optional[int] = ..., key_rate_per_second: _Optional[float] = ..., key_rate_burst: _Optional[int] = ..., dead_alert_at: _Optional[int] = ..., dead_alert_url: _Optional[str] = ..., tenants: _Optional[_Iterable[_Union[TenantPolicy, _Mapping]]] = ...) -> None: ...

class TenantPolicy(_message.Message):
    __slots__ = ("tenant", "weight", "concurrency_max", "rate_per_second", "rate_burst")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_MAX_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    weight: int
    concurrency_max: int
    rate_per_second: float
    rate_burst: int
    def __init__(self, tenant: _Optional[str] = ..., weight: _Optional[int] = ..., concurrency_max: _Optional[int] = ..., rate_per_second: _Optional[float] = ..., rate_burst: _Optional[int] = ...) -> None: ...

class QueueSettings(_message.Message):
    __slots__ = ("route", "policy", "version")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    route: QueueRoute
    policy: QueuePolicy
    version: int
    def __init__(self, route: _Optional[_Union[QueueRoute, _Mapping]] = ..., policy: _Optional[_Union[QueuePolicy, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class ListQueueSettingsRequest(_message.Message):
    __slots__ = ("queues", "page_size", "page_token")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListQueueSettingsResponse(_message.Message):
    __slots__ = ("queues", "next_page_token")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueSettings]
    next_page_token: str
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueSettings, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SetQueueRequest(_message.Message):
    __slots__ = ("queue", "policy", "clear", "spread", "pin", "home")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    queue: str
    policy: QueuePolicy
    clear: _containers.RepeatedScalarFieldContainer[str]
    spread: int
    pin: ShardList
    home: bool
    def __init__(self, queue: _Optional[str] = ..., policy: _Optional[_Union[QueuePolicy, _Mapping]] = ..., clear: _Optional[_Iterable[str]] = ..., spread: _Optional[int] = ..., pin: _Optional[_Union[ShardList, _Mapping]] = ..., home: bool = ...) -> None: ...

class ShardList(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shards: _Optional[_Iterable[int]] = ...) -> None: ...

class SetQueueResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: QueueSettings
    def __init__(self, settings: _Optional[_Union[QueueSettings, _Mapping]] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node", "drain")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    node: str
    drain: bool
    def __init__(self, node: _Optional[str] = ..., drain: bool = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HandOverNodeRequest(_message.Message):
    __slots__ = ("node", "undo", "is_passed_on")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    IS_PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    node: str
    undo: bool
    is_passed_on: bool
    def __init__(self, node: _Optional[str] = ..., undo: bool = ..., is_passed_on: bool = ...) -> None: ...

class HandOverNodeResponse(_message.Message):
    __slots__ = ("may_stop", "leads", "held_back", "single")
    MAY_STOP_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    SINGLE_FIELD_NUMBER: _ClassVar[int]
    may_stop: bool
    leads: int
    held_back: _containers.RepeatedCompositeFieldContainer[HeldBackShard]
    single: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, may_stop: bool = ..., leads: _Optional[int] = ..., held_back: _Optional[_Iterable[_Union[HeldBackShard, _Mapping]]] = ..., single: _Optional[_Iterable[int]] = ...) -> None: ...

class HeldBackShard(_message.Message):
    __slots__ = ("shard", "why")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    shard: int
    why: str
    def __init__(self, shard: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class MakePlanRequest(_message.Message):
    __slots__ = ("balance", "leaders", "move")
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    balance: bool
    leaders: bool
    move: MoveWish
    def __init__(self, balance: bool = ..., leaders: bool = ..., move: _Optional[_Union[MoveWish, _Mapping]] = ...) -> None: ...

class MoveWish(_message.Message):
    __slots__ = ("shard", "source", "destination")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    shard: int
    source: str
    destination: str
    def __init__(self, shard: _Optional[int] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("id", "revision", "steps", "summary")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    id: str
    revision: int
    steps: _containers.RepeatedCompositeFieldContainer[PlanStep]
    summary: str
    def __init__(self, id: _Optional[str] = ..., revision: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[PlanStep, _Mapping]]] = ..., summary: _Optional[str] = ...) -> None: ...

class PlanStep(_message.Message):
    __slots__ = ("shard", "source", "destination", "is_transfer", "state_bytes", "why", "state", "detail", "lag")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    IS_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    shard: int
    source: str
    destination: str
    is_transfer: bool
    state_bytes: int
    why: str
    state: StepState
    detail: str
    lag: int
    def __init__(self, shard: _Optional[int] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ..., is_transfer: bool = ..., state_bytes: _Optional[int] = ..., why: _Optional[str] = ..., state: _Optional[_Union[StepState, str]] = ..., detail: _Optional[str] = ..., lag: _Optional[int] = ...) -> None: ...

class MakePlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class StartPlanRequest(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class StartPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class AdvancePlanRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class AdvancePlanResponse(_message.Message):
    __slots__ = ("plan", "is_done")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    is_done: bool
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., is_done: bool = ...) -> None: ...

class CancelPlanRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelPlanResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetRebalancingRequest(_message.Message):
    __slots__ = ("pause", "why")
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    pause: bool
    why: str
    def __init__(self, pause: bool = ..., why: _Optional[str] = ...) -> None: ...

class SetRebalancingResponse(_message.Message):
    __slots__ = ("rebalancing",)
    REBALANCING_FIELD_NUMBER: _ClassVar[int]
    rebalancing: Rebalancing
    def __init__(self, rebalancing: _Optional[_Union[Rebalancing, _Mapping]] = ...) -> None: ...

class GetAccessRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAccessResponse(_message.Message):
    __slots__ = ("rules", "version")
    RULES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    rules: bytes
    version: int
    def __init__(self, rules: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class SetAccessRequest(_message.Message):
    __slots__ = ("rules", "version")
    RULES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    rules: bytes
    version: int
    def __init__(self, rules: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class SetAccessResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
