"""What the settings of queues are elsewhere, for a node that does not hear from etcd: it asks all others which queues
have newer ones than it has heard of, and its shards stop handing those out (settings_guard.py)."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from holdfast.broker.api.internal import SETTINGS_NEWS
from holdfast.broker.cluster_view.map_view import NEWS_QUEUES, MapClusterView
from holdfast.broker.policy.settings_guard import ANSWER_SECONDS, ASK_SECONDS, QUEUES_MAX, RENEW_SECONDS
from holdfast.proto.v1 import broker_calls_pb2 as pb
from holdfast.routing.sets import visible
from holdfast.serving.logs import get_logger

_log = get_logger(__name__)


class SettingsListener(Protocol):
    """The shards that this node leads."""

    def settings_reported(self, number: int, queue: bytes, version: int) -> None:
        """Nothing happens if the shard is led by another node."""
        ...


class SettingsCalls(Protocol):
    async def ask(self, node: str, method: int, shard: int, message: bytes, timeout_s: float) -> bytes: ...


class SettingsNews:
    """Of this node. `run` until cancelled."""

    def __init__(
        self,
        cluster_view: MapClusterView,
        calls: SettingsCalls,
        led: SettingsListener,
        others: Callable[[], Iterable[str]],
    ) -> None:
        self._cluster_view = cluster_view
        self._calls = calls
        self._led = led
        self._others = others

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            age_s = self._cluster_view.age_s()
            if age_s is None or age_s > ASK_SECONDS:
                await self.ask()

    async def ask(self) -> None:
        """All others at once: one that does not answer holds up nobody."""
        heard = await asyncio.gather(*(self._ask(node) for node in self._others()))
        cluster_map = self._cluster_view.map
        for queue, version in ((queue, version) for versions in heard for queue, version in versions.items()):
            for number in {cluster_map.route(queue).home, *visible(cluster_map.route(queue))}:
                self._led.settings_reported(number, queue.encode(), version)

    async def _ask(self, node: str) -> Mapping[str, int]:
        cluster_map, found = self._cluster_view.map, dict[str, int]()
        after, more = cluster_map.revision, True
        try:
            while more and len(found) < QUEUES_MAX:
                request = pb.SettingsNewsRequest(cluster_id=self._cluster_view.cluster_id, after_version=after)
                message = request.SerializeToString()
                data = await self._calls.ask(node, SETTINGS_NEWS, 0, message, ANSWER_SECONDS)
                page = pb.SettingsNewsResponse.FromString(data).queues
                found.update((entry.queue, entry.version) for entry in page)
                more = len(page) >= NEWS_QUEUES
                after = page[-1].version if page else after
        except Exception as error:  # noqa: BLE001 - however it failed, it is asked again: it must not end the node
            _log.debug("settings_not_reported", node=node, error=str(error) or type(error).__name__)
        return found
