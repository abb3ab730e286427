"""Between the values of `models` about clusters and the messages of the wire API."""

from dataclasses import fields

from holdfast.client.errors import UnexpectedAnswer
from holdfast.client.models import (
    ClusterInfo,
    ClusterNode,
    ClusterShard,
    Plan,
    PlanStep,
    QueuePolicy,
    QueueRoute,
    QueueSet,
    QueueSettings,
    ShardLeader,
    StepState,
    Topology,
)
from holdfast.proto.v1 import cluster_pb2 as pb

_STATES: dict[int, StepState] = {
    pb.STEP_STATE_WAITING: StepState.WAITING,
    pb.STEP_STATE_COPYING: StepState.COPYING,
    pb.STEP_STATE_LEAVING: StepState.LEAVING,
    pb.STEP_STATE_DONE: StepState.DONE,
    pb.STEP_STATE_OVERTAKEN: StepState.OVERTAKEN,
}
_NUMBERS = {state: pb.StepState.ValueType(number) for number, state in _STATES.items()}
_POLICY = tuple(field.name for field in fields(QueuePolicy))


def topology_of(message: pb.GetTopologyResponse) -> Topology:
    return Topology(
        cluster_id=message.cluster_id,
        revision=message.revision,
        shards=message.shards,
        leaders=tuple(ShardLeader(each.shard, each.node, each.address, each.epoch) for each in message.leaders),
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
        nodes=tuple(map(_node, message.nodes)),
        shards=tuple(map(_shard, message.shards)),
        plan=plan_of(message.plan) if message.HasField("plan") else None,
    )


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
    policy = message.policy
    given = {name: getattr(policy, name) for name in _POLICY if policy.HasField(name)}
    return QueueSettings(_route(message.route), QueuePolicy(**given), message.version)


def put_policy(message: pb.QueuePolicy, policy: QueuePolicy) -> None:
    for name in _POLICY:
        value = getattr(policy, name)
        if value is not None:
            setattr(message, name, value)


def _route(message: pb.QueueRoute) -> QueueRoute:
    sets = tuple(QueueSet(each.generation, tuple(each.shards)) for each in message.sets)
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
