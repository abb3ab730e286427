"""What tests do to the etcd in memory, and the parts of the client that need no etcd.

The rules that it shares with the real one are in tests/integration/test_etcd_client.py.
"""

import asyncio
import importlib.util
import shutil
from collections.abc import AsyncIterator

import pytest

from holdfast.cluster.etcd import process
from holdfast.cluster.etcd.api import (
    Changes,
    CommitUnknownError,
    CompactedError,
    Etcd,
    EtcdUnavailableError,
    LeaseLostError,
    Put,
    Unchanged,
)
from holdfast.cluster.etcd.client import EtcdClient
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.etcd.messages import WatchReader, range_of
from holdfast.cluster.etcd.problems import Cause, judge
from holdfast.proto.etcd import etcd_pb2 as pb


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def fake(clock: Clock) -> AsyncIterator[FakeEtcd]:
    fake = FakeEtcd(clock=clock)
    yield fake
    await fake.close()


async def put(etcd: Etcd, key: bytes, lease: int = 0) -> int:
    return (await etcd.commit([], [Put(key, b"", lease)])).revision


async def soon(changes: AsyncIterator[Changes]) -> Changes:
    return await asyncio.wait_for(anext(changes), 5)


def test_both_are_an_etcd() -> None:
    both: list[Etcd] = [FakeEtcd(), EtcdClient(["127.0.0.1:1"])]  # the type checker compares every method
    asked = [name for name in vars(Etcd) if not name.startswith("_")]
    assert len(asked) == 9
    missing = [name for etcd in both for name in asked if not callable(getattr(etcd, name, None))]
    assert missing == ["certificates", "certificates"], "which is no method"


# --- the fake -----------------------------------------------------------------------------------------------------


async def test_leases_follow_the_clock(fake: FakeEtcd, clock: Clock) -> None:
    short, long = await fake.grant(5), await fake.grant(6)
    await put(fake, b"short", short)
    last = await put(fake, b"long", long)
    watch = fake.watch(b"", last)
    clock.now_s += 5
    fake.expire_leases()
    assert [change.row.key for change in (await soon(watch)).changes] == [b"short"]
    assert fake.leases == [long]
    clock.now_s += 1
    assert await fake.get(b"long") is None, "whoever asks sees that time has passed"


async def test_keep_alive_renews_and_notices(fake: FakeEtcd, clock: Clock) -> None:
    lease = await fake.grant(9)
    keeping = asyncio.create_task(fake.keep_alive(lease, 9))
    for _ in range(10):
        await asyncio.sleep(0)
        clock.now_s += 3
        fake.expire_leases()
    assert fake.leases == [lease]
    await fake.revoke(lease)
    with pytest.raises(LeaseLostError):
        await asyncio.wait_for(keeping, 5)


async def test_keep_alive_gives_up_when_its_time_is_over(fake: FakeEtcd, clock: Clock) -> None:
    lease = await fake.grant(9)
    keeping = asyncio.create_task(fake.keep_alive(lease, 9))
    await asyncio.sleep(0)
    fake.stop()
    clock.now_s += 8
    fake.expire_leases()
    await asyncio.sleep(0)
    assert not keeping.done()
    clock.now_s += 1
    fake.expire_leases()
    with pytest.raises(LeaseLostError, match="not answered"):
        await asyncio.wait_for(keeping, 5)
    fake.resume()
    assert fake.leases == [lease], "nobody was there to end it; now it has its whole time again"
    clock.now_s += 9
    fake.expire_leases()
    assert fake.leases == []


async def test_a_stopped_one_does_not_answer(fake: FakeEtcd) -> None:
    start = await put(fake, b"a")
    watch = fake.watch(b"", start)
    waiting = asyncio.create_task(soon(watch))
    fake.stop()
    for work in (fake.get(b"a"), fake.read(b""), put(fake, b"b"), fake.grant(5), fake.revoke(1)):
        with pytest.raises(EtcdUnavailableError):
            await work
    fake.resume()
    await put(fake, b"c")
    assert await waiting == Changes(start, [], is_resumed=True)
    assert [change.row.key for change in (await soon(watch)).changes] == [b"c"]


@pytest.mark.parametrize("is_done", [True, False])
async def test_an_answer_can_get_lost(fake: FakeEtcd, is_done: bool) -> None:
    fake.lose_next_answer(is_done=is_done)
    with pytest.raises(CommitUnknownError):
        await put(fake, b"a")
    assert (await fake.get(b"a") is not None) == is_done
    assert (await fake.commit([Unchanged(b"b", 0)], [Put(b"b", b"")])).is_done


