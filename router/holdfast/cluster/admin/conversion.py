"""The cluster side of the wire API: records and views as messages, and back. It holds no rules of its own."""

import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.cluster.admin.handovers import HandoverView
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.policy import TENANT_LIMITS, PolicyRecord, PolicyValue, TenantRecord
from holdfast.cluster.map.queues import Home, Pin, Placement, QueueChange, Spread
from holdfast.cluster.map.records import (
    Handover,
    LeaderRecord,
    NodeRecord,
    PlanRecord,
    QueueRecord,
    RebalancerRecord,
    RebalancingRecord,
    StepRecord,
)
from holdfast.cluster.plans.steps import StepState, StepView
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute
from holdfast.serving.refusals import INVALID_FIELD, MISSING_FIELD, OUT_OF_RANGE, TOO_LARGE, RefusedError

SETTINGS_BYTES_MAX = 4 * 1024 * 1024  # in one answer: a queue may have as much as a page of others

_SHARD_MAX = 2**16 - 1
_TEXT_BYTES_MAX = 512
_STATES = {
    StepState.WAITING: pb.STEP_STATE_WAITING,
    StepState.COPYING: pb.STEP_STATE_COPYING,
    StepState.LEAVING: pb.STEP_STATE_LEAVING,
    StepState.DONE: pb.STEP_STATE_DONE,
    StepState.OVERTAKEN: pb.STEP_STATE_OVERTAKEN,
}
_HANDOVERS = {
    Handover.NONE: pb.HANDOVER_UNSPECIFIED,
    Handover.ASKED: pb.HANDOVER_ASKED,
    Handover.GRANTED: pb.HANDOVER_GRANTED,
}


# Queues


def fill_route(message: pb.QueueRoute, route: QueueRoute) -> None:
    message.queue, message.home, message.generation = route.queue, route.home, route.generation
    for generation, shards in route.sets:
        message.sets.add(generation=generation, shards=shards)
    message.draining.extend(route.draining)
    message.drained.extend(route.drained)


def policy_message(policy: PolicyRecord) -> pb.QueuePolicy:
    """As it stands on the wire, and in the log of a shard."""
    return pb.QueuePolicy(**policy.given())  # type: ignore[arg-type]  # each as its field is


def shown_url(url: str) -> str:
    """Who may post to a URL is often known by what stands behind the host, so that is not shown to anybody. It is no
    URL any more: nobody sets it by mistake."""
    scheme, _, rest = url.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    place = host.rpartition("@")[2]
    return url if rest in (place, f"{place}/") else f"{scheme}://{place}/…"


def policy_of(message: pb.QueuePolicy) -> PolicyRecord:
    return PolicyRecord(**_given(message))  # type: ignore[arg-type]  # each as its field is


def queue_settings(queue: str, record: QueueRecord | None, version: int, shard_count: int) -> pb.QueueSettings:
    found = record or QueueRecord()
    message = pb.QueueSettings(version=version, policy=policy_message(found.policy))
    if found.policy.dead_alert_url:
        message.policy.dead_alert_url = shown_url(found.policy.dead_alert_url)
    home = home_shard(queue, shard_count)
    fill_route(message.route, QueueRoute(queue, home, found.generation, found.sets, found.draining, found.drained))
    return message


def fill_settings(
    message: pb.ListQueueSettingsResponse, settings: Iterable[pb.QueueSettings], *, is_page: bool
) -> bool:  # fmt: skip
    """As many as fit into an answer, the first one always; whether all did. What was asked for by name must all fit."""
    size = 0
    for setting in settings:
        size += setting.ByteSize()
        if size > SETTINGS_BYTES_MAX and message.queues:
            if not is_page:
                raise RefusedError(
                    TOO_LARGE,
                    f"Expected {{field}} whose settings have at most {SETTINGS_BYTES_MAX} bytes together, but they "
                    "have more; ask for fewer.",
                    "queues",
                    str(SETTINGS_BYTES_MAX),
                )
            return False
        message.queues.append(setting)
    return True


def queue_change(request: pb.SetQueueRequest) -> QueueChange:
    return QueueChange(_placement(request), _given(request.policy), tuple(request.clear))


def _given(policy: pb.QueuePolicy) -> dict[str, PolicyValue]:
    """Only what is set. A list that is empty is not."""
    given: dict[str, PolicyValue] = {}
    for field, value in policy.ListFields():
        if field.name == "tenants":
            given["tenants"] = tuple(map(_tenant, value))
        elif field.name == "non_retryable":
            given["non_retryable"] = tuple(value)
        else:
            given[field.name] = value
    return given


def _tenant(message: pb.TenantPolicy) -> TenantRecord:
    given = {name: getattr(message, name) for name in TENANT_LIMITS if message.HasField(name)}
    return TenantRecord(tenant=message.tenant, **given)


