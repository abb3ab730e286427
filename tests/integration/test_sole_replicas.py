"""A node with damaged data that nobody else has is not told to throw them away."""

from pathlib import Path

from holdfast.client import Client
from holdfast.cluster.map.partition_map import PartitionMap
from tests.integration.map_cluster import MapCluster, until
from tests.integration.server import DEADLINE_S

BLOCK_BYTES = 4096
SHARDS = 2


def flip_a_bit(log_dir: Path) -> None:
    """In the second round: others follow it, so it is no torn tail."""
    segment = sorted(log_dir.iterdir())[0]
    with segment.open("r+b") as file:
        file.seek(2 * BLOCK_BYTES + 30)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def knows_members(path: Path) -> bool:
    if not path.exists():
        return False
    shards = PartitionMap.from_json(path.read_bytes()).shards
    return len(shards) == SHARDS and all(record.is_founded and record.members.voters for record in shards.values())


def test_the_only_replica_is_not_rebuilt_out_of_nothing(tmp_path: Path) -> None:
    with MapCluster(tmp_path, size=2, shards=SHARDS, replication=1) as cluster:
        cluster.start()
        with Client(cluster.broker_addresses[0], timeout_s=DEADLINE_S) as client:
            shards = client.describe_cluster().shards
        [own] = [shard.shard for shard in shards if shard.replicas == ("n1",)]
        node = cluster.nodes["n1"]
        until(lambda: knows_members(node.data_dir / "MAP"), "the node to have a copy of the map")
        node.kill()
        flip_a_bit(node.data_dir / "log")
        node.launch()
        assert node.wait_for_exit() == 1
        assert "is damaged at byte" in node.log_text
        assert f"Do not start it with --rebuild: nobody else has what this node has of shard {own}," in node.log_text
        assert "holdfast backup restore" in node.log_text
        node.launch(rebuild=True)
        assert node.wait_for_exit() == 2
        assert f"nobody else has what this node has of shard {own}, which would be lost" in node.log_text
        assert "Nothing was changed." in node.log_text
        assert not list(node.data_dir.parent.glob("*.damaged-*"))
        (node.data_dir / "NODE_ID").write_text("damaged")  # now nobody can tell what is its own
        node.launch()
        assert node.wait_for_exit() == 1
        assert "It could not be found out whether other nodes have all of its shards" in node.log_text
        assert "comes back only from a backup (`holdfast backup restore`)" in node.log_text
