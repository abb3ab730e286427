"""One rebalancer at a time: whoever holds the key `rebalancer`, for as long as its lease lasts."""

import asyncio
from contextlib import suppress
from typing import Final

from holdfast.cluster.etcd.api import CommitUnknownError, Etcd, EtcdError, Put, Unchanged
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.records import RebalancerRecord
from holdfast.common.service import end_tasks
from holdfast.serving.logs import get_logger

LEASE_SECONDS: Final = 10
AGAIN_SECONDS: Final = 1.0

_log = get_logger(__name__)


class Election:
    """`run` until cancelled; `is_active` says whether this process is the one."""

    def __init__(self, etcd: Etcd, follower: MapFollower, name: str) -> None:
        self._etcd = etcd
        self._follower = follower
        self._name = name
        self._key = keys_of(follower.map.cluster_name).rebalancer
        self.is_active = False

    async def run(self) -> None:
        while True:
            with suppress(EtcdError):  # whatever it is: the lease is lost, and so is the office
                await self._stand()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _stand(self) -> None:
        lease = await self._etcd.grant(LEASE_SECONDS)
        holding = asyncio.create_task(self._etcd.keep_alive(lease, LEASE_SECONDS))
        electing = asyncio.create_task(self._elect(lease))
        try:
            await asyncio.wait([holding, electing], return_when=asyncio.FIRST_COMPLETED)
            if electing.done():
                electing.result()
                self.is_active = True
                _log.info("rebalancing_here", name=self._name)
            await holding
        finally:
            if self.is_active:
                self.is_active = False
                _log.info("rebalancing_here_no_more", name=self._name)
            await end_tasks([holding, electing])
            with suppress(EtcdError):
                await self._etcd.revoke(lease)

    async def _elect(self, lease: int) -> None:
        """Returns once the key is this process's."""
        record = RebalancerRecord(self._name).encode()
        while True:
            with suppress(CommitUnknownError):
                await self._etcd.commit([Unchanged(self._key, 0)], [Put(self._key, record, lease)])
            row = await self._etcd.get(self._key)
            if row is not None and row.lease == lease:
                return
            with suppress(TimeoutError):
                await self._follower.wait_until(lambda found: found.rebalancer is None, AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS / 10)
