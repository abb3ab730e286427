"""What a rebalancer does by itself, on shards that do what their records say: when nodes come, drain, go and return."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.cluster.admin.plans import PlanAdmin
from holdfast.cluster.etcd.api import Put
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import Handover, RebalancingRecord, name_of
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.rebalancer import election as elections
from holdfast.rebalancer.config import RebalancerConfig
from holdfast.rebalancer.decisions import holders
from holdfast.rebalancer.election import Election
from holdfast.rebalancer.metrics import Metrics
from holdfast.rebalancer.server import Rebalancer
from holdfast.rebalancer.watcher import Watcher
from tests.unit.cluster.cluster_shards import UnknownNodes, WishfulShards, admin_of
from tests.unit.cluster.cluster_stage import KEYS, NAME, WAIT_S, add_nodes, following, make_store, node, read_map

SHARDS = 6
CONFIG = RebalancerConfig(gone_after_seconds=900, settle_seconds=30, poll_seconds=0.05, stuck_seconds=300)


@dataclass
class Stage:
    etcd: FakeEtcd
    shards: WishfulShards
    follower: MapFollower
    leases: dict[str, int]
    now_s: float = 1000.0
    given_up_at_once: int = 0  # the most nodes that were away, drained and not yet empty
    role: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(is_active=True))
    metrics: Metrics = field(default_factory=Metrics)
    watcher: Watcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = self.another()

    def another(self, *, dry_run: bool = False) -> Watcher:
        """A process that was just started, in the role of this stage."""
        store = make_store(self.etcd)
        plans = PlanAdmin(store, self.follower, UnknownNodes(self.shards.transfer))
        role = cast(Any, self.role)
        return Watcher(
            CONFIG, store, self.follower, plans, role, self.metrics, dry_run=dry_run, now_s=lambda: self.now_s
        )  # fmt: skip

    async def map(self) -> PartitionMap:
        newest = await read_map(self.etcd)
        return await self.follower.wait_until(lambda found: found.same_records(newest), WAIT_S)

    async def tick(self, times: int = 1, every_s: float = 10.0) -> PartitionMap:
        for _ in range(times):
            self.now_s += every_s
            found = await self.map()
            emptying = [
                name for name in found.drains if not found.is_alive(name) and name in holders(found, movable=True)
            ]
            self.given_up_at_once = max(self.given_up_at_once, len(emptying))
            await self.watcher.poll()
            await self.shards.step()
        return await self.map()

    async def go(self, *names: str) -> None:
        for name in names:
            await self.etcd.revoke(self.leases.pop(name))

    async def come(self, *names: str) -> None:
        self.leases |= await add_nodes(self.etcd, *names)


@pytest.fixture
async def stages() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def make(names: str = "abcd") -> Stage:
            etcd = FakeEtcd()
            leases = await add_nodes(etcd, *names)
            await make_store(etcd).init_cluster(SHARDS, 3)
            shards = WishfulShards(etcd)
            await shards.settle()
            follower = await stack.enter_async_context(following(MapFollower(etcd, NAME)))
            await follower.first_load()
            return Stage(etcd, shards, follower, leases)

        yield make


def loads(found: PartitionMap) -> Counter[str]:
    return Counter(name_of(voter) for record in found.shards.values() for voter in record.members.voters)


async def test_a_node_that_comes_gets_its_share_once_all_is_quiet(stages: Any) -> None:
    stage: Stage = await stages("abc")
    await stage.come("d")
    found = await stage.tick(2)
    assert found.plan is None, "it may be the first of several"
    found = await stage.tick(60)
    assert loads(found) == {"a": 5, "b": 5, "c": 4, "d": 4} or max(loads(found).values()) == 5
    assert loads(found)["d"] == 4
    assert found.plan is None
    assert 'actions_total{kind="plan_done"} 1' in stage.metrics.format().decode()


async def test_a_node_that_drains_is_emptied(stages: Any) -> None:
    stage: Stage = await stages()
    await make_store(stage.etcd).drain_node("b")
    found = await stage.tick(80)
    assert "b" not in holders(found)
    assert "b" in found.drains, "an operator's mark stays"


async def test_a_node_that_is_away_keeps_what_it_has_until_it_is_gone_for_good(stages: Any) -> None:
    stage: Stage = await stages()
    had = loads(await stage.map())["d"]
    await stage.go("d")
    found = await stage.tick(88)  # 880 s
    assert loads(found)["d"] == had
    assert (found.plan, dict(found.drains)) == (None, {})
    assert found.rebalancing is not None
    assert dict(found.rebalancing.gone).keys() == {"d"}
    found = await stage.tick(80)
    assert "d" not in holders(found), "made anew on the others"
    assert found.rebalancing is not None
    assert found.rebalancing.given_up == ("d",)
    await stage.come("d")
    found = await stage.tick(120)
    assert (dict(found.drains), found.rebalancing) == ({}, RebalancingRecord())
    assert loads(found)["d"] in (4, 5), "it is back after all, and has its share"


async def test_one_that_comes_back_in_time_is_left_alone(stages: Any) -> None:
    stage: Stage = await stages()
    before = loads(await stage.map())
    await stage.go("d")
    await stage.tick(80)
    await stage.come("d")
    await stage.tick(2)
    await stage.go("d")
    found = await stage.tick(80)
    assert loads(found) == before, "each time counts for itself"
    assert dict(found.drains) == {}


async def test_who_takes_over_goes_on_counting(stages: Any) -> None:
    stage: Stage = await stages()
    await stage.go("d")
    await stage.tick(60)
    stage.watcher = stage.another()
    found = await stage.tick(20)
    assert dict(found.drains) == {}
    found = await stage.tick(20)
    assert dict(found.drains) == {"d": True}, "after 900 s altogether, but for what was not written down"


async def test_with_too_few_nodes_nobody_is_given_up(stages: Any) -> None:
    three: Stage = await stages("abc")
    await three.go("c")
    assert dict((await three.tick(110)).drains) == {}, "there is nowhere to go"
    seven: Stage = await stages("abcdefg")
    await seven.go("c", "d", "e", "f")
    assert dict((await seven.tick(110)).drains) == {}, "most are away: it is not they who are broken"


def shared(found: PartitionMap, one: str, other: str) -> set[int]:
    return {number for number, record in found.shards.items() if {one, other} <= set(record.replicas)}


@pytest.mark.parametrize("has_shared", [False, True])
async def test_of_several_that_are_gone_one_at_a_time_is_made_anew(stages: Any, has_shared: bool) -> None:
    """A shard that has lost its majority with them stays as it is, and does not hold up the others."""
    stage: Stage = await stages("abcdefg")
    before = await stage.map()
    pairs = [pair for pair in combinations("abcdefg", 2) if bool(shared(before, *pair)) == has_shared]
    await stage.go(*pairs[0])
    found = await stage.tick(200)
    assert stage.given_up_at_once == 1
    assert found.plan is None
    for number, record in found.shards.items():
        if number in shared(before, *pairs[0]):
            assert record.replicas == before.shards[number].replicas
        else:
            assert not set(pairs[0]) & set(record.replicas)


async def test_it_can_be_paused(stages: Any) -> None:
    stage: Stage = await stages("abc")
    admin = admin_of(make_store(stage.etcd), stage.follower)
    said = await admin.set_rebalancing(pb.SetRebalancingRequest(pause=True, why="moving racks"))
    assert (said.rebalancing.is_paused, said.rebalancing.why) == (True, "moving racks")
    await stage.come("d")
    found = await stage.tick(50)
    assert "d" not in holders(found)
    described = await admin.describe_cluster(pb.DescribeClusterRequest())
    assert described.rebalancing.is_paused
    await admin.set_rebalancing(pb.SetRebalancingRequest(pause=False))
    assert loads(await stage.tick(60))["d"] == 4


async def test_a_dry_run_changes_nothing(stages: Any) -> None:
    stage: Stage = await stages("abcd")
    stage.watcher = stage.another(dry_run=True)
    await stage.go("d")
    await stage.come("e")
    found = await stage.tick(200)
    assert (found.plan, dict(found.drains), found.rebalancing) == (None, {}, None)
    assert "e" not in holders(found)


async def test_a_dry_run_says_what_it_would_do_although_another_process_is_active(stages: Any) -> None:
    stage: Stage = await stages("abc")
    stage.watcher = stage.another(dry_run=True)
    stage.role.is_active = False
    await stage.come("d")
    assert "d" not in holders(await stage.tick(10))
    assert stage.watcher.reported.startswith("would {'kind': 'balance'")


async def test_a_dry_run_is_no_candidate_and_keeps_nobody_from_being_active(
    stages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "AGAIN_SECONDS", 0.01)
    stage: Stage = await stages("abc")
    config = CONFIG.model_copy(update={"cluster_name": NAME, "ops_port": 0})
    looking, working = (Rebalancer(config, dry_run=dry_run, etcd=stage.etcd) for dry_run in (True, False))
    async with AsyncExitStack() as stack:
        for item in (looking, working):
            await item.start()
            stack.push_async_callback(item.close)
            await item.follower.wait_until(lambda found: found.cluster is not None, WAIT_S)
            if item is looking:
                await asyncio.sleep(0.1)  # time enough to be elected, if it stood
        await working.follower.wait_until(lambda found: found.rebalancer is not None, WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while working.readiness() != (True, "rebalancing"):
                await asyncio.sleep(0)
        assert looking.readiness() == (True, "a dry run: it says what it would do")


async def test_nothing_begins_while_a_node_is_about_to_be_stopped(stages: Any) -> None:
    stage: Stage = await stages("abc")
    await stage.come("d")
    leaving = replace(node("a"), handover=Handover.ASKED)
    await stage.etcd.commit([], [Put(KEYS.node("a"), leaving.encode(), stage.leases["a"])])
    assert "d" not in holders(await stage.tick(50))
    await stage.etcd.commit([], [Put(KEYS.node("a"), node("a").encode(), stage.leases["a"])])
    assert loads(await stage.tick(60))["d"] == 4


async def test_a_plan_whose_destination_is_gone_for_good_is_given_up(stages: Any) -> None:
    stage: Stage = await stages("abc")
    await stage.come("d", "e")
    stage.shards.stuck.update(range(SHARDS))  # nothing is copied
    found = await stage.tick(10)
    assert found.plan is not None
    to = {step.destination for step in found.plan.steps if not step.is_transfer}
    assert "d" in to
    await stage.go("d")
    stage.shards.stuck.clear()
    found = await stage.tick(200)
    assert found.plan is None
    assert "d" not in holders(found)


async def test_a_plan_without_progress_is_given_up(stages: Any) -> None:
    stage: Stage = await stages("abc")
    await stage.come("d")
    stage.shards.stuck.update(range(SHARDS))
    first = (await stage.tick(10)).plan
    assert first is not None
    await stage.tick(31)
    assert 'actions_total{kind="cancel"} 1' in stage.metrics.format().decode()
    stage.shards.stuck.clear()
    assert loads(await stage.tick(100))["d"] == 4


async def test_whoever_stands_by_does_nothing(stages: Any) -> None:
    stage: Stage = await stages("abc")
    stage.role.is_active = False
    await stage.come("d")
    found = await stage.tick(100)
    assert (found.plan, found.rebalancing) == (None, None)


# Who does it


async def test_one_of_several_is_active_and_the_next_one_follows(
    stages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(elections, "AGAIN_SECONDS", 0.01)
    stage: Stage = await stages("abc")
    both = [Election(stage.etcd, stage.follower, name) for name in ("one", "two")]
    running = [asyncio.create_task(one.run()) for one in both]
    try:
        found = await stage.follower.wait_until(lambda found: found.rebalancer is not None, WAIT_S)
        assert found.rebalancer is not None
        first = ["one", "two"].index(found.rebalancer.name)
        while not both[first].is_active:
            await asyncio.sleep(0)
        assert not both[1 - first].is_active
        running[first].cancel()
        await asyncio.gather(running[first], return_exceptions=True)
        assert not both[first].is_active
        await stage.follower.wait_until(
            lambda found: found.rebalancer is not None and found.rebalancer.name == ["one", "two"][1 - first], WAIT_S
        )
        while not both[1 - first].is_active:
            await asyncio.sleep(0)
    finally:
        for item in running:
            item.cancel()
        await asyncio.gather(*running, return_exceptions=True)
