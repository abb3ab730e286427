"""The calls of operators about a cluster: what they put on the wire, and what they make of the answer."""

from dataclasses import fields
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor

from holdfast.client import (
    AsyncClient,
    Client,
    ClusterInfo,
    ClusterNode,
    ClusterShard,
    Conflict,
    HandoverProgress,
    InvalidArgument,
    MoveWish,
    NotFound,
    Plan,
    PlanProgress,
    PlanStep,
    QueuePolicy,
    QueueRoute,
    QueueSet,
    QueueSettings,
    QueueSettingsPage,
    Rejected,
    RetryShape,
    ShardLeader,
    StepState,
    TenantPolicy,
    Topology,
    Unavailable,
    UnexpectedAnswer,
)
from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.client.scripted_server import Refusal, ScriptedServer

Code = grpc.StatusCode
LOST = Refusal(Code.UNAVAILABLE)

WIRE_STEP = pb.PlanStep(
    shard=3, source="n1", destination="n4", state_bytes=-1, why="n1 drains", state=pb.STEP_STATE_COPYING,
    detail="learns", lag=17,
)  # fmt: skip
STEP = PlanStep(
    shard=3, source="n1", destination="n4", why="n1 drains", state=StepState.COPYING, detail="learns", lag=17
)
WIRE_PLAN = pb.Plan(id="p-1", revision=9, steps=[WIRE_STEP], summary="1 replica moves.")
PLAN = Plan("p-1", 9, (STEP,), "1 replica moves.")
WIRE_ROUTE = pb.QueueRoute(
    queue="mail", home=3, generation=2, sets=[pb.QueueSet(generation=2, shards=[3, 5])], draining=[1]
)
ROUTE = QueueRoute("mail", 3, 2, (QueueSet(2, (3, 5)),), (1,))


async def test_describe_cluster(server: ScriptedServer, client: AsyncClient) -> None:
    node = pb.ClusterNode(
        name="n1", node_id="1" * 32, address="h1:1", peer_address="h1:2", ops_address="h1:3", zone="a", capacity=100,
        version="1.2", is_alive=True, is_draining=True, replicas=4, leaders=2,
    )  # fmt: skip
    shard = pb.ClusterShard(
        shard=0, group=7, replicas=["n1"], version=3, voters=["n1/1"], learners=["n2/2"], leaving=["n3/3"], leader="n1",
        epoch=5,
    )  # fmt: skip
    full = pb.DescribeClusterResponse(
        cluster_id="c", name="main", shards_count=1, replication=3, revision=8, etcd_answers=True, nodes=[node],
        shards=[shard], plan=WIRE_PLAN,
    )  # fmt: skip
    server.on("DescribeCluster", full, pb.DescribeClusterResponse(cluster_id="c"))
    assert await client.describe_cluster() == ClusterInfo(
        cluster_id="c",
        name="main",
        shards_count=1,
        replication=3,
        revision=8,
        etcd_answers=True,
        nodes=(
            ClusterNode(
                name="n1", node_id="1" * 32, address="h1:1", peer_address="h1:2", ops_address="h1:3", zone="a",
                capacity=100, version="1.2", is_alive=True, is_draining=True, replicas=4, leaders=2,
            ),
        ),
        shards=(
            ClusterShard(
                shard=0, group=7, replicas=("n1",), version=3, voters=("n1/1",), learners=("n2/2",),
                leaving=("n3/3",), leader="n1", epoch=5,
            ),
        ),
        plan=PLAN,
    )  # fmt: skip
    bare = await client.describe_cluster()
    assert (bare.plan, bare.etcd_answers) == (None, False)


async def test_topology(server: ScriptedServer, client: AsyncClient) -> None:
    leader = pb.ShardLeader(shard=0, node="n1", address="h1:1", epoch=4)
    server.on(
        "GetTopology",
        pb.GetTopologyResponse(
            cluster_id="c", revision=5, shards=8, leaders=[leader], routes=[WIRE_ROUTE], addresses=["h1:1"]
        ),
    )
    assert await client.topology(["mail"]) == Topology(
        cluster_id="c",
        revision=5,
        shards=8,
        leaders=(ShardLeader(0, "n1", "h1:1", 4),),
        routes=(ROUTE,),
        addresses=("h1:1",),
    )
    assert server.requests["GetTopology"] == [pb.GetTopologyRequest(queues=["mail"])]
    assert ROUTE.shards == (1, 3, 5)


