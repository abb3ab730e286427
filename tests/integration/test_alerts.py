"""Alerts of dead letters, told to another system by HTTP."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from holdfast.client import AsyncClient, NewTask, QueuePolicy, TaskError
from tests.integration.conftest import MakeServer
from tests.integration.server import wait_until

SECRET = "secret-token"
LOCAL = "127.0.0.0/8"


class Receiver:
    """Another system."""

    def __init__(self, port: int = 0) -> None:
        self.got: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@contextmanager
def listening(port: int = 0) -> Iterator[Receiver]:
    made = Receiver(port)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening() as made:
        yield made


async def kill_tasks(client: AsyncClient, queue: str, count: int) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(count)])
    for claim in await client.reserve([queue], max_tasks=count):
        await client.fail(claim, TaskError("Broken", "cannot work"), dead=True)


async def test_a_queue_with_too_many_dead_letters_is_told_once(make_server: MakeServer, receiver: Receiver) -> None:
    """The address is the configuration's; another queue has one of its own, where nobody listens."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        server = make_server(webhook_networks=LOCAL, dead_alert_url=receiver.url).start()
        async with AsyncClient(server.address) as client:
            await client.set_queue("mail", policy=QueuePolicy(dead_alert_at=3))
            own = QueuePolicy(dead_alert_at=1, dead_alert_url=f"http://127.0.0.1:{port}/{SECRET}")
            assert (await client.set_queue("bills", policy=own)).policy.dead_alert_url == f"http://127.0.0.1:{port}/…"
            shown = await client.list_queue_settings()
            assert SECRET not in repr(shown)
            await kill_tasks(client, "mail", 2)
            await kill_tasks(client, "bills", 1)
            await kill_tasks(client, "mail", 3)
            await asyncio.to_thread(wait_until, lambda: receiver.got, "the alert")
            await asyncio.to_thread(server.wait_for_event, "webhook_failed")
            # It is counted after it was written down.
            failed = "holdfast_webhooks_failed_total"
            await asyncio.to_thread(wait_until, lambda: server.metric(failed), "the failure to be counted")
            assert server.metric(failed) == 1.0
    (reported,) = receiver.got
    assert reported.pop("at_ms") > 0
    assert reported == {"queue": "mail", "shard": 0, "dead": 3, "threshold": 3}
    assert [alert["queue"] for alert in server.events("dead_letter_alert")] == ["bills", "mail"]
    assert server.events("webhook_failed")[0]["host"] == "127.0.0.1"
    assert SECRET not in server.whole_log_text


async def test_a_leader_that_begins_tells_what_is_on(make_server: MakeServer, receiver: Receiver) -> None:
    """The one before it may have ended without having told anybody."""
    server = make_server(webhook_networks=LOCAL, dead_alert_url=receiver.url).start()
    async with AsyncClient(server.address) as client:
        await client.set_queue("mail", policy=QueuePolicy(dead_alert_at=2))
        await kill_tasks(client, "mail", 2)
    await asyncio.to_thread(wait_until, lambda: receiver.got, "the first alert")
    server.kill()
    receiver.got.clear()
    server.start()
    await asyncio.to_thread(wait_until, lambda: receiver.got, "the alert")
    assert [reported["dead"] for reported in receiver.got] == [2]


async def test_an_alert_that_is_lost_with_its_server_is_told_by_the_next(make_server: MakeServer) -> None:
    """It was killed while whom it told had not heard it yet; no more letters die after that."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        server = make_server(webhook_networks=LOCAL, dead_alert_url=f"http://127.0.0.1:{port}/{SECRET}").start()
        async with AsyncClient(server.address) as client:
            await client.set_queue("mail", policy=QueuePolicy(dead_alert_at=2))
            await kill_tasks(client, "mail", 2)
        connection, _ = await asyncio.to_thread(silent.accept)
        server.kill()
        connection.close()
    with listening(port) as receiver:
        server.start()
        await asyncio.to_thread(wait_until, lambda: receiver.got, "the alert")
        assert [(reported["queue"], reported["dead"]) for reported in receiver.got] == [("mail", 2)]
        server.close()


async def test_a_host_that_hangs_delays_neither_work_nor_the_end(make_server: MakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = make_server(
            webhook_networks=LOCAL, dead_alert_url=f"http://127.0.0.1:{silent.getsockname()[1]}/{SECRET}"
        ).start()
        async with AsyncClient(server.address) as client:
            await client.set_queue("mail", policy=QueuePolicy(dead_alert_at=1))
            await kill_tasks(client, "mail", 1)
            connection, _ = await asyncio.to_thread(silent.accept)
            await client.enqueue(NewTask("mail", "t"))
            assert len(await client.reserve(["mail"])) == 1
        server.ask_to_stop()
        assert await asyncio.to_thread(server.wait_for_exit) == 0
        connection.setblocking(False)
        while data := connection.recv(65536):  # it had not given up: whoever ended it was the end of the process
            assert b"POST" in data or b"{" in data
        connection.close()
    assert not server.events("webhook_failed")
