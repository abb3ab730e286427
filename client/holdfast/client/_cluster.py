"""The calls of operators: what a cluster is and has, and how it changes. `AsyncClient` inherits them.

Every router answers them, and every broker of a cluster; what they change is brought about by the shards' leaders.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client import _shards
from holdfast.client._cluster_wire import (
    cluster_info,
    handover_progress,
    plan_of,
    put_plan,
    put_policy,
    queue_settings,
    rebalancing_of,
    topology_of,
)
from holdfast.client._fitting import build, fit, number, several
from holdfast.client._options import call_limit_s
from holdfast.client._rpc import Connection, Method, RequestT, ResponseT, method
from holdfast.client.cluster_models import (
    AccessRules,
    ClusterInfo,
    HandoverProgress,
    MoveWish,
    NodeReport,
    Plan,
    PlanProgress,
    QueuePolicy,
    QueueSettings,
    QueueSettingsPage,
    Rebalancing,
    ShardHash,
    Topology,
    Transferred,
)
from holdfast.client.errors import InvalidArgument, UnexpectedAnswer
from holdfast.proto.v1 import cluster_pb2 as pb

_SERVICE = "Cluster"
GET_TOPOLOGY = method(pb, _SERVICE, "GetTopology", pb.GetTopologyRequest, pb.GetTopologyResponse)
_DESCRIBE = method(pb, _SERVICE, "DescribeCluster", pb.DescribeClusterRequest, pb.DescribeClusterResponse)
_INIT = method(pb, _SERVICE, "InitCluster", pb.InitClusterRequest, pb.InitClusterResponse)
_LIST_SETTINGS = method(pb, _SERVICE, "ListQueueSettings", pb.ListQueueSettingsRequest, pb.ListQueueSettingsResponse)
_SET_QUEUE = method(pb, _SERVICE, "SetQueue", pb.SetQueueRequest, pb.SetQueueResponse)
_DRAIN = method(pb, _SERVICE, "DrainNode", pb.DrainNodeRequest, pb.DrainNodeResponse)
_REMOVE = method(pb, _SERVICE, "RemoveNode", pb.RemoveNodeRequest, pb.RemoveNodeResponse)
_HAND_OVER = method(pb, _SERVICE, "HandOverNode", pb.HandOverNodeRequest, pb.HandOverNodeResponse)
_MAKE_PLAN = method(pb, _SERVICE, "MakePlan", pb.MakePlanRequest, pb.MakePlanResponse)
_START_PLAN = method(pb, _SERVICE, "StartPlan", pb.StartPlanRequest, pb.StartPlanResponse)
_ADVANCE_PLAN = method(pb, _SERVICE, "AdvancePlan", pb.AdvancePlanRequest, pb.AdvancePlanResponse)
_CANCEL_PLAN = method(pb, _SERVICE, "CancelPlan", pb.CancelPlanRequest, pb.CancelPlanResponse)
_GET_ACCESS = method(pb, _SERVICE, "GetAccess", pb.GetAccessRequest, pb.GetAccessResponse)
_SET_ACCESS = method(pb, _SERVICE, "SetAccess", pb.SetAccessRequest, pb.SetAccessResponse)
_SET_REBALANCING = method(pb, _SERVICE, "SetRebalancing", pb.SetRebalancingRequest, pb.SetRebalancingResponse)


class OperatorCalls:
    """What operators ask of a cluster and of its nodes."""

    _connection: Connection
    _timeout_s: float

    # --------------------------------------------------------------------------------------------- the cluster

    async def describe_cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Nodes, shards and the plan under way, as the map has them."""
        return cluster_info(await self._ask(_DESCRIBE, pb.DescribeClusterRequest(), timeout_s))

    async def init_cluster(self, shards: int, *, replication: int = 3, timeout_s: float | None = None) -> str:
        """Makes a cluster of the nodes that are there, once in its life; returns its id. The same again changes
        nothing, and returns the id of the cluster that is there.

        Raises `Conflict` if there is a cluster of another shape (CLUSTER_EXISTS: nothing was changed) or if fewer nodes
        are there than `replication` (NOT_ENOUGH_NODES).
        """
        request = fit(pb.InitClusterRequest, shards=shards, replication=replication)
        return (await self._ask(_INIT, request, timeout_s)).cluster_id

    async def topology(self, queues: Sequence[str] = (), *, timeout_s: float | None = None) -> Topology:
        """The leaders of all shards and the routes of these queues, as the server that was asked knows them."""
        request = build(lambda: pb.GetTopologyRequest(queues=several(queues)), "queues")
        return topology_of(await self._ask(GET_TOPOLOGY, request, timeout_s))

    # ------------------------------------------------------------------------------------------------- queues

    async def queue_settings(self, queue: str, *, timeout_s: float | None = None) -> QueueSettings:
        """Where a queue is and what it does in its own way, also if that is nothing."""
        page = await self.list_queue_settings([queue], timeout_s=timeout_s)
        if len(page.queues) != 1:
            raise UnexpectedAnswer(f"{len(page.queues)} settings for 1 queue", self._connection.address)
        return page.queues[0]

    async def list_queue_settings(
        self,
        queues: Sequence[str] = (),
        *,
        page_size: int = 100,
        page_token: str = "",
        timeout_s: float | None = None,
    ) -> QueueSettingsPage:
        """One page of the queues that differ from the default, by name, or of those that are named here."""
        named = build(lambda: several(queues), "queues")
        request = fit(pb.ListQueueSettingsRequest, queues=named, page_size=page_size, page_token=page_token)
        response = await self._ask(_LIST_SETTINGS, request, timeout_s)
        return QueueSettingsPage(tuple(map(queue_settings, response.queues)), response.next_page_token)

    async def set_queue(
        self,
        queue: str,
        *,
        policy: QueuePolicy | None = None,
        clear: Sequence[str] = (),
        spread: int | None = None,
        pin: Sequence[int] | None = None,
        home: bool = False,
        timeout_s: float | None = None,
    ) -> QueueSettings:
        """Changes what is given and leaves the rest of a queue's settings as they are. The queue may be in use.

        policy: only what is given in it changes, also of each tenant; any other list replaces the one before. clear:
        names of fields of the policy that go back to the default, before anything is set; "tenants" forgets them all,
        "tenants.acme" one, "tenant_weight.acme" (tenant_concurrency_max, tenant_rate_per_second, tenant_rate_burst) a
        field of one.
        spread: over so many shards. pin: on exactly these shards. home: on its home shard alone, as at first; at most
        one of the three. Tasks never move for that: new ones go to the new shards, old ones drain where they are.
        """
        if (spread is not None) + (pin is not None) + home > 1:
            raise InvalidArgument(
                "Expected at most one of spread, pin and home, but got several.", reason="INVALID_FIELD", field="spread"
            )

        request = fit(
            pb.SetQueueRequest,
            queue=queue,
            clear=build(lambda: several(clear), "clear"),
            spread=spread,
            pin=None if pin is None else build(lambda: pb.ShardList(shards=map(number, pin)), "pin"),
            home=home or None,
        )
        if policy is not None:
            build(lambda: put_policy(request.policy, policy, "policy"), "policy")
        response = await self._ask(_SET_QUEUE, request, timeout_s)
        return queue_settings(response.settings)

    async def pause_queue(self, queue: str, *, timeout_s: float | None = None) -> QueueSettings:
        """Hands out no more tasks of a queue, within about a second on all its shards. It still takes new ones, and
        what is claimed goes on."""
        return await self.set_queue(queue, policy=QueuePolicy(paused=True), timeout_s=timeout_s)

    async def resume_queue(self, queue: str, *, timeout_s: float | None = None) -> QueueSettings:
        """Takes `pause_queue` back."""
        return await self.set_queue(queue, policy=QueuePolicy(paused=False), timeout_s=timeout_s)

    # --------------------------------------------------------------------------------------- nodes and plans

    async def drain_node(self, node: str, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Marks a node as one that should hold nothing, or takes the mark back. It moves nothing: see `make_plan`."""
        request = fit(pb.DrainNodeRequest, node=node, drain=drain)
        await self._ask(_DRAIN, request, timeout_s)

    async def remove_node(self, node: str, *, timeout_s: float | None = None) -> None:
        """Forgets a node that holds nothing; it cannot come back with its present data."""
        # Not repeated after a lost connection: the second answer would be that there is no such node.
        await self._ask(_REMOVE, fit(pb.RemoveNodeRequest, node=node), timeout_s, repeatable=False)

    async def hand_over_node(
        self, node: str, *, undo: bool = False, timeout_s: float | None = None
    ) -> HandoverProgress:  # fmt: skip
        """Asks a node that is about to be stopped to hand over what it leads, and tells whether it may stop now.

        Call it again until `may_stop`: then every shard keeps a majority of voters that are there and have caught up.
        Of two nodes that a shard cannot do without together only one is let go at a time. The node leads nothing, if it
        can, until two minutes after the last call; `undo` takes it back at once.
        """
        request = fit(pb.HandOverNodeRequest, node=node, undo=undo)
        return handover_progress(await self._ask(_HAND_OVER, request, timeout_s))

    async def make_plan(
        self, *, leaders: bool = False, move: MoveWish | None = None, timeout_s: float | None = None
    ) -> Plan:
        """What should move and why; changes nothing. Without arguments: so that replicas and leaders are even, zones
        are apart, and nodes that drain are empty.

        leaders: only who leads. move: this one replica. A plan without steps: there is nothing to do.
        """
        if leaders and move is not None:
            raise InvalidArgument(
                "Expected at most one of leaders and move, but got both.", reason="INVALID_FIELD", field="move"
            )

        if move is not None:
            request = pb.MakePlanRequest(move=fit(pb.MoveWish, "move", **_checked_move(move)))
        else:
            request = pb.MakePlanRequest(leaders=True) if leaders else pb.MakePlanRequest(balance=True)
        return plan_of((await self._ask(_MAKE_PLAN, request, timeout_s)).plan)

    async def start_plan(self, plan: Plan, *, timeout_s: float | None = None) -> Plan:
        """Makes this plan the one that is carried out, if it fits the map still. The same plan again is a success."""

        request = pb.StartPlanRequest()
        build(lambda: put_plan(request.plan, plan), "plan")
        return plan_of((await self._ask(_START_PLAN, request, timeout_s)).plan)

    async def advance_plan(self, plan_id: str = "", *, timeout_s: float | None = None) -> PlanProgress:
        """Begins the steps whose turn it is and tells how far all are; without an id, of whatever plan is under way.

        Whoever wants a plan to go on calls this again and again; several may at the same time.
        """
        request = build(lambda: pb.AdvancePlanRequest(id=plan_id), "plan_id")
        response = await self._ask(_ADVANCE_PLAN, request, timeout_s)
        return PlanProgress(plan_of(response.plan), response.is_done)

    async def cancel_plan(self, plan_id: str, *, timeout_s: float | None = None) -> None:
        """Begins no more steps. What has begun is brought to its end by the shards themselves."""
        # Not repeated after a lost connection: the second answer would be that there is no such plan.
        request = build(lambda: pb.CancelPlanRequest(id=plan_id), "plan_id")
        await self._ask(_CANCEL_PLAN, request, timeout_s, repeatable=False)

    async def set_rebalancing(
        self, *, pause: bool, why: str = "", timeout_s: float | None = None
    ) -> Rebalancing:  # fmt: skip
        """Pauses or resumes whatever carries out plans by itself; what has begun comes to its end. why: for people."""
        request = fit(pb.SetRebalancingRequest, pause=pause, why=why)
        return rebalancing_of((await self._ask(_SET_REBALANCING, request, timeout_s)).rebalancing)

    # -------------------------------------------------------------------------------------------------- access

    async def get_access(self, *, timeout_s: float | None = None) -> AccessRules:
        """Who may do what, as the map of the cluster has it."""
        answer = await self._ask(_GET_ACCESS, pb.GetAccessRequest(), timeout_s)
        try:
            return AccessRules(json.loads(answer.rules) if answer.rules else {}, answer.version)
        except ValueError:
            raise UnexpectedAnswer("its access rules cannot be read", self._connection.address) from None

    async def set_access(
        self, rules: Mapping[str, Any] | None, *, version: int, timeout_s: float | None = None
    ) -> int:  # fmt: skip
        """Puts these rules in the place of those of this version; returns theirs. `Conflict` if somebody else was
        faster. None takes all rules away: then those in the files of the servers count, or nobody is asked."""
        data = b"" if rules is None else json.dumps(rules, sort_keys=True).encode()
        request = build(lambda: pb.SetAccessRequest(rules=data, version=version), "version")
        return (await self._ask(_SET_ACCESS, request, timeout_s)).version

    # ---------------------------------------------------------------------------------------- nodes and shards

    async def describe_nodes(self, *, timeout_s: float | None = None) -> list[NodeReport]:
        """Asks every node of the cluster, those in the address and those that they name, what it is and has.

        One report per node, by name, with what it said or why it did not answer. Nothing is repeated: it shows how
        things are.
        """
        return await _shards.describe_nodes(self._connection, call_limit_s(timeout_s, self._timeout_s))

    async def hash_shard(self, shard: int, *, timeout_s: float | None = None) -> ShardHash:
        """The hashes of the states of all replicas at one index: they must be equal.

        Writes a probe into the shard's log and waits for each replica to get there.
        """
        timeout_s = call_limit_s(timeout_s, self._timeout_s)
        return await _shards.hash_shard(self._connection, shard, timeout_s)

    async def transfer(self, shard: int, to: str, *, timeout_s: float | None = None) -> Transferred:
        """Makes the node named `to` the leader of a shard, and returns when it is. Nothing is lost or done twice."""
        timeout_s = call_limit_s(timeout_s, self._timeout_s)
        return await _shards.transfer(self._connection, shard, to, timeout_s)

    async def _ask(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        timeout_s: float | None,
        *,
        repeatable: bool = True,
    ) -> ResponseT:
        timeout_s = call_limit_s(timeout_s, self._timeout_s)
        return await self._connection.ask_any(method, request, timeout_s=timeout_s, repeatable=repeatable)


def _checked_move(move: MoveWish) -> dict[str, Any]:
    return build(lambda: {"shard": move.shard, "source": move.source, "destination": move.destination}, "move")
