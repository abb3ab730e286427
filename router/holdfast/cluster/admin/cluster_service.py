"""The service Cluster: one method per call of cluster.proto. Brokers and routers answer it alike, because what it reads
is the map that they follow, and what it changes is in etcd."""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from holdfast.access.documents import from_json, to_json
from holdfast.access.editing import has_administrator
from holdfast.access.fields import AccessPolicyError
from holdfast.access.policies import AccessPolicy
from holdfast.cluster.admin.conversion import (
    fill_node,
    fill_route,
    fill_settings,
    fill_shard,
    plan_message,
    queue_change,
    queue_settings,
    rebalancing_message,
    topology_leaders,
)
from holdfast.cluster.admin.plans import (
    MAP_WAIT_S,
    Nodes,
    PlanAdmin,
)
from holdfast.cluster.etcd.api import EtcdError
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.keys import NAME
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.queues import check_page, check_queue_name, check_queue_names
from holdfast.cluster.map.records import ClusterRecord, QueueRecord, RecordError, name_of, unreadable
from holdfast.cluster.map.store import MapStore
from holdfast.cluster.plans.steps import view_steps
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving.refusals import (
    INVALID_FIELD,
    MISSING_FIELD,
    TOO_LARGE,
    RefusedError,
    change_refused,
    etcd_unavailable,
    node_not_found,
)

WHY_CHARS_MAX = 512

# Asks a node to hand over, wherever it is.
HandOver = Callable[[pb.HandOverNodeRequest], Awaitable[pb.HandOverNodeResponse]]


