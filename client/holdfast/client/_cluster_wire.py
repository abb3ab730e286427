"""Between the values of `models` about clusters and the messages of the wire API."""

from dataclasses import fields
from typing import Any

from holdfast.client._fitting import MISFITS, check_number, choice_of, misfit, several, wanted_by
from holdfast.client.cluster_models import (
    ClusterInfo,
    ClusterNode,
    ClusterShard,
    HandoverProgress,
    Plan,
    PlanStep,
    QueuePolicy,
    QueueRoute,
    QueueSet,
    QueueSettings,
    Rebalancing,
    ShardLeader,
    StepState,
    TenantPolicy,
    Topology,
)
from holdfast.client.errors import InvalidArgument, UnexpectedAnswer
from holdfast.client.models import RetryShape
from holdfast.proto.v1 import cluster_pb2 as pb

_STATES: dict[int, StepState] = {
    pb.STEP_STATE_WAITING: StepState.WAITING,
    pb.STEP_STATE_COPYING: StepState.COPYING,
    pb.STEP_STATE_LEAVING: StepState.LEAVING,
    pb.STEP_STATE_DONE: StepState.DONE,
    pb.STEP_STATE_OVERTAKEN: StepState.OVERTAKEN,
}
_HANDOVERS: dict[int, str] = {pb.HANDOVER_ASKED: "ASKED", pb.HANDOVER_GRANTED: "GRANTED"}
_NUMBERS = {state: pb.StepState.ValueType(number) for number, state in _STATES.items()}
# Fields of one value that is there or not; retry_shape, the lists and the name of a tenant are apart.
_POLICY = tuple(
    field.name for field in fields(QueuePolicy) if field.name not in ("retry_shape", "non_retryable", "tenants")
)
_TENANT = tuple(field.name for field in fields(TenantPolicy) if field.name != "tenant")


def topology_of(message: pb.GetTopologyResponse) -> Topology:
    return Topology(
        cluster_id=message.cluster_id,
        revision=message.revision,
        shards=message.shards,
        leaders=tuple(
            ShardLeader(leader.shard, leader.node, leader.address, leader.epoch) for leader in message.leaders
        ),
        routes=tuple(map(_route, message.routes)),
        addresses=tuple(message.addresses),
    )


def cluster_info(message: pb.DescribeClusterResponse) -> ClusterInfo:
    return ClusterInfo(
        cluster_id=message.cluster_id,
        name=message.name,
        shards_count=message.shards_count,
        replication=message.replication,
        revision=message.revision,
        etcd_answers=message.etcd_answers,
        age_ms=message.age_ms if message.age_ms >= 0 else None,
        nodes=tuple(map(_node, message.nodes)),
        shards=tuple(map(_shard, message.shards)),
        plan=plan_of(message.plan) if message.HasField("plan") else None,
        rebalancing=rebalancing_of(message.rebalancing),
    )


def rebalancing_of(message: pb.Rebalancing) -> Rebalancing:
    return Rebalancing(
        active=message.active,
        is_paused=message.is_paused,
        why=message.why,
        gone_ms={node.name: node.gone_ms for node in message.gone},
        given_up=tuple(message.given_up),
    )


def handover_progress(message: pb.HandOverNodeResponse) -> HandoverProgress:
    held_back = {reason.shard: reason.why for reason in message.held_back}
    return HandoverProgress(message.may_stop, message.leads, held_back, tuple(message.single))


def plan_of(message: pb.Plan) -> Plan:
    return Plan(message.id, message.revision, tuple(map(_step, message.steps)), message.summary)


def put_plan(message: pb.Plan, plan: Plan) -> None:
    message.id, message.revision, message.summary = plan.id, plan.revision, plan.summary
    for step in plan.steps:
        message.steps.add(
            shard=step.shard,
            source=step.source,
            destination=step.destination,
            is_transfer=step.is_transfer,
            state_bytes=-1 if step.state_bytes is None else step.state_bytes,
            why=step.why,
            state=_NUMBERS.get(step.state, pb.STEP_STATE_UNSPECIFIED),
            detail=step.detail,
            lag=-1 if step.lag is None else step.lag,
        )