async def test_init_cluster(server: ScriptedServer, client: AsyncClient) -> None:
    server.on(
        "InitCluster",
        pb.InitClusterResponse(cluster_id="c"),
        Refusal(Code.ALREADY_EXISTS, "CLUSTER_EXISTS"),
        Refusal(Code.FAILED_PRECONDITION, "NOT_ENOUGH_NODES"),
        LOST,
        pb.InitClusterResponse(cluster_id="c"),
    )
    assert await client.init_cluster(16) == "c"
    assert server.requests["InitCluster"] == [pb.InitClusterRequest(shards=16, replication=3)]
    for reason in ("CLUSTER_EXISTS", "NOT_ENOUGH_NODES"):
        with pytest.raises(Conflict) as refused:
            await client.init_cluster(16, replication=5)
        assert refused.value.reason == reason
    assert await client.init_cluster(16) == "c", "repeated after a lost answer: the same again changes nothing"
    assert len(server.requests["InitCluster"]) == 5


async def test_settings_of_queues(server: ScriptedServer, client: AsyncClient) -> None:
    policy = pb.QueuePolicy(max_attempts=3, retry_factor=1.5, result_ttl_ms=0)
    settings = pb.QueueSettings(route=WIRE_ROUTE, policy=policy, version=4)
    page = pb.ListQueueSettingsResponse(queues=[settings], next_page_token="more")
    server.on("ListQueueSettings", page, page, pb.ListQueueSettingsResponse())
    found = QueueSettings(ROUTE, QueuePolicy(max_attempts=3, retry_factor=1.5, result_ttl_ms=0), 4)
    assert await client.list_queue_settings(page_size=1, page_token="x") == QueueSettingsPage((found,), "more")
    assert server.requests["ListQueueSettings"] == [pb.ListQueueSettingsRequest(page_size=1, page_token="x")]
    assert await client.queue_settings("mail") == found
    assert list(server.requests["ListQueueSettings"][1].queues) == ["mail"]
    with pytest.raises(UnexpectedAnswer):
        await client.queue_settings("mail")


