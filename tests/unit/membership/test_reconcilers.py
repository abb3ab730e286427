"""What a node does about the map, apart from how: which replicas it deletes and founds, and where queues have tasks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.membership.queue_reconciler import SEARCHED_QUEUES, QueueReconciler
from holdfast.broker.membership.reconciler import AGAIN_SECONDS, ShardReconciler
from holdfast.cluster.admin.conversion import policy_of
from holdfast.cluster.etcd.api import Changes, Put, RowChange
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.policy import NO_POLICY, PolicyRecord
from holdfast.cluster.map.queues import Home, Pin, QueueChange
from holdfast.cluster.map.records import Members, ShardRecord
from holdfast.cluster.map.store import MapStore
from holdfast.machine import keys
from holdfast.machine.kv import MemoryKV
from holdfast.machine.reader import Reader
from holdfast.machine.rows import Queue, SettingsRow
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.raft.messages import Configuration
from holdfast.routing.groups import mapped_group
from holdfast.serving.refusals import OutcomeUnknownError
from tests.unit.cluster.cluster_stage import add_nodes, make_store, node, read_map

GROUP = mapped_group(1, 5)
NODES = ("a", "b", "c", "d")
IDS = {name: node(name).identity for name in NODES}


# --- replicas ---------------------------------------------------------------------------------------------------------


@dataclass
class Replica:
    """As far as the reconciler looks at it."""

    number: int = 0
    group: int = GROUP
    version: int = 1
    members: tuple[str, ...] = (IDS["a"], IDS["b"], IDS["c"])
    serves: bool = False

    @property
    def raft(self) -> Any:
        return SimpleNamespace(
            configuration=Configuration.of(self.version, self.members), configuration_index=1, commit_index=1,
            leader=IDS["a"], term=1, has_caught_up=lambda _replica: True,
        )  # fmt: skip

    @property
    def shard(self) -> Any:
        return SimpleNamespace(serves=self.serves)

    @property
    def journal(self) -> Any:
        return SimpleNamespace(configurations=((1, Configuration.of(self.version, self.members)),))


@dataclass
class Host:
    me: str = IDS["a"]
    replicas: dict[int, Replica] = field(default_factory=dict)
    had: bool = False
    dropped: list[int] = field(default_factory=list)
    founded: list[tuple[int, int]] = field(default_factory=list)
    asked_to_take_over: list[tuple[str, ...]] = field(default_factory=list)

    async def hand_over(self, replica: Replica, desired: Sequence[str]) -> bool:
        """Nobody takes over."""
        self.asked_to_take_over.append(tuple(desired))
        return False

    async def drop(self, replica: Replica) -> None:
        self.dropped.append(replica.number)
        del self.replicas[replica.number]

    def has_had(self, number: int, group: int) -> bool:
        return self.had

    def found(self, number: int, group: int, voters: tuple[str, ...]) -> None:
        self.founded.append((number, group))


async def cluster(shard: ShardRecord) -> tuple[FakeEtcd, MapStore]:
    etcd = FakeEtcd()
    await add_nodes(etcd, *NODES)
    store = make_store(etcd)
    await store.init_cluster(1, 3)
    await store.change_shard(0, lambda record: replace(shard, founders=shard.founders or record.founders))
    return etcd, store


def shard_record(**changes: object) -> ShardRecord:
    first = ShardRecord(
        group=GROUP, replicas=("a", "b", "c"), founders=(IDS["a"], IDS["b"], IDS["c"]), is_founded=True,
        members=Members(1, (IDS["a"], IDS["b"], IDS["c"])),
    )  # fmt: skip
    return replace(first, **changes)  # type: ignore[arg-type]


async def poll(
    etcd: FakeEtcd, store: MapStore, host: Host, connected: Mapping[str, str] | None = None
) -> ShardReconciler:
    reconciler = ShardReconciler(
        cast(Any, host), store, MapClusterView(host.me, await read_map(etcd)), lambda: connected or {}
    )  # fmt: skip
    await poll_again(reconciler)
    return reconciler


async def poll_again(reconciler: ShardReconciler) -> None:
    reconciler.poll(everywhere=True)
    while works := [task for task in asyncio.all_tasks() if task.get_name().startswith("reconciler ")]:
        await asyncio.wait(works)


async def test_a_replica_that_has_left_is_deleted_and_then_forgotten() -> None:
    left = Members(2, (IDS["b"], IDS["c"], IDS["d"]))
    etcd, store = await cluster(shard_record(replicas=("b", "c", "d"), members=left, leaving=(IDS["a"],)))
    host = Host(replicas={0: Replica()})
    await poll(etcd, store, host)
    assert host.dropped == [0]
    assert (await read_map(etcd)).shards[0].leaving == ()


async def test_a_node_that_died_after_the_deletion_only_says_so() -> None:
    etcd, store = await cluster(shard_record(replicas=("b", "c", "d"), leaving=(IDS["a"],)))
    host = Host()
    await poll(etcd, store, host)
    assert (host.dropped, (await read_map(etcd)).shards[0].leaving) == ([], ())


async def test_a_replica_that_came_back_is_not_deleted_for_what_an_old_map_says() -> None:
    """etcd was restored from a backup of the time when it was leaving."""
    etcd, store = await cluster(shard_record(members=Members(5, (IDS["b"], IDS["c"], IDS["d"])), leaving=(IDS["a"],)))
    host = Host(replicas={0: Replica(version=8)})
    await poll(etcd, store, host)
    assert host.dropped == []
    assert (await read_map(etcd)).shards[0].leaving == (IDS["a"],)


async def test_a_replica_of_a_former_incarnation_is_deleted() -> None:
    etcd, store = await cluster(shard_record(group=mapped_group(2, 6)))
    host = Host(replicas={0: Replica(version=8)})
    await poll(etcd, store, host)
    assert host.dropped == [0]


async def test_a_replica_of_a_later_incarnation_is_kept() -> None:
    """As of an etcd that was restored from before the shard was created anew."""
    etcd, store = await cluster(shard_record())
    host = Host(replicas={0: Replica(group=mapped_group(2, 6))})
    await poll(etcd, store, host)
    assert host.dropped == []


async def test_a_shard_that_was_made_anew_of_one_replica_is_told_to_the_map() -> None:
    """By an operator, after its majority was lost; the others delete what they have, and are added again."""
    etcd, store = await cluster(shard_record(leaving=(IDS["d"],)))
    later = mapped_group(2, 6)
    alone = Replica(group=later, version=4, members=(IDS["a"],))
    await poll(etcd, store, Host(replicas={0: alone}))
    record = (await read_map(etcd)).shards[0]
    assert (record.group, record.founders, record.is_founded) == (later, (IDS["a"],), True)
    assert (record.members, record.leaving) == (Members(4, (IDS["a"],)), ())
    assert record.replicas == ("a", "b", "c"), "what is desired stays"
    other = Host(me=IDS["b"], replicas={0: Replica()})
    await poll(etcd, store, other)
    assert other.dropped == [0]
    second = Host(me=IDS["c"], replicas={0: Replica(group=mapped_group(2, 7), version=4, members=(IDS["c"],))})
    await poll(etcd, store, second)
    assert (await read_map(etcd)).shards[0].group == later, "of two the first counts"
    assert second.dropped == []


async def test_a_cluster_of_a_backup_founds_no_empty_shards() -> None:
    etcd = FakeEtcd()
    await add_nodes(etcd, *NODES)
    store = make_store(etcd)
    await store.restore_cluster(3, "20260101T000000Z-00000000", [4])
    record = (await read_map(etcd)).shards[0]
    assert record.incarnation == 4
    host = Host(me=record.founders[0])
    await poll(etcd, store, host)
    assert host.founded == []


async def test_only_the_first_founder_founds_and_only_once() -> None:
    etcd, store = await cluster(shard_record(is_founded=False, members=Members()))
    for host, founded in (
        (Host(), [(0, GROUP)]),
        (Host(me=IDS["b"]), []),
        (Host(had=True), []),
        (Host(replicas={0: Replica()}), []),
    ):
        await poll(etcd, store, host)
        assert host.founded == founded
    await store.publish_members(0, GROUP, Members(1, (IDS["a"], IDS["b"], IDS["c"])))
    host = Host()
    await poll(etcd, store, host)
    assert host.founded == []


async def test_a_leader_that_nobody_relieves_pauses_before_it_asks_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved away, and goes on to lead: asked at every look, those who cannot take over would have no peace."""
    members = tuple(IDS.values())
    etcd, store = await cluster(shard_record(replicas=("b", "c", "d"), members=Members(2, members)))
    host = Host(replicas={0: Replica(version=2, members=members, serves=True)})
    reconciler = await poll(etcd, store, host, {name: IDS[name] for name in ("b", "c", "d")})
    assert host.asked_to_take_over == [(IDS["b"], IDS["c"], IDS["d"])]
    await poll_again(reconciler)
    assert len(host.asked_to_take_over) == 1
    assert capsys.readouterr().out.count("Expected one of those who stay to take over, but none did.") == 1
    loop = asyncio.get_running_loop()
    now_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s() + AGAIN_SECONDS)
    await poll_again(reconciler)
    assert len(host.asked_to_take_over) == 2


