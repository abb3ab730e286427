"""The map as a value: loaded, changed, asked, copied."""

import time
from dataclasses import replace

import pytest

from holdfast.cluster.etcd.api import Changes, Row, RowChange, Snapshot
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import (
    EMPTY,
    ClusterRecord,
    LeaderRecord,
    PolicyRecord,
    QueueRecord,
    RecordError,
    RemovedRecord,
    ShardRecord,
)
from holdfast.routing.groups import mapped_group
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute, visible
from tests.unit.cluster.cluster_stage import KEYS, NAME, identity, members, node

CLUSTER = ClusterRecord("ab" * 16, 8, 3)


def shard(incarnation: int = 1) -> ShardRecord:
    names = ("a", "b", "c")
    return ShardRecord(
        group=mapped_group(incarnation, 99), replicas=names, founders=tuple(map(identity, names)), is_founded=True,
        members=members(1, names),
    )  # fmt: skip


def rows(values: dict[bytes, bytes], revision: int) -> list[Row]:
    return [Row(key, value, revision, revision, 0) for key, value in values.items()]


def values() -> dict[bytes, bytes]:
    return {
        KEYS.cluster: CLUSTER.encode(), KEYS.node("a"): node("a").encode(), KEYS.node("b"): node("b").encode(),
        KEYS.drain("b"): EMPTY, KEYS.removed("z"): RemovedRecord("0" * 32).encode(), KEYS.shard(0): shard().encode(),
        KEYS.leader(0): LeaderRecord("a", shard().group, 4).encode(),
        KEYS.queue("spread"): QueueRecord(generation=1, sets=((1, (2, 5)),), draining=(7,)).encode(),
    }  # fmt: skip


def loaded() -> PartitionMap:
    return PartitionMap.load(NAME, Snapshot(20, rows(values(), 10)))


def put(key: bytes, value: bytes, revision: int = 30) -> Changes:
    return Changes(revision, [RowChange(Row(key, value, 1, revision, 0), is_delete=False)])


def delete(key: bytes, revision: int = 30) -> Changes:
    return Changes(revision, [RowChange(Row(key, b"", 0, revision, 0), is_delete=True)])


def test_all_records_are_found() -> None:
    found = loaded()
    assert found.revision == 20
    assert found.cluster == CLUSTER
    assert found.nodes == {"a": node("a"), "b": node("b")} == found.last_nodes
    assert set(found.drains) == {"b"}
    assert found.is_removed("z", "0" * 32)
    assert not found.is_removed("z", "1" * 32)
    assert found.shards == {0: shard()}
    assert found.mod_revisions[KEYS.shard(0)] == 10
    assert found.plan is None


def test_routes_of_queues_with_and_without_a_record() -> None:
    found = loaded()
    home = home_shard("plain", 8)
    assert found.route("plain") == QueueRoute("plain", home)
    assert visible(found.route("plain")) == (home,)
    assert set(visible(found.route("spread"))) == {home_shard("spread", 8), 2, 5, 7}
    assert found.queue_version("spread") == 10
    assert found.queue_version("plain") == 0
    with pytest.raises(LookupError):
        PartitionMap(cluster_name=NAME).route("plain")


def test_a_change_makes_a_new_map_and_leaves_the_old_one() -> None:
    before = loaded()
    after = before.apply(put(KEYS.queue("spread"), QueueRecord(policy=PolicyRecord(max_attempts=2)).encode()))
    assert before.queues["spread"].generation == 1
    assert after.queues["spread"].policy.max_attempts == 2
    assert after.queue_version("spread") == 30
    assert after.revision == 30
    assert after.all_shards is before.all_shards  # what did not change is shared
    gone = after.apply(delete(KEYS.queue("spread"), 31))
    assert "spread" not in gone.queues
    assert KEYS.queue("spread") not in gone.mod_revisions


def test_shards_count_only_once_the_cluster_is_there() -> None:
    without = {key: value for key, value in values().items() if key != KEYS.cluster}
    found = PartitionMap.load(NAME, Snapshot(20, rows(without, 10)))
    assert found.shards == {}
    assert found.shard_leader(0) is None
    assert found.apply(put(KEYS.cluster, CLUSTER.encode())).shards == {0: shard()}