def queue_settings(message: pb.QueueSettings) -> QueueSettings:
    if not message.HasField("route"):
        raise UnexpectedAnswer("no route in it")
    return QueueSettings(_route(message.route), _policy(message.policy), message.version)


def _policy(message: pb.QueuePolicy) -> QueuePolicy:
    shape = message.retry_shape.upper()
    return QueuePolicy(
        **_given(message, _POLICY),
        retry_shape=RetryShape.__members__.get(shape, RetryShape.UNKNOWN) if shape else None,
        non_retryable=tuple(message.non_retryable),
        tenants=tuple(TenantPolicy(tenant.tenant, **_given(tenant, _TENANT)) for tenant in message.tenants),
    )


def _given(message: pb.QueuePolicy | pb.TenantPolicy, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def put_policy(message: pb.QueuePolicy, policy: QueuePolicy, where: str) -> None:
    """Raises InvalidArgument, with the field's name after `where`, for what does not fit."""
    _put_given(message, policy, _POLICY, where)
    name = "retry_shape"
    try:
        if policy.retry_shape is not None:
            message.retry_shape = _shape_name(policy.retry_shape)
        name = "non_retryable"
        message.non_retryable.extend(several(policy.non_retryable))
        name = "tenants"
        for index, tenant in enumerate(policy.tenants):
            name = f"tenants[{index}]"
            _put_given(message.tenants.add(tenant=tenant.tenant), tenant, _TENANT, f"{where}.{name}")
    except InvalidArgument:
        raise
    except MISFITS as found:
        raise misfit(f"{where}.{name}", found) from None


def _shape_name(shape: RetryShape) -> str:
    return choice_of(shape, RetryShape).lower()


def _put_given(
    message: pb.QueuePolicy | pb.TenantPolicy, value: QueuePolicy | TenantPolicy, names: tuple[str, ...], where: str
) -> None:
    for name in names:
        given = getattr(value, name)
        if given is None:
            continue
        try:
            check_number(type(message), name, given)
            setattr(message, name, given)
        except MISFITS as found:
            raise misfit(f"{where}.{name}", found, wanted_by(type(message), name)) from None


def _route(message: pb.QueueRoute) -> QueueRoute:
    sets = tuple(QueueSet(queue_set.generation, tuple(queue_set.shards)) for queue_set in message.sets)
    return QueueRoute(message.queue, message.home, message.generation, sets, tuple(message.draining))


def _node(message: pb.ClusterNode) -> ClusterNode:
    return ClusterNode(
        name=message.name,
        node_id=message.node_id,
        address=message.address,
        peer_address=message.peer_address,
        ops_address=message.ops_address,
        zone=message.zone,
        capacity=message.capacity,
        version=message.version,
        is_alive=message.is_alive,
        is_draining=message.is_draining,
        replicas=message.replicas,
        leaders=message.leaders,
        handover=_HANDOVERS.get(message.handover, ""),
    )


def _shard(message: pb.ClusterShard) -> ClusterShard:
    return ClusterShard(
        shard=message.shard,
        group=message.group,
        replicas=tuple(message.replicas),
        version=message.version,
        voters=tuple(message.voters),
        learners=tuple(message.learners),
        leaving=tuple(message.leaving),
        leader=message.leader,
        epoch=message.epoch,
    )


def _step(message: pb.PlanStep) -> PlanStep:
    return PlanStep(
        shard=message.shard,
        source=message.source,
        destination=message.destination,
        is_transfer=message.is_transfer,
        state_bytes=None if message.state_bytes < 0 else message.state_bytes,
        why=message.why,
        state=_STATES.get(message.state, StepState.UNKNOWN),
        detail=message.detail,
        lag=None if message.lag < 0 else message.lag,
    )
