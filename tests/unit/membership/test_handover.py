"""A node on its way out: it hands over, is let go by a turn that only one can take at a time, and takes all back."""

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.broker.membership import handover
from holdfast.broker.membership.handover import NodeHandover, OwnRecord
from holdfast.cluster.admin.handovers import HandoverView
from holdfast.cluster.etcd.api import Committed, CommitUnknownError, Delete, EtcdError, Put, Row, Snapshot, Unchanged
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.records import Handover
from holdfast.cluster.map.store import MapStore
from holdfast.proto.v1 import shards_pb2 as pb
from holdfast.raft.library import FOLLOWER, LEADER
from holdfast.serving.refusals import RefusedError
from tests.long import IS_LONG
from tests.unit.cluster.cluster_stage import add_nodes, identity, make_store, no_sleep, node, node_id

SEEDS = 300 if IS_LONG else 60  # of races


class Jittery(FakeEtcd):
    """Answers come in any order."""

    draw = random.Random(0)

    async def _wait(self) -> None:
        for _ in range(self.draw.randrange(4)):
            await asyncio.sleep(0)

    async def get(self, key: bytes) -> Row | None:
        await self._wait()
        return await super().get(key)

    async def read(self, prefix: bytes) -> Snapshot:
        await self._wait()
        return await super().read(prefix)

    async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
        await self._wait()
        return await super().commit(compares, changes)


class World:
    """Nodes and shards on paper: each shard is led by a live voter, and all live ones have caught up."""

    def __init__(self, etcd: FakeEtcd, names: str, shards: Sequence[str]) -> None:
        self.etcd = etcd
        self.names = names
        self.voters = dict(enumerate(shards))
        self.leaders = {number: voters[0] for number, voters in self.voters.items()}
        self.live = set(names)
        self.leases: dict[str, int] = {}
        self.nodes: dict[str, NodeHandover] = {}
        self.hosts: dict[str, Any] = {}
        self.own: dict[str, OwnRecord] = {}

    async def start(self, store: MapStore | None = None) -> "World":
        self.leases = await add_nodes(self.etcd, *self.names)
        for name in self.names:
            self._make(name, store or make_store(self.etcd))
        return self

    def _make(self, name: str, store: MapStore) -> None:
        numbers = [number for number, voters in self.voters.items() if name in voters]
        host = SimpleNamespace(me=identity(name), is_stopping=False, is_handing_over=False)
        host.replicas = {number: _Replica(self, number, name) for number in numbers}
        host.hand_over = self._hand_over
        cluster_view = SimpleNamespace(map=SimpleNamespace(shards={}))
        self.hosts[name], self.own[name] = host, OwnRecord(node(name))
        self.nodes[name] = NodeHandover(
            cast(Any, host), store, cast(Any, cluster_view), self.own[name], self._ask, now_s=lambda: self.now_s,
            sleep=no_sleep,
        )  # fmt: skip

    now_s = 1000.0

    async def _hand_over(self, replica: Any, among: Collection[str] | None = None) -> bool:
        await asyncio.sleep(0)
        others = [name for name in self.voters[replica.number] if name in self.live and name != replica.name]
        willing = [
            name
            for name in others
            if (not self.hosts[name].is_handing_over if among is None else identity(name) in among)
        ]
        if willing:
            self.leaders[replica.number] = willing[0]
        return bool(willing)

    async def _ask(self, node: str, timeout_s: float) -> pb.DescribeNodeResponse | None:
        await asyncio.sleep(0)
        if node not in self.live:
            return None
        response = pb.DescribeNodeResponse(name=node, node_id=node_id(node))
        for number, leader in self.leaders.items():
            if leader == node:
                voters = self.voters[number]
                live = [identity(voter) for voter in voters if voter in self.live]
                membership = pb.Membership(version=1, voters=map(identity, voters))
                response.replicas.add(shard=number, term=1, membership=membership, caught_up=live)
        return response

    async def stop(self, name: str) -> None:
        """As a process ends: first it is silent, then its lease goes."""
        self.live.discard(name)
        for number, leader in self.leaders.items():
            if leader == name:
                self.leaders[number] = next(voter for voter in self.voters[number] if voter in self.live)
        await asyncio.sleep(0)
        await self.etcd.revoke(self.leases[name])

    async def state(self, name: str) -> Handover:
        return (await make_store(self.etcd).read_nodes())[name].handover


class _Replica:
    def __init__(self, world: World, number: int, name: str) -> None:
        self._world, self.number, self.name = world, number, name
        self.is_alone = len(world.voters[number]) == 1

    @property
    def shard(self) -> Any:
        return SimpleNamespace(serves=self._world.leaders[self.number] == self.name)

    @property
    def raft(self) -> Any:
        world = self._world
        leads = world.leaders[self.number] == self.name
        voters = tuple(map(identity, world.voters[self.number]))
        return SimpleNamespace(role=LEADER if leads else FOLLOWER, term=1, configuration=SimpleNamespace(voters=voters))


@pytest.fixture(autouse=True)
def everybody_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "caught_up", lambda raft, now_s: raft.configuration.voters)


