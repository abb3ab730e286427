"""A worker's HTTP port: probes, metrics, and callers that are slow, silent or wrong."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from holdfast.client import OpsPortFailed
from holdfast.client.worker import ops
from holdfast.client.worker.ops import OpsServer


class Shown:
    ready = (True, "it claims tasks")

    def metrics_text(self) -> str:
        return "holdfast_worker_slots 4\n"

    def readiness(self) -> tuple[bool, str]:
        return self.ready


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
async def server(shown: Shown) -> AsyncIterator[OpsServer]:
    server = OpsServer("127.0.0.1", 0, shown)
    await server.start()
    yield server
    await server.stop()


async def ask(server: OpsServer, request: bytes) -> tuple[int, dict[str, str], str]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(request)
    head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body.decode()


async def get(server: OpsServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    return await ask(server, f"{method} {path} HTTP/1.1\r\nHost: worker\r\n\r\n".encode())


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Without a word."""
    try:
        return await asyncio.wait_for(reader.read(1), 20) == b""
    except ConnectionError:
        return True


async def test_the_pages(server: OpsServer, shown: Shown) -> None:
    assert (await get(server, "/livez"))[0] == 200
    status, headers, body = await get(server, "/metrics?x=1")
    assert (status, body) == (200, "holdfast_worker_slots 4\n")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert headers["Content-Length"] == str(len(body))
    status, _, body = await get(server, "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reason": "it claims tasks"})
    shown.ready = (False, "it stops")
    status, _, body = await get(server, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reason": "it stops"})
    status, headers, body = await get(server, "/readyz", "HEAD")
    assert (status, body) == (503, "")
    assert int(headers["Content-Length"]) > 0
    assert "/livez" in (await get(server, "/"))[2]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /livez HTTP/1.1\r\n\r\n", 405),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"\xff\x00\r\n\r\n", 405),
        (b"GET\r\n\r\n", 404),
    ],
)
async def test_what_is_no_page(server: OpsServer, request_bytes: bytes, status: int) -> None:
    assert (await ask(server, request_bytes))[0] == status


async def test_a_request_without_end_is_cut_off(server: OpsServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET /livez HTTP/1.1\r\n" + b"x" * 3 * ops.REQUEST_BYTES_MAX)
    assert await is_cut_off(reader)
    writer.close()
    assert (await get(server, "/livez"))[0] == 200


async def test_silent_connections_push_out_each_other_and_no_probe(server: OpsServer) -> None:
    silent = [await asyncio.open_connection(server.host, server.port) for _ in range(ops.CONNECTIONS_MAX + 5)]
    assert (await get(server, "/livez"))[0] == 200
    reader, _ = silent[0]
    assert await is_cut_off(reader)
    for _, writer in silent:
        writer.close()


async def test_silent_connections_do_not_live_for_ever(server: OpsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "LIFE_S_MAX", 0.05)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    assert await is_cut_off(reader)
    writer.close()


async def test_a_port_that_is_taken(server: OpsServer, shown: Shown) -> None:
    with pytest.raises(OpsPortFailed, match=f"port {server.port}.*taken by another process"):
        await OpsServer(server.host, server.port, shown).start()