class ClusterAdmin:
    """Every method raises the refusals that cluster.proto names for its call."""

    def __init__(
        self,
        store: MapStore,
        follower: MapFollower,
        nodes: Nodes,
        hand_over: HandOver,
    ) -> None:
        self._store = store
        self._follower = follower
        self._hand_over = hand_over
        self._plans = PlanAdmin(store, follower, nodes)

    # What is read from the map, also while etcd is away

    async def get_topology(self, request: pb.GetTopologyRequest) -> pb.GetTopologyResponse:
        found, cluster = self._initialised()
        check_queue_names(request.queues)
        response = pb.GetTopologyResponse(
            cluster_id=cluster.cluster_id,
            revision=found.revision,
            shards=cluster.shards,
            leaders=topology_leaders(found),
            addresses=[node.address for _, node in sorted(found.nodes.items())],
        )
        for queue in request.queues:
            fill_route(response.routes.add(), found.route(queue))
        return response

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        """Also before the cluster is initialised: then it has nodes only. But one that cannot be read is no such."""
        etcd_answers = await self._follower.confirm()
        found, age_s = self._follower.map, self._follower.age_s
        if found.cluster is None and self._store.keys.cluster in found.problems:
            raise found.refusal_without_cluster()
        response = pb.DescribeClusterResponse(
            name=found.cluster_name, revision=found.revision, etcd_answers=etcd_answers,
            age_ms=-1 if age_s is None else int(age_s * 1000),
        )  # fmt: skip
        if found.cluster is not None:
            response.cluster_id = found.cluster.cluster_id
            response.shards_count, response.replication = found.cluster.shards, found.cluster.replication
        leaders = {number: found.shard_leader(number) for number in sorted(found.shards)}
        for number, leader in leaders.items():
            fill_shard(response.shards.add(), number, found, leader)
        leads = Counter(leader.node for leader in leaders.values() if leader is not None)
        members = _member_counts(found)
        for name in sorted(_known_nodes(found)):
            node = response.nodes.add(
                is_alive=found.is_alive(name),
                is_draining=name in found.drains,
                replicas=members[name],
                leaders=leads[name],
            )
            fill_node(node, name, found.last_nodes.get(name))
        if found.plan is not None:
            response.plan.CopyFrom(plan_message(found.plan, view_steps(found, found.plan)))
        response.rebalancing.CopyFrom(rebalancing_message(found.rebalancing, found.rebalancer))
        return response

    async def list_queue_settings(self, request: pb.ListQueueSettingsRequest) -> pb.ListQueueSettingsResponse:
        found, cluster = self._initialised()
        response = pb.ListQueueSettingsResponse()
        if request.queues:
            check_queue_names(request.queues)
            names, is_more = list(request.queues), False
        else:
            names, is_more = _page(found, request.page_size, request.page_token)
        settings = (
            queue_settings(name, found.queues.get(name), found.queue_version(name), cluster.shards) for name in names
        )
        if not fill_settings(response, settings, is_page=not request.queues) or is_more:
            response.next_page_token = response.queues[-1].route.queue
        return response

    # What is changed in etcd

    async def init_cluster(self, request: pb.InitClusterRequest) -> pb.InitClusterResponse:
        async with etcd_errors():
            made = await self._store.init_cluster(request.shards, request.replication)
        return pb.InitClusterResponse(cluster_id=made.cluster_id)

    async def set_queue(self, request: pb.SetQueueRequest) -> pb.SetQueueResponse:
        queue, change = check_queue_name(request.queue), queue_change(request)
        async with etcd_errors():
            record, version = await self._store.set_queue(queue, change)
            cluster = await self._store.cluster()
        return pb.SetQueueResponse(settings=queue_settings(queue, record, version, cluster.shards))

    async def drain_node(self, request: pb.DrainNodeRequest) -> pb.DrainNodeResponse:
        name = _node_name(request.node)
        async with etcd_errors():
            await self._check_known(name)
            if request.drain:
                await self._store.drain_node(name)
            else:
                await self._store.undrain_node(name)
        with suppress(TimeoutError):  # a plan that is asked for next is to know of it
            await self._follower.wait_until(lambda found: (name in found.drains) == request.drain, MAP_WAIT_S)
        return pb.DrainNodeResponse()

    async def remove_node(self, request: pb.RemoveNodeRequest) -> pb.RemoveNodeResponse:
        name = _node_name(request.node)
        found = self._follower.map
        if name in found.removed and name not in _known_nodes(found):
            return pb.RemoveNodeResponse()  # asked for again
        async with etcd_errors():
            await self._check_known(name)
            await self._store.remove_node(name, _last_node_id(found, name))
        return pb.RemoveNodeResponse()

    async def hand_over_node(self, request: pb.HandOverNodeRequest) -> pb.HandOverNodeResponse:
        name = _node_name(request.node)
        self._initialised()
        async with etcd_errors():
            await self._check_known(name)
            return await self._hand_over(request)

    # Plans

    async def make_plan(self, request: pb.MakePlanRequest) -> pb.MakePlanResponse:
        return pb.MakePlanResponse(plan=await self._plans.make(request))

    async def start_plan(self, request: pb.StartPlanRequest) -> pb.StartPlanResponse:
        async with etcd_errors():
            return pb.StartPlanResponse(plan=await self._plans.start(request))

    async def advance_plan(self, request: pb.AdvancePlanRequest) -> pb.AdvancePlanResponse:
        async with etcd_errors():
            plan, is_done = await self._plans.advance(request.id)
        return pb.AdvancePlanResponse(plan=plan, is_done=is_done)

    async def cancel_plan(self, request: pb.CancelPlanRequest) -> pb.CancelPlanResponse:
        async with etcd_errors():
            await self._plans.cancel(request.id)
        return pb.CancelPlanResponse()

    async def set_rebalancing(self, request: pb.SetRebalancingRequest) -> pb.SetRebalancingResponse:
        if len(request.why) > WHY_CHARS_MAX:
            raise RefusedError(
                TOO_LARGE, f"Expected {{field}} of at most {WHY_CHARS_MAX} characters.", "why", str(WHY_CHARS_MAX)
            )
        self._initialised()
        why = request.why if request.pause else ""
        async with etcd_errors():
            changed = await self._store.change_rebalancing(
                lambda record: replace(record, is_paused=request.pause, why=why)
            )
        return pb.SetRebalancingResponse(rebalancing=rebalancing_message(changed, self._follower.map.rebalancer))

    # Access

    async def get_access(self, _request: pb.GetAccessRequest) -> pb.GetAccessResponse:
        async with etcd_errors():
            policy, version = await self._store.read_access()
        return pb.GetAccessResponse(rules=b"" if policy is None else to_json(policy), version=version)

    async def set_access(self, request: pb.SetAccessRequest) -> pb.SetAccessResponse:
        policy = access_policy(request.rules)
        async with etcd_errors():
            return pb.SetAccessResponse(version=await self._store.set_access(policy, request.version))

    def _initialised(self) -> tuple[PartitionMap, ClusterRecord]:
        found = self._follower.map
        if found.cluster is None:
            raise found.refusal_without_cluster()
        return found, found.cluster

    async def _check_known(self, name: str) -> None:
        """The map may be a moment behind, so etcd has the last word."""
        if name in _known_nodes(self._follower.map):
            return
        if await self._store.etcd.get(self._store.keys.node(name)) is None:
            raise node_not_found(name)


