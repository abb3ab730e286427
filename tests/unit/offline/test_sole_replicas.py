"""Which shards only one node has, as far as its data directory says."""

from pathlib import Path

from holdfast.broker.cluster_view.map_view import MapCopy
from holdfast.broker.offline.sole_replicas import sole_replicas
from holdfast.cluster.etcd.api import Row, Snapshot
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import ClusterRecord, Members, ShardRecord
from holdfast.raft.messages import Configuration
from holdfast.raft.node_journal import HardState
from holdfast.routing.groups import mapped_group
from holdfast.storage.data_dir import DataDir
from holdfast.wal.disk import RealDisk
from holdfast.wal.node_log import NodeLog
from tests.unit.wal.node_logs import flush

NAME = "main"
GROUP = mapped_group(1, 5)
BLOCK_BYTES = 4096
OTHER = "n2/" + "2" * 32


def make(path: Path, *rounds: dict[int, tuple[int, list[str]]]) -> str:
    """A data directory of n1; rounds of its log are versions and voters by shard, `me` for itself. Its identity."""
    with DataDir.open(path) as data_dir:
        me = f"n1/{data_dir.node_id}"
        log = NodeLog.open(RealDisk(data_dir.log_dir), segment_bytes=1024 * 1024)
        for reported in rounds:
            for shard, (version, voters) in reported.items():
                members = Configuration.of(version, [me if voter == "me" else voter for voter in voters])
                log.stage_hard_state(shard, HardState(GROUP, "s", configurations=((1, members),)).encode())
            flush(log)
        log.close(clean=True)
    return me


def damage(path: Path, round_number: int) -> None:
    [segment] = sorted((path / "log").iterdir())
    data = bytearray(segment.read_bytes())
    data[round_number * BLOCK_BYTES + 40] ^= 1
    segment.write_bytes(data)


def save_map(path: Path, version: int, *voters: str) -> None:
    record = ShardRecord(
        group=GROUP, replicas=("n1",), founders=voters, is_founded=True, members=Members(version, voters)
    )
    keys = keys_of(NAME)
    values = {keys.cluster: ClusterRecord("c" * 32, shards=1, replication=1).encode(), keys.shard(0): record.encode()}
    rows = [Row(key, value, 1, 1, 0) for key, value in values.items()]
    MapCopy(path, NAME).save(PartitionMap.load(NAME, Snapshot(1, rows)))


def test_the_log_says_who_else_votes(tmp_path: Path) -> None:
    make(tmp_path, {0: (1, ["me"]), 1: (1, ["me", OTHER]), 2: (1, [OTHER])})
    assert sole_replicas(tmp_path, NAME) == [0]


def test_a_damaged_log_says_it_up_to_the_damage(tmp_path: Path) -> None:
    make(tmp_path, {0: (1, ["me"])}, {0: (2, ["me", OTHER])}, {1: (1, ["me"])})
    assert sole_replicas(tmp_path, NAME) == [1]
    damage(tmp_path, 2)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert sole_replicas(tmp_path, NAME) == [0]
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_of_log_and_map_the_newer_configuration_counts(tmp_path: Path) -> None:
    me = make(tmp_path, {0: (2, ["me"])})
    save_map(tmp_path, 1, *sorted([me, OTHER]))
    assert sole_replicas(tmp_path, NAME) == [0]
    save_map(tmp_path, 3, *sorted([me, OTHER]))
    assert sole_replicas(tmp_path, NAME) == []


def test_without_its_log_the_map_says_it(tmp_path: Path) -> None:
    me = make(tmp_path, {0: (1, ["me", OTHER])})
    [segment] = (tmp_path / "log").iterdir()
    segment.unlink()
    assert sole_replicas(tmp_path, NAME) is None
    save_map(tmp_path, 1, me)
    assert sole_replicas(tmp_path, NAME) == [0]
    save_map(tmp_path, 1, "n1/" + "f" * 32)
    assert sole_replicas(tmp_path, NAME) == [], "its data are of another life of the node: here is nothing to lose"


def test_nothing_is_known_of_nothing(tmp_path: Path) -> None:
    assert sole_replicas(tmp_path / "nowhere", NAME) is None
    assert not (tmp_path / "nowhere").exists()
    make(tmp_path, {0: (1, ["me"])})
    (tmp_path / "NODE_ID").write_text("damaged")
    assert sole_replicas(tmp_path, NAME) is None