def test_a_node_without_its_lease_is_remembered_until_it_is_removed() -> None:
    gone = loaded().apply(delete(KEYS.node("a")))
    assert not gone.is_alive("a")
    assert not gone.is_there(identity("a"))
    assert gone.address_of("a") == "a.test:7401"
    assert gone.address_of("nobody") is None
    again = PartitionMap.load(NAME, Snapshot(40, rows({KEYS.cluster: CLUSTER.encode()}, 10)), gone)
    assert again.address_of("a") == "a.test:7401"
    removed = again.apply(put(KEYS.removed("a"), RemovedRecord(node("a").node_id).encode(), 41))
    assert removed.address_of("a") is None


def test_a_node_with_other_data_is_not_the_one_that_a_replica_was_on() -> None:
    found = loaded()
    assert found.is_there(identity("a"))
    assert not found.apply(put(KEYS.node("a"), node("a", life=2).encode())).is_there(identity("a"))


def test_the_leader_of_a_former_incarnation_is_no_leader() -> None:
    found = loaded()
    assert found.shard_leader(0) == LeaderRecord("a", shard().group, 4)
    assert found.shard_leader(1) is None
    assert found.apply(put(KEYS.shard(0), shard(incarnation=2).encode())).shard_leader(0) is None


def test_a_bad_record_leaves_the_last_good_one() -> None:
    before = loaded()
    after = before.apply(put(KEYS.queue("spread"), b'{"generation": "x"}'))
    assert after.queues == before.queues
    assert after.queue_version("spread") == 10
    assert isinstance(after.problems[KEYS.queue("spread")], RecordError)
    reloaded = PartitionMap.load(NAME, Snapshot(40, rows({**values(), KEYS.cluster: b"{"}, 30)), after)
    assert reloaded.cluster == CLUSTER
    repaired = reloaded.apply(put(KEYS.cluster, replace(CLUSTER, shards=9).encode(), 41))
    assert repaired.cluster == replace(CLUSTER, shards=9)
    assert repaired.problems == {}
    unknown = PartitionMap.load(NAME, Snapshot(40, rows({KEYS.queue("q"): b"{"}, 30)))
    assert unknown.queues == {}
    assert set(unknown.problems) == {KEYS.queue("q")}


def test_keys_of_a_newer_version_and_of_an_initialisation_are_passed_over() -> None:
    found = loaded().apply(put(KEYS.prefix + b"schedules/x", b"?")).apply(put(KEYS.init, b"token", 31))
    assert found.problems == {}
    assert found.apply(delete(KEYS.init, 32)).same_records(loaded())


def test_a_map_survives_on_disk() -> None:
    found = loaded().apply(delete(KEYS.node("a")))
    copy = PartitionMap.from_json(found.to_json())
    assert copy == found
    assert copy.to_json() == found.to_json()


@pytest.mark.parametrize("text", [b"", b"{}", b"null", b'{"format": 1, "cluster_name": "a/b", "revision": 1}'])
def test_what_is_no_copy_of_a_map_is_refused(text: bytes) -> None:
    with pytest.raises(RecordError):
        PartitionMap.from_json(text)


@pytest.mark.parametrize(
    "damage", [(b"shards/00000", b"shards/"), (b'\\"group\\"', b'\\"g\\"'), (b'"rows":[[', b'"rows":[[5,')]
)
def test_a_damaged_copy_is_refused_or_lacks_only_the_damage(damage: tuple[bytes, bytes]) -> None:
    text = loaded().to_json()
    assert damage[0] in text
    try:
        copy = PartitionMap.from_json(text.replace(*damage))
    except RecordError:
        return
    assert 0 not in copy.shards
    assert copy.queues == loaded().queues


def test_a_large_map_is_cheap() -> None:
    """1,000 shards and 10,000 queues; the figures are printed, because machines differ."""
    large = {KEYS.cluster: ClusterRecord("ab" * 16, 1000, 3).encode()}
    for number in range(1000):
        large[KEYS.shard(number)] = shard().encode()
        large[KEYS.leader(number)] = LeaderRecord("a", shard().group, 4).encode()
    for number in range(10_000):
        record = QueueRecord(generation=1, sets=((1, (2, 5)),), policy=PolicyRecord(max_attempts=3))
        large[KEYS.queue(f"queue-{number}")] = record.encode()
    snapshot = Snapshot(20, rows(large, 10))
    began_s = time.perf_counter()
    found = PartitionMap.load(NAME, snapshot)
    load_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    changed = found.apply(put(KEYS.queue("queue-7"), QueueRecord().encode()))
    apply_s = time.perf_counter() - began_s
    print(f"load {load_s * 1000:.0f} ms, one change {apply_s * 1000:.2f} ms")
    assert len(found.queues) == len(changed.queues) == 10_000
    assert len(found.shards) == 1000
