"""Redis: a stream and a group of consumers."""

import os
from collections.abc import Sequence
from typing import Any

import redis

from harness.cluster import HOST, free_ports
from peers.peer import Client, Peer
from peers.processes import own_directory

GROUP = "workers"
FIELD = b"p"


class Redis(Peer):
    async def start(self) -> None:
        [port] = free_ports(1)
        data = own_directory(self.directory / "data", None)
        await self.processes.start(
            "redis-server", "--port", str(port), "--bind", HOST, "--dir", data,
            "--save", "", "--appendonly", "yes", "--appendfsync", "always",
        )  # fmt: skip
        self.target = {"host": HOST, "port": port}
        self._client: Any = redis.Redis(HOST, port)
        await self.processes.until("redis-server", self._ping)

    async def _ping(self) -> None:
        self._client.ping()

    def flush(self) -> None:
        self._client.flushall()

    async def empty_queue(self) -> str:
        self.flush()
        queue = self.next_queue()
        self._client.xgroup_create(queue, GROUP, mkstream=True)
        return queue


class RedisClient(Client):
    async def open(self) -> None:
        self._client: Any = redis.Redis(self.target["host"], self.target["port"])
        self._client.ping()
        self._name = str(os.getpid())

    async def produce(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            self._client.xadd(self.queue, {FIELD: payloads[0]})
            return
        pipe = self._client.pipeline(transaction=False)
        for payload in payloads:
            pipe.xadd(self.queue, {FIELD: payload})
        pipe.execute()

    async def claim(self, tasks_max: int, wait_s: float) -> tuple[Sequence[bytes], Any]:
        streams = {self.queue: ">"}
        found = self._client.xreadgroup(GROUP, self._name, streams, count=tasks_max, block=round(wait_s * 1000))
        entries = _entries(found)
        return [fields[FIELD] for _, fields in entries], [entry for entry, _ in entries]

    async def ack(self, handle: Any) -> None:
        pipe = self._client.pipeline(transaction=False)
        pipe.xack(self.queue, GROUP, *handle)
        pipe.xdel(self.queue, *handle)
        pipe.execute()


def _entries(found: Any) -> Any:
    """Of the one stream that was read: the library has two forms for it."""
    if not found:
        return []
    return next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
