"""What a node makes of the partition map: whom it listens to, what it serves, and what it keeps on disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.broker.cluster_view.map_view import MapClusterView, MapCopy
from holdfast.cluster.etcd.api import Row, Snapshot
from holdfast.cluster.map.keys import MapKeys
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import ClusterRecord, Members, NodeRecord, QueueRecord, ShardRecord
from holdfast.cluster.map.store_nodes import WrongClusterError
from holdfast.limits.equal_parts import WHOLE, Part
from holdfast.routing.groups import mapped_group
from holdfast.routing.homes import home_shard

GROUP = mapped_group(1, 77)
IDS = {name: f"{name}/{number:032x}" for number, name in enumerate(("n1", "n2", "n3", "n4"))}
SHARD = ShardRecord(
    group=GROUP, replicas=("n1", "n2", "n3"), founders=(IDS["n1"], IDS["n2"], IDS["n3"]), is_founded=True,
    members=Members(1, (IDS["n1"], IDS["n2"], IDS["n3"])),
)  # fmt: skip


def node(name: str) -> NodeRecord:
    node_id = IDS[name].partition("/")[2]
    return NodeRecord(name=name, node_id=node_id, address=f"{name}:7401", peer_address=f"{name}:7402")


def around(name: str, shard: ShardRecord = SHARD, *, shards: int = 2, **queues: QueueRecord) -> MapClusterView:
    keys = MapKeys("c")
    records = {keys.cluster: ClusterRecord("ab" * 16, shards, 3).encode(), keys.shard(0): shard.encode()}
    records |= {keys.queue(queue): record.encode() for queue, record in queues.items()}
    records |= {keys.node(task_id): node(task_id).encode() for task_id in IDS}
    rows = [Row(key, value, 1, 5, 0) for key, value in records.items()]
    return MapClusterView(IDS[name], PartitionMap.load("c", Snapshot(5, rows)))


def test_a_node_listens_to_what_is_said_of_a_shard_that_it_should_have() -> None:
    assert around("n1").admits(IDS["n2"], 0, GROUP)
    assert list(around("n1").shards_here) == [0]
    assert list(around("n4").shards_here) == []


def test_a_node_that_should_not_have_a_shard_does_not_grow_one_again() -> None:
    assert not around("n4").admits(IDS["n2"], 0, GROUP)
    moved = replace(SHARD, replicas=("n4", "n2", "n3"), members=Members(3, (IDS["n2"], IDS["n3"], IDS["n4"])))
    assert not around("n1", moved).admits(IDS["n2"], 0, GROUP)
    # It is a member still: what is desired has changed, but nothing has happened yet.
    assert around("n1", replace(SHARD, replicas=("n4", "n2", "n3"))).admits(IDS["n2"], 0, GROUP)


def test_a_node_speaks_for_shards_that_it_has_or_is_to_have() -> None:
    view = around("n1")
    assert [view.may_speak_for(name, 0, 1) for name in ("n1", "n2", "n3", "n4", "n5")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    moving = around("n1", replace(SHARD, replicas=("n2", "n3", "n4"), leaving=(IDS["n1"],)))
    assert all(moving.may_speak_for(name, 0, 1) for name in ("n1", "n2", "n3", "n4"))
    assert not view.may_speak_for("n2", 1, 1), "nobody has heard of that shard"
    assert not view.may_speak_for("n2", 0, 2), "nor of that incarnation of it"
    assert view.may_speak_for("n2", 0, 0)


def test_a_node_that_is_leaving_listens_to_nobody() -> None:
    assert not around("n1", replace(SHARD, leaving=(IDS["n1"],))).admits(IDS["n2"], 0, GROUP)


def test_another_incarnation_another_shard_and_an_unknown_sender_are_not_heard() -> None:
    assert not around("n1").admits(IDS["n2"], 0, mapped_group(2, 77))
    assert not around("n1").admits(IDS["n2"], 1, GROUP)
    assert not around("n1").admits("n9/" + "0" * 32, 0, GROUP)


def test_a_replica_of_a_former_incarnation_is_not_served() -> None:
    anew = replace(SHARD, group=mapped_group(2, 99))
    assert "former incarnation" in around("n1", anew).objection(0, GROUP, (), ())
    assert around("n1").objection(0, GROUP, (), ()) == ""


def test_a_copy_on_disk_is_the_map(tmp_path: Path) -> None:
    copy = MapCopy(tmp_path, "c")
    assert copy.load().cluster is None
    known = around("n1").map
    copy.save(known)
    loaded = copy.load()
    assert (loaded.cluster, loaded.shards, loaded.last_nodes) == (known.cluster, known.shards, known.last_nodes)


def test_a_damaged_copy_is_none(tmp_path: Path) -> None:
    (tmp_path / "MAP").write_bytes(b'{"format": 1, "rows"')
    assert MapCopy(tmp_path, "c").load().revision == 0


def test_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    MapCopy(tmp_path, "c").save(around("n1").map)
    with pytest.raises(WrongClusterError, match="named c"):
        MapCopy(tmp_path, "other").load()


def test_which_part_of_the_shards_of_a_queue_a_shard_is() -> None:
    """All that may have tasks count: the home, the newest set, and what drains."""
    home = home_shard("spread", 64)
    others = [shard for shard in range(64) if shard != home][:4]
    record = QueueRecord(generation=1, sets=((1, tuple(others[:2])),), draining=(others[2],))
    cluster_view = around("n1", shards=64, spread=record, settled=QueueRecord())
    shards = sorted([home, *others[:3]])
    assert [cluster_view.part_of(shard, b"spread") for shard in shards] == [Part(place, 4) for place in range(4)]
    assert cluster_view.part_of(others[3], b"spread") == Part(4, 5)
    assert cluster_view.part_of(home_shard("settled", 64), b"settled") == WHOLE
    assert cluster_view.part_of(0, b"unknown") == WHOLE
