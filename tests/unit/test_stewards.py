"""What a node does about the map, apart from how: which replicas it deletes and founds, and where queues have tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from holdfast.broker.map_surroundings import MapSurroundings
from holdfast.broker.queue_steward import SEARCHED_QUEUES, QueueSteward
from holdfast.broker.raft.messages import Configuration
from holdfast.broker.steward import Steward
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.queues import Home, Pin, QueueChange
from holdfast.cluster.records import Members, ShardRecord
from holdfast.cluster.store import MapStore
from holdfast.machine import keys
from holdfast.machine.kv import MemoryKV
from holdfast.machine.rows import Queue
from holdfast.routing.groups import mapped_group
from tests.unit.cluster_stage import add_nodes, make_store, node, read_map

GROUP = mapped_group(1, 5)
NODES = ("a", "b", "c", "d")
IDS = {name: node(name).identity for name in NODES}


# --- replicas ---------------------------------------------------------------------------------------------------------


@dataclass
class Replica:
    """As far as the steward looks at it."""

    number: int = 0
    group: int = GROUP
    version: int = 1
    members: tuple[str, ...] = (IDS["a"], IDS["b"], IDS["c"])
    serves: bool = False

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


async def look(etcd: FakeEtcd, store: MapStore, host: Host, connected: Mapping[str, str] | None = None) -> None:
    steward = Steward(
        cast(Any, host), store, MapSurroundings(host.me, await read_map(etcd)), lambda: connected or {}
    )  # fmt: skip
    steward.look(everywhere=True)
    while steward._works:
        await next(iter(steward._works.values()))


async def test_a_replica_that_has_left_is_deleted_and_then_forgotten() -> None:
    left = Members(2, (IDS["b"], IDS["c"], IDS["d"]))
    etcd, store = await cluster(shard_record(replicas=("b", "c", "d"), members=left, leaving=(IDS["a"],)))
    host = Host(replicas={0: Replica()})
    await look(etcd, store, host)
    assert host.dropped == [0]
    assert (await read_map(etcd)).shards[0].leaving == ()


async def test_a_node_that_died_after_the_deletion_only_says_so() -> None:
    etcd, store = await cluster(shard_record(replicas=("b", "c", "d"), leaving=(IDS["a"],)))
    host = Host()
    await look(etcd, store, host)
    assert (host.dropped, (await read_map(etcd)).shards[0].leaving) == ([], ())


async def test_a_replica_that_came_back_is_not_deleted_for_what_an_old_map_says() -> None:
    """etcd was restored from a backup of the time when it was leaving."""
    etcd, store = await cluster(shard_record(members=Members(5, (IDS["b"], IDS["c"], IDS["d"])), leaving=(IDS["a"],)))
    host = Host(replicas={0: Replica(version=8)})
    await look(etcd, store, host)
    assert host.dropped == []
    assert (await read_map(etcd)).shards[0].leaving == (IDS["a"],)


async def test_a_replica_of_a_former_life_is_deleted() -> None:
    etcd, store = await cluster(shard_record(group=mapped_group(2, 6)))
    host = Host(replicas={0: Replica(version=8)})
    await look(etcd, store, host)
    assert host.dropped == [0]


async def test_a_replica_of_a_later_life_is_kept() -> None:
    """As of an etcd that was restored from before the shard was created anew."""
    etcd, store = await cluster(shard_record())
    host = Host(replicas={0: Replica(group=mapped_group(2, 6))})
    await look(etcd, store, host)
    assert host.dropped == []


async def test_only_the_first_founder_founds_and_only_once() -> None:
    etcd, store = await cluster(shard_record(is_founded=False, members=Members()))
    for host, founded in (
        (Host(), [(0, GROUP)]),
        (Host(me=IDS["b"]), []),
        (Host(had=True), []),
        (Host(replicas={0: Replica()}), []),
    ):
        await look(etcd, store, host)
        assert host.founded == founded
    await store.publish_members(0, GROUP, Members(1, (IDS["a"], IDS["b"], IDS["c"])))
    host = Host()
    await look(etcd, store, host)
    assert host.founded == []


# --- queues -----------------------------------------------------------------------------------------------------------


class Shard:
    """One with these queues, that keeps what it is told."""

    serves = True

    def __init__(self, **ready: int) -> None:
        self.kv = MemoryKV()
        self.set(**ready)
        self.settings: dict[bytes, tuple[int, bytes]] = {}

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
        return self.settings.get(queue, (0, b""))[0]

    async def set_queue(self, queue: bytes, version: int, policy: bytes) -> bool:
        self.settings[queue] = (version, policy)
        return True


async def with_queues(*shards: Shard) -> tuple[FakeEtcd, MapStore, Any]:
    etcd = FakeEtcd()
    await add_nodes(etcd, "a", "b", "c")
    store = make_store(etcd)
    await store.init_cluster(len(shards), 3)
    replicas = {number: SimpleNamespace(shard=shard) for number, shard in enumerate(shards)}
    return etcd, store, SimpleNamespace(me=IDS["a"], replicas=replicas)


async def care(etcd: FakeEtcd, store: MapStore, host: Any) -> QueueSteward:
    steward = QueueSteward(host, store, MapSurroundings(IDS["a"], await read_map(etcd)))
    await steward.look()
    for _ in host.replicas:
        await steward.search()
    return steward


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
        await care(etcd, store, host)
        assert (await read_map(etcd)).queues["q"].draining == (old,), f"there is still one: {counts}"
    shards[old].put("q", succeeded_total=5)
    await care(etcd, store, host)
    record = (await read_map(etcd)).queues["q"]
    assert (record.draining, record.drained) == ((), (old,))
    shards[old].put("q", ready=1)  # a dead letter that was sent back, or a late retry
    await care(etcd, store, host)
    assert (await read_map(etcd)).queues["q"].draining == (old,)


async def test_tasks_that_no_record_tells_of_are_found() -> None:
    shards = [Shard(), Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    stray = await away_from(etcd, "q")
    shards[stray].put("q", ready=1)
    home = (await read_map(etcd)).route("p").home
    shards[home].put("p", ready=1)
    await care(etcd, store, host)
    found = await read_map(etcd)
    assert found.route("q").draining == (stray,)
    assert "p" not in found.queues, "it is where it belongs"


async def test_all_queues_of_a_shard_are_looked_at_in_turn() -> None:
    shards = [Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    stray = await away_from(etcd, "zz")
    shards[stray].set(**{f"a{number:04d}": 0 for number in range(SEARCHED_QUEUES + 20)})
    shards[stray].put("zz", ready=1)
    steward = await care(etcd, store, host)
    assert "zz" not in (await read_map(etcd)).queues
    for _ in shards:
        await steward.search()
    assert (await read_map(etcd)).route("zz").draining == (stray,)


async def test_a_policy_goes_into_the_log_of_the_shards_that_the_queue_has() -> None:
    shards = [Shard(), Shard(), Shard()]
    etcd, store, host = await with_queues(*shards)
    home = (await read_map(etcd)).route("q").home
    await store.set_queue("q", QueueChange(policy={"max_attempts": 3}))
    await care(etcd, store, host)
    assert [bool(shard.settings) for shard in shards] == [number == home for number in range(3)]
    version, policy = shards[home].settings[b"q"]
    assert version == (await read_map(etcd)).queue_version("q")
    assert policy
    await store.set_queue("q", QueueChange(clear=("max_attempts",)))
    await care(etcd, store, host)
    assert shards[home].settings[b"q"][1] == b"", "what was taken back must be told, too"
