"""What a leader does for the queues that differ from the default: their policy goes into the log of their shards, and
the map is told where old tasks are left.

A policy counts from when it is in the log, so it survives a fail-over without etcd, and an older one is refused there.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from holdfast.broker.hosting import Host
from holdfast.broker.map_surroundings import MapSurroundings
from holdfast.broker.shard import Shard
from holdfast.broker.views import read_queues
from holdfast.cluster.etcd.api import EtcdError
from holdfast.cluster.messages import policy_message
from holdfast.cluster.policy import NO_POLICY
from holdfast.cluster.records import QueueRecord
from holdfast.cluster.store import MapStore
from holdfast.machine.rows import Queue
from holdfast.routing.sets import visible
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

LOOK_SECONDS: Final = 1.0
SEARCHED_QUEUES: Final = 200  # at a look
QUEUES_PER_SLICE: Final = 200  # before other work of the loop gets a turn

_log = get_logger(__name__)


class QueueSteward:
    """`run` looks after all queues that have a record, on the shards that this node leads."""

    def __init__(self, host: Host, store: MapStore, surroundings: MapSurroundings) -> None:
        self._host = host
        self._store = store
        self._surroundings = surroundings
        self._told: dict[str, str] = {}  # by queue: the last trouble, said once
        self._searched: dict[int, bytes] = {}  # by shard: the last queue that was looked at
        self._turn = 0  # whose queues are searched next

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)  # not at every change of the map: there may be thousands of records
            await self.look()
            try:
                await self.search()
            except Exception as error:  # noqa: BLE001 - as above
                _log.debug("search_put_off", error=str(error))

    async def look(self) -> None:
        at = self._surroundings.map
        for done, (queue, record) in enumerate(at.queues.items()):
            if done % QUEUES_PER_SLICE == QUEUES_PER_SLICE - 1:
                await asyncio.sleep(0)
            try:
                for number, shard in self._led({*record.draining, *record.drained}):
                    await self._tell_drained(queue, record, number, shard)
                for _number, shard in self._led(visible(at.route(queue))):
                    await self._log_policy(queue, at.queue_version(queue), record, shard)
            except (EtcdError, RefusedError, OutcomeUnknownError) as error:
                _log.debug("queue_put_off", queue=queue, error=str(error) or type(error).__name__)
            except Exception as error:  # noqa: BLE001 - a record that nobody can use must not end the node
                if self._told.get(queue) != (told := str(error)):
                    self._told[queue] = told
                    _log.error("queue_record_unusable", queue=queue, error=told)

    def _led(self, numbers: "set[int] | tuple[int, ...]") -> Iterator[tuple[int, Shard]]:
        for number in numbers:
            replica = self._host.replicas.get(number)
            if replica is not None and replica.shard.serves:
                yield number, replica.shard

    async def _tell_drained(self, queue: str, record: QueueRecord, number: int, shard: Shard) -> None:
        """A shard that was drained has tasks again when a dead letter there is retried, or a late one arrives."""
        is_empty = _is_empty(shard.queue(queue.encode()))
        if is_empty and number in record.draining:
            await self._store.note_drained(queue, number)
            _log.info("queue_drained", queue=queue, shard=number)
        elif not is_empty and number in record.drained:
            await self._store.note_draining(queue, number)

    async def search(self) -> None:
        """Tasks of a queue may be where its record does not say: put there by somebody with an old map, or the map is
        older than they are, restored from a backup. The queues of one shard after the other are gone through, a page at
        a time, so that it costs the same however many shards this node leads."""
        at = self._surroundings.map
        if at.cluster is None:
            return
        led = list(self._led(tuple(self._host.replicas)))
        if not led:
            return
        self._turn += 1
        number, shard = led[self._turn % len(led)]
        found, more = read_queues(shard.kv, self._searched.get(number, b""), SEARCHED_QUEUES)
        self._searched[number] = found[-1][0] if more else b""
        for name, counters in found:
            queue = name.decode()
            if not _is_empty(counters) and number not in visible(at.route(queue)):
                await self._store.note_draining(queue, number)
                _log.info("queue_found_elsewhere", queue=queue, shard=number)

    async def _log_policy(self, queue: str, version: int, record: QueueRecord, shard: Shard) -> None:
        known = shard.settings_version(queue.encode())
        if known >= version or not (known or record.policy != NO_POLICY):
            return
        await shard.set_queue(queue.encode(), version, policy_message(record.policy).SerializeToString())


def _is_empty(counters: Queue | None) -> bool:
    """Dead tasks count: they are listed, and may be sent back."""
    if counters is None:
        return True
    return not (counters.ready + counters.claimed + counters.delayed + counters.retrying + counters.dead)
