"""A node that does not hear from etcd asks the others which queues have newer settings."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from holdfast.broker.api.internal import SETTINGS_NEWS
from holdfast.broker.cluster_view import map_view as map_cluster_view
from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.membership import settings_news
from holdfast.broker.membership.settings_news import SettingsNews
from holdfast.broker.peers.peer_calls import PeerCallFailedError
from holdfast.broker.policy.settings_guard import ASK_SECONDS
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.queues import QueueChange, Spread
from holdfast.cluster.map.store import MapStore
from holdfast.proto.v1 import broker_calls_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.serving.refusals import RefusedError
from tests.unit.cluster.cluster_stage import add_nodes, make_store, read_map

SHARDS = 3


class Stage:
    """Node a, cut off from etcd; b and c hear from it, if they are told to look."""

    def __init__(self, etcd: FakeEtcd, store: MapStore, known: dict[str, MapClusterView]) -> None:
        self.etcd = etcd
        self.store = store
        self.known = known
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.asked = 0
        self.reported: list[tuple[int, str, int]] = []
        self.news = SettingsNews(known["a"], self, self, lambda: ("b", "c"))

    async def ask(self, node: str, method: int, _shard: int, message: bytes, _timeout_s: float) -> bytes:
        assert method == SETTINGS_NEWS
        self.asked += 1
        if node in self.silent:
            raise PeerCallFailedError("it is silent")
        if node in self.broken:
            return b"\xff\xff"
        request = pb.SettingsNewsRequest.FromString(message)
        newer = self.known[node].settings_news(request.cluster_id, request.after_version)
        queues = [pb.QueueVersion(queue=name, version=version) for name, version in newer]
        return pb.SettingsNewsResponse(queues=queues).SerializeToString()

    def settings_reported(self, number: int, queue: bytes, version: int) -> None:
        self.reported.append((number, queue.decode(), version))

    async def cap(self, queue: str, *heard_by: str) -> int:
        """The newest version, once these have heard of it."""
        _, version = await self.store.set_queue(queue, QueueChange(policy={"concurrency_max": 1}))
        for name in heard_by:
            self.known[name].map = await read_map(self.etcd)
        return version


@pytest.fixture
async def stage() -> Stage:
    etcd = FakeEtcd()
    await add_nodes(etcd, "a", "b", "c")
    store = make_store(etcd)
    await store.init_cluster(SHARDS, 3)
    await store.set_queue("spread", QueueChange(placement=Spread(SHARDS)))
    partition_map = await read_map(etcd)
    return Stage(etcd, store, {name: MapClusterView(name, partition_map) for name in ("a", "b", "c")})


async def test_while_all_know_the_same_nothing_is_told(stage: Stage) -> None:
    await stage.news.ask()
    assert (stage.asked, stage.reported) == (2, [])


@pytest.mark.parametrize("silent", ["b", "c"])
async def test_one_node_that_knows_more_is_enough(stage: Stage, silent: str) -> None:
    stage.silent.add(silent)
    version = await stage.cap("q", "b" if silent == "c" else "c")
    await stage.news.ask()
    assert stage.reported == [(home_shard("q", SHARDS), "q", version)]


async def test_an_answer_that_nobody_understands_is_none(stage: Stage) -> None:
    stage.broken.add("c")
    version = await stage.cap("q", "b")
    await stage.news.ask()
    assert stage.reported == [(home_shard("q", SHARDS), "q", version)]


async def test_all_shards_of_a_queue_are_told(stage: Stage) -> None:
    version = await stage.cap("spread", "b")
    await stage.news.ask()
    assert sorted(stage.reported) == [(shard, "spread", version) for shard in range(SHARDS)]


async def test_many_are_told_page_by_page(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (map_cluster_view, settings_news):
        monkeypatch.setattr(module, "NEWS_QUEUES", 2)
    versions = {f"q{n}": await stage.cap(f"q{n}", "c") for n in range(5)}
    stage.silent.add("b")
    await stage.news.ask()
    assert {queue: version for _shard, queue, version in stage.reported} == versions
    assert stage.asked == 1 + 3


async def test_another_cluster_is_told_nothing(stage: Stage) -> None:
    with pytest.raises(RefusedError, match="same cluster"):
        stage.known["b"].settings_news("another", 0)
    no_map = MapClusterView("b", replace(stage.known["b"].map, cluster=None))
    with pytest.raises(RefusedError, match="same cluster"):
        no_map.settings_news("", 0)


@pytest.mark.parametrize(("age_s", "asks"), [(0.0, False), (ASK_SECONDS, False), (ASK_SECONDS + 1, True), (None, True)])
async def test_who_hears_from_etcd_asks_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, age_s: float | None, asks: bool
) -> None:
    monkeypatch.setattr(settings_news, "RENEW_SECONDS", 0)
    monkeypatch.setattr(stage.known["a"], "age_s", lambda: age_s)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await stage.news.run()
    assert (stage.asked > 0) is asks