# --- queues -----------------------------------------------------------------------------------------------------------


class Shard:
    """One with these queues, that keeps what it is told."""

    serves = True

    def __init__(self, **ready: int) -> None:
        self.kv = MemoryKV()
        self.reader = Reader(self.kv)
        self.set(**ready)
        self.settings: dict[bytes, tuple[int, bytes]] = {}
        self.polls = 0

    def set(self, **ready: int) -> None:
        for name, count in ready.items():
            self.put(name, ready=count)

    def put(self, name: str, **counts: int) -> None:
        row = Queue()
        for count, value in counts.items():
            setattr(row, count, value)
        self.kv.write({keys.queue(name.encode()): row.encode()})

    def queue(self, name: bytes) -> Queue | None:
        row = self.kv.get(keys.queue(name))
        return None if row is None else Queue.decode(row)

    def settings_version(self, queue: bytes) -> int:
        self.polls += 1
        return self.settings.get(queue, (0, b""))[0]

    async def set_queue(self, queue: bytes, version: int, policy: bytes) -> bool:
        """As the machine: only forward."""
        if version <= self.settings.get(queue, (0, b""))[0]:
            return False
        self.settings[queue] = (version, policy)
        self.kv.write({keys.settings(queue): SettingsRow(version, policy).encode()})
        return True

    def policy(self, queue: str) -> PolicyRecord:
        """What is in force."""
        return policy_of(pb.QueuePolicy.FromString(self.settings.get(queue.encode(), (0, b""))[1]))


