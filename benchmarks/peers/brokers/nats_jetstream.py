"""NATS: a JetStream stream of three replicas with work-queue retention, and a consumer that pulls."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import nats.js.errors

from harness.cluster import HOST, free_ports
from harness.results import BrokenRunError
from peers.peer import Client, Peer
from peers.processes import own_directory

CONSUMER = "workers"
REPLICAS = 3
CONFIRM_SECONDS_MAX = 30.0


class Nats(Peer):
    """Option `sync`: what its setting sync_interval is, if not its default."""

    async def start(self) -> None:
        ports = free_ports(2 * REPLICAS)
        routes = ports[REPLICAS:]
        self._urls = {f"n{number}": f"nats://{HOST}:{port}" for number, port in enumerate(ports[:REPLICAS], 1)}
        for (name, url), route in zip(self._urls.items(), routes, strict=True):
            own = own_directory(self.directory / name, None)
            config = own / "nats.conf"
            config.write_text(self._config(name, url.removeprefix("nats://"), own, route, routes))
            # From PyPI, beside the interpreter of this environment.
            await self.processes.start(Path(sys.executable).with_name("nats-server"), "-c", config)
        self._leader = "n1"
        self._queue = ""
        await self.processes.until("nats-server", self.empty_queue)

    def _config(self, name: str, address: str, own: Path, route: int, routes: Sequence[int]) -> str:
        sync = f", sync_interval: {self.options['sync']}" if "sync" in self.options else ""
        others = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        return (
            f'server_name: {name}\nlisten: "{address}"\n'
            f'jetstream {{ store_dir: "{own}/js"{sync} }}\n'
            f'cluster {{ name: peers, listen: "{HOST}:{route}", routes: [{others}] }}\n'
        )

    async def empty_queue(self) -> str:
        connection = await nats.connect(
            self._urls[self._leader], allow_reconnect=False, connect_timeout=2, error_cb=_ignore
        )
        try:
            stream = connection.jetstream(timeout=5)
            with suppress(nats.js.errors.NotFoundError):
                await stream.delete_stream(self._queue or "none")
            self._queue = self.next_queue()
            info = await stream.add_stream(
                name=self._queue, subjects=[self._queue], storage="file", retention="workqueue", num_replicas=REPLICAS
            )
            await stream.add_consumer(self._queue, durable_name=CONSUMER, ack_policy="explicit", ack_wait=60)
            if len(info.cluster.replicas or []) != REPLICAS - 1 or not info.cluster.leader:
                raise BrokenRunError("the stream has not all its replicas yet")
            self._leader = info.cluster.leader  # clients talk to it: that is the fastest there is
        finally:
            await connection.close()
        self.target = {"url": self._urls[self._leader]}
        return self._queue


async def _ignore(_error: Exception) -> None:
    """It is still starting; whoever waits tries again."""


class NatsClient(Client):
    """Confirms and tasks come to one inbox, which is read by a callback."""

    async def open(self) -> None:
        self._connection: Any = await nats.connect(self.target["url"])
        self._inbox = self._connection.new_inbox()
        self._something = asyncio.Event()
        self._due = 0  # confirms, or tasks of a pull
        self._refused = ""
        self._arrived: list[Any] = []
        await self._connection.subscribe(self._inbox, cb=self._on_message)

    async def _on_message(self, message: Any) -> None:
        if message.reply:  # a task
            self._due -= 1
            self._arrived.append(message)
        elif message.data:  # a confirm
            self._due -= 1
            if b'"error"' in message.data:
                self._refused = message.data.decode()
        else:  # the end of a pull
            self._due = 0
        if self._arrived or self._due <= 0:
            self._something.set()

    async def produce(self, payloads: Sequence[bytes]) -> None:
        self._due = len(payloads)
        self._something.clear()
        for payload in payloads:
            await self._connection.publish(self.queue, payload, reply=self._inbox)
        await asyncio.wait_for(self._something.wait(), CONFIRM_SECONDS_MAX)
        if self._refused:
            raise BrokenRunError(f"a task was refused: {self._refused}")

    async def claim(self, tasks_max: int, wait_s: float) -> tuple[Sequence[bytes], Any]:
        if not self._arrived and self._due <= 0:
            self._due = tasks_max
            request = json.dumps({"batch": tasks_max, "expires": round(wait_s * 1e9)}).encode()
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.queue}.{CONSUMER}"
            await self._connection.publish(subject, request, reply=self._inbox)
        if not self._arrived:
            self._something.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._something.wait(), 2 * wait_s)
        arrived, self._arrived = self._arrived, []
        return [message.data for message in arrived], arrived

    async def ack(self, handle: Any) -> None:
        for message in handle:
            await message.ack()