async def test_history_that_was_missed_can_be_gone(fake: FakeEtcd) -> None:
    start = await put(fake, b"a")
    watch = fake.watch(b"", start)
    await put(fake, b"b")
    assert (await soon(watch)).revision == start + 1
    for key in (b"c", b"d", b"e"):
        await put(fake, key)
    fake.compact()
    assert (await soon(watch)).revision == start + 2, "what is under way does not notice"
    fake.break_watches()
    with pytest.raises(CompactedError):
        await soon(watch)


async def test_progress_is_told_without_news(fake: FakeEtcd) -> None:
    start = await put(fake, b"a")
    watch = fake.watch(b"a", start)
    waiting = asyncio.create_task(soon(watch))
    await asyncio.sleep(0)
    last = await put(fake, b"b")
    fake.report_progress()
    assert await waiting == Changes(last, [])


# --- the pure parts of the client -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (b"a/", (b"a/", b"a0")),
        (b"a\xff", (b"a\xff", b"b")),
        (b"\xff\xff", (b"\xff\xff", b"\0")),
        (b"", (b"\0", b"\0")),
    ],
)
def test_the_range_of_a_prefix(prefix: bytes, expected: tuple[bytes, bytes]) -> None:
    assert range_of(prefix) == expected


def answer(revision: int, *events: int, fragment: bool = False) -> pb.WatchResponse:
    return pb.WatchResponse(
        header=pb.ResponseHeader(revision=revision),
        events=[pb.Event(kv=pb.KeyValue(key=b"%d" % event, mod_revision=event)) for event in events],
        fragment=fragment,
    )


def reported(changes: Changes | None) -> tuple[int, list[int]]:
    assert changes is not None
    return changes.revision, [change.row.mod_revision for change in changes.changes]


def test_a_reader_believes_events_and_not_the_header() -> None:
    reader = WatchReader(b"", 3)
    assert reported(reader.take(answer(100, 4, 4, 6))) == (6, [4, 4, 6]), "there is more to come before 100"
    assert reader.begin().create_request.start_revision == 7
    assert reported(reader.take(answer(9))) == (9, [])
    assert reader.take(answer(8)) is None, "from a member that is behind"
    assert reader.begin().create_request.start_revision == 10


def test_a_reader_tells_nothing_twice() -> None:
    reader = WatchReader(b"", 3)
    assert reported(reader.take(answer(9, 3, 4))) == (4, [4])
    assert reader.take(answer(9, 4)) is None
    assert reader.begin().create_request.start_revision == 5


def test_a_reader_waits_for_all_parts_and_drops_those_of_a_lost_connection() -> None:
    reader = WatchReader(b"", 3)
    assert reader.take(answer(5, 4, 5, fragment=True)) is None
    assert reader.begin().create_request.start_revision == 4
    assert reader.take(answer(5, 4, 5, fragment=True)) is None
    assert reported(reader.take(answer(5, 5))) == (5, [4, 5, 5])


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", Cause.NOT_DONE),
        ("UNAVAILABLE", "failed to connect to all addresses; last error: whatever", Cause.NOT_DONE),
        ("UNAVAILABLE", "Socket closed", Cause.LOST),
        ("UNAVAILABLE", "etcdserver: request timed out", Cause.LOST),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", Cause.LOST),
        ("UNAVAILABLE", "etcdserver: server stopped", Cause.LOST),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Cause.LOST),
        ("INTERNAL", "Received RST_STREAM with error code 2", Cause.LOST),
        ("UNKNOWN", "", Cause.LOST),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Cause.NOT_DONE),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Cause.REFUSED),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Cause.TOKEN),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Cause.TOKEN),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", Cause.REFUSED),
        ("INVALID_ARGUMENT", "etcdserver: something new", Cause.REFUSED),
        ("", "rpc error: code = PermissionDenied desc = etcdserver: permission denied", Cause.DENIED),
    ],
)
def test_failures_are_taken_for_what_they_mean(code: str, details: str, kind: Cause) -> None:
    assert judge(code, details).kind is kind


def test_a_missing_etcd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert process.find_etcd().parts[-2:] == ("etcdbin", "etcd")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(process.EtcdProcessError, match=r"pip install 'holdfast-queue\[local\]'"):
        process.find_etcd()