async def with_queues(*shards: Shard) -> tuple[FakeEtcd, MapStore, Any]:
    etcd = FakeEtcd()
    await add_nodes(etcd, "a", "b", "c")
    store = make_store(etcd)
    await store.init_cluster(len(shards), 3)
    replicas = {number: SimpleNamespace(shard=shard) for number, shard in enumerate(shards)}
    return etcd, store, SimpleNamespace(me=IDS["a"], replicas=replicas)


async def reconcile(etcd: FakeEtcd, store: MapStore, host: Any) -> QueueReconciler:
    reconciler = QueueReconciler(host, store, MapClusterView(IDS["a"], await read_map(etcd)))
    await reconciler.poll()
    for _ in host.replicas:
        await reconciler.search()
    return reconciler


async def away_from(etcd: FakeEtcd, queue: str) -> int:
    """A shard that is not the queue's home."""
    found = await read_map(etcd)
    return next(number for number in found.shards if number != found.route(queue).home)


async def test_a_shard_drains_until_nothing_of_the_queue_is_left_there() -> None:
    shards = [Shard(), Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    old = await away_from(etcd, "q")
    shards[old].put("q", dead=1)
    await store.set_queue("q", QueueChange(placement=Pin((old,))))
    await store.set_queue("q", QueueChange(placement=Home()))
    for counts in ({"ready": 1}, {"claimed": 1}, {"delayed": 1}, {"retrying": 1}, {"dead": 1}):
        shards[old].put("q", **counts)
        await reconcile(etcd, store, host)
        assert (await read_map(etcd)).queues["q"].draining == (old,), f"there is still one: {counts}"
    shards[old].put("q", succeeded_total=5)
    await reconcile(etcd, store, host)
    record = (await read_map(etcd)).queues["q"]
    assert (record.draining, record.drained) == ((), (old,))
    shards[old].put("q", ready=1)  # a dead letter that was sent back, or a late retry
    await reconcile(etcd, store, host)
    assert (await read_map(etcd)).queues["q"].draining == (old,)


async def test_tasks_that_no_record_tells_of_are_found() -> None:
    shards = [Shard(), Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    stray = await away_from(etcd, "q")
    shards[stray].put("q", ready=1)
    home = (await read_map(etcd)).route("p").home
    shards[home].put("p", ready=1)
    await reconcile(etcd, store, host)
    found = await read_map(etcd)
    assert found.route("q").draining == (stray,)
    assert "p" not in found.queues, "it is where it belongs"


async def test_all_queues_of_a_shard_are_looked_at_in_turn() -> None:
    shards = [Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    stray = await away_from(etcd, "zz")
    shards[stray].set(**{f"a{number:04d}": 0 for number in range(SEARCHED_QUEUES + 20)})
    shards[stray].put("zz", ready=1)
    reconciler = await reconcile(etcd, store, host)
    assert "zz" not in (await read_map(etcd)).queues
    for _ in shards:
        await reconciler.search()
    assert (await read_map(etcd)).route("zz").draining == (stray,)


async def test_a_policy_goes_into_the_log_of_the_shards_that_the_queue_has() -> None:
    shards = [Shard(), Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    home = (await read_map(etcd)).route("q").home
    await store.set_queue("q", QueueChange(policy={"max_attempts": 3}))
    await reconcile(etcd, store, host)
    assert [bool(shard.settings) for shard in shards] == [number == home for number in range(3)]
    version, policy = shards[home].settings[b"q"]
    assert version == (await read_map(etcd)).queue_version("q")
    assert policy
    await store.set_queue("q", QueueChange(clear=("max_attempts",)))
    await reconcile(etcd, store, host)
    assert shards[home].settings[b"q"][1] == b"", "what was taken back must be told, too"


# --- an etcd that was set back ----------------------------------------------------------------------------------------


async def set_attempts(store: MapStore, queue: str, attempts: int) -> int:
    return (await store.set_queue(queue, QueueChange(policy={"max_attempts": attempts})))[1]


async def advance(etcd: FakeEtcd, revision: int) -> None:
    """Other things happen until etcd is at the revision."""
    store = make_store(etcd)
    while etcd.revision < revision:
        await set_attempts(store, "another", 1 + etcd.revision % 90)


async def restored(before: FakeEtcd) -> tuple[FakeEtcd, MapStore]:
    """An etcd as it was at first: the same cluster, without all that came later."""
    etcd = FakeEtcd()
    await add_nodes(etcd, "a", "b", "c")
    key = make_store(etcd).keys.cluster
    row = await before.get(key)
    assert row is not None
    await etcd.commit([], [Put(key, row.value)])
    return etcd, make_store(etcd)


async def test_settings_made_again_after_a_restore_count_although_their_version_is_smaller() -> None:
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    await advance(etcd, 40)
    old = await set_attempts(store, "q", 3)
    await reconcile(etcd, store, host)
    assert shard.settings[b"q"][0] == old

    etcd, store = await restored(etcd)
    new = await set_attempts(store, "q", 9)
    assert new < old
    reconciler = await reconcile(etcd, store, host)
    assert (shard.settings[b"q"][0], shard.policy("q").max_attempts) == (old + 1, 9)
    await reconciler.poll()
    assert shard.settings[b"q"][0] == old + 1, "once is enough"

    await set_attempts(store, "q", 4)
    await advance(etcd, old + 20)  # it has passed what it once was before the leader looks
    await reconcile(etcd, store, host)
    assert shard.policy("q").max_attempts == 4
    latest = await set_attempts(store, "q", 5)
    await reconcile(etcd, store, host)
    assert (shard.settings[b"q"][0], shard.policy("q").max_attempts) == (latest, 5), "it counts as before"


async def test_two_settings_of_the_same_version_are_told_apart() -> None:
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    await advance(etcd, 40)
    old = await set_attempts(store, "q", 3)
    await reconcile(etcd, store, host)
    etcd, store = await restored(etcd)
    await advance(etcd, old - 1)
    assert await set_attempts(store, "q", 9) == old
    await reconcile(etcd, store, host)
    assert shard.policy("q").max_attempts == 9


class OneAfterTheOther:
    """What a store of etcd says, and from some moment on what another one does."""

    def __init__(self, store: MapStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


async def test_what_a_restored_etcd_does_not_know_is_as_if_it_was_never_set() -> None:
    """Otherwise a queue that was paused after the backup stays so: to resume it changes nothing that etcd has."""
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    await advance(etcd, 40)
    old = await set_attempts(store, "q", 3)
    seen = MapClusterView(IDS["a"], await read_map(etcd))
    known = OneAfterTheOther(store)
    reconciler = QueueReconciler(host, cast(MapStore, known), seen)
    await reconciler.poll()
    fresh, other = await restored(etcd)
    await reconcile(fresh, other, host)  # by a node that has just begun to lead
    assert (shard.settings[b"q"][0], shard.policy("q")) == (old + 1, NO_POLICY)

    await shard.set_queue(b"q", old + 2, pb.QueuePolicy(max_attempts=7).SerializeToString())
    known.store = other
    seen.map = await read_map(fresh)
    await reconciler.poll()  # by one that sees the record go
    assert shard.policy("q") == NO_POLICY


async def test_a_leader_with_an_old_copy_of_the_map_does_not_undo_a_newer_setting() -> None:
    """It is not etcd that was set back: this node is behind, with or without a way to etcd."""
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    await set_attempts(store, "q", 3)
    behind = await read_map(etcd)
    newer = await set_attempts(store, "q", 9)
    await reconcile(etcd, store, host)
    logged = dict(shard.settings)
    assert logged[b"q"][0] == newer

    reconciler = QueueReconciler(host, store, MapClusterView(IDS["a"], behind))
    await reconciler.poll()
    assert shard.settings == logged
    etcd.stop()
    cut_off = QueueReconciler(host, store, MapClusterView(IDS["a"], behind))
    await cut_off.poll()
    assert shard.settings == logged
    etcd.resume()
    await cut_off.poll()
    assert shard.settings == logged


async def test_an_etcd_without_the_cluster_says_nothing_about_its_queues() -> None:
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    await set_attempts(store, "q", 3)
    partition_map = await read_map(etcd)
    await set_attempts(store, "q", 9)
    await reconcile(etcd, store, host)
    logged = dict(shard.settings)
    empty = make_store(FakeEtcd())
    await QueueReconciler(host, empty, MapClusterView(IDS["a"], partition_map)).poll()
    _, other, _ = await with_queues(Shard())
    await set_attempts(other, "q", 5)
    await QueueReconciler(host, other, MapClusterView(IDS["a"], partition_map)).poll()
    assert shard.settings == logged


class CountingEtcd:
    """Counts who asks while nobody answers."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd
        self.gets = 0

    async def get(self, key: bytes) -> Any:
        self.gets += 1
        return await self._etcd.get(key)


async def test_an_etcd_that_is_away_is_asked_once_at_a_look() -> None:
    """Each question takes seconds then, and every queue would ask."""
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    names = [f"q{number}" for number in range(20)]
    for name in names:
        await set_attempts(store, name, 3)
    behind = await read_map(etcd)
    for name in names:
        await set_attempts(store, name, 9)
    await reconcile(etcd, store, host)
    etcd.stop()
    counting = CountingEtcd(etcd)
    reconciler = QueueReconciler(host, make_store(cast(FakeEtcd, counting)), MapClusterView(IDS["a"], behind))
    await reconciler.poll()
    assert counting.gets == 1


# --- how much is looked at --------------------------------------------------------------------------------------------


async def test_a_look_goes_only_through_what_has_changed() -> None:
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    for number in range(30):
        await set_attempts(store, f"q{number}", 3)
    cluster_view = MapClusterView(IDS["a"], await read_map(etcd))
    reconciler = QueueReconciler(host, store, cluster_view)

    async def polls() -> int:
        before = shard.polls
        await reconciler.poll()
        return shard.polls - before

    assert await polls() == 30
    assert await polls() == 0
    changed = await store.set_queue("q7", QueueChange(policy={"max_attempts": 8}))
    row = await etcd.get(store.keys.queue("q7"))
    assert row is not None
    cluster_view.map = cluster_view.map.apply(Changes(changed[1], [RowChange(row, is_delete=False)]))
    assert await polls() == 1
    assert shard.policy("q7").max_attempts == 8
    assert await polls() == 0
    shard.serves = False
    await polls()
    shard.serves = True
    assert await polls() == 30, "what it was not there for, another leader may have left undone"


async def test_what_could_not_be_done_is_tried_again() -> None:
    shard = Shard()
    etcd, store, host = await with_queues(shard)
    await set_attempts(store, "q", 3)
    reconciler = QueueReconciler(host, store, MapClusterView(IDS["a"], await read_map(etcd)))
    right, shard.set_queue = shard.set_queue, refuse  # type: ignore[method-assign]
    await reconciler.poll()
    assert not shard.settings
    shard.set_queue = right  # type: ignore[method-assign]
    await reconciler.poll()
    assert shard.policy("q").max_attempts == 3


async def refuse(queue: bytes, version: int, policy: bytes) -> bool:
    raise OutcomeUnknownError
