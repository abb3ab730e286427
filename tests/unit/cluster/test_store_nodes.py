"""How a cluster and its nodes come to be in the map, and how nodes go."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.cluster.etcd.api import Committed, Delete, EtcdUnavailableError, Put, Unchanged
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.records import (
    ClusterRecord,
    PlanRecord,
    RemovedRecord,
    StepRecord,
    name_of,
)
from holdfast.cluster.map.store import MapStore
from holdfast.cluster.map.store_nodes import DuplicateNodeError, RemovedNodeError, WrongClusterError
from holdfast.routing.groups import incarnation_of
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError
from tests.unit.cluster.cluster_stage import (
    KEYS,
    NAME,
    Meddling,
    add_nodes,
    desire,
    identity,
    make_store,
    members,
    node,
    read_map,
    reason_refused,
    refusal_of,
)
from tests.unit.cluster.founded_shard import ABC, etcd, shard

__all__ = ["etcd"]


# Initialisation


async def fresh(*names: str) -> FakeEtcd:
    etcd = FakeEtcd()
    await add_nodes(etcd, *names)
    return etcd


async def assert_whole(etcd: FakeEtcd) -> ClusterRecord:
    found = await read_map(etcd)
    assert found.cluster is not None
    assert set(found.shards) == set(range(found.cluster.shards))
    for record in found.shards.values():
        assert len(set(record.replicas)) == found.cluster.replication
        assert tuple(map(name_of, record.founders)) == record.replicas
        assert not record.is_founded
        assert incarnation_of(record.group) == 1
    assert len({record.group for record in found.shards.values()}) == found.cluster.shards
    assert await etcd.get(KEYS.init) is None
    return found.cluster


async def test_a_cluster_is_made_once() -> None:
    etcd = await fresh("a", "b", "c", "d")
    store = make_store(etcd)
    made = await store.init_cluster(250, 3)
    assert await assert_whole(etcd) == made
    before = await read_map(etcd)
    assert await store.init_cluster(250, 3) == made, "the same again changes nothing"
    for shards, replication in ((8, 3), (250, 1)):
        assert await reason_refused(store.init_cluster(shards, replication)) == refusals.CLUSTER_EXISTS
    assert (await read_map(etcd)).same_records(before)
    assert len(etcd.leases) == 4  # of the nodes: the one of the initialisation is gone


async def test_of_racing_initialisations_one_wins_whole() -> None:
    etcd = await fresh("a", "b", "c", "d", "e")
    sizes = [(150, 1), (320, 3), (8, 5), (201, 3)]
    outcomes = await asyncio.gather(
        *(make_store(etcd).init_cluster(*size) for size in sizes), return_exceptions=True
    )  # fmt: skip
    won = [outcome for outcome in outcomes if isinstance(outcome, ClusterRecord)]
    assert len(won) == 1
    assert await assert_whole(etcd) == won[0]
    lost = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    assert {item.reason for item in lost} <= {refusals.CLUSTER_EXISTS, refusals.CONFLICT}
    assert len(lost) == len(sizes) - 1


@pytest.mark.parametrize("commits", range(1, 6))
async def test_an_interrupted_initialisation_is_replaced_by_the_next(commits: int) -> None:
    class Dying(FakeEtcd):
        left = 1_000_000

        async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
            self.left -= 1
            if self.left < 0:
                raise EtcdUnavailableError("gone")
            return await super().commit(compares, changes)

    etcd = Dying()
    await add_nodes(etcd, "a", "b", "c")
    etcd.left = commits
    with pytest.raises(EtcdUnavailableError):
        await make_store(etcd).init_cluster(450, 3)
    assert (await read_map(etcd)).cluster is None
    etcd.left = 1_000_000
    await make_store(etcd).init_cluster(4, 1)
    await assert_whole(etcd)


@pytest.mark.parametrize("late", [3, 5])  # with some of its shards, and with the record that makes them count
async def test_an_initialisation_that_took_too_long_does_not_mix_with_the_next(late: int) -> None:
    class Gated(FakeEtcd):
        """That commit of the first one waits until its lease has ended and the second one is nearly done."""

        commits = -1000
        second: asyncio.Task[ClusterRecord]

        def __init__(self) -> None:
            super().__init__()
            self.is_nearly_done, self.may_end = asyncio.Event(), asyncio.Event()

        async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
            self.commits += 1
            if self.commits == late:
                await self.revoke(self.leases[-1])
                self.second = asyncio.create_task(make_store(self).init_cluster(150, 1))
                await self.is_nearly_done.wait()
            elif self.commits > late and changes[0].key == KEYS.cluster and not self.is_nearly_done.is_set():
                self.is_nearly_done.set()
                await self.may_end.wait()
            return await super().commit(compares, changes)

    etcd = Gated()
    await add_nodes(etcd, "a", "b", "c")
    etcd.commits = 0
    assert await reason_refused(make_store(etcd).init_cluster(250, 3)) == refusals.CONFLICT
    etcd.may_end.set()
    assert await etcd.second == await assert_whole(etcd)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("number", range(4))
async def test_an_initialisation_survives_a_lost_answer(number: int, is_done: bool) -> None:
    class Losing(FakeEtcd):
        commits = -1000  # not before the nodes are there

        async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
            if self.commits == number:
                self.lose_next_answer(is_done=is_done)
            self.commits += 1
            return await super().commit(compares, changes)

    etcd = Losing()
    await add_nodes(etcd, "a", "b", "c")
    etcd.commits = 0
    try:
        made = await make_store(etcd).init_cluster(150, 3)
    except RefusedError as refused:
        assert refused.reason == refusals.CONFLICT  # it never began
        assert (number, is_done) == (0, False)
        assert (await read_map(etcd)).all_shards == {}
    else:
        assert await assert_whole(etcd) == made


@pytest.mark.parametrize(
    ("shards", "replication", "reason"),
    [
        (0, 1, refusals.OUT_OF_RANGE),
        (4097, 1, refusals.OUT_OF_RANGE),
        (8, 0, refusals.OUT_OF_RANGE),
        (8, 11, refusals.OUT_OF_RANGE),
        (8, 2, refusals.INVALID_FIELD),
        (8, 5, refusals.NOT_ENOUGH_NODES),
    ],
)
async def test_sizes_that_cannot_be_are_refused(shards: int, replication: int, reason: str) -> None:
    etcd = await fresh("a", "b", "c")
    assert await reason_refused(make_store(etcd).init_cluster(shards, replication)) == reason
    assert (await read_map(etcd)).cluster is None


async def test_nodes_that_drain_get_nothing() -> None:
    etcd = await fresh("a", "b", "c", "d")
    store = make_store(etcd)
    await store.drain_node("d")
    await store.init_cluster(8, 3)
    assert {name for record in (await read_map(etcd)).shards.values() for name in record.replicas} == set(ABC)


# Nodes


async def test_a_node_registers_until_its_lease_ends() -> None:
    etcd = FakeEtcd()
    store = make_store(etcd)
    lease = await etcd.grant(10)
    assert await store.register_node(node("a"), lease) is None
    await store.register_node(node("a"), lease)  # again: nothing new
    await store.init_cluster(1, 1)
    cluster = (await read_map(etcd)).cluster
    assert cluster is not None
    assert await store.register_node(node("a"), lease, cluster_id=cluster.cluster_id) == cluster.cluster_id
    await etcd.revoke(lease)
    assert (await read_map(etcd)).nodes == {}


async def test_a_node_replaces_its_former_process() -> None:
    etcd = FakeEtcd()
    store = make_store(etcd)
    old, new = await etcd.grant(10), await etcd.grant(10)
    await store.register_node(node("a"), old)
    await store.register_node(replace(node("a"), session="next"), new)
    await etcd.revoke(old)
    assert (await read_map(etcd)).nodes["a"].session == "next"


async def test_another_node_of_the_same_name_is_refused() -> None:
    """Not at once: one that was killed and lost its disk is in the map until its lease ends."""
    etcd = FakeEtcd()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    store = MapStore(etcd, NAME, sleep=sleep)
    await store.register_node(node("a"), await etcd.grant(3600))
    with pytest.raises(DuplicateNodeError, match=r"a\.test:7401.*another node_name"):
        await store.register_node(node("a", life=2), await etcd.grant(3600))
    assert sum(waits) > 10
    assert (await read_map(etcd)).nodes["a"] == node("a")


async def test_a_copy_of_a_node_is_refused_once_the_other_proves_to_live() -> None:
    etcd = FakeEtcd()
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        await asyncio.sleep(0)

    store = MapStore(etcd, NAME, sleep=sleep)
    await store.register_node(node("a"), await etcd.grant(3600))
    with pytest.raises(DuplicateNodeError, match="copied"):
        await store.register_node(replace(node("a"), address="b.test:1"), await etcd.grant(3600))
    assert sum(slept_s) > 10


async def test_a_node_that_moved_waits_for_its_former_lease() -> None:
    etcd = FakeEtcd()
    old = await etcd.grant(3600)

    async def sleep(_seconds: float) -> None:
        await etcd.revoke(old)

    store = MapStore(etcd, NAME, sleep=sleep)
    await store.register_node(node("a"), old)
    moved = replace(node("a"), address="b.test:1")
    await store.register_node(moved, await etcd.grant(3600))
    assert (await read_map(etcd)).nodes["a"] == moved


async def test_a_node_of_another_cluster_is_refused() -> None:
    etcd = await fresh("b")
    store = make_store(etcd)
    await store.init_cluster(1, 1)
    with pytest.raises(WrongClusterError, match="cd" * 16):
        await store.register_node(node("a"), await etcd.grant(10), cluster_id="cd" * 16)


async def test_a_node_of_a_cluster_that_etcd_has_forgotten_may_try_again() -> None:
    etcd = await fresh("b")
    with pytest.raises(RefusedError, match="restore it") as refused:
        await make_store(etcd).register_node(node("a"), await etcd.grant(10), cluster_id="cd" * 16)
    assert refused.value.reason == "NO_CLUSTER"


async def test_a_removed_node_comes_back_only_with_new_data(etcd: Meddling) -> None:
    leases = await add_nodes(etcd, "d")
    store = make_store(etcd)
    refused = await refusal_of(store.remove_node("d", node("d").node_id))
    assert refused.metadata["why"] == "alive"
    await store.drain_node("d")
    await store.remove_node("d", None)
    found = await read_map(etcd)
    assert "d" not in found.nodes
    assert "d" not in found.drains
    with pytest.raises(RemovedNodeError, match="empty data directory"):
        await store.register_node(node("d"), leases["d"])
    await store.register_node(node("d", life=2), await etcd.grant(10))


@pytest.mark.parametrize("holds", ["replicas", "voters", "learners", "founders", "leaving"])
async def test_a_node_that_holds_something_is_not_removed(etcd: Meddling, holds: str) -> None:
    await add_nodes(etcd, "d")
    store = make_store(etcd)
    record = replace(await shard(etcd), is_founded=True, members=members(3, ABC))
    changed = {
        "replicas": replace(record, replicas=("a", "b", "d")),
        "voters": replace(record, members=members(3, ["a", "b", "d"])),
        "learners": replace(record, members=members(3, ABC, ["d"])),
        "founders": replace(record, is_founded=False, founders=(identity("d"),)),
        "leaving": replace(record, leaving=(identity("d"),)),
    }
    await etcd.commit([], [Put(KEYS.shard(0), changed[holds].encode())])
    await store.drain_node("d")
    refused = await refusal_of(store.remove_node("d", None))
    assert refused.metadata["why"] == "holds_replicas"
    assert (await read_map(etcd)).removed == {}


async def test_removing_a_dead_node_frees_those_who_wait_for_it_to_delete(etcd: Meddling) -> None:
    store = make_store(etcd)
    record = replace(await shard(etcd), leaving=(identity("d"), identity("e")))
    await etcd.commit([], [Put(KEYS.shard(0), record.encode())])
    await store.remove_node("d", node("d").node_id)
    assert (await shard(etcd)).leaving == (identity("e"),)
    assert (await read_map(etcd)).removed == {"d": RemovedRecord(node("d").node_id)}


async def test_a_node_cannot_get_a_replica_while_it_is_being_removed(etcd: Meddling) -> None:
    """Whoever comes first wins, and the other one is refused: the mark is set before the last look."""
    await add_nodes(etcd, "d")
    one, other = make_store(etcd), make_store(etcd)
    move = StepRecord(shard=0, source="a", destination="d", is_transfer=False)

    async def begin() -> str:
        return (await other.begin_move("p", 0, lambda _plan, _number, _shard: ""))[1]

    async def plan() -> None:
        await other.finish_plan("p")
        await other.start_plan(PlanRecord(plan_id="p", revision=1, kind="move", summary="", steps=(move,)))

    await one.drain_node("d")
    await plan()
    etcd.times, etcd.meddle = 1, begin
    refused = await refusal_of(one.remove_node("d", None))
    assert refused.metadata["why"] == "holds_replicas"
    found = await read_map(etcd)
    assert (found.removed, set(found.nodes) >= {"d"}, set(found.drains)) == ({}, True, {"d"})

    await desire(etcd, 0, *ABC)
    await plan()
    etcd.times, etcd.meddle = 1, lambda: one.remove_node("d", None)
    assert await begin() == "d is down"
    assert (await shard(etcd)).replicas == ABC
