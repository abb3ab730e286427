"""An etcd that is restored from a backup while somebody follows the map in it."""

import asyncio
import shutil
from pathlib import Path

from holdfast.cluster.etcd.api import Put
from holdfast.cluster.etcd.client import EtcdClient
from holdfast.cluster.etcd.process import EtcdProcess
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import ClusterRecord, QueueRecord
from tests.integration.etcd_server import FAST, WAIT_S, put


async def test_a_map_follows_an_etcd_that_was_restored_and_has_moved_on(tmp_path: Path) -> None:
    """When the connection is back, etcd is further than it was told to be, so the watch goes on: in another history."""
    keys, cluster = keys_of("c"), ClusterRecord("ab" * 16, 8, 3)
    data, backup, elsewhere = tmp_path / "data", tmp_path / "backup", tmp_path / "elsewhere"

    def hot(*shards: int) -> Put:
        return Put(keys.queue("hot"), QueueRecord(generation=1, sets=((1, shards),)).encode())

    with EtcdProcess(data, arguments=FAST) as server:
        client = EtcdClient([server.endpoint])
        await client.commit([], [Put(keys.cluster, cluster.encode())])
        await asyncio.to_thread(server.stop)
        shutil.copytree(data, backup)
        await asyncio.to_thread(server.start)
        follower = MapFollower(client, "c")
        heard: list[PartitionMap] = []
        follower.on_change.append(heard.append)
        running = asyncio.create_task(follower.run())
        await follower.first_load()
        reported = (await client.commit([], [hot(0, 1)])).revision
        await follower.wait_until(lambda found: "hot" in found.queues, WAIT_S)
        await asyncio.to_thread(server.kill)

        shutil.copytree(backup, elsewhere)  # restored, and used by others before the follower is back
        with EtcdProcess(elsewhere, arguments=FAST) as restored:
            other = EtcdClient([restored.endpoint])
            assert (await other.commit([], [hot(0, 2)])).revision == reported
            await put(other, keys.queue("new"), QueueRecord(draining=(1,)).encode())
            await other.close()
            await asyncio.to_thread(restored.stop)
        shutil.rmtree(data)
        shutil.copytree(elsewhere, data)
        await asyncio.to_thread(server.start)
        await follower.wait_until(lambda found: "new" in found.queues and follower.is_current, WAIT_S)
        await follower.wait_until(lambda found: found.queues["hot"].sets == ((1, (0, 2)),), 5)
        assert heard[-1].queues["hot"].sets == ((1, (0, 2)),)
        running.cancel()
        await asyncio.wait([running])
        await client.close()
