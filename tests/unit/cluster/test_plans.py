"""Plans from the request to the end, on shards that do what their records say: one operator, two, none for a while."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from holdfast.cluster.admin import plans as admin_plans
from holdfast.cluster.admin.cluster_service import ClusterAdmin
from holdfast.cluster.etcd.api import Delete, Put
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import EMPTY, name_of
from holdfast.common.service import end_tasks
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError, change_refused
from tests.unit.cluster.cluster_shards import UnknownNodes, WishfulShards, admin_of
from tests.unit.cluster.cluster_stage import (
    KEYS,
    NAME,
    WAIT_S,
    Meddling,
    add_nodes,
    desire,
    following,
    make_store,
    node,
    read_map,
    reason_refused,
    refusal_of,
)

SHARDS = 6
COPYING, DONE, OVERTAKEN, WAITING = (
    pb.STEP_STATE_COPYING,
    pb.STEP_STATE_DONE,
    pb.STEP_STATE_OVERTAKEN,
    pb.STEP_STATE_WAITING,
)


@dataclass
class Stage:
    etcd: Meddling
    shards: WishfulShards
    stack: AsyncExitStack
    leases: dict[str, int]
    admins: list[ClusterAdmin] = field(default_factory=list)
    followers: list[MapFollower] = field(default_factory=list)

    async def admin(self) -> ClusterAdmin:
        """Another server that operators can ask."""
        follower = await self.stack.enter_async_context(following(MapFollower(self.etcd, NAME)))
        await follower.first_load()
        self.followers.append(follower)
        admin = admin_of(make_store(self.etcd), follower, _Nodes(self.shards.transfer))
        self.admins.append(admin)
        return admin

    async def in_step(self) -> PartitionMap:
        """The map that all servers have by now."""
        newest = await read_map(self.etcd)
        for follower in self.followers:
            await follower.wait_until(lambda found: found.same_records(newest), WAIT_S)
        return newest

    async def balance(self, **goal: bool) -> pb.Plan:
        await self.in_step()
        request = pb.MakePlanRequest(**(goal or {"balance": True}))  # type: ignore[arg-type]
        return (await self.admins[0].make_plan(request)).plan

    async def start(self, plan: pb.Plan) -> pb.Plan:
        return (await self.admins[0].start_plan(pb.StartPlanRequest(plan=plan))).plan

    async def advance(self, which: int = 0, plan_id: str = "") -> pb.AdvancePlanResponse:
        await self.in_step()
        return await self.admins[which].advance_plan(pb.AdvancePlanRequest(id=plan_id))

    async def carry_out(self) -> pb.Plan:
        for _ in range(500):
            response = await self.advance()
            if response.is_done:
                return response.plan
            await self.shards.step()
        raise AssertionError("The plan does not come to an end.")

    async def move(self, shard: int, source: str, destination: str) -> pb.Plan:
        await self.in_step()
        move = pb.MoveWish(shard=shard, source=source, destination=destination)
        return (await self.admins[0].make_plan(pb.MakePlanRequest(move=move))).plan


class _Nodes(UnknownNodes):
    async def state_bytes(self, shard: int) -> int:
        if shard == 3:
            raise OSError("nobody answers for it")
        return 1000 + shard

    async def lag(self, shard: int, node: str) -> int:
        return 70 + shard


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Three nodes with all shards founded, and one server."""
    etcd = Meddling()
    leases = await add_nodes(etcd, "a", "b", "c")
    await make_store(etcd).init_cluster(SHARDS, 3)
    shards = WishfulShards(etcd)
    await shards.settle()
    async with AsyncExitStack() as stack:
        stage = Stage(etcd, shards, stack, leases)
        await stage.admin()
        yield stage


def loads(found: PartitionMap) -> Counter[str]:
    return Counter(name_of(voter) for record in found.shards.values() for voter in record.members.voters)


def leads(found: PartitionMap) -> Counter[str]:
    return Counter(leader.node for leader in found.leaders.values())


