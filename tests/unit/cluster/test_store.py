"""Writes to the map: decided on what is there, decided on again when somebody was faster, and never half done."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.cluster.etcd.api import Committed, CommitUnknownError, Delete, EtcdUnavailableError, Put, Unchanged
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.queues import Home, Pin, QueueChange, Spread
from holdfast.cluster.map.records import (
    LeaderRecord,
    PlanRecord,
    QueueRecord,
    RemovedRecord,
    ShardRecord,
    StepRecord,
)
from holdfast.cluster.map.transactions import ATTEMPTS_MAX
from holdfast.routing.groups import mapped_group
from holdfast.routing.homes import home_shard, spread_shards
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError
from tests.unit.cluster.cluster_stage import (
    KEYS,
    Meddling,
    add_nodes,
    desire,
    identity,
    make_store,
    members,
    node,
    read_map,
    reason_refused,
)
from tests.unit.cluster.founded_shard import ABC, GROUP, etcd, reason_of, shard

__all__ = ["etcd"]


# Conflicts


async def test_two_writers_of_one_record_both_have_their_way(etcd: Meddling) -> None:
    one, other = make_store(etcd), make_store(etcd)
    etcd.times, etcd.meddle = 1, lambda: other.set_queue("q", QueueChange(policy={"max_claims": 4}))
    await one.set_queue("q", QueueChange(policy={"max_attempts": 3}))
    assert etcd.times == 0
    policy = (await read_map(etcd)).queues["q"].policy
    assert (policy.max_attempts, policy.max_claims) == (3, 4)


async def test_many_writers_at_once_lose_nothing(etcd: Meddling) -> None:
    stores = [make_store(etcd) for _ in range(6)]
    names = ["retry_base_ms", "max_claims", "retry_cap_ms", "dedup_window_ms", "result_ttl_ms", "dead_retention_ms"]
    writes = zip(stores, names, strict=True)
    await asyncio.gather(*(store.set_queue("q", QueueChange(policy={name: 5000})) for store, name in writes))
    assert (await read_map(etcd)).queues["q"].policy.given() == dict.fromkeys(names, 5000)


async def test_a_writer_that_is_never_fast_enough_gives_up(etcd: Meddling) -> None:
    other = make_store(etcd)
    counter = iter(range(1, 1000))
    etcd.times = 1000
    etcd.meddle = lambda: other.set_queue("q", QueueChange(policy={"max_attempts": next(counter)}))
    with pytest.raises(RefusedError) as refused:
        await make_store(etcd).set_queue("q", QueueChange(policy={"max_claims": 10_000}))
    assert reason_of(refused) == refusals.CONFLICT
    assert refused.value.retry_after_ms
    assert etcd.times == 1000 - ATTEMPTS_MAX


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_write_whose_answer_was_lost_is_looked_after(etcd: Meddling, is_done: bool) -> None:
    store = make_store(etcd)
    etcd.lose_next_answer(is_done=is_done)
    record, version = await store.set_queue("q", QueueChange(placement=Spread(3)))
    assert record.generation == 1  # not 2, though it may have been sent twice
    assert (await read_map(etcd)).queue_version("q") == version


async def test_answers_that_are_always_lost_are_told_as_such(etcd: Meddling) -> None:
    class Deaf(FakeEtcd):
        async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
            raise CommitUnknownError("lost")

    with pytest.raises(CommitUnknownError):
        await make_store(Deaf()).drain_node("a")


async def test_without_etcd_the_error_comes_through(etcd: Meddling) -> None:
    etcd.stop()
    with pytest.raises(EtcdUnavailableError):
        await make_store(etcd).hint_leader(0, LeaderRecord("a", GROUP, 1))


# Leaders and members


async def test_hints_only_move_forward(etcd: Meddling) -> None:
    store = make_store(etcd)
    reborn = mapped_group(2, 1)
    for leader, is_newest in [
        (LeaderRecord("a", GROUP, 4), True),
        (LeaderRecord("b", GROUP, 3), False),
        (LeaderRecord("b", GROUP, 4), False),
        (LeaderRecord("a", GROUP, 4), True),  # told again
        (LeaderRecord("b", GROUP, 5), True),
        (LeaderRecord("c", reborn, 1), True),  # of the next incarnation: its epochs begin anew
        (LeaderRecord("b", GROUP, 6), False),
    ]:
        assert await store.hint_leader(0, leader) is is_newest
    assert (await read_map(etcd)).leaders[0] == LeaderRecord("c", reborn, 1)


async def test_a_hint_that_races_with_a_later_one_loses(etcd: Meddling) -> None:
    one, other = make_store(etcd), make_store(etcd)
    etcd.times, etcd.meddle = 1, lambda: other.hint_leader(0, LeaderRecord("b", GROUP, 9))
    assert not await one.hint_leader(0, LeaderRecord("a", GROUP, 8))
    assert (await read_map(etcd)).leaders[0].node == "b"


async def test_members_are_published_forward_and_who_left_has_to_delete(etcd: Meddling) -> None:
    store = make_store(etcd)
    assert not (await shard(etcd)).is_founded
    assert (await store.publish_members(0, GROUP, members(1, ABC))).is_founded
    assert (await shard(etcd)).leaving == ()
    await store.publish_members(0, GROUP, members(2, ABC, ["d"]))
    await store.publish_members(0, GROUP, members(3, [*ABC, "d"]))
    await store.publish_members(0, GROUP, members(4, ["b", "c", "d"]))
    assert (await shard(etcd)).leaving == (identity("a"),)
    stale = await store.publish_members(0, GROUP, members(3, [*ABC, "d"]))
    assert stale.members.version == 4
    assert (await shard(etcd)).members == members(4, ["b", "c", "d"])
    await store.forget_leaving(0, identity("a"))
    await store.forget_leaving(0, identity("a"))
    assert (await shard(etcd)).leaving == ()


async def test_who_comes_back_need_not_delete(etcd: Meddling) -> None:
    store = make_store(etcd)
    await store.publish_members(0, GROUP, members(1, ABC))
    await store.publish_members(0, GROUP, members(2, ["a", "b"]))
    assert (await shard(etcd)).leaving == (identity("c"),)
    await store.publish_members(0, GROUP, members(3, ["a", "b"], ["c"]))
    assert (await shard(etcd)).leaving == ()


async def test_a_founder_that_never_was_told_as_a_member_still_has_to_delete(etcd: Meddling) -> None:
    await make_store(etcd).publish_members(0, GROUP, members(5, ["a", "b"]))
    assert (await shard(etcd)).leaving == (identity("c"),)


async def test_the_leader_of_a_former_incarnation_publishes_nothing(etcd: Meddling) -> None:
    before = await shard(etcd)
    await make_store(etcd).publish_members(0, mapped_group(1, 8), members(9, ["a"]))
    assert await shard(etcd) == before


async def test_a_replica_whose_node_has_new_data_is_not_waited_for(etcd: Meddling) -> None:
    store = make_store(etcd)
    await store.publish_members(0, GROUP, members(1, ABC))
    await store.publish_members(0, GROUP, members(2, ["a", "b"]))
    await etcd.commit([], [Put(KEYS.node("c"), node("c", life=2).encode())])
    assert (await shard(etcd)).leaving == (identity("c"),)
    await store.publish_members(0, GROUP, members(3, ["a", "b"], ["d"]))
    assert (await shard(etcd)).leaving == ()


async def test_reading_a_shard_tells_its_revision(etcd: Meddling) -> None:
    store = make_store(etcd)
    found = await store.read_shard(0)
    assert found is not None
    assert found == (await shard(etcd), (await read_map(etcd)).mod_revisions[KEYS.shard(0)])
    assert await store.read_shard(5) is None
    assert await reason_refused(store.publish_members(5, GROUP, members(1, ABC))) == refusals.SHARD_NOT_FOUND


# Queues: the rules themselves are in test_queues.py


async def test_the_set_of_a_queue_changes_by_generations(etcd: Meddling) -> None:
    store = make_store(etcd)
    spread = spread_shards("q", 8, 3)
    record, version = await store.set_queue("q", QueueChange(placement=Spread(3)))
    assert (record.sets, record.draining) == (((1, spread),), ())
    assert await store.set_queue("q", QueueChange(placement=Pin(spread[::-1]))) == (record, version)
    record, later = await store.set_queue("q", QueueChange(placement=Home()))
    assert later > version
    assert record.sets == ((1, spread), (2, (home_shard("q", 8),)))
    assert record.draining == tuple(sorted(spread[1:]))
    await store.note_drained("q", spread[1])
    await store.note_drained("q", home_shard("q", 8))
    assert (await read_map(etcd)).queues["q"].drained == (spread[1],)
    await store.note_draining("q", spread[1])
    found = (await read_map(etcd)).queues["q"]
    assert (found.draining, found.drained) == (tuple(sorted(spread[1:])), ())


async def test_a_queue_without_settings_gets_no_record(etcd: Meddling) -> None:
    store = make_store(etcd)
    assert await store.set_queue("q", QueueChange(placement=Home())) == (QueueRecord(), 0)
    await store.note_drained("q", 3)
    assert (await read_map(etcd)).queues == {}


async def test_queues_need_a_cluster() -> None:
    with pytest.raises(RefusedError) as refused:
        await make_store(FakeEtcd()).set_queue("q", QueueChange(placement=Home()))
    assert reason_of(refused) == refusals.NO_CLUSTER


# Plans


def plan(plan_id: str, *steps: StepRecord) -> PlanRecord:
    return PlanRecord(plan_id=plan_id, revision=1, kind="balance", summary="", steps=steps)


MOVE = StepRecord(shard=0, source="a", destination="d", is_transfer=False)


async def test_one_plan_at_a_time(etcd: Meddling) -> None:
    store = make_store(etcd)
    assert await store.start_plan(plan("one", MOVE)) == plan("one", MOVE)
    await store.start_plan(plan("one", MOVE))
    with pytest.raises(RefusedError) as refused:
        await store.start_plan(plan("other"))
    assert reason_of(refused) == refusals.PLAN_UNDER_WAY
    assert refused.value.metadata == {"plan": "one"}
    assert not await store.finish_plan("other")
    assert await store.finish_plan("one")
    assert await store.read_plan() is None


def anything(_plan: PlanRecord, _number: int, _shard: ShardRecord) -> str:
    return ""


async def test_a_move_begins_once_and_whole(etcd: Meddling) -> None:
    await add_nodes(etcd, "d")
    one, other = make_store(etcd), make_store(etcd)
    await one.start_plan(plan("p", MOVE))
    outcomes = await asyncio.gather(*(store.begin_move("p", 0, anything) for store in (one, other)))
    assert [why for _, why in outcomes] == ["", ""]
    assert all(found.began == (0,) for found, _ in outcomes)
    assert (await shard(etcd)).replicas == ("d", "b", "c")
    await desire(etcd, 0, *ABC)
    assert (await other.begin_move("p", 0, anything))[1] == ""
    assert (await shard(etcd)).replicas == ABC  # what began once does not begin again


async def test_a_move_and_news_of_members_do_not_undo_each_other(etcd: Meddling) -> None:
    await add_nodes(etcd, "d")
    one, other = make_store(etcd), make_store(etcd)
    await one.start_plan(plan("p", MOVE))
    etcd.times, etcd.meddle = 1, lambda: other.publish_members(0, GROUP, members(1, ABC))
    assert (await one.begin_move("p", 0, anything))[1] == ""
    found = await shard(etcd)
    assert (found.replicas, found.members.version) == (("d", "b", "c"), 1)


async def test_steps_that_must_not_be_together_do_not_begin_together(etcd: Meddling) -> None:
    await add_nodes(etcd, "d", "e")
    await etcd.commit([], [Put(KEYS.shard(1), (await shard(etcd)).encode())])
    one, other = make_store(etcd), make_store(etcd)
    await one.start_plan(plan("p", MOVE, replace(MOVE, shard=1, destination="e")))

    def alone(found: PlanRecord, _number: int, _shard: ShardRecord) -> str:
        return "a is busy" if found.began else ""

    etcd.times, etcd.meddle = 1, lambda: other.begin_move("p", 1, alone)
    found, why = await one.begin_move("p", 0, alone)
    assert (found.began, why) == ((1,), "a is busy")
    assert (await shard(etcd)).replicas == ABC


@pytest.mark.parametrize("why", ["down", "removed", "changed"])
async def test_a_move_that_cannot_be_does_not_begin(etcd: Meddling, why: str) -> None:
    store = make_store(etcd)
    await store.start_plan(plan("p", MOVE))
    if why != "down":
        await add_nodes(etcd, "d")
    if why == "removed":
        await etcd.commit([], [Put(KEYS.removed("d"), RemovedRecord(node("d").node_id).encode())])
    if why == "changed":
        await desire(etcd, 0, "b", "c")
    found, said = await store.begin_move("p", 0, anything)
    assert why in said
    assert found.began == ()
    assert await reason_refused(store.begin_move("other", 0, anything)) == refusals.PLAN_NOT_FOUND


async def test_transfers_are_ticked_off(etcd: Meddling) -> None:
    store = make_store(etcd)
    transfer = replace(MOVE, is_transfer=True, destination="b")
    await store.start_plan(plan("p", transfer, transfer))
    assert (await store.begin_steps("p", [1])).began == (1,)
    assert (await store.begin_steps("p", [1])).began == (1,)
    with pytest.raises(RefusedError):
        await store.begin_steps("other", [1])
