"""A cluster with a partition map on this machine: a real etcd, real brokers and one router."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from harness.cluster import HOST, POLL_SECONDS, WHOLE_SECONDS_MAX, Cluster, free_ports
from harness.results import BrokenRunError
from harness.server import ServerProcess
from holdfast.client import HoldfastError
from holdfast.cluster.etcd.process import EtcdProcess, EtcdProcessError

NAME = "bench"


@asynccontextmanager
async def etcd_in(directory: Path) -> AsyncIterator[EtcdProcess]:
    """One that serves, gone afterwards."""
    etcd = EtcdProcess(directory / "etcd")
    try:
        await _start_etcd(etcd)
        yield etcd
    finally:
        await asyncio.to_thread(etcd.kill)


async def _start_etcd(etcd: EtcdProcess) -> None:
    """Whoever is cancelled meanwhile finds a process that can be ended: only the wait is in a thread."""
    try:
        etcd.launch()
        await asyncio.to_thread(etcd.wait_until_healthy)
    except EtcdProcessError as error:
        raise BrokenRunError(str(error)) from None


class MappedCluster(Cluster):
    """Its `address` is that of the brokers, as of every cluster; that of the router is `router.address`."""

    router: ServerProcess

    def __init__(self, directory: Path, shards: int, replication: int) -> None:
        super().__init__(directory, shards, replication)
        self._etcd = EtcdProcess(directory / "etcd")

    @property
    def etcd_pid(self) -> int:
        pid = self._etcd.pid
        assert pid is not None
        return pid

    async def _begin(self) -> None:
        await _start_etcd(self._etcd)
        await self._start_nodes()
        await self._wait_registered()
        await self._client.init_cluster(self._shards, replication=self._replication, timeout_s=WHOLE_SECONDS_MAX)
        self.router = await ServerProcess.start_router(self._directory, self._etcd.endpoint, NAME)
        await self.router.wait_ready()

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:  # each is ended, even if another cannot be
            stack.push_async_callback(asyncio.to_thread, self._etcd.kill)
            stack.push_async_callback(super().__aexit__)
            if hasattr(self, "router"):
                stack.push_async_callback(self.router.kill)

    async def stop(self) -> None:
        """A clean stop of all that we wrote; raises if it was not one."""
        await self.router.stop()
        await super().stop()

    async def add_node(self, name: str) -> None:
        """One more broker, with nothing. Returns once it is in the map."""
        port, peer_port = free_ports(2)
        self._addresses[name], self._peer_addresses[name] = f"{HOST}:{port}", f"{HOST}:{peer_port}"
        self._config(name).write_text(self._config_text(name), encoding="utf-8")
        await self.start_node(name)
        await self._wait_registered()

    async def voters(self) -> set[str]:
        """Names of the nodes that have shard 0, as the map has it."""
        info = await self._client.describe_cluster()
        return {voter.partition("/")[0] for voter in info.shards[0].voters}

    async def _wait_registered(self) -> None:
        ends_s = time.monotonic() + WHOLE_SECONDS_MAX
        while await self._alive() != self.nodes.keys():
            if time.monotonic() > ends_s:
                raise BrokenRunError(f"the nodes were not in the map within {WHOLE_SECONDS_MAX:g} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _alive(self) -> set[str]:
        try:
            info = await self._client.describe_cluster()
        except HoldfastError:
            return set()  # nobody answers as yet
        return {node.name for node in info.nodes if node.is_alive}

    def _config_text(self, name: str) -> str:
        port, peer_port = (addresses[name].rpartition(":")[2] for addresses in (self._addresses, self._peer_addresses))
        lines = [f'node_name = "{name}"', f'host = "{HOST}"', f'cluster_name = "{NAME}"']
        lines += [f"port = {port}", f"peer_port = {peer_port}", f'etcd_endpoints = "{self._etcd.endpoint}"']
        return "\n".join(lines) + "\n"
