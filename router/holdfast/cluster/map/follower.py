"""Keeps a partition map in step with etcd, and keeps the last one when etcd is away."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing

from holdfast.cluster.etcd.api import CompactedError, Etcd, EtcdError, EtcdUnavailableError
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.common.backoff import Backoff
from holdfast.common.service import Service
from holdfast.serving.logs import get_logger

_log = get_logger(__name__)

RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
PULSE_S = 2.0
CONFIRM_S_MAX = 1.0


def _boot_seconds() -> float:
    """What is known gets older while a machine is suspended, which time.monotonic leaves out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


Listener = Callable[[PartitionMap], None]


class _OtherClusterError(Exception):
    """etcd has lost the cluster, or holds another one under its name."""


class Freshness:
    """When etcd last said that a map is the newest. Whoever looks at the map may have it before the map is followed."""

    def __init__(self) -> None:
        self._confirmed_s: float | None = None

    def confirm(self) -> None:
        self._confirmed_s = _boot_seconds()

    @property
    def age_s(self) -> float | None:
        """How long ago that was; None if it never was."""
        return None if self._confirmed_s is None else _boot_seconds() - self._confirmed_s


class MapFollower:
    """`map` is always there, `is_current` says whether etcd answers at the moment.

    Listeners in `on_change` are called on the loop, once for each batch of changes, with the new map. A map is never
    replaced by one of another cluster: whoever emptied etcd must not make a running cluster forget where all is.

    After every lost connection all is read anew, although a watch goes on without a gap: etcd may have been restored
    from a backup meanwhile, and be further than it was, and then the watch goes on in another history.
    """

    def __init__(
        self,
        etcd: Etcd,
        cluster_name: str,
        start_from: PartitionMap | None = None,
        *,
        freshness: Freshness | None = None,
        pulse_s: float = PULSE_S,
        retry_s_min: float = RETRY_S_MIN,
        retry_s_max: float = RETRY_S_MAX,
    ) -> None:
        """start_from: the last good copy, if there is one."""
        if start_from is not None and start_from.cluster_name != cluster_name:
            raise ValueError(
                f"Expected a copy of the map of cluster {cluster_name}, but it is of {start_from.cluster_name}."
            )
        self.map = start_from if start_from is not None else PartitionMap(cluster_name=cluster_name)
        self.is_current = False
        self._freshness = freshness or Freshness()
        self._confirming: asyncio.Task[bool] | None = None
        self.on_change: list[Listener] = []
        self._etcd = etcd
        self._keys = keys_of(cluster_name)
        self._pulse_s = pulse_s
        self._backoff = Backoff(retry_s_min, retry_s_max)
        self._failures = 0  # since the map was last read
        self._is_loaded = start_from is not None
        self._is_following = False  # the map was read from etcd, and its changes are watched
        self._reported = ""  # the last trouble, said once
        self._news = asyncio.Event()

    @property
    def trouble(self) -> str:
        """Why the map is not current, in a sentence; empty if it is."""
        return "" if self.is_current else self._reported

    @property
    def age_s(self) -> float | None:
        """How long ago etcd last confirmed the map; None if it never has."""
        return self._freshness.age_s

    async def confirm(self) -> bool:
        """Whether etcd answers at this very moment, and not only when it was last asked. Calls at once share one
        question."""
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm())
        return await asyncio.shield(self._confirming)

    async def _confirm(self) -> bool:
        if self._is_following:
            try:
                async with asyncio.timeout(CONFIRM_S_MAX):
                    await self._etcd.get(self._keys.cluster)
            except TimeoutError:
                self._lost(EtcdUnavailableError(f"etcd did not answer within {CONFIRM_S_MAX:g} s."))
            except EtcdError as error:
                self._lost(error)
            else:
                self._set_current(self._is_following)
        return self.is_current

    async def run(self) -> None:
        """Until cancelled."""
        await Service(self._follow, self._pulse).run()

    async def _follow(self) -> None:
        lost = 0  # connections in a row that did not last
        while True:
            began_s = time.monotonic()
            try:
                await self._load()
                await self._watch()
                # Connections that are lost again and again must not have everything read again and again.
                is_steady = time.monotonic() - began_s > self._backoff.max_s
                lost = 0 if is_steady else lost + 1
                await asyncio.sleep(self._backoff.pause_s(lost, random.random))
            except CompactedError as error:
                _log.info("map_history_compacted", revision=error.revision)
            except (EtcdError, _OtherClusterError) as error:
                self._is_following = False
                self._lost(error)
                self._failures += 1
                await asyncio.sleep(self._backoff.pause_s(self._failures, random.random))

    async def first_load(self) -> PartitionMap:
        """The map, once there is one: at once if the follower began with a copy, otherwise when etcd was read."""
        return await self.wait_until(lambda _: self._is_loaded)

    async def wait_until(
        self, predicate: Callable[[PartitionMap], bool], timeout: float | None = None
    ) -> PartitionMap:  # fmt: skip
        """The first map that fits; TimeoutError if none does in time (seconds)."""
        async with asyncio.timeout(timeout):
            while not predicate(self.map):
                await self._news.wait()
        return self.map

    async def _load(self) -> None:
        snapshot = await self._etcd.read(self._keys.prefix)
        loaded = PartitionMap.load(self.map.cluster_name, snapshot, self.map if self._is_loaded else None)
        self._adopt(loaded)
        self._failures = 0
        _log.info(
            "map_loaded", revision=loaded.revision, nodes=len(loaded.nodes), shards=len(loaded.shards),
            queues=len(loaded.queues),
        )  # fmt: skip

    async def _watch(self) -> None:
        """Until the connection was lost and is there again."""
        async with aclosing(self._etcd.watch(self._keys.prefix, self.map.revision)) as stream:
            async for changes in stream:
                if changes.is_resumed:
                    return
                self._adopt(self.map.apply(changes))

    def _adopt(self, new: PartitionMap) -> None:
        before = self.map
        if before.cluster is not None and (new.cluster is None or new.cluster.cluster_id != before.cluster.cluster_id):
            found = "none" if new.cluster is None else new.cluster.cluster_id
            raise _OtherClusterError(
                f"Expected the cluster {before.cluster.cluster_id} in etcd, but found {found}; the last good map is "
                "kept. Restore etcd, or start anew with empty data."
            )
        for key, problem in new.problems.items():
            if before.problems.get(key) is not problem:
                _log.error("map_record_is_bad", problem=str(problem))
        is_first, self._is_loaded = not self._is_loaded, True
        self.map = new
        self._is_following = True
        self._set_current(True)
        if is_first or not new.same_records(before):
            for listener in self.on_change:
                self._notify(listener, new)
        self._wake()

    def _notify(self, listener: Listener, new: PartitionMap) -> None:
        try:
            listener(new)
        except Exception:  # noqa: BLE001 - one listener's mistake must not cut the others off from the map
            _log.exception("map_listener_failed", revision=new.revision)

    async def _pulse(self) -> None:
        """A watch waits outages out in silence, so this asks now and then whether etcd is there."""
        while True:
            await asyncio.sleep(self._pulse_s)
            if not self._is_following:
                continue  # then a read is being tried again and again
            try:
                await self._etcd.get(self._keys.cluster)
            except EtcdError as error:
                self._lost(error)
            else:
                self._set_current(self._is_following)

    def _lost(self, error: Exception) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            _log.warning("map_is_not_current", revision=self.map.revision, error=str(error))
        self._set_current(False)

    def _set_current(self, is_current: bool) -> None:
        if is_current:
            self._freshness.confirm()
        if is_current != self.is_current:
            self.is_current = is_current
            self._reported = "" if is_current else self._reported
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