async def three() -> World:
    return await World(FakeEtcd(), "abc", ["abc", "bca"]).start()


async def test_a_node_hands_over_and_is_let_go() -> None:
    world = await three()
    view = await world.nodes["a"].ask()
    assert view == HandoverView(leads=0, single=[], may_stop=True, led=[])
    assert world.leaders == {0: "b", 1: "b"}
    assert world.hosts["a"].is_handing_over
    assert await world.state("a") is Handover.GRANTED
    assert (await world.nodes["a"].ask()).may_stop, "asked again, after an answer that was lost"


async def test_the_second_one_waits_until_the_first_is_back() -> None:
    world = await three()
    assert (await world.nodes["a"].ask()).may_stop
    refused = await world.nodes["b"].ask()
    assert not refused.may_stop
    assert all("a is about to be stopped" in why for why in refused.held_back.values())
    assert await world.state("b") is Handover.ASKED
    await world.nodes["a"].undo()
    assert (await world.nodes["b"].ask()).may_stop


async def test_an_answer_of_etcd_that_was_lost_lets_nobody_go_unsaid() -> None:
    world = await three()
    assert not (await world.nodes["b"].ask()).held_back
    await world.nodes["b"].undo()
    await world.nodes["a"].ask()
    await world.nodes["a"].undo()
    world.own["a"].record = replace(world.own["a"].record or node("a"), handover=Handover.ASKED)
    await make_store(world.etcd).note_handover(world.own["a"].record)
    world.etcd.lose_next_answer(is_done=True)
    with pytest.raises(CommitUnknownError):
        await world.nodes["a"].ask()
    assert world.own["a"].record is not None
    assert world.own["a"].record.handover is Handover.ASKED, "it was not told, so it is not let go"
    assert (await world.nodes["a"].ask()).may_stop


async def test_a_node_that_is_not_registered_is_not_let_go() -> None:
    world = await three()
    await world.etcd.revoke(world.leases["a"])
    with pytest.raises(RefusedError, match="not registered"):
        await world.nodes["a"].ask()


async def test_it_is_taken_back_when_nobody_asks_any_more_but_not_by_a_node_that_stops() -> None:
    world = await three()
    running = [asyncio.create_task(world.nodes[name].run()) for name in "ab"]
    await world.nodes["a"].ask()
    world.hosts["a"].is_stopping = True
    await world.nodes["b"].ask()
    world.now_s += handover.HOLD_SECONDS + 1
    while await world.state("b") is not Handover.NONE:
        await asyncio.sleep(0)
    assert not world.hosts["b"].is_handing_over
    assert await world.state("a") is Handover.GRANTED, "to its end"
    for item in running:
        item.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_all_that_are_to_be_stopped_at_once_do_not_wait_for_each_other() -> None:
    """Each leads something, and nobody who stays could take it. One goes all the same, and the others lead."""
    world = await World(FakeEtcd(), "abc", ["abc", "bca", "cab"]).start()
    for _ in range(3):
        views = await asyncio.gather(*(world.nodes[name].ask() for name in "abc"))
    assert [view.may_stop for view in views] == [True, False, False]
    assert "a" not in world.leaders.values()
    before = dict(world.leaders)
    await asyncio.gather(*(world.nodes[name].ask() for name in "bc"))
    assert world.leaders == before, "those who have to wait anyway do not hand it back and forth"


# Races


async def race(seed: int, store: type[MapStore] = MapStore) -> int:
    """All want to stop at once; whoever may is stopped. How many were, and that no shard lost its majority by it."""
    draw = random.Random(seed)
    etcd = Jittery()
    etcd.draw = draw
    names = "abcdefg"[: draw.choice((3, 5, 7))]
    shards = ["".join(draw.sample(names, draw.choice((3, min(5, len(names)))))) for _ in range(4)]
    world = await World(etcd, names, shards).start(store(etcd, "test"))

    async def stop_if_let_go(name: str) -> int:
        for _ in range(6):
            try:
                view = await world.nodes[name].ask()
            except (EtcdError, RefusedError):
                continue
            if view.may_stop:
                for _ in range(draw.randrange(8)):
                    await asyncio.sleep(0)
                await world.stop(name)
                return 1
        return 0

    stopped = sum(await asyncio.gather(*map(stop_if_let_go, names)))
    for voters in world.voters.values():
        assert 2 * len(world.live & set(voters)) > len(voters), f"seed {seed}: {voters} has {world.live}"
    return stopped


async def test_whoever_stops_at_the_same_moment_no_shard_loses_its_majority() -> None:
    assert sum([await race(seed) for seed in range(SEEDS)]) > SEEDS // 2, "enough of them were let go"


async def test_without_the_turn_shards_lose_their_majority() -> None:
    """The races are races: what keeps two from going at once is what is tested."""

    class Careless(MapStore):
        async def note_handover(self, node: Any, turn: Unchanged | None = None) -> bool:
            return await super().note_handover(node)

    lost = 0
    for seed in range(SEEDS):
        try:
            await race(seed, Careless)
        except (AssertionError, StopIteration, RuntimeError):
            lost += 1
    assert lost > SEEDS // 15