def assert_at_rest(found: PartitionMap) -> None:
    for record in found.shards.values():
        assert sorted(map(name_of, record.members.voters)) == sorted(record.replicas)
        assert record.members.learners == ()
        assert record.leaving == ()
    assert found.plan is None


async def test_a_balanced_cluster_needs_no_plan(stage: Stage) -> None:
    plan = await stage.balance()
    assert (list(plan.steps), plan.summary) == ([], "Nothing to do.")
    assert await reason_refused(stage.start(plan)) == refusals.MISSING_FIELD


async def test_new_nodes_get_their_share(stage: Stage) -> None:
    stage.leases |= await add_nodes(stage.etcd, "d", "e", "f")
    plan = await stage.balance()
    moves = [step for step in plan.steps if not step.is_transfer]
    assert len(moves) == SHARDS * 3 // 2
    assert all(step.state_bytes == (-1 if step.shard == 3 else 1000 + step.shard) for step in moves)
    assert f"{len(moves)} replicas" in plan.summary
    assert (await stage.balance()).id == plan.id
    started = await stage.start(plan)
    assert {step.state for step in started.steps} == {WAITING}
    done = await stage.carry_out()
    assert {step.state for step in done.steps} == {DONE}
    found = await stage.in_step()
    assert_at_rest(found)
    assert set(loads(found).values()) == {SHARDS // 2}
    assert set(leads(found).values()) == {SHARDS // 6}
    assert stage.shards.most_per_node == 1
    assert list((await stage.balance()).steps) == []


async def test_steps_begin_side_by_side_but_never_two_on_a_node(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d", "e", "f")
    await stage.start(await stage.balance())
    response = await stage.advance()
    copying = [step for step in response.plan.steps if step.state == pb.STEP_STATE_COPYING]
    assert len(copying) == 3
    assert len({name for step in copying for name in (step.source, step.destination)}) == 6
    assert {step.lag for step in copying} == {70 + step.shard for step in copying}
    waiting = [step for step in response.plan.steps if step.state == WAITING and not step.is_transfer]
    assert waiting
    assert all(step.detail.endswith("is busy") or step.detail.startswith("the shard is changing") for step in waiting)
    again = await stage.advance()
    assert [step.state for step in again.plan.steps] == [step.state for step in response.plan.steps]


async def test_a_step_goes_through_its_states(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    found = await stage.in_step()
    source = found.shards[5].replicas[0]
    await stage.start(await stage.move(5, source, "d"))
    seen = []
    for _ in range(20):
        response = await stage.advance()
        step = response.plan.steps[0]
        seen.append((pb.StepState.Name(step.state).removeprefix("STEP_STATE_").lower(), step.detail))
        if response.is_done:
            break
        await stage.shards.step()
    assert seen == [
        ("copying", "began just now"),
        ("copying", "d catches up"),
        ("leaving", f"{source} is being removed"),
        ("leaving", f"{source} deletes its replica"),
        ("done", ""),
    ]
    assert (await stage.in_step()).shards[5].replicas[0] == "d"


async def test_a_drained_node_is_emptied_and_can_be_removed(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    admin = stage.admins[0]
    await admin.drain_node(pb.DrainNodeRequest(node="b", drain=True))
    await stage.in_step()
    refused = await refusal_of(admin.remove_node(pb.RemoveNodeRequest(node="b")))
    assert refused.metadata["why"] == "holds_replicas"
    plan = await stage.balance()
    assert {step.source for step in plan.steps if not step.is_transfer} == {"b"}
    await stage.start(plan)
    await stage.carry_out()
    found = await stage.in_step()
    assert_at_rest(found)
    assert set(loads(found)) == set(leads(found)) == {"a", "c", "d"}
    assert max(leads(found).values()) - min(leads(found).values()) <= 1
    await admin.remove_node(pb.RemoveNodeRequest(node="b"))
    await stage.in_step()
    await admin.remove_node(pb.RemoveNodeRequest(node="b"))  # again is no mistake
    assert "b" not in (await stage.in_step()).nodes


async def test_a_dead_node_is_replaced(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    await stage.etcd.revoke(stage.leases["b"])
    for shard in range(SHARDS):
        await stage.shards.lead(shard, "a")
    await stage.admins[0].drain_node(pb.DrainNodeRequest(node="b", drain=True))
    await stage.start(await stage.balance())
    await stage.carry_out()
    found = await stage.in_step()
    assert set(loads(found)) == {"a", "c", "d"}
    assert {name_of(replica) for record in found.shards.values() for replica in record.leaving} == {"b"}
    await stage.admins[0].remove_node(pb.RemoveNodeRequest(node="b"))
    assert_at_rest(await stage.in_step())


async def test_only_leaders(stage: Stage) -> None:
    for shard in range(SHARDS):
        await stage.shards.lead(shard, "a")
    plan = await stage.balance(leaders=True)
    assert len(plan.steps) == SHARDS * 2 // 3
    assert all(step.is_transfer for step in plan.steps)
    await stage.start(plan)
    await stage.carry_out()
    assert set(leads(await stage.in_step()).values()) == {SHARDS // 3}
    assert len(stage.shards.transfers) == len(plan.steps)


async def test_a_transfer_that_fails_is_asked_for_again(stage: Stage) -> None:
    for shard in range(SHARDS):
        await stage.shards.lead(shard, "a")
    failures = Counter[int]()

    async def transfer(shard: int, to: str) -> None:
        failures[shard] += 1
        if failures[shard] < 3:
            raise change_refused("lag", f"{to} is not caught up")
        await stage.shards.lead(shard, to)

    stage.admins[0] = admin_of(make_store(stage.etcd), stage.followers[0], UnknownNodes(transfer))
    await stage.start(await stage.balance(leaders=True))
    response = await stage.advance()
    assert response.plan.steps[0].detail.endswith("is not caught up")
    await stage.carry_out()
    assert set(failures.values()) == {3}


async def test_transfers_that_never_succeed_do_not_hold_the_others_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_plans, "TRANSFERS_AT_ONCE", 1)
    for shard in range(SHARDS):
        await stage.shards.lead(shard, "a")
    plan = await stage.start(await stage.balance(leaders=True))
    stuck = plan.steps[0].shard

    async def transfer(shard: int, to: str) -> None:
        if shard == stuck:
            raise OSError("never")
        await stage.shards.lead(shard, to)

    stage.admins[0] = admin_of(make_store(stage.etcd), stage.followers[0], UnknownNodes(transfer))
    for _ in range(200):
        response = await stage.advance()
        if sum(step.state == DONE for step in response.plan.steps) == len(plan.steps) - 1:
            break
    assert [step.state == DONE for step in response.plan.steps] == [False] + [True] * (len(plan.steps) - 1)


# Several operators, and none


async def test_two_operators_at_the_same_time_are_harmless(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d", "e", "f")
    other = await stage.admin()
    plan = await stage.balance()
    starts = (admin.start_plan(pb.StartPlanRequest(plan=plan)) for admin in stage.admins)
    assert {response.plan.id for response in await asyncio.gather(*starts)} == {plan.id}

    async def operate(admin: ClusterAdmin) -> None:
        for _ in range(2000):
            try:
                response = await admin.advance_plan(pb.AdvancePlanRequest(id=plan.id))
            except RefusedError as refused:
                assert refused.reason == refusals.PLAN_NOT_FOUND  # the other one was there at the end
                return
            if response.is_done:
                return
            await asyncio.sleep(0)
        raise AssertionError("The plan does not come to an end.")

    async def work() -> None:
        while True:
            await stage.shards.step()
            await asyncio.sleep(0)

    worker = asyncio.create_task(work())
    await asyncio.wait_for(asyncio.gather(operate(stage.admins[0]), operate(other)), 20)
    await end_tasks([worker])
    await stage.shards.settle()
    found = await stage.in_step()
    assert_at_rest(found)
    assert set(loads(found).values()) == {SHARDS // 2}
    assert stage.shards.most_per_node == 1


async def test_a_step_that_another_operator_begins_in_this_very_moment_keeps_its_nodes(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d", "e", "f")
    plan = await stage.start(await stage.balance())
    moves = [number for number, step in enumerate(plan.steps) if not step.is_transfer]
    first = plan.steps[moves[0]]
    later = next(
        number
        for number in moves[1:]
        if plan.steps[number].source == first.source and plan.steps[number].shard != first.shard
    )
    await stage.in_step()
    stage.etcd.times = 1
    stage.etcd.meddle = lambda: make_store(stage.etcd).begin_move(plan.id, later, lambda _plan, _number, _shard: "")
    response = await stage.advance()
    assert stage.etcd.times == 0
    assert response.plan.steps[later].state == pb.STEP_STATE_COPYING
    assert (response.plan.steps[moves[0]].state, response.plan.steps[moves[0]].detail) == (
        WAITING, f"{first.source} is busy",
    )  # fmt: skip
    await stage.carry_out()
    assert stage.shards.most_per_node == 1


async def test_a_plan_waits_for_an_operator_and_goes_on_elsewhere(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d", "e", "f")
    plan = await stage.start(await stage.balance())
    await stage.advance()
    await stage.shards.settle()
    found = await stage.in_step()
    assert found.plan is not None
    assert sum(not found.plan.steps[number].is_transfer for number in found.plan.began) == 3
    stage.admins.clear()
    fresh = await stage.admin()
    described = await fresh.describe_cluster(pb.DescribeClusterRequest())
    assert described.plan.id == plan.id
    done = [number for number, step in enumerate(described.plan.steps) if step.state == DONE]
    assert set(found.plan.began) <= set(done)
    assert len(done) < len(plan.steps)
    await stage.carry_out()
    assert_at_rest(await stage.in_step())


async def test_a_second_plan_has_to_wait(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    first = await stage.start(await stage.balance())
    other = await stage.move(1, "a", "d")
    refused = await refusal_of(stage.start(other))
    assert (refused.reason, refused.metadata) == (refusals.PLAN_UNDER_WAY, {"plan": first.id})
    assert (await stage.start(first)).id == first.id
    assert await reason_refused(stage.advance(plan_id=other.id)) == refusals.PLAN_NOT_FOUND


async def test_what_began_before_a_cancel_comes_to_its_end_and_holds_the_next_plan_up(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    admin = stage.admins[0]
    source = (await stage.in_step()).shards[0].replicas[0]
    plan = await stage.start(await stage.move(0, source, "d"))
    await stage.advance()
    await admin.cancel_plan(pb.CancelPlanRequest(id=plan.id))
    assert await reason_refused(admin.cancel_plan(pb.CancelPlanRequest(id=plan.id))) == refusals.PLAN_NOT_FOUND
    await stage.start(await stage.move(1, source, "d"))
    waiting = (await stage.advance()).plan.steps[0]
    assert (waiting.state, waiting.detail) == (WAITING, f"{min(source, 'd')} is busy")
    await stage.carry_out()
    found = await stage.in_step()
    assert "d" in found.shards[0].replicas
    assert "d" in found.shards[1].replicas
    assert stage.shards.most_per_node == 1


async def test_a_plan_brings_nothing_more_to_a_node_that_is_drained_meanwhile_and_ends(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d", "e")
    await stage.start(await stage.balance())
    begun = [
        step.shard for step in (await stage.advance()).plan.steps if (step.destination, step.state) == ("d", COPYING)
    ]
    await stage.admins[0].drain_node(pb.DrainNodeRequest(node="d", drain=True))
    done = await stage.carry_out()
    brought = {step.shard: step for step in done.steps if step.destination == "d" and not step.is_transfer}
    assert len(begun) == 1, "a node gets one at a time"
    assert {step.detail for step in brought.values() if step.state == OVERTAKEN} == {"d drains"}
    assert [shard for shard, step in brought.items() if step.state == DONE] == begun, "what has begun comes to its end"
    own = await stage.start(await stage.balance())
    assert [step.source for step in own.steps if not step.is_transfer].count("d") == 1
    await stage.carry_out()
    assert loads(await stage.in_step())["d"] == 0


async def test_steps_that_others_have_overtaken_are_passed_over(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d", "e")
    plan = await stage.start(await stage.balance())
    step = next(step for step in plan.steps if not step.is_transfer)
    replicas = (await stage.in_step()).shards[step.shard].replicas
    elsewhere = next(name for name in "de" if name != step.destination)
    desired = [elsewhere if name == step.source else name for name in replicas]
    await desire(stage.etcd, step.shard, *desired)
    done = await stage.carry_out()
    states = {(step.shard, step.source, step.is_transfer): step.state for step in done.steps}
    assert states[step.shard, step.source, False] == OVERTAKEN
    assert DONE in states.values()


async def test_a_destination_that_dies_holds_only_its_own_move_up(stage: Stage) -> None:
    leases = await add_nodes(stage.etcd, "d", "e")
    plan = await stage.start(await stage.balance())
    first = next(step for step in plan.steps if step.destination == "d" and not step.is_transfer)
    await stage.advance()
    await stage.etcd.revoke(leases["d"])
    for _ in range(50):
        response = await stage.advance()
        await stage.shards.step()
    left = [step for step in response.plan.steps if step.state not in (DONE, OVERTAKEN) and not step.is_transfer]
    # Its source has its hands full, so steps from there wait as well.
    assert all(step.destination == "d" or step.source == first.source for step in left)
    assert "d is down" in {step.detail for step in left}
    await stage.etcd.commit([], [Put(KEYS.node("d"), node("d").encode())])
    await stage.carry_out()
    assert_at_rest(await stage.in_step())


@pytest.mark.parametrize("is_undone", [False, True])
async def test_a_destination_that_never_comes_back_is_replaced(stage: Stage, is_undone: bool) -> None:
    """The same for a replica that is still on its way as for one that arrived: nobody has to wait for a dead node."""
    leases = await add_nodes(stage.etcd, "d", "e")
    source = (await stage.in_step()).shards[0].replicas[0]
    plan = await stage.start(await stage.move(0, source, "d"))
    await stage.advance()
    await stage.shards.step()  # it learns by now
    await stage.etcd.revoke(leases["d"])
    assert (await stage.advance()).plan.steps[0].detail == "d is down"
    await stage.admins[0].cancel_plan(pb.CancelPlanRequest(id=plan.id))
    destination = source if is_undone else "e"
    await stage.start(await stage.move(0, "d", destination))
    assert [step.state for step in (await stage.carry_out()).steps] == [DONE]
    await stage.shards.settle()
    found = await stage.in_step()
    assert found.shards[0].replicas[0] == destination
    assert sorted(map(name_of, found.shards[0].members.voters)) == sorted(found.shards[0].replicas)
    assert found.shards[0].members.learners == ()


# Refusals


@pytest.mark.parametrize(
    ("move", "why"),
    [
        ((0, "d", "a"), "NOT_A_REPLICA"),
        ((0, "a", "b"), "ALREADY_A_REPLICA"),
        ((0, "a", "e"), "NODE_DRAINS"),
        ((0, "a", "gone"), "NODE_NOT_ALIVE"),
    ],
)
async def test_moves_that_cannot_be_are_refused(stage: Stage, move: tuple[int, str, str], why: str) -> None:
    leases = await add_nodes(stage.etcd, "d", "e", "gone")
    await stage.etcd.commit([], [Put(KEYS.drain("e"), EMPTY)])
    await stage.in_step()
    await stage.etcd.revoke(leases["gone"])
    refused = await refusal_of(stage.move(*move))
    assert (refused.reason, refused.metadata["why"]) == (refusals.PLAN_REFUSED, why)


async def test_unknown_names_in_a_move_are_told_apart(stage: Stage) -> None:
    for move, reason, name in [
        ((99, "a", "b"), refusals.SHARD_NOT_FOUND, "move.shard"),
        ((0, "nobody", "a"), refusals.NODE_NOT_FOUND, "move.source"),
        ((0, "a", "nobody"), refusals.NODE_NOT_FOUND, "move.destination"),
    ]:
        refused = await refusal_of(stage.move(*move))
        assert (refused.reason, refused.field) == (reason, name)


async def test_a_plan_without_a_majority_is_refused_when_it_is_made_and_when_it_starts(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    plan = await stage.move(0, "a", "d")
    for name in "bc":
        await stage.etcd.revoke(stage.leases[name])
    await stage.in_step()
    for attempt in (stage.move(0, "a", "d"), stage.start(plan)):
        with pytest.raises(RefusedError) as refused:
            await attempt
        assert (refused.value.reason, refused.value.metadata["why"]) == (refusals.PLAN_REFUSED, "NO_MAJORITY")
    assert (await stage.in_step()).plan is None


async def test_nodes_that_lost_their_data_are_no_majority(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    await stage.etcd.commit([], [Put(KEYS.node(name), node(name, life=2).encode()) for name in "bc"])
    refused = await refusal_of(stage.move(0, "a", "d"))
    assert refused.metadata["why"] == "NO_MAJORITY"


async def test_a_majority_that_is_lost_later_stops_the_steps_that_have_not_begun(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    await stage.start(await stage.move(0, "a", "d"))
    await stage.etcd.commit([], [Delete(KEYS.node(name)) for name in "bc"])
    response = await stage.advance()
    assert response.plan.steps[0].state == WAITING
    assert "majority" in response.plan.steps[0].detail
    assert (await stage.in_step()).shards[0].replicas.count("d") == 0


async def test_a_drain_that_nobody_can_take_over_is_refused(stage: Stage) -> None:
    await stage.admins[0].drain_node(pb.DrainNodeRequest(node="b", drain=True))
    refused = await refusal_of(stage.balance())
    assert (refused.reason, refused.metadata["why"]) == (refusals.PLAN_REFUSED, "NOT_ENOUGH_NODES")


async def test_a_plan_that_was_altered_is_refused(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    plan = await stage.move(0, "a", "d")
    plan.steps[0].source = "b"
    refused = await refusal_of(stage.start(plan))
    assert (refused.reason, refused.field) == (refusals.INVALID_FIELD, "plan.id")


async def test_a_plan_for_a_cluster_that_changed_since_is_refused(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    plan = await stage.move(0, "a", "d")
    await desire(stage.etcd, 0, "d", "b", "c")
    await stage.in_step()
    assert await reason_refused(stage.start(plan)) == refusals.PLAN_REFUSED


async def test_shards_that_are_yet_to_be_founded_wait(stage: Stage) -> None:
    etcd = Meddling()
    await add_nodes(etcd, "a", "b")
    await make_store(etcd).init_cluster(1, 1)
    fresh = Stage(etcd, WishfulShards(etcd), stage.stack, {})
    await fresh.admin()
    source = (await fresh.in_step()).shards[0].replicas[0]
    await fresh.start(await fresh.move(0, source, "b" if source == "a" else "a"))
    response = await fresh.advance()
    assert (response.plan.steps[0].state, response.plan.steps[0].detail) == (WAITING, "the shard is yet to be founded")
    await fresh.shards.step()
    await fresh.carry_out()
    assert_at_rest(await fresh.in_step())


async def test_a_server_whose_map_is_behind_advances_nothing(stage: Stage) -> None:
    await add_nodes(stage.etcd, "d")
    plan = await stage.move(0, "a", "d")

    class Behind(MapFollower):
        async def wait_until(self, predicate: object, timeout: float | None = None) -> PartitionMap:
            raise TimeoutError

    behind = Behind(stage.etcd, NAME, await read_map(stage.etcd))
    await stage.start(plan)
    with pytest.raises(RefusedError) as refused:
        await admin_of(make_store(stage.etcd), behind).advance_plan(pb.AdvancePlanRequest())
    assert refused.value.reason == refusals.ETCD_UNAVAILABLE
    assert (await stage.in_step()).shards[0].replicas.count("d") == 0
