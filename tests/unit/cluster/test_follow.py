"""The follower: in step with etcd, and with the last good map whenever etcd is away or wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.cluster.etcd.api import Delete, EtcdRefusedError, Put, Row, Snapshot
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import ClusterRecord, PolicyRecord, QueueRecord
from tests.unit.cluster.cluster_stage import KEYS, NAME, WAIT_S, add_nodes, following, node, read_map

CLUSTER = ClusterRecord("ab" * 16, 8, 1)


def policy(attempts: int) -> bytes:
    return QueueRecord(policy=PolicyRecord(max_attempts=attempts)).encode()


async def put(etcd: FakeEtcd, key: bytes, value: bytes) -> None:
    assert (await etcd.commit([], [Put(key, value)])).is_done


def attempts(found: PartitionMap) -> int | None:
    record = found.queues.get("q")
    return None if record is None else record.policy.max_attempts


@pytest.fixture
async def etcd() -> FakeEtcd:
    etcd = FakeEtcd()
    await put(etcd, KEYS.cluster, CLUSTER.encode())
    return etcd


def make_follower(etcd: FakeEtcd, start_from: PartitionMap | None = None) -> MapFollower:
    return MapFollower(etcd, NAME, start_from, pulse_s=0.005, retry_s_min=0.002, retry_s_max=0.01)


@asynccontextmanager
async def loaded(etcd: FakeEtcd) -> AsyncIterator[tuple[MapFollower, list[PartitionMap]]]:
    """A follower that has loaded the map, and the maps that it tells of from then on."""
    heard: list[PartitionMap] = []
    async with following(make_follower(etcd)) as follower:
        await follower.first_load()
        follower.on_change.append(heard.append)
        yield follower, heard


async def until_current(follower: MapFollower, is_current: bool) -> None:
    await follower.wait_until(lambda _: follower.is_current is is_current, WAIT_S)


async def test_it_loads_and_then_hears_of_every_change(etcd: FakeEtcd) -> None:
    follower = make_follower(etcd)
    heard: list[PartitionMap] = []
    follower.on_change.append(heard.append)
    assert follower.map.cluster is None
    async with following(follower):
        assert (await asyncio.wait_for(follower.first_load(), WAIT_S)).cluster == CLUSTER
        assert follower.is_current
        await put(etcd, KEYS.queue("q"), policy(1))
        await put(etcd, KEYS.queue("q"), policy(2))
        await follower.wait_until(lambda found: attempts(found) == 2, WAIT_S)
    assert [attempts(found) for found in heard] == [None, 1, 2]
    assert follower.map == await read_map(etcd)


async def test_one_commit_is_one_change(etcd: FakeEtcd) -> None:
    async with loaded(etcd) as (follower, heard):
        await etcd.commit([], [Put(KEYS.queue(f"q{number}"), policy(1)) for number in range(20)])
        await follower.wait_until(lambda found: len(found.queues) == 20, WAIT_S)
    assert len(heard) == 1


async def test_news_without_changes_move_only_the_revision(etcd: FakeEtcd) -> None:
    async with loaded(etcd) as (follower, heard):
        await put(etcd, b"of/somebody/else", b"")
        etcd.report_progress()
        await follower.wait_until(lambda found: found.revision == etcd.revision, WAIT_S)
    assert heard == []


async def test_while_etcd_is_away_the_map_stays(etcd: FakeEtcd) -> None:
    await put(etcd, KEYS.queue("q"), policy(1))
    async with loaded(etcd) as (follower, _):
        etcd.stop()
        await until_current(follower, False)
        assert attempts(follower.map) == 1
        etcd.resume()
        await put(etcd, KEYS.queue("q"), policy(2))
        await follower.wait_until(lambda found: attempts(found) == 2, WAIT_S)
        await until_current(follower, True)


async def test_without_etcd_it_starts_from_the_last_good_copy(etcd: FakeEtcd) -> None:
    await put(etcd, KEYS.queue("q"), policy(1))
    copy = PartitionMap.from_json((await read_map(etcd)).to_json())
    etcd.stop()
    follower = make_follower(etcd, copy)
    async with following(follower):
        assert attempts(await asyncio.wait_for(follower.first_load(), WAIT_S)) == 1
        assert not follower.is_current
        etcd.resume()
        await until_current(follower, True)
        await put(etcd, KEYS.queue("q"), policy(2))
        await follower.wait_until(lambda found: attempts(found) == 2, WAIT_S)


async def test_without_etcd_and_without_a_copy_it_waits(etcd: FakeEtcd) -> None:
    etcd.stop()
    follower = make_follower(etcd)
    async with following(follower):
        first = asyncio.ensure_future(follower.first_load())
        await asyncio.sleep(0.02)
        assert not first.done()
        etcd.resume()
        assert (await asyncio.wait_for(first, WAIT_S)).cluster == CLUSTER


async def test_a_copy_of_another_cluster_is_refused(etcd: FakeEtcd) -> None:
    with pytest.raises(ValueError, match="other"):
        make_follower(etcd, PartitionMap(cluster_name="other"))


async def test_history_that_is_gone_is_read_anew(etcd: FakeEtcd) -> None:
    await put(etcd, KEYS.queue("q"), policy(1))
    await put(etcd, KEYS.queue("old"), policy(1))
    leases = await add_nodes(etcd, "a")
    async with loaded(etcd) as (follower, heard):
        etcd.stop()
        await until_current(follower, False)
        etcd.resume()
        # All of this in one go: the watch has no chance to see it before it is compacted away.
        etcd.apply([Put(KEYS.queue("q"), policy(7)), Delete(KEYS.queue("old"))])
        etcd.end_lease(leases["a"])
        etcd.compact()
        await follower.wait_until(lambda found: attempts(found) == 7, WAIT_S)
        assert set(follower.map.queues) == {"q"}
        assert follower.map.nodes == {}
        assert follower.map.last_nodes == {"a": node("a")}
        assert len(heard) == 1
        await put(etcd, KEYS.queue("q"), policy(8))
        await follower.wait_until(lambda found: attempts(found) == 8, WAIT_S)


async def test_reading_the_same_again_is_no_change(etcd: FakeEtcd) -> None:
    await put(etcd, b"of/somebody/else", b"1")
    async with loaded(etcd) as (follower, heard):
        etcd.stop()
        await until_current(follower, False)
        etcd.resume()
        for _ in range(3):
            etcd.apply([Put(b"of/somebody/else", b"2")])
        etcd.compact()
        await follower.wait_until(lambda found: found.revision == etcd.revision, WAIT_S)
    assert heard == []


@pytest.mark.parametrize("later", [0, 1, 5])
async def test_an_etcd_that_was_set_back_and_has_moved_on_is_read_anew(etcd: FakeEtcd, later: int) -> None:
    """Its revision is as large as the one that was told, or larger; only the records show that it is another one."""
    backup = etcd.save()
    async with loaded(etcd) as (follower, heard):
        await put(etcd, KEYS.queue("q"), policy(1))
        await put(etcd, KEYS.queue("lost"), policy(1))
        await follower.wait_until(lambda found: "lost" in found.queues, WAIT_S)
        # In one go: the watch comes back when all of this has happened.
        etcd.restore(backup)
        etcd.apply([Put(KEYS.queue("q"), policy(7))])
        etcd.apply([Put(b"of/somebody/else", b"")])
        for number in range(later):
            etcd.apply([Put(KEYS.queue(f"p{number}"), policy(1))])
        await follower.wait_until(lambda found: attempts(found) == 7, WAIT_S)
        assert set(follower.map.queues) == {"q", *(f"p{number}" for number in range(later))}
        assert follower.map.queues == heard[-1].queues, "whoever listens was told"
        assert follower.is_current


async def test_the_same_revision_of_another_history_is_a_change(etcd: FakeEtcd) -> None:
    backup = etcd.save()
    async with loaded(etcd) as (follower, heard):
        await put(etcd, KEYS.queue("q"), policy(1))
        await follower.wait_until(lambda found: attempts(found) == 1, WAIT_S)
        etcd.restore(backup)
        etcd.apply([Put(KEYS.queue("q"), policy(2))])
        await follower.wait_until(lambda found: attempts(found) == 2, WAIT_S)
    assert [attempts(found) for found in heard] == [1, 2]


async def test_connections_that_are_lost_without_end_do_not_read_without_end() -> None:
    reads = 0

    class Counting(FakeEtcd):
        async def read(self, prefix: bytes) -> Snapshot:
            nonlocal reads
            reads += 1
            return await super().read(prefix)

    counting = Counting()
    follower = MapFollower(counting, NAME, retry_s_min=0.02, retry_s_max=10)
    async with following(follower):
        await follower.first_load()
        for _ in range(300):
            counting.break_watches()
            await asyncio.sleep(0.001)
    assert 2 <= reads <= 8


async def test_a_bug_in_its_pulse_ends_it_and_its_watch() -> None:
    class Buggy(FakeEtcd):
        async def get(self, key: bytes) -> Row | None:
            raise ZeroDivisionError

    follower = make_follower(Buggy())
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(follower.run(), WAIT_S)


async def test_a_bad_record_does_not_end_it(etcd: FakeEtcd) -> None:
    await put(etcd, KEYS.queue("q"), policy(1))
    async with loaded(etcd) as (follower, _):
        await put(etcd, KEYS.queue("q"), b"nonsense")
        found = await follower.wait_until(lambda found: bool(found.problems), WAIT_S)
        assert attempts(found) == 1
        await put(etcd, KEYS.queue("q"), policy(2))
        await follower.wait_until(lambda found: attempts(found) == 2 and not found.problems, WAIT_S)


async def test_a_listener_that_fails_does_not_end_it(etcd: FakeEtcd) -> None:
    def fail(_found: PartitionMap) -> None:
        raise RuntimeError("of the listener")

    follower = make_follower(etcd)
    heard: list[PartitionMap] = []
    follower.on_change += [fail, heard.append]
    async with following(follower):
        await follower.first_load()
        await put(etcd, KEYS.queue("q"), policy(2))
        await follower.wait_until(lambda found: attempts(found) == 2, WAIT_S)
    assert len(heard) == 2


@pytest.mark.parametrize("other", [None, ClusterRecord("cd" * 16, 4, 1)])
async def test_a_cluster_is_not_forgotten_because_etcd_was_emptied(etcd: FakeEtcd, other: ClusterRecord | None) -> None:
    await put(etcd, KEYS.queue("q"), policy(1))
    async with loaded(etcd) as (follower, _):
        etcd.apply([Delete(KEYS.queue("q")), Put(KEYS.cluster, other.encode()) if other else Delete(KEYS.cluster)])
        await until_current(follower, False)
        await asyncio.sleep(0.03)  # some more tries, none of which may take over what is there
        assert not follower.is_current
        assert follower.map.cluster == CLUSTER
        assert attempts(follower.map) == 1
        await put(etcd, KEYS.cluster, CLUSTER.encode())
        await follower.wait_until(lambda found: attempts(found) is None, WAIT_S)
        await until_current(follower, True)


async def test_an_etcd_that_says_no_is_asked_again(etcd: FakeEtcd) -> None:
    class Refusing(FakeEtcd):
        refusals = 3

        async def read(self, prefix: bytes) -> Snapshot:
            self.refusals -= 1
            if self.refusals >= 0:
                raise EtcdRefusedError("wrong password")
            return await super().read(prefix)

    refusing = Refusing()
    follower = make_follower(refusing)
    async with following(follower):
        await asyncio.wait_for(follower.first_load(), WAIT_S)
    assert refusing.refusals == -1


async def test_waiting_for_what_never_comes_ends(etcd: FakeEtcd) -> None:
    follower = make_follower(etcd)
    async with following(follower):
        with pytest.raises(TimeoutError):
            await follower.wait_until(lambda found: attempts(found) == 9, 0.02)