async def test_set_queue_sends_only_what_is_given(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("SetQueue", pb.SetQueueResponse(settings=pb.QueueSettings(route=WIRE_ROUTE)))
    settings = await client.set_queue(
        "mail", policy=QueuePolicy(max_claims=0, retry_jitter=0.5), clear=["max_attempts"]
    )
    assert settings == QueueSettings(ROUTE)
    await client.set_queue("mail", spread=4)
    await client.set_queue("mail", pin=[2, 7])
    await client.set_queue("mail", home=True)
    await client.set_queue("mail", pin=[])
    policy = pb.QueuePolicy(max_claims=0, retry_jitter=0.5)
    assert server.requests["SetQueue"] == [
        pb.SetQueueRequest(queue="mail", policy=policy, clear=["max_attempts"]),
        pb.SetQueueRequest(queue="mail", spread=4),
        pb.SetQueueRequest(queue="mail", pin=pb.ShardList(shards=[2, 7])),
        pb.SetQueueRequest(queue="mail", home=True),
        pb.SetQueueRequest(queue="mail", pin=pb.ShardList()),
    ]


TENANTS = [
    pb.TenantPolicy(tenant="acme", weight=3, concurrency_max=5, rate_per_second=0.5, rate_burst=2),
    pb.TenantPolicy(tenant=""),
]
NO_NUMBERS = ("retry_shape", "non_retryable", "paused", "dead_alert_url", "tenants")
NUMBERS = {
    name: index for index, name in enumerate(pb.QueuePolicy.DESCRIPTOR.fields_by_name, 1) if name not in NO_NUMBERS
}


async def test_a_policy_goes_there_and_back(server: ScriptedServer, client: AsyncClient) -> None:
    numbers: Any = NUMBERS
    wire = pb.QueuePolicy(
        retry_shape="linear", non_retryable=["A", "b.B"], paused=False, dead_alert_url="http://h/x", tenants=TENANTS,
        **numbers,
    )  # fmt: skip
    policy = QueuePolicy(
        retry_shape=RetryShape.LINEAR,
        non_retryable=("A", "b.B"),
        paused=False,
        dead_alert_url="http://h/x",
        tenants=(
            TenantPolicy("acme", weight=3, concurrency_max=5, rate_per_second=0.5, rate_burst=2),
            TenantPolicy(""),
        ),
        **numbers,
    )
    assert {field.name for field in fields(QueuePolicy)} == set(pb.QueuePolicy.DESCRIPTOR.fields_by_name)
    assert {field.name for field in fields(TenantPolicy)} == set(pb.TenantPolicy.DESCRIPTOR.fields_by_name)
    server.on("SetQueue", pb.SetQueueResponse(settings=pb.QueueSettings(route=WIRE_ROUTE, policy=wire)))
    assert await client.set_queue("mail", policy=policy) == QueueSettings(ROUTE, policy)
    assert server.requests["SetQueue"] == [pb.SetQueueRequest(queue="mail", policy=wire)]
    assert server.requests["SetQueue"][0].policy.HasField("paused")


async def test_a_shape_of_a_newer_server_is_unknown(server: ScriptedServer, client: AsyncClient) -> None:
    policy = pb.QueuePolicy(retry_shape="sideways")
    server.on("SetQueue", pb.SetQueueResponse(settings=pb.QueueSettings(route=WIRE_ROUTE, policy=policy)))
    assert (await client.set_queue("mail")).policy == QueuePolicy(retry_shape=RetryShape.UNKNOWN)


async def test_pause_and_resume_a_queue(server: ScriptedServer, client: AsyncClient) -> None:
    paused = pb.QueueSettings(route=WIRE_ROUTE, policy=pb.QueuePolicy(paused=True))
    server.on("SetQueue", LOST, pb.SetQueueResponse(settings=paused))
    assert (await client.pause_queue("mail")).policy.paused is True
    await client.resume_queue("mail")
    pause, resume = (pb.SetQueueRequest(queue="mail", policy=pb.QueuePolicy(paused=item)) for item in (True, False))
    assert server.requests["SetQueue"] == [pause, pause, resume]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_claims": 2**63}, "policy.max_claims"),
        ({"rate_per_second": "fast"}, "policy.rate_per_second"),
        ({"paused": "yes"}, "policy.paused"),
        ({"dead_alert_url": "\ud800"}, "policy.dead_alert_url"),
        ({"retry_shape": "sideways"}, "policy.retry_shape"),
        ({"retry_shape": RetryShape.UNKNOWN}, "policy.retry_shape"),
        ({"non_retryable": "ValueError"}, "policy.non_retryable"),
        ({"tenants": ["acme"]}, "policy.tenants[0]"),
        ({"tenants": [TenantPolicy("a"), TenantPolicy("b", weight=2**63)]}, "policy.tenants[1].weight"),
        ({"tenants": [TenantPolicy("a", rate_per_second=[])]}, "policy.tenants[0].rate_per_second"),  # type: ignore[arg-type]
    ],
)
async def test_a_policy_that_does_not_fit_is_refused_by_name(
    server: ScriptedServer, client: AsyncClient, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.set_queue("mail", policy=QueuePolicy(**given))
    assert caught.value.field == field
    assert not server.requests


@pytest.mark.parametrize("value", [True, False])
async def test_true_is_no_number_of_a_policy(server: ScriptedServer, client: AsyncClient, value: Any) -> None:
    """Protobuf would take it for 1: a cap of one."""
    kinds = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_DOUBLE)
    policies: dict[str, Any] = {
        item.name: QueuePolicy(**{item.name: value}) for item in pb.QueuePolicy.DESCRIPTOR.fields if item.type in kinds
    }
    for field_name in pb.TenantPolicy.DESCRIPTOR.fields:
        if field_name.type in kinds:
            policies[f"tenants[0].{field_name.name}"] = QueuePolicy(
                tenants=[TenantPolicy("a", **{field_name.name: value})]
            )
    assert len(policies) == 27
    for field, policy in policies.items():
        with pytest.raises(InvalidArgument, match="number") as caught:
            await client.set_queue("mail", policy=policy)
        assert caught.value.field == f"policy.{field}"
    assert not server.requests


