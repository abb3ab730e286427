"""Settings of queues where there is no map: the leader of the one home answers, and changes go through its log."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.membership.static_topology import StaticTopology
from holdfast.cluster.admin import conversion as messages
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError
from tests.unit.replica.small_shard import SmallShard

Result = TypeVar("Result")


class Node:
    """A node alone whose only shard goes on while it is asked."""

    def __init__(self) -> None:
        self.small = SmallShard()
        host: Any = SimpleNamespace(find_to_serve=lambda _number: self.small, replicas={})
        self.service: Any = StaticTopology(host, StaticClusterView(BrokerConfig()))

    async def ask(self, call: Coroutine[Any, Any, Result]) -> Result:
        return await self.small.rounds_until(call)

    async def set(self, queue: str, clear: tuple[str, ...] = (), **policy: Any) -> pb.QueueSettings:
        request = pb.SetQueueRequest(queue=queue, policy=pb.QueuePolicy(**policy), clear=clear)
        response: pb.SetQueueResponse = await self.ask(self.service.set_queue(request))
        return response.settings

    async def list(self, *queues: str, **page: Any) -> pb.ListQueueSettingsResponse:
        request = pb.ListQueueSettingsRequest(queues=queues, **page)
        response: pb.ListQueueSettingsResponse = await self.ask(self.service.list_queue_settings(request))
        return response

    async def refused(self, method: str, request: Any) -> RefusedError:
        applied = self.small.machine.meta.applied_index
        with pytest.raises(RefusedError) as caught:
            await self.ask(getattr(self.service, method)(request))
        assert self.small.machine.meta.applied_index == applied, "nothing was written"
        return caught.value


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_a_queue_is_paused_at_once(node: Node) -> None:
    settings = await node.set("mail", paused=True)
    assert (settings.version, settings.policy) == (1, pb.QueuePolicy(paused=True))
    assert (settings.route.queue, settings.route.home, settings.route.generation) == ("mail", 0, 0)
    policies = node.small.shard.policies
    assert policies is not None
    assert policies.of(b"mail").paused
    assert (await node.set("mail", paused=False)).version == 2
    assert not policies.of(b"mail").paused


async def test_settings_change_one_by_one(node: Node) -> None:
    tenant = pb.TenantPolicy(tenant="big", weight=5)
    await node.set("mail", max_attempts=3, tenants=[tenant])
    second = await node.set("mail", ("max_attempts",), rate_per_second=2.5)
    assert second.policy == pb.QueuePolicy(rate_per_second=2.5, tenants=[tenant])
    assert second.version == 2
    assert list((await node.list("mail", "plain")).queues) == [
        second,
        pb.QueueSettings(route=pb.QueueRoute(queue="plain"), policy=pb.QueuePolicy()),
    ]


async def test_fields_of_a_tenant_change_one_by_one(node: Node) -> None:
    await node.set("mail", tenants=[pb.TenantPolicy(tenant="acme", weight=3)])
    both = await node.set("mail", tenants=[pb.TenantPolicy(tenant="acme", concurrency_max=5)])
    assert list(both.policy.tenants) == [pb.TenantPolicy(tenant="acme", weight=3, concurrency_max=5)]
    less = await node.set("mail", ("tenant_weight.acme",))
    assert list(less.policy.tenants) == [pb.TenantPolicy(tenant="acme", concurrency_max=5)]


async def test_the_same_again_is_not_written(node: Node) -> None:
    first = await node.set("mail", max_attempts=3)
    applied = node.small.machine.meta.applied_index
    assert await node.set("mail", max_attempts=3) == first
    assert (await node.set("mail", ("ttl_ms",))).version == 1
    assert node.small.machine.meta.applied_index == applied


async def test_two_who_change_a_queue_at_the_same_time_both_do(node: Node) -> None:
    calls = [
        asyncio.ensure_future(node.service.set_queue(pb.SetQueueRequest(queue="mail", policy=policy)))
        for policy in (pb.QueuePolicy(max_attempts=3), pb.QueuePolicy(paused=True), pb.QueuePolicy(ttl_ms=5000))
    ]
    await node.ask(asyncio.wait_for(asyncio.gather(*calls), 5))
    (found,) = (await node.list("mail")).queues
    assert found.policy == pb.QueuePolicy(max_attempts=3, paused=True, ttl_ms=5000)
    assert found.version == 3


async def test_who_is_always_too_late_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_late(_queue: bytes, _version: int, _policy: bytes) -> bool:
        return False

    monkeypatch.setattr(type(node.small.shard), "set_queue", lambda _self, *args: too_late(*args))
    request = pb.SetQueueRequest(queue="mail", policy=pb.QueuePolicy(paused=True))
    assert (await node.refused("set_queue", request)).reason == refusals.CONFLICT


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"spread": 2}, refusals.NO_CLUSTER, ""),
        ({"pin": pb.ShardList(shards=[0])}, refusals.NO_CLUSTER, ""),
        ({"home": True}, refusals.NO_CLUSTER, ""),
        ({"queue": ""}, refusals.MISSING_FIELD, "queue"),
        ({"queue": "a/b"}, refusals.INVALID_FIELD, "queue"),
        ({"clear": ["nonsense"]}, refusals.INVALID_FIELD, "clear"),
        ({"policy": pb.QueuePolicy(rate_per_second=-1)}, refusals.OUT_OF_RANGE, "policy.rate_per_second"),
        (
            {"policy": pb.QueuePolicy(tenants=[pb.TenantPolicy(tenant="a", weight=0)])},
            refusals.OUT_OF_RANGE,
            "policy.tenants[0].weight",
        ),
    ],
)
async def test_what_cannot_be_set_is_refused(node: Node, changes: dict[str, Any], reason: str, field: str) -> None:
    await node.set("q", max_attempts=3)
    found = await node.refused("set_queue", pb.SetQueueRequest(**{"queue": "q", "policy": {"paused": True}} | changes))
    assert (found.reason, found.field) == (reason, field)
    assert (await node.list("q")).queues[0].policy == pb.QueuePolicy(max_attempts=3)


async def test_who_does_not_lead_says_who_does(node: Node) -> None:
    await node.set("mail", paused=True)
    node.small.log.term, node.small.log.serves = 2, False
    node.small.follow_role()
    for method, request in (
        ("set_queue", pb.SetQueueRequest(queue="mail", policy=pb.QueuePolicy(paused=False))),
        ("list_queue_settings", pb.ListQueueSettingsRequest()),
        ("list_queue_settings", pb.ListQueueSettingsRequest(queues=["mail"])),
    ):
        found = await node.refused(method, request)
        assert (found.reason, found.metadata["leader"]) == (refusals.NOT_LEADER, "elsewhere:1")


async def test_only_what_differs_from_the_default_is_listed_in_pages(node: Node) -> None:
    names = [f"q{number}" for number in range(5)]
    for name in names:
        await node.set(name, max_attempts=3)
    await node.set("q2", ("max_attempts",))
    seen, token, pages = [], "", 0
    while True:
        page = await node.list(page_size=2, page_token=token)
        assert len(page.queues) <= 2
        seen += [queue.route.queue for queue in page.queues]
        token, pages = page.next_page_token, pages + 1
        if not token:
            break
    assert seen == [name for name in names if name != "q2"]
    assert pages == 3
    for request in (pb.ListQueueSettingsRequest(page_size=1001), pb.ListQueueSettingsRequest(page_token="a/b")):
        assert (await node.refused("list_queue_settings", request)).field.startswith("page_")


async def test_a_page_that_grows_too_large_ends_early(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        await node.set(name, non_retryable=["x" * 200])
    monkeypatch.setattr(messages, "SETTINGS_BYTES_MAX", 500)
    first = await node.list()
    assert ([queue.route.queue for queue in first.queues], first.next_page_token) == (["a", "b"], "b")
    second = await node.list(page_token="b")
    assert ([queue.route.queue for queue in second.queues], second.next_page_token) == (["c"], "")
    named = await node.refused("list_queue_settings", pb.ListQueueSettingsRequest(queues=["a", "b", "c"]))
    assert (named.reason, named.field, named.limit) == (refusals.TOO_LARGE, "queues", "500")


async def test_everything_else_needs_a_map(node: Node) -> None:
    for method in ("describe_cluster", "init_cluster", "drain_node", "make_plan"):
        assert (await node.refused(method, pb.DescribeClusterRequest())).reason == refusals.NO_CLUSTER
    topology = await node.ask(node.service.get_topology(pb.GetTopologyRequest(queues=["mail"])))
    assert [(route.queue, route.home) for route in topology.routes] == [("mail", 0)]
