"""A static cluster of real broker processes on this machine, each on a data directory of its own."""

import asyncio
import random
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from harness import probes
from harness.results import BrokenRunError
from harness.server import ServerProcess
from holdfast.client import AsyncClient, HoldfastError, NodeReport, ReplicaInfo, ReplicaRole

HOST = "127.0.0.1"
NODES = 3
# Below the range from which the kernel takes ports for outgoing connections: while a broker is down, a client could
# otherwise be given its port, or connect to itself.
PORTS = range(20_000, 32_000)
WHOLE_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1  # between two polls of the replicas
ASK_SECONDS_MAX = 2.0
HASH_SECONDS_MAX = 60.0

_VOTING = (ReplicaRole.LEADER, ReplicaRole.FOLLOWER)


class Cluster:
    """Made by `start`; leaving its `async with` ends every process of it."""

    def __init__(self, directory: Path, shards: int, replication: int) -> None:
        self._directory = directory
        self._shards = shards
        self._names = [f"n{number}" for number in range(1, NODES + 1)]
        ports = free_ports(2 * NODES)
        self._addresses = dict(zip(self._names, (f"{HOST}:{port}" for port in ports[:NODES]), strict=True))
        self._peer_addresses = dict(zip(self._names, (f"{HOST}:{port}" for port in ports[NODES:]), strict=True))
        self._replication = replication
        self._client = AsyncClient(self.address, timeout_s=ASK_SECONDS_MAX)
        self.nodes: dict[str, ServerProcess] = {}

    @classmethod
    async def start(cls, directory: Path, *, shards: int = 1, replication: int = NODES) -> Self:
        """Returns once every replica of every shard votes."""
        cluster = cls(directory, shards, replication)
        try:
            await cluster._begin()
            await cluster.wait_whole()
        except BaseException:
            await cluster.__aexit__()
            raise
        return cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:  # each is ended, even if another cannot be
            for node in self.nodes.values():
                stack.push_async_callback(node.kill)
            stack.push_async_callback(self._client.close)

    @property
    def address(self) -> str:
        """All of them, as a client takes it."""
        return ",".join(self._addresses.values())

    async def _begin(self) -> None:
        """Starts every process."""
        await self._start_nodes()

    async def _start_nodes(self) -> None:
        for name in self._names:
            self._config(name).write_text(self._config_text(name), encoding="utf-8")
        # None of them can found the shards alone.
        async with asyncio.TaskGroup() as group:
            for name in self._names:
                group.create_task(self.start_node(name))
        self.nodes = {name: self.nodes[name] for name in self._names}

    async def start_node(self, name: str) -> None:
        self.nodes[name] = await ServerProcess.start_node(self._config(name), self._directory / name)

    async def stop(self) -> None:
        """A clean stop of all; raises if it was not one."""
        async with asyncio.TaskGroup() as group:
            for node in self.nodes.values():
                group.create_task(node.stop())

    @property
    def cpu_s(self) -> dict[int, float]:
        """What each process that lives has spent so far, by its pid."""
        return {node.pid: probes.process_cpu_s(node.pid) for node in self.nodes.values() if node.is_running}

    @property
    def led_at_s(self) -> float:
        """When a node last said that it leads."""
        return max(node.led_at_s for node in self.nodes.values())

    # --- what the nodes say of their replicas --------------------------------------------------------------------

    async def leadership(self) -> tuple[int, str]:
        """Of shard 0: the term, and the name of the node that leads in it."""
        replicas = _replicas(await self._reports(), 0)
        leading = [(replica.term, name) for name, replica in replicas.items() if _leads(replica)]
        if not leading:
            raise BrokenRunError("nobody leads")
        return max(leading)

    async def terms(self) -> dict[int, int]:
        """The term of each shard that somebody leads."""
        reports = await self._reports()
        replicas = {shard: _replicas(reports, shard).values() for shard in range(self._shards)}
        return {shard: max((one.term for one in its if _leads(one)), default=0) for shard, its in replicas.items()}

    async def leaders(self) -> dict[int, str]:
        """Who leads each shard; those that nobody leads are left out."""
        reports = await self._reports()
        led = ((shard, name, one) for shard in range(self._shards) for name, one in _replicas(reports, shard).items())
        return {shard: name for shard, name, one in led if _leads(one)}

    def by_role(self, leader: str) -> Mapping[str, ServerProcess]:
        """The nodes by what they are, the leader first."""
        followers = [name for name in self._names if name != leader]
        named = {f"follower {index}": self.nodes[name] for index, name in enumerate(followers, 1)}
        return {"leader": self.nodes[leader], **named}

    async def wait_whole(self, *, lag_max: int = 0) -> None:
        """Returns once every shard has a leader and all of its replicas vote and have applied what it committed.

        `lag_max`: how many entries may be missing, while somebody writes.
        """
        ends_s = time.monotonic() + WHOLE_SECONDS_MAX
        while not self._is_whole(await self._reports(), lag_max):
            if time.monotonic() > ends_s:
                reported = "\n".join(f"{name}: {node.last_line}" for name, node in self.nodes.items())
                raise BrokenRunError(f"the replicas did not come together within {WHOLE_SECONDS_MAX:g} s:\n{reported}")
            await asyncio.sleep(POLL_SECONDS)

    async def check_equal(self, timeout_s: float = HASH_SECONDS_MAX) -> None:
        """Every replica has the same state."""
        reported = await self._client.hash_shard(0, timeout_s=timeout_s)
        if len(reported.replicas) != NODES or not reported.complete or reported.different:
            raise BrokenRunError(f"expected {NODES} equal states, but they are {reported.replicas}")

    async def _reports(self) -> list[NodeReport]:
        try:
            return await self._client.describe_nodes()
        except HoldfastError:
            return []  # nobody answers as yet

    def _is_whole(self, reports: list[NodeReport], lag_max: int) -> bool:
        return all(
            _is_shard_whole(_replicas(reports, shard), self._replication, lag_max) for shard in range(self._shards)
        )

    # --- configuration -------------------------------------------------------------------------------------------

    def _config(self, name: str) -> Path:
        return self._directory / f"{name}.toml"

    def _config_text(self, name: str) -> str:
        lines = [f'node_name = "{name}"', f'host = "{HOST}"', 'cluster_name = "bench"', f"shards = {self._shards}"]
        for item in self._names:
            lines += ["[[nodes]]", f'name = "{item}"', f'address = "{self._addresses[item]}"']
            lines += [f'peer_address = "{self._peer_addresses[item]}"']
        return "\n".join(lines) + "\n"


def _replicas(reports: list[NodeReport], shard: int) -> dict[str, ReplicaInfo]:
    """Of one shard, by node; nodes that did not answer are left out."""
    reported = {report.name: report.node.replicas for report in reports if report.node is not None}
    return {name: one for name, replicas in reported.items() for one in replicas if one.shard == shard}


def _leads(replica: ReplicaInfo) -> bool:
    return replica.role is ReplicaRole.LEADER


def _is_shard_whole(replicas: Mapping[str, ReplicaInfo], replication: int, lag_max: int) -> bool:
    newest = max((one.commit_index for one in replicas.values()), default=0)
    ready = [one for one in replicas.values() if one.role in _VOTING and one.applied_index + lag_max >= newest > 0]
    return len(ready) == replication and sum(_leads(one) for one in ready) == 1


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise BrokenRunError(f"expected {count} free ports, but found {len(found)}")