async def test_a_policy_that_does_not_fit_is_told_what_would(client: AsyncClient) -> None:
    for policy, sentence in (
        (QueuePolicy(retry_shape="foo"), "retry_shape to be one of exponential, linear, fixed, but got 'foo'."),  # type: ignore[arg-type]
        (QueuePolicy(paused="yes"), "paused to hold True or False, but it is of another type."),  # type: ignore[arg-type]
        (QueuePolicy(max_claims="x"), "max_claims to hold a whole number, but it is of another type."),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument) as caught:
            await client.set_queue("mail", policy=policy)
        assert caught.value.message == f"Expected policy.{sentence}"


async def test_nodes(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("DrainNode", pb.DrainNodeResponse())
    server.on("RemoveNode", pb.RemoveNodeResponse(), Refusal(Code.NOT_FOUND, "NODE_NOT_FOUND"))
    await client.drain_node("n1")
    await client.drain_node("n1", drain=False)
    assert server.requests["DrainNode"] == [
        pb.DrainNodeRequest(node="n1", drain=True),
        pb.DrainNodeRequest(node="n1", drain=False),
    ]
    await client.remove_node("n1")
    with pytest.raises(NotFound):
        await client.remove_node("n9")


async def test_handover(server: ScriptedServer, client: AsyncClient) -> None:
    held_back = [pb.HeldBackShard(shard=3, why="n2 is gone")]
    server.on(
        "HandOverNode",
        pb.HandOverNodeResponse(leads=2, held_back=held_back, single=[7]),
        pb.HandOverNodeResponse(may_stop=True),
    )
    assert await client.hand_over_node("n1") == HandoverProgress(False, 2, {3: "n2 is gone"}, (7,))
    assert await client.hand_over_node("n1", undo=True) == HandoverProgress(True, 0, {}, ())
    assert server.requests["HandOverNode"] == [
        pb.HandOverNodeRequest(node="n1"),
        pb.HandOverNodeRequest(node="n1", undo=True),
    ]


async def test_plans(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("MakePlan", pb.MakePlanResponse(plan=WIRE_PLAN))
    server.on("StartPlan", pb.StartPlanResponse(plan=WIRE_PLAN))
    done = pb.Plan(id="p-1", steps=[pb.PlanStep(shard=3, state=pb.STEP_STATE_DONE, state_bytes=5, lag=-1)])
    server.on("AdvancePlan", pb.AdvancePlanResponse(plan=done, is_done=True))
    server.on("CancelPlan", pb.CancelPlanResponse(), Refusal(Code.NOT_FOUND, "PLAN_NOT_FOUND"))
    assert await client.make_plan() == PLAN
    await client.make_plan(leaders=True)
    await client.make_plan(move=MoveWish(3, "n1", "n4"))
    assert server.requests["MakePlan"] == [
        pb.MakePlanRequest(balance=True),
        pb.MakePlanRequest(leaders=True),
        pb.MakePlanRequest(move=pb.MoveWish(shard=3, source="n1", destination="n4")),
    ]
    assert await client.start_plan(PLAN) == PLAN
    assert server.requests["StartPlan"] == [pb.StartPlanRequest(plan=WIRE_PLAN)], "exactly as it was made"
    step = PlanStep(shard=3, state=StepState.DONE, state_bytes=5)
    assert await client.advance_plan() == PlanProgress(Plan("p-1", 0, (step,)), is_done=True)
    assert step.state.is_final
    await client.advance_plan("p-1")
    assert [request.id for request in server.requests["AdvancePlan"]] == ["", "p-1"]
    await client.cancel_plan("p-1")
    with pytest.raises(NotFound):
        await client.cancel_plan("p-1")


async def test_a_step_in_a_state_of_a_newer_server(server: ScriptedServer, client: AsyncClient) -> None:
    step = pb.PlanStep(shard=1)
    step.state = 99  # type: ignore[assignment]
    server.on("MakePlan", pb.MakePlanResponse(plan=pb.Plan(id="p", steps=[step])))
    assert (await client.make_plan()).steps[0].state is StepState.UNKNOWN


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (Code.FAILED_PRECONDITION, "NO_CLUSTER", Conflict),
        (Code.FAILED_PRECONDITION, "PLAN_REFUSED", Conflict),
        (Code.FAILED_PRECONDITION, "PLAN_UNDER_WAY", Conflict),
        (Code.UNAVAILABLE, "ETCD_UNAVAILABLE", Unavailable),
        (Code.ABORTED, "SOMETHING_NEW", Conflict),
        (Code.ALREADY_EXISTS, "SOMETHING_NEW", Conflict),
    ],
)
async def test_refusals_have_their_kind(
    server: ScriptedServer, client: AsyncClient, code: grpc.StatusCode, reason: str, kind: type[Rejected]
) -> None:
    server.on("StartPlan", Refusal(code, reason, metadata={"plan": "p-0", "why": "NO_MAJORITY"}))
    with pytest.raises(kind) as refused:
        await client.start_plan(PLAN)
    assert refused.value.reason == reason
    assert refused.value.metadata == {"plan": "p-0", "why": "NO_MAJORITY"}
    assert len(server.requests["StartPlan"]) == 1


