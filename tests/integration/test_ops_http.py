"""The operators' HTTP port, over a real socket."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from holdfast.broker.metrics import Metrics, QueueFigures
from holdfast.serving import ops
from holdfast.serving.ops import OpsServer, OpsServerError


@dataclass
class Node:
    """What the ops server needs of a node."""

    metrics: Metrics = field(default_factory=Metrics)
    readiness: tuple[bool, str] = (True, "serving")


@dataclass
class Answer:
    status: int
    headers: str
    body: str


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
async def server(node: Node) -> AsyncIterator[OpsServer]:
    ops = OpsServer("127.0.0.1", 0, node.metrics, lambda: node.readiness)
    await ops.start()
    yield ops
    await ops.stop()


async def get(server: OpsServer, path: str, method: str = "GET") -> Answer:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    return Answer(int(head.split()[1]), head.lower(), body)


async def test_metrics_can_be_closed(node: Node) -> None:
    ops = OpsServer("127.0.0.1", 0, node.metrics, lambda: node.readiness, shows_metrics=False)
    await ops.start()
    try:
        assert (await get(ops, "/metrics")).status == 404
        assert "metrics" not in (await get(ops, "/")).body
        assert (await get(ops, "/livez")).status == 200
    finally:
        await ops.stop()


async def test_metrics_are_served(server: OpsServer, node: Node) -> None:
    node.metrics.tasks_enqueued.inc(3)
    node.metrics.watch_queues(lambda: [QueueFigures("mail", {"ready": 4})])
    answer = await get(server, "/metrics")
    assert answer.status == 200
    assert "content-type: text/plain" in answer.headers
    assert "holdfast_tasks_enqueued_total 3.0" in answer.body
    assert 'holdfast_queue_tasks{queue="mail",state="ready"} 4.0' in answer.body


async def test_live_is_not_ready(server: OpsServer, node: Node) -> None:
    node.readiness = (False, "replaying the log")
    assert (await get(server, "/livez")).status == 200
    answer = await get(server, "/readyz")
    assert answer.status == 503
    assert json.loads(answer.body) == {"ready": False, "reason": "replaying the log"}
    node.readiness = (True, "serving")
    assert (await get(server, "/readyz")).status == 200


async def test_the_index_lists_the_paths(server: OpsServer) -> None:
    body = (await get(server, "/")).body
    assert all(path in body for path in ("/metrics", "/livez", "/readyz"))


async def test_other_paths_and_methods_are_refused(server: OpsServer) -> None:
    assert (await get(server, "/nothing")).status == 404
    assert (await get(server, "/metrics", "POST")).status == 405


async def test_a_taken_port_is_named(server: OpsServer, node: Node) -> None:
    second = OpsServer("127.0.0.1", server.port, node.metrics, lambda: node.readiness)
    with pytest.raises(OpsServerError, match=f"port {server.port} on 127.0.0.1 is taken"):
        await second.start()
    await second.stop()


async def test_an_address_that_is_not_ours_is_named(node: Node) -> None:
    with pytest.raises(OpsServerError, match="Cannot listen for HTTP on 192.0.2.1 port 0"):
        await OpsServer("192.0.2.1", 0, node.metrics, lambda: node.readiness).start()


async def test_stopping_frees_the_port_and_leaves_signals_alone(node: Node) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    ops = OpsServer("127.0.0.1", 0, node.metrics, lambda: node.readiness)
    await ops.start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    await ops.stop()
    await ops.stop()
    with socket.create_server(("127.0.0.1", ops.port)):
        pass


# --- unknown callers --------------------------------------------------------------------------------------------


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[list[Connection]]]


@pytest.fixture
async def callers(server: OpsServer) -> AsyncIterator[Connect]:
    """Opens so many connections that say nothing."""
    opened: list[Connection] = []

    async def connect(count: int) -> list[Connection]:
        opened.extend([await asyncio.open_connection(server.host, server.port) for _ in range(count)])
        return opened

    yield connect
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)


async def test_silent_connections_do_not_keep_others_out(
    server: OpsServer, callers: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "REQUEST_SECONDS_MAX", 600.0)  # nobody is closed for being silent
    [(oldest, _), *_] = await callers(150)
    assert [(await get(server, "/livez")).status for _ in range(20)] == [200] * 20
    assert (await get(server, "/metrics")).status == 200
    async with asyncio.timeout(10):
        assert await oldest.read() == b""  # it made room


async def test_a_burst_of_connections_does_not_push_out_a_request_that_has_come(server: OpsServer) -> None:
    def connect() -> socket.socket:
        return socket.create_connection((server.host, server.port), timeout=30)

    # The loop stands still meanwhile: all of them are there when it goes on.
    with connect() as asking:
        asking.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        silent = [connect() for _ in range(500)]
        answer = await asyncio.to_thread(asking.recv, 1024)
        for item in silent:
            item.close()
    assert answer.startswith(b"HTTP/1.1 200")


async def test_those_who_have_asked_do_not_push_out_one_whose_request_is_on_its_way(
    server: OpsServer, callers: Connect
) -> None:
    [(reader, writer)] = await callers(1)
    for _ in range(150):
        asked_reader, asked_writer = (await callers(1))[-1]
        asked_writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked_reader.readuntil(b'{"live":true}')
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await reader.readuntil(b'{"live":true}')


async def test_connections_that_do_not_read_do_not_keep_others_out(
    server: OpsServer, node: Node, callers: Connect
) -> None:
    node.metrics.watch_queues(lambda: [QueueFigures(f"queue-{index}", {"ready": 1}) for index in range(900)])
    for _, writer in await callers(120):
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    assert [(await get(server, "/livez")).status for _ in range(5)] == [200] * 5


async def test_silent_connections_are_closed_after_a_while(callers: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "REQUEST_SECONDS_MAX", 0.05)
    [(nothing, _), (half, half_writer)] = await callers(2)
    half_writer.write(b"GET /livez HTTP/1.1\r\n")
    async with asyncio.timeout(30):
        assert await nothing.read() == b""
        assert await half.read() == b""


async def test_no_connection_lives_for_ever(callers: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "REQUEST_SECONDS_MAX", 0.05)
    monkeypatch.setattr(ops, "LIFE_SECONDS_MAX", 0.3)
    [(reader, writer)] = await callers(1)

    async def ask_again_and_again() -> None:
        while True:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            await writer.drain()
            await reader.readuntil(b'{"live":true}')

    async with asyncio.timeout(30):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask_again_and_again()
