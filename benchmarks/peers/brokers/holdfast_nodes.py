"""Holdfast: one node, three static ones, or three with etcd and a router, and the public asynchronous client."""

from collections.abc import Sequence
from typing import Any

from harness.cluster import Cluster
from harness.mapped import MappedCluster
from harness.server import ServerProcess
from holdfast.client import AsyncClient, Claims, NewTask, Rejected
from peers.peer import Client, Peer

LEASE_MS = 60_000
TYPE = "nothing"


class Node(Peer):
    async def start(self) -> None:
        self._server = await ServerProcess.start(self.directory / "data")
        self.target = {"address": self._server.address}

    async def empty_queue(self) -> str:
        return self.next_queue()

    async def stop(self) -> None:
        if hasattr(self, "_server"):
            await self._server.kill()
        await super().stop()

    @property
    def pids(self) -> list[int]:
        return [self._server.pid]


class StaticNodes(Peer):
    async def start(self) -> None:
        self._cluster = await self._begin()
        self.target = {"address": self._address()}

    async def _begin(self) -> Cluster:
        return await Cluster.start(self.directory)

    def _address(self) -> str:
        return self._cluster.address

    async def empty_queue(self) -> str:
        return self.next_queue()

    async def stop(self) -> None:
        if hasattr(self, "_cluster"):
            await self._cluster.__aexit__()
        await super().stop()

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self._cluster.nodes.values()]


class BehindRouter(StaticNodes):
    _cluster: MappedCluster

    async def _begin(self) -> Cluster:
        return await MappedCluster.start(self.directory)

    def _address(self) -> str:
        return self._cluster.router.address

    @property
    def pids(self) -> list[int]:
        return [*super().pids, self._cluster.router.pid, self._cluster.etcd_pid]


class HoldfastClient(Client):
    async def open(self) -> None:
        self._client = AsyncClient(self.target["address"], timeout_s=60)

    async def produce(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await self._client.enqueue(NewTask(self.queue, TYPE, payloads[0]))
        else:
            _raise_rejected(await self._client.enqueue_run(NewTask(self.queue, TYPE), payloads))

    async def claim(self, tasks_max: int, wait_s: float) -> tuple[Sequence[bytes], Any]:
        wait_ms = round(wait_s * 1000)
        claims = await self._client.reserve([self.queue], max_tasks=tasks_max, lease_ms=LEASE_MS, wait_ms=wait_ms)
        return [claim.payload for claim in claims], claims

    async def ack(self, handle: Claims) -> None:
        _raise_rejected(await self._client.ack_many(handle))


def _raise_rejected(outcomes: Sequence[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Rejected):
            raise outcome