async def test_a_conflict_with_somebody_else_is_tried_again(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("DrainNode", Refusal(Code.ABORTED, "CONFLICT", retry_after_ms=1), pb.DrainNodeResponse())
    await client.drain_node("n1")
    assert len(server.requests["DrainNode"]) == 2


async def test_any_server_of_the_list_will_do(server: ScriptedServer) -> None:
    with ScriptedServer() as other:
        other.on("DescribeCluster", pb.DescribeClusterResponse(cluster_id="c"))
        server.on("DescribeCluster", LOST)
        async with AsyncClient(f"{server.address},{other.address}") as client:
            assert (await client.describe_cluster()).cluster_id == "c"


async def test_what_does_not_fit_is_refused_by_name_and_not_sent(server: ScriptedServer, client: AsyncClient) -> None:
    for call, field in (
        (client.init_cluster(2**70), "shards"),
        (client.topology("mail"), "queues"),
        (client.set_queue("mail", spread=2, home=True), "spread"),
        (client.set_queue("mail", pin=["x"]), "pin"),  # type: ignore[list-item]
        (client.set_queue("mail", clear="max_claims"), "clear"),
        (client.drain_node(7), "node"),  # type: ignore[arg-type]
        (client.make_plan(leaders=True, move=MoveWish(1, "a", "b")), "move"),
        (client.make_plan(move=MoveWish("x", "a", "b")), "move.shard"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument) as refused:
            await call
        assert refused.value.field == field
    assert not server.requests


def test_the_blocking_client_has_the_same(server: ScriptedServer) -> None:
    server.on("DescribeCluster", pb.DescribeClusterResponse(cluster_id="c"))
    server.on("GetTopology", pb.GetTopologyResponse(cluster_id="c", shards=2))
    server.on("InitCluster", pb.InitClusterResponse(cluster_id="c"))
    server.on("ListQueueSettings", pb.ListQueueSettingsResponse(queues=[pb.QueueSettings(route=WIRE_ROUTE)]))
    server.on("SetQueue", pb.SetQueueResponse(settings=pb.QueueSettings(route=WIRE_ROUTE)))
    for name in ("DrainNode", "RemoveNode", "CancelPlan"):
        server.on(name, getattr(pb, f"{name}Response")())
    server.on("MakePlan", pb.MakePlanResponse(plan=WIRE_PLAN))
    server.on("StartPlan", pb.StartPlanResponse(plan=WIRE_PLAN))
    server.on("AdvancePlan", pb.AdvancePlanResponse(plan=WIRE_PLAN))
    with Client(server.address) as client:
        assert client.describe_cluster().cluster_id == client.init_cluster(2) == "c"
        assert client.topology().shards == 2
        assert client.queue_settings("mail").route == client.list_queue_settings().queues[0].route == ROUTE
        assert client.set_queue("mail", spread=2).route == ROUTE
        assert client.make_plan() == client.start_plan(PLAN) == client.advance_plan().plan == PLAN
        client.drain_node("n1")
        client.remove_node("n1")
        client.cancel_plan("p-1")
