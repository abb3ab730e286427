"""RabbitMQ: a quorum queue with publisher confirms; consumers prefetch and ack several at once."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from harness.cluster import HOST, free_ports
from harness.results import BrokenRunError
from peers.peer import Client, Peer
from peers.processes import own_directory, run_once

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
CONFIRM_SECONDS_MAX = 30.0


class RabbitMQ(Peer):
    """Option `nodes`: how many."""

    async def start(self) -> None:
        count = self.options["nodes"]
        self._home = own_directory(self.directory / "home", None)
        cookie = self._home / ".erlang.cookie"
        cookie.write_text("HOLDFASTPEERS")
        cookie.chmod(0o400)
        epmd_port, *ports = free_ports(1 + 2 * count)
        self._ports, distribution = ports[:count], ports[count:]
        self._env = {"ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": HOST, "HOME": str(self._home)}
        await self.processes.start("epmd", "-port", str(epmd_port), "-address", HOST)
        self._names = [f"peers{epmd_port}n{number}@localhost" for number in range(count)]
        for name, port, own_port in zip(self._names, self._ports, distribution, strict=True):
            await self._start_node(name, port, own_port)
        for port in self._ports:
            await self.processes.until(f"rabbitmq-server on {port}", partial(self._call, _nothing, port))
        self._queue = ""
        self.target = {"host": HOST, "port": self._ports[0]}
        await self.empty_queue()
        await self.processes.until("the queue's members", self._is_whole)

    async def _start_node(self, name: str, port: int, distribution_port: int) -> None:
        own = own_directory(self.directory / name, None)
        (own / "plugins").write_text("[].")
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [
            f"cluster_formation.classic_config.nodes.{index} = {name}" for index, name in enumerate(self._names, 1)
        ]
        (own / "rabbit.conf").write_text("\n".join(lines) + "\n")
        env = {
            "RABBITMQ_NODENAME": name, "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_NODE_IP_ADDRESS": HOST, "RABBITMQ_MNESIA_BASE": str(own), "RABBITMQ_LOG_BASE": str(own),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_CONFIG_FILE": str(own / "rabbit.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "NOTIFY_SOCKET": "/dev/null",  # with it the script becomes the server, in place of staying its parent
        }  # fmt: skip
        await self.processes.start(PROGRAMS / "rabbitmq-server", env={**self._env, **env})

    async def _call(self, do: Callable[[Any], None], port: int) -> None:
        with closing(pika.BlockingConnection(pika.ConnectionParameters(HOST, port))) as connection:
            do(connection.channel())

    async def _is_whole(self) -> bool:
        """Whether each node has a member of the queue."""
        ask = ("-n", self._names[0], "-q", "--no-table-headers", "list_queues", "online")
        command = [str(PROGRAMS / "rabbitmqctl"), *ask]
        printed = await run_once(command, directory=self._home, user=None, env=self._env)
        return printed.count("@localhost") == len(self._names)

    async def empty_queue(self) -> str:
        earlier, self._queue = self._queue, self.next_queue()

        def renew(channel: Any) -> None:
            if earlier:
                channel.queue_delete(earlier)
            arguments = {
                "x-queue-type": "quorum",
                "x-quorum-initial-group-size": len(self._names),
                "x-queue-leader-locator": "client-local",  # clients talk to it: that is the fastest there is
            }
            channel.queue_declare(self._queue, durable=True, arguments=arguments)

        await self._call(renew, self._ports[0])
        return self._queue


def _nothing(_channel: Any) -> None:
    """It is enough that there is a channel."""


class RabbitMQClient(Client):
    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        confirming: asyncio.Future[Any] = loop.create_future()
        self._connection: Any = AsyncioConnection(
            pika.ConnectionParameters(self.target["host"], self.target["port"]),
            on_open_callback=lambda connection: connection.channel(on_open_callback=opened.set_result),
            on_open_error_callback=lambda _, error: opened.set_exception(error),
        )
        self._channel = await opened
        self._properties: Any = pika.BasicProperties(delivery_mode=2)
        self._something = asyncio.Event()
        self._tag = 0
        self._unconfirmed: set[int] = set()
        self._refused = False
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._is_consuming = False
        self._channel.confirm_delivery(ack_nack_callback=self._on_confirm, callback=confirming.set_result)
        await confirming

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        self._refused = self._refused or method.NAME != "Basic.Ack"
        if method.multiple:
            self._unconfirmed = {tag for tag in self._unconfirmed if tag > method.delivery_tag}
        else:
            self._unconfirmed.discard(method.delivery_tag)
        if not self._unconfirmed:
            self._something.set()

    async def produce(self, payloads: Sequence[bytes]) -> None:
        self._something.clear()
        self._unconfirmed = set(range(self._tag + 1, self._tag + 1 + len(payloads)))
        self._tag += len(payloads)
        for payload in payloads:
            self._channel.basic_publish("", self.queue, payload, self._properties)
        await asyncio.wait_for(self._something.wait(), CONFIRM_SECONDS_MAX)
        if self._refused:
            raise BrokenRunError("a task was refused")

    def _on_task(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._arrived.append((method.delivery_tag, body))
        self._something.set()

    async def claim(self, tasks_max: int, wait_s: float) -> tuple[Sequence[bytes], Any]:
        if not self._is_consuming:
            self._is_consuming = True
            self._channel.basic_qos(prefetch_count=tasks_max)
            self._channel.basic_consume(self.queue, self._on_task)
        if not self._arrived:
            self._something.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._something.wait(), wait_s)
        arrived, self._arrived = self._arrived, deque()
        return [body for _, body in arrived], arrived[-1][0] if arrived else 0

    async def ack(self, handle: Any) -> None:
        self._channel.basic_ack(handle, multiple=True)
