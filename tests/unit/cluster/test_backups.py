"""What of a backup is about the map: reading it in pages, and making a cluster of one, once."""

import pytest

from holdfast.cluster.admin import backups
from holdfast.cluster.admin.backups import ClusterBackups
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.policy import PolicyRecord
from holdfast.cluster.map.queues import QueueChange, Spread
from holdfast.cluster.map.records import QueueRecord
from holdfast.cluster.map.store import MapStore
from holdfast.proto.v1 import backups_pb2 as pb
from holdfast.serving.refusals import RefusedError
from tests.unit.cluster.cluster_stage import NAME, add_nodes, following, make_store, read_map, refusal_of

ID = "20260101T000000Z-00000000"


async def made(etcd: FakeEtcd) -> MapStore:
    await add_nodes(etcd, "a", "b", "c")
    return make_store(etcd)


def restore_request(*incarnations: int, id: str = ID) -> pb.RestoreClusterRequest:
    return pb.RestoreClusterRequest(backup_id=id, replication=3, incarnations=incarnations)


async def test_the_map_is_read_in_pages_and_written_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "ITEMS_MAX", 2)
    etcd = FakeEtcd()
    store = await made(etcd)
    await store.init_cluster(4, 3)
    for number in range(5):
        await store.set_queue(f"q{number}", QueueChange(Spread(3), {"paused": True}, ()))
    copied: list[pb.QueueRecordCopy] = []
    async with following(MapFollower(etcd, NAME)) as follower:
        await follower.first_load()
        service, token = ClusterBackups(store, follower), ""
        while True:
            page = await service.read_map(pb.ReadMapRequest(page_token=token))
            assert (page.shards, page.replication) == (4, 3)
            copied += page.queues
            token = page.next_page_token
            if not token:
                break
    assert [copy.queue for copy in copied] == [f"q{number}" for number in range(5)]

    other = FakeEtcd()
    store = await made(other)
    async with following(MapFollower(other, NAME)) as follower:
        await follower.first_load()
        service = ClusterBackups(store, follower)
        await service.restore_cluster(restore_request(2, 2, 2, 5))
        for _ in range(2):  # again: nothing
            await service.restore_queues(pb.RestoreQueuesRequest(backup_id=ID, queues=copied))
    found = await read_map(other)
    assert found.queues == (await read_map(etcd)).queues
    assert found.queues["q1"].policy == PolicyRecord(paused=True)
    assert [record.incarnation for _, record in sorted(found.shards.items())] == [2, 2, 2, 5]


async def test_what_was_set_meanwhile_stays() -> None:
    etcd = FakeEtcd()
    store = await made(etcd)
    async with following(MapFollower(etcd, NAME)) as follower:
        await follower.first_load()
        service = ClusterBackups(store, follower)
        await service.restore_cluster(restore_request(2))
        await store.set_queue("q", QueueChange(None, {"max_attempts": 7}, ()))
        old = pb.QueueRecordCopy(queue="q", record=QueueRecord(policy=PolicyRecord(max_attempts=3)).encode())
        await service.restore_queues(pb.RestoreQueuesRequest(backup_id=ID, queues=[old]))
    assert (await read_map(etcd)).queues["q"].policy.max_attempts == 7


async def test_a_cluster_is_made_of_one_backup_only() -> None:
    etcd = FakeEtcd()
    store = await made(etcd)
    async with following(MapFollower(etcd, NAME)) as follower:
        await follower.first_load()
        service = ClusterBackups(store, follower)
        first = await service.restore_cluster(restore_request(2, 3))
        assert [shard.shard for shard in first.shards] == [0, 1]
        assert await service.restore_cluster(restore_request(2, 3)) == first, "again: the same"
        refused = {}
        for name, request in {
            "another backup": restore_request(2, 3, id="20270101T000000Z-00000000"),
            "other incarnations": restore_request(4, 4),
            "another number of shards": restore_request(2, 3, 3),
            "no incarnation": restore_request(0, 3),
            "no backup": restore_request(2, id="../x"),
        }.items():
            caught = await refusal_of(service.restore_cluster(request))
            refused[name] = caught.reason
        assert refused == {
            "another backup": "CLUSTER_EXISTS", "other incarnations": "RESTORE_REFUSED",
            "another number of shards": "RESTORE_REFUSED", "no incarnation": "OUT_OF_RANGE",
            "no backup": "INVALID_FIELD",
        }  # fmt: skip
        nowhere = QueueRecord(generation=1, sets=((1, (0, 2)),)).encode()  # there are shards 0 and 1
        for queues in (
            pb.QueueRecordCopy(queue="q", record=b"x"),
            pb.QueueRecordCopy(queue="a/b", record=b"{}"),
            pb.QueueRecordCopy(queue="q", record=nowhere),
        ):
            with pytest.raises(RefusedError):
                await service.restore_queues(pb.RestoreQueuesRequest(backup_id=ID, queues=[queues]))
        with pytest.raises(RefusedError, match="restored from"):
            await service.restore_queues(pb.RestoreQueuesRequest(backup_id="20270101T000000Z-00000000"))


async def test_a_cluster_that_was_initialised_is_not_restored() -> None:
    etcd = FakeEtcd()
    store = await made(etcd)
    await store.init_cluster(2, 3)
    async with following(MapFollower(etcd, NAME)) as follower:
        await follower.first_load()
        with pytest.raises(RefusedError) as caught:
            await ClusterBackups(store, follower).restore_cluster(restore_request(2, 2))
        assert caught.value.reason == "CLUSTER_EXISTS"
        # It has no backup, and so it has not the one without an id either.
        record = pb.QueueRecordCopy(queue="q", record=QueueRecord(policy=PolicyRecord(paused=True)).encode())
        with pytest.raises(RefusedError) as caught:
            await ClusterBackups(store, follower).restore_queues(pb.RestoreQueuesRequest(queues=[record]))
    assert caught.value.reason == "RESTORE_REFUSED"
    assert (await read_map(etcd)).queues == {}