def _placement(request: pb.SetQueueRequest) -> Placement | None:
    which = request.WhichOneof("placement")
    if which is None:
        return None
    if which == "spread":
        return Spread(request.spread)
    if which == "pin":
        return Pin(tuple(request.pin.shards))
    if not request.home:
        raise RefusedError(INVALID_FIELD, "Expected {field} to be true if it is given, but it is not.", "home")
    return Home()


# Nodes and shards


def topology_leaders(found: PartitionMap) -> list[pb.ShardLeader]:
    """Of the shards whose leader is known, and where it is."""
    leaders = []
    for number in sorted(found.shards):
        leader = found.shard_leader(number)
        address = None if leader is None else found.address_of(leader.node)
        if leader is not None and address is not None:
            leaders.append(pb.ShardLeader(shard=number, node=leader.node, address=address, epoch=leader.epoch))
    return leaders


def fill_node(message: pb.ClusterNode, name: str, record: NodeRecord | None) -> None:
    message.name = name
    if record is not None:
        message.node_id, message.version = record.node_id, record.version
        message.address, message.peer_address = record.address, record.peer_address
        message.ops_address, message.zone, message.capacity = record.ops_address, record.zone, record.capacity
        message.handover = _HANDOVERS[record.handover]


def rebalancing_message(record: RebalancingRecord | None, rebalancer: RebalancerRecord | None) -> pb.Rebalancing:
    found = record or RebalancingRecord()
    message = pb.Rebalancing(
        active=rebalancer.name if rebalancer is not None else "",
        is_paused=found.is_paused, why=found.why, given_up=found.given_up,
    )  # fmt: skip
    for name, seconds in found.gone:
        message.gone.add(name=name, gone_ms=seconds * 1000)
    return message


def handover_message(view: HandoverView) -> pb.HandOverNodeResponse:
    message = pb.HandOverNodeResponse(may_stop=view.may_stop, leads=view.leads, single=view.single)
    for shard, why in view.held_back.items():
        message.held_back.add(shard=shard, why=why)
    return message


def fill_shard(message: pb.ClusterShard, number: int, found: PartitionMap, leader: LeaderRecord | None) -> None:
    record = found.shards[number]
    message.shard, message.group, message.version = number, record.group, record.members.version
    message.replicas.extend(record.replicas)
    message.voters.extend(record.members.voters)
    message.learners.extend(record.members.learners)
    message.leaving.extend(record.leaving)
    if leader is not None:
        message.leader, message.epoch = leader.node, leader.epoch


# Plans


def plan_message(
    plan: PlanRecord, views: Sequence[StepView] | None = None, lags: Mapping[int, int] | None = None
) -> pb.Plan:  # fmt: skip
    """Without views it is one that nobody has started. `lags`: by number of the step."""
    message = pb.Plan(id=plan.plan_id, revision=plan.revision, summary=plan.summary)
    for number, step in enumerate(plan.steps):
        view = views[number] if views is not None else StepView(StepState.WAITING)
        message.steps.add(
            shard=step.shard,
            source=step.source,
            destination=step.destination,
            is_transfer=step.is_transfer,
            state_bytes=step.state_bytes,
            why=step.why,
            state=_STATES[view.state],
            detail=view.detail,
            lag=(lags or {}).get(number, -1),
        )
    return message


def steps_of(plan: pb.Plan, steps_max: int) -> tuple[StepRecord, ...]:
    """As they came from a person's hands, so nothing is taken on trust."""
    if not plan.id:
        raise RefusedError(MISSING_FIELD, "Expected the id of the plan ({field}), but it is empty.", "plan.id")
    if not plan.steps:
        raise RefusedError(MISSING_FIELD, "Expected a plan with steps ({field}), but it has none.", "plan.steps")
    if len(plan.steps) > steps_max:
        raise RefusedError(
            OUT_OF_RANGE,
            f"Expected at most {steps_max} {{field}}, but got {len(plan.steps)}.",
            "plan.steps",
            str(steps_max),
        )
    return tuple(_step_of(step, f"plan.steps[{number}]") for number, step in enumerate(plan.steps))


def _step_of(step: pb.PlanStep, field: str) -> StepRecord:
    if not 0 <= step.shard <= _SHARD_MAX:
        raise RefusedError(
            OUT_OF_RANGE, "Expected {field} to be the number of a shard, but it is not.", f"{field}.shard"
        )
    for name in ("source", "destination", "why"):
        if len(getattr(step, name)) > _TEXT_BYTES_MAX:
            raise RefusedError(
                OUT_OF_RANGE, f"Expected {{field}} of at most {_TEXT_BYTES_MAX} characters.", f"{field}.{name}"
            )
    return StepRecord(
        shard=step.shard,
        source=step.source,
        destination=step.destination,
        is_transfer=step.is_transfer,
        why=step.why,
        state_bytes=max(-1, step.state_bytes),
    )