def access_policy(rules: bytes) -> AccessPolicy | None:
    """None: there are to be none. Refuses rules that cannot be used, and those that would be the last."""
    if not rules:
        return None
    try:
        policy = from_json(rules)
    except AccessPolicyError as error:
        raise RefusedError(INVALID_FIELD, str(error), f"rules.{error.field}".rstrip("."), error.limit) from None
    if not has_administrator(policy, time.time_ns() // 1_000_000):
        raise change_refused(
            "NO_ADMINISTRATOR",
            "Expected rules under which somebody may administer every queue, but nobody could, and so nobody could "
            "change them again: grant such a role to a token that has not expired, a certificate or a claim of JWTs.",
        )
    return policy


@asynccontextmanager
async def etcd_errors() -> AsyncIterator[None]:
    try:
        yield
    except EtcdError as error:
        raise etcd_unavailable(str(error)) from error
    except RecordError as error:
        raise unreadable(error) from error


def _known_nodes(found: PartitionMap) -> set[str]:
    """Those that are there, were there, are marked, or have something to do with a shard."""
    names = {*found.nodes, *found.last_nodes, *found.drains}
    for record in found.shards.values():
        names.update(record.replicas)
        names.update(map(name_of, (*record.voters, *record.members.learners, *record.leaving)))
    return names


def _last_node_id(found: PartitionMap, name: str) -> str | None:
    """Also of a node that was never seen here: those who left a shard are known by their id."""
    if name in found.last_nodes:
        return found.last_nodes[name].node_id
    left = [replica for record in found.shards.values() for replica in record.leaving if name_of(replica) == name]
    return left[-1].partition("/")[2] if left else None


def _member_counts(found: PartitionMap) -> Counter[str]:
    return Counter(
        name
        for record in found.shards.values()
        for name in set(map(name_of, (*record.members.voters, *record.members.learners)))
    )


def _page(found: PartitionMap, page_size: int, page_token: str) -> tuple[list[str], bool]:
    """Names of queues that differ from the default, after the one in the token; whether there are more."""
    count_max = check_page(page_size, page_token)
    default = QueueRecord()
    names = sorted(name for name, record in found.queues.items() if record != default)
    start = bisect_right(names, page_token)
    end = start + count_max
    return names[start:end], end < len(names)


def _node_name(name: str) -> str:
    if not name:
        raise RefusedError(MISSING_FIELD, "Expected the name of a node ({field}), but it is empty.", "node")
    if not NAME.fullmatch(name):
        raise RefusedError(INVALID_FIELD, "Expected {field} to be the name of a node, but it cannot be one.", "node")
    return name
