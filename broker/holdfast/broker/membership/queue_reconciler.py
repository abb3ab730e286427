"""What a leader does for the queues that differ from the default: their policy goes into the log of their shards, and
the map is told where old tasks are left.

A policy counts from when it is in the log, so it survives a fail-over without etcd, and an older one is refused there.

There may be thousands of records, so a look goes only through those that changed since, those that are not done with
yet, and those with shards that drain or have drained. A shard that this node leads anew is gone through as a whole.

Versions are revisions of etcd, and an etcd that is restored from a backup begins again with smaller ones. That a
record is older than what the log has proves nothing: this node's copy of the map may be behind. So etcd itself is
asked at that moment. What it says is the newest there is, whatever its number: it gets the version after the known one.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.shard import Shard
from holdfast.cluster.admin.conversion import policy_message, policy_of
from holdfast.cluster.etcd.api import EtcdError
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.policy import NO_POLICY, PolicyRecord
from holdfast.cluster.map.records import QueueRecord
from holdfast.cluster.map.store import MapStore
from holdfast.machine.rows import Queue
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.routing.sets import visible
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

POLL_SECONDS: Final = 1.0
SEARCHED_QUEUES: Final = 200  # at a look
QUEUES_PER_SLICE: Final = 200  # before other work of the loop gets a turn

_NO_RECORD: Final = QueueRecord()

_log = get_logger(__name__)


class QueueReconciler:
    """`run` looks after all queues that have a record, on the shards that this node leads."""

    def __init__(self, host: Host, store: MapStore, cluster_view: MapClusterView) -> None:
        self._host = host
        self._store = store
        self._cluster_view = cluster_view
        self._seen: Mapping[str, QueueRecord] = {}  # the records of the last look
        self._seen_led: dict[int, Shard] = {}  # the shards that were led then
        self._unfinished: set[str] = set()  # queues to be looked at: what they need has not been done yet
        self._leaving: set[str] = set()  # queues with shards that drain or have drained: these may change by themselves
        self._is_etcd_away = False  # it did not answer at this look: nobody waits for it again
        self._reported: dict[str, str] = {}  # by queue: the last trouble, said once
        self._searched: dict[int, bytes] = {}  # by shard: the last queue that was looked at
        self._turn = 0  # whose queues are searched next

    async def run(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)  # not at every change of the map: there may be thousands of records
            await self.poll()
            try:
                await self.search()
            except Exception as error:  # noqa: BLE001 - as above
                _log.debug("search_put_off", error=str(error))

    async def poll(self) -> None:
        cluster_map = self._cluster_view.map
        if cluster_map.cluster is None:
            return
        await self._note_news(cluster_map)
        self._is_etcd_away = False
        for done, queue in enumerate([*self._unfinished, *(self._leaving - self._unfinished)]):
            if done % QUEUES_PER_SLICE == QUEUES_PER_SLICE - 1:
                await asyncio.sleep(0)
            try:
                is_done = await self._poll_one(cluster_map, queue)
            except EtcdError as error:
                is_done, self._is_etcd_away = False, True
                _log.debug("queue_put_off", queue=queue, error=str(error))
            except (RefusedError, OutcomeUnknownError) as error:
                is_done = False
                _log.debug("queue_put_off", queue=queue, error=str(error) or type(error).__name__)
            except Exception as error:  # noqa: BLE001 - a record that nobody can use must not end the node
                is_done = False
                if self._reported.get(queue) != (reported := str(error)):
                    self._reported[queue] = reported
                    _log.error("queue_record_unusable", queue=queue, error=reported)
            if is_done:
                self._unfinished.discard(queue)
            else:
                self._unfinished.add(queue)

    async def _note_news(self, cluster_map: PartitionMap) -> None:
        """Which queues have to be looked at, because of the map or because their shard is led here now."""
        before, self._seen = self._seen, cluster_map.queues
        if cluster_map.queues is not before:  # otherwise no record has changed: maps share what stayed the same
            self._unfinished.update(
                name for name, record in cluster_map.queues.items() if before.get(name) is not record
            )
            self._unfinished.update(before.keys() - cluster_map.queues.keys())
            self._leaving = {name for name, record in cluster_map.queues.items() if record.draining or record.drained}
        led = dict(self._led(self._host.replicas))
        new = [shard for number, shard in led.items() if self._seen_led.get(number) is not shard]
        self._seen_led = led
        if new:
            self._unfinished.update(cluster_map.queues)
        for shard in new:  # the log may know queues that the map does not, if etcd is older than it
            after, more = b"", True
            while more:
                rows, more = shard.reader.all_settings(after, QUEUES_PER_SLICE)
                self._unfinished.update(name.decode() for name, settings in rows if settings.policy)
                after = rows[-1][0] if rows else b""
                await asyncio.sleep(0)

    async def _poll_one(self, cluster_map: PartitionMap, queue: str) -> bool:
        """Does what the queue needs on the shards that are led here; whether nothing is left to do."""
        record = cluster_map.queues.get(queue, _NO_RECORD)
        is_done = True
        for number, shard in self._led({*record.draining, *record.drained}):
            is_done &= await self._report_drained(queue, record, number, shard)
        for number, shard in self._led(visible(cluster_map.route(queue))):
            is_done &= await self._log_policy(queue, cluster_map.queue_version(queue), record, number, shard)
        return is_done

    def _led(self, numbers: Iterable[int]) -> Iterator[tuple[int, Shard]]:
        for number in list(numbers):
            replica = self._host.replicas.get(number)
            if replica is not None and replica.shard.serves:
                yield number, replica.shard

    async def _report_drained(self, queue: str, record: QueueRecord, number: int, shard: Shard) -> bool:
        """A shard that was drained has tasks again when a dead letter there is retried, or a late one arrives."""
        is_empty = _is_empty(shard.queue(queue.encode()))
        if is_empty is (number in record.drained):
            return True
        if self._is_etcd_away:
            return False
        if is_empty:
            await self._store.note_drained(queue, number)
            _log.info("queue_drained", queue=queue, shard=number)
        else:
            await self._store.note_draining(queue, number)
        return True

    async def search(self) -> None:
        """Tasks of a queue may be where its record does not say: put there by somebody with an old map, or the map is
        older than they are, restored from a backup. The queues of one shard after the other are gone through, a page at
        a time, so that it costs the same however many shards this node leads."""
        cluster_map = self._cluster_view.map
        if cluster_map.cluster is None:
            return
        led = list(self._led(tuple(self._host.replicas)))
        if not led:
            return
        self._turn += 1
        number, shard = led[self._turn % len(led)]
        found, more = shard.reader.queues(self._searched.get(number, b""), SEARCHED_QUEUES)
        self._searched[number] = found[-1][0] if more else b""
        for name, counters in found:
            queue = name.decode()
            if not _is_empty(counters) and number not in visible(cluster_map.route(queue)):
                await self._store.note_draining(queue, number)
                _log.info("queue_found_elsewhere", queue=queue, shard=number)

    async def _log_policy(self, queue: str, version: int, record: QueueRecord, number: int, shard: Shard) -> bool:
        name, cluster_id = queue.encode(), self._cluster_view.cluster_id
        known = shard.settings_version(name)
        if version <= known:
            if _has_policy(shard, name, record.policy):
                return True
            if self._is_etcd_away:
                return False
            # This copy of the map is behind, or etcd was set back. `known` was read before etcd is: if another leader
            # logs something meanwhile, the version after `known` is refused.
            record, current = await self._store.read_queue(queue, cluster_id)
            if _has_policy(shard, name, record.policy):
                return True
            version = max(current, known + 1)
            if current <= known:
                _log.warning("queue_set_back", queue=queue, shard=number, known=known, in_etcd=current)
        elif not known and record.policy == NO_POLICY:
            return True
        return await shard.set_queue(name, version, policy_message(record.policy).SerializeToString())


def _has_policy(shard: Shard, queue: bytes, policy: PolicyRecord) -> bool:
    """Whether the log has exactly this."""
    settings = shard.reader.settings(queue)
    logged = b"" if settings is None else settings.policy
    # The same policy may be written in several ways.
    return (
        logged == policy_message(policy).SerializeToString() or policy_of(pb.QueuePolicy.FromString(logged)) == policy
    )


def _is_empty(counters: Queue | None) -> bool:
    """Dead tasks count: they are listed, and may be sent back."""
    if counters is None:
        return True
    return not (counters.ready + counters.claimed + counters.delayed + counters.retrying + counters.dead)
