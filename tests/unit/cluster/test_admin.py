"""The service Cluster: what is read from the map, what is changed in etcd, and how both are refused. Plans are in
test_plans.py."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.cluster.admin import conversion as messages
from holdfast.cluster.admin.cluster_service import ClusterAdmin
from holdfast.cluster.etcd.api import Put
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import LeaderRecord
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.routing.homes import home_shard, spread_shards
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError
from holdfast.serving.statuses import status_of
from tests.unit.cluster.cluster_shards import WishfulShards, admin_of
from tests.unit.cluster.cluster_stage import (
    KEYS,
    NAME,
    WAIT_S,
    add_nodes,
    following,
    identity,
    make_store,
    node,
    read_map,
    refusal_of,
)


@dataclass
class Server:
    etcd: FakeEtcd
    follower: MapFollower
    admin: ClusterAdmin
    leases: dict[str, int]

    async def in_step(self) -> PartitionMap:
        newest = await read_map(self.etcd)
        return await self.follower.wait_until(lambda found: found.same_records(newest), WAIT_S)

    async def init(self, shards: int = 8) -> str:
        response = await self.admin.init_cluster(pb.InitClusterRequest(shards=shards, replication=3))
        await WishfulShards(self.etcd).settle()
        await self.in_step()
        return response.cluster_id

    async def set(self, queue: str, **settings: object) -> pb.QueueSettings:
        request = pb.SetQueueRequest(queue=queue, **settings)  # type: ignore[arg-type]
        response = await self.admin.set_queue(request)
        await self.in_step()
        return response.settings

    async def refused(self, method: str, request: Message) -> RefusedError:
        refused = await refusal_of(getattr(self.admin, method)(request))
        status_of(refused)  # every reason has a code
        return refused


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    etcd = FakeEtcd()
    leases = await add_nodes(etcd, "a", "b", "c")
    async with AsyncExitStack() as stack:
        follower = await stack.enter_async_context(following(MapFollower(etcd, NAME)))
        await follower.first_load()
        yield Server(etcd, follower, admin_of(make_store(etcd), follower), leases)


async def topology(server: Server, *queues: str) -> pb.GetTopologyResponse:
    return await server.admin.get_topology(pb.GetTopologyRequest(queues=queues))


async def describe(server: Server) -> pb.DescribeClusterResponse:
    return await server.admin.describe_cluster(pb.DescribeClusterRequest())


# Before and at the beginning


@pytest.mark.parametrize(
    ("record", "reason", "sentence"),
    [
        (b'{"format":2,"id":"new","shards":8,"replication":3}', refusals.VERSION_TOO_OLD, "too old .* upgrade it"),
        (b'{"format":1,"id":"bad","shards":"many"}', refusals.BAD_RECORD, "shards of the record .* Restore etcd"),
    ],
)
async def test_a_cluster_whose_record_cannot_be_read_is_not_one_that_is_yet_to_be_made(
    server: Server, record: bytes, reason: str, sentence: str
) -> None:
    """Whoever followed the advice to make one would be refused with a fault, or worse."""
    await server.etcd.commit([], [Put(KEYS.cluster, record)])
    await server.follower.wait_until(lambda found: KEYS.cluster in found.problems, WAIT_S)
    asked: list[tuple[str, Message]] = [
        ("get_topology", pb.GetTopologyRequest()),
        ("describe_cluster", pb.DescribeClusterRequest()),
        ("list_queue_settings", pb.ListQueueSettingsRequest()),
        ("init_cluster", pb.InitClusterRequest(shards=8, replication=3)),
        ("set_queue", pb.SetQueueRequest(queue="q", spread=2)),
        ("make_plan", pb.MakePlanRequest(balance=True)),
    ]
    for method, request in asked:
        refused = await server.refused(method, request)
        assert refused.reason == reason, method
        assert re.search(sentence, refused.message), refused.message
    row = await server.etcd.get(KEYS.cluster)
    assert row is not None
    assert row.value == record


async def test_before_it_is_initialised_a_cluster_has_nodes_only(server: Server) -> None:
    found = await describe(server)
    assert (found.name, found.cluster_id, found.etcd_answers) == (NAME, "", True)
    assert [item.name for item in found.nodes] == ["a", "b", "c"]
    assert list(found.shards) == []
    for method, request in [
        ("get_topology", pb.GetTopologyRequest()),
        ("list_queue_settings", pb.ListQueueSettingsRequest()),
        ("set_queue", pb.SetQueueRequest(queue="q", spread=2)),
        ("make_plan", pb.MakePlanRequest(balance=True)),
    ]:
        assert (await server.refused(method, request)).reason == refusals.NO_CLUSTER


async def test_a_cluster_is_initialised_once(server: Server) -> None:
    cluster_id = await server.init()
    again = await server.admin.init_cluster(pb.InitClusterRequest(shards=8, replication=3))
    assert again.cluster_id == cluster_id, "the same again is what is there"
    other = await server.refused("init_cluster", pb.InitClusterRequest(shards=9, replication=3))
    assert (other.reason, other.metadata) == (refusals.CLUSTER_EXISTS, {"cluster": cluster_id})
    assert "8 shards and 3 replicas" in other.message
    found = await describe(server)
    assert (found.cluster_id, found.shards_count, found.replication) == (cluster_id, 8, 3)


# The map


async def test_the_topology_has_leaders_routes_and_addresses(server: Server) -> None:
    cluster_id = await server.init()
    await server.set("wide", spread=3)
    found = await topology(server, "wide", "plain")
    assert (found.cluster_id, found.shards, found.revision) == (cluster_id, 8, server.follower.map.revision)
    assert [leader.shard for leader in found.leaders] == list(range(8))
    assert all(leader.address == f"{leader.node}.test:7401" and leader.epoch for leader in found.leaders)
    assert list(found.addresses) == [f"{name}.test:7401" for name in "abc"]
    wide, plain = found.routes
    assert (wide.queue, wide.home, wide.generation) == ("wide", home_shard("wide", 8), 1)
    assert [(queue_set.generation, tuple(queue_set.shards)) for queue_set in wide.sets] == [
        (1, spread_shards("wide", 8, 3))
    ]
    assert (plain.queue, plain.home, plain.generation, list(plain.sets)) == ("plain", home_shard("plain", 8), 0, [])


async def test_without_etcd_the_last_known_is_the_answer(server: Server) -> None:
    await server.init()
    before = await topology(server, "q")
    assert (await describe(server)).etcd_answers
    server.etcd.stop()
    assert await topology(server, "q") == before
    described = await describe(server)
    assert not described.etcd_answers, "it is asked at this moment, whatever it answered before"
    assert described.age_ms >= 0
    assert len(described.shards) == 8
    for method, request in [
        ("set_queue", pb.SetQueueRequest(queue="q", spread=2)),
        ("drain_node", pb.DrainNodeRequest(node="a", drain=True)),
        ("remove_node", pb.RemoveNodeRequest(node="a")),
        ("init_cluster", pb.InitClusterRequest(shards=1, replication=1)),
        ("make_plan", pb.MakePlanRequest(balance=True)),
        ("make_plan", pb.MakePlanRequest(leaders=True)),
        ("make_plan", pb.MakePlanRequest(move=pb.MoveWish(shard=0, source="a", destination="b"))),
        ("advance_plan", pb.AdvancePlanRequest()),
        ("cancel_plan", pb.CancelPlanRequest(id="x")),
    ]:
        refused = await server.refused(method, request)
        assert refused.reason == refusals.ETCD_UNAVAILABLE
        assert refused.retry_after_ms


async def test_a_leader_whose_lease_is_gone_is_still_told(server: Server) -> None:
    """Its lease says nothing about whether it serves: that is between it and its shard."""
    await server.init()
    await server.etcd.revoke(server.leases["a"])
    await server.in_step()
    found = await topology(server)
    assert "a" in {leader.node for leader in found.leaders}
    assert list(found.addresses) == ["b.test:7401", "c.test:7401"]


async def test_a_description_has_all_nodes_and_shards(server: Server) -> None:
    await server.init(shards=3)
    await server.etcd.revoke(server.leases["b"])
    await server.admin.drain_node(pb.DrainNodeRequest(node="b", drain=True))
    await make_store(server.etcd).hint_leader(0, LeaderRecord("a", (await read_map(server.etcd)).shards[0].group, 9))
    await server.in_step()
    found = await describe(server)
    a, b, _ = found.nodes
    assert (a.is_alive, a.is_draining, a.replicas, a.address) == (True, False, 3, "a.test:7401")
    assert (b.is_alive, b.is_draining, b.replicas, b.node_id) == (False, True, 3, node("b").node_id)
    assert sum(item.leaders for item in found.nodes) == 3
    assert (found.shards[0].leader, found.shards[0].epoch, found.shards[0].version) == ("a", 9, 1)
    assert list(found.shards[0].voters) == sorted(map(identity, "abc"))
    assert sorted(found.shards[0].replicas) == ["a", "b", "c"]
    assert found.shards[0].group >> 63 == 1
    assert not found.HasField("plan")


async def test_a_node_that_this_server_never_saw_is_known_by_its_replicas(server: Server) -> None:
    await server.init(shards=3)
    record = server.follower.map.shards[0]
    strange = replace(record, replicas=("a", "b", "z"))
    await server.etcd.commit([], [Put(KEYS.shard(0), strange.encode())])
    await server.in_step()
    z = (await describe(server)).nodes[-1]
    assert (z.name, z.is_alive, z.address) == ("z", False, "")
    await server.admin.drain_node(pb.DrainNodeRequest(node="z", drain=True))


async def test_too_many_or_bad_queues_are_refused(server: Server) -> None:
    await server.init()
    many = await server.refused("get_topology", pb.GetTopologyRequest(queues=["q"] * 1001))
    assert (many.reason, many.limit) == (refusals.BATCH_TOO_LARGE, "1000")
    bad = await server.refused("get_topology", pb.GetTopologyRequest(queues=["q", "a/b"]))
    assert (bad.reason, bad.field) == (refusals.INVALID_FIELD, "queues[1]")


# Queues


async def test_settings_of_a_queue_change_one_by_one(server: Server) -> None:
    await server.init()
    first = await server.set("q", policy=pb.QueuePolicy(max_attempts=3, retry_jitter=0.5), spread=2)
    second = await server.set("q", policy=pb.QueuePolicy(max_claims=7), clear=["max_attempts"])
    assert second.version > first.version > 0
    assert second.policy == pb.QueuePolicy(max_claims=7, retry_jitter=0.5)
    assert second.route.generation == 1
    third = await server.set("q", home=True)
    assert (third.route.generation, list(third.route.draining)) == (2, [spread_shards("q", 8, 2)[1]])
    fourth = await server.set("q", pin=pb.ShardList(shards=[3, 5]))
    assert list(fourth.route.sets[-1].shards) == [3, 5]
    listed = await server.admin.list_queue_settings(pb.ListQueueSettingsRequest(queues=["q", "plain"]))
    assert listed.queues[0] == fourth
    assert (listed.queues[1].version, listed.queues[1].route.home) == (0, home_shard("plain", 8))


async def test_tenants_and_lists_are_settings_too(server: Server) -> None:
    await server.init()
    big, small = pb.TenantPolicy(tenant="big", weight=9), pb.TenantPolicy(tenant="small", rate_per_second=0.5)
    policy = pb.QueuePolicy(paused=True, non_retryable=["BadInput"], retry_shape="fixed", tenants=[small, big])
    first = await server.set("q", policy=policy)
    assert list(first.policy.tenants) == [big, small]  # by name
    second = await server.set("q", policy=pb.QueuePolicy(non_retryable=["Other"]), clear=["tenants.big", "paused"])
    assert second.policy == pb.QueuePolicy(non_retryable=["Other"], retry_shape="fixed", tenants=[small])
    assert (await server.set("q", policy=second.policy)).version == second.version
    listed = await server.admin.list_queue_settings(pb.ListQueueSettingsRequest())
    assert list(listed.queues) == [second]


async def test_fields_of_a_tenant_change_one_by_one(server: Server) -> None:
    await server.init()
    await server.set("q", policy=pb.QueuePolicy(tenants=[pb.TenantPolicy(tenant="acme", weight=3)]))
    more = pb.QueuePolicy(tenants=[pb.TenantPolicy(tenant="acme", concurrency_max=5)])
    both = await server.set("q", policy=more)
    assert list(both.policy.tenants) == [pb.TenantPolicy(tenant="acme", weight=3, concurrency_max=5)]
    assert (await server.set("q", clear=["tenant_weight.acme"])).policy == more


async def test_a_page_that_grows_too_large_ends_early(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.init()
    for name in ("a", "b", "c"):
        await server.set(name, policy=pb.QueuePolicy(non_retryable=["x" * 200]))
    monkeypatch.setattr(messages, "SETTINGS_BYTES_MAX", 500)
    first = await server.admin.list_queue_settings(pb.ListQueueSettingsRequest())
    assert ([queue.route.queue for queue in first.queues], first.next_page_token) == (["a", "b"], "b")
    second = await server.admin.list_queue_settings(pb.ListQueueSettingsRequest(page_token="b"))
    assert ([queue.route.queue for queue in second.queues], second.next_page_token) == (["c"], "")
    named = await server.refused("list_queue_settings", pb.ListQueueSettingsRequest(queues=["a", "b", "c"]))
    assert (named.reason, named.field, named.limit) == (refusals.TOO_LARGE, "queues", "500")


async def test_only_what_differs_from_the_default_is_listed_in_pages(server: Server) -> None:
    await server.init()
    names = [f"q{number}" for number in range(7)]
    for name in names:
        await server.set(name, policy=pb.QueuePolicy(max_attempts=3))
    await server.set("q3", clear=["max_attempts"])
    seen, token, pages = [], "", 0
    while True:
        page = await server.admin.list_queue_settings(pb.ListQueueSettingsRequest(page_size=2, page_token=token))
        seen += [queue.route.queue for queue in page.queues]
        token, pages = page.next_page_token, pages + 1
        if not token:
            break
    assert seen == [name for name in names if name != "q3"]
    assert pages == 3
    for request in (pb.ListQueueSettingsRequest(page_size=1001), pb.ListQueueSettingsRequest(page_token="a/b")):
        await server.refused("list_queue_settings", request)


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (pb.SetQueueRequest(), refusals.MISSING_FIELD, "queue"),
        (pb.SetQueueRequest(queue="a b"), refusals.INVALID_FIELD, "queue"),
        (pb.SetQueueRequest(queue="q", spread=9), refusals.OUT_OF_RANGE, "spread"),
        (pb.SetQueueRequest(queue="q", spread=0), refusals.OUT_OF_RANGE, "spread"),
        (pb.SetQueueRequest(queue="q", pin=pb.ShardList()), refusals.MISSING_FIELD, "pin.shards"),
        (pb.SetQueueRequest(queue="q", pin=pb.ShardList(shards=[8])), refusals.SHARD_NOT_FOUND, "pin.shards"),
        (pb.SetQueueRequest(queue="q", home=False), refusals.INVALID_FIELD, "home"),
        (pb.SetQueueRequest(queue="q", clear=["spread"]), refusals.INVALID_FIELD, "clear"),
        (
            pb.SetQueueRequest(queue="q", policy=pb.QueuePolicy(retry_jitter=2)),
            refusals.OUT_OF_RANGE,
            "policy.retry_jitter",
        ),
        (
            pb.SetQueueRequest(queue="q", spread=2, policy=pb.QueuePolicy(rate_per_second=float("nan"))),
            refusals.OUT_OF_RANGE,
            "policy.rate_per_second",
        ),
        (
            pb.SetQueueRequest(queue="q", policy=pb.QueuePolicy(paused=True, tenants=[pb.TenantPolicy(weight=1)])),
            refusals.MISSING_FIELD,
            "policy.tenants[0].tenant",
        ),
    ],
)
async def test_bad_settings_are_refused_by_field(
    server: Server, request_: pb.SetQueueRequest, reason: str, field: str
) -> None:
    await server.init()
    refused = await server.refused("set_queue", request_)
    assert (refused.reason, refused.field) == (reason, field)
    assert (await server.in_step()).queues == {}


# Nodes


async def test_drains_are_set_and_taken_back(server: Server) -> None:
    await server.admin.drain_node(pb.DrainNodeRequest(node="a", drain=True))
    await server.admin.drain_node(pb.DrainNodeRequest(node="a", drain=True))
    assert set((await server.in_step()).drains) == {"a"}
    await server.admin.drain_node(pb.DrainNodeRequest(node="a"))
    assert (await server.in_step()).drains == {}


@pytest.mark.parametrize("method", ["drain_node", "remove_node"])
async def test_unknown_nodes_are_refused(server: Server, method: str) -> None:
    request = pb.DrainNodeRequest if method == "drain_node" else pb.RemoveNodeRequest
    assert (await server.refused(method, request(node="nobody"))).reason == refusals.NODE_NOT_FOUND
    assert (await server.refused(method, request())).reason == refusals.MISSING_FIELD
    assert (await server.refused(method, request(node="a/b"))).reason == refusals.INVALID_FIELD


async def test_a_node_that_has_just_come_is_known(server: Server) -> None:
    await add_nodes(server.etcd, "d")  # the map of the server may not have it yet
    await server.admin.drain_node(pb.DrainNodeRequest(node="d", drain=True))
    assert "d" in (await server.in_step()).drains


async def test_a_live_node_is_removed_only_when_it_drains(server: Server) -> None:
    await add_nodes(server.etcd, "d")
    await server.in_step()
    refused = await server.refused("remove_node", pb.RemoveNodeRequest(node="d"))
    assert (refused.reason, refused.metadata["why"]) == (refusals.CHANGE_REFUSED, "alive")
    await server.admin.drain_node(pb.DrainNodeRequest(node="d", drain=True))
    await server.admin.remove_node(pb.RemoveNodeRequest(node="d"))
    found = await server.in_step()
    assert found.is_removed("d", node("d").node_id)
    assert "d" not in {item.name for item in (await describe(server)).nodes}


# Refusals on the wire


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (refusals.no_cluster(), "FAILED_PRECONDITION"),
        (refusals.cluster_exists("x", 8, 3), "ALREADY_EXISTS"),
        (refusals.not_enough_nodes(3, 2), "FAILED_PRECONDITION"),
        (refusals.node_not_found("x"), "NOT_FOUND"),
        (refusals.no_such_shard(9, 8), "NOT_FOUND"),
        (refusals.plan_not_found("x"), "NOT_FOUND"),
        (refusals.plan_refused("NO_MAJORITY", "No."), "FAILED_PRECONDITION"),
        (refusals.plan_under_way("x"), "FAILED_PRECONDITION"),
        (refusals.etcd_unavailable("It is down."), "UNAVAILABLE"),
        (refusals.conflict("it"), "ABORTED"),
    ],
)
def test_refusals_have_the_codes_of_the_contract(refused: RefusedError, code: str) -> None:
    name, details = status_of(refused)
    assert name == code
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == refused.reason
    assert dict(info.metadata).items() >= refused.metadata.items()
    has_retry = any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
    assert has_retry is (code in ("UNAVAILABLE", "ABORTED"))


async def test_a_goal_is_needed(server: Server) -> None:
    await server.init()
    for request in (pb.MakePlanRequest(), pb.MakePlanRequest(balance=False)):
        assert (await server.refused("make_plan", request)).field == "goal"
    assert (await server.refused("cancel_plan", pb.CancelPlanRequest())).field == "id"
    assert (await server.refused("advance_plan", pb.AdvancePlanRequest())).reason == refusals.PLAN_NOT_FOUND
