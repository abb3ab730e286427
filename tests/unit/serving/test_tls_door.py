"""Connections come in once they have shaken hands, and those that do not keep nobody out."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.common.secure_streams import READ_BYTES, SecureReader, writer_of
from holdfast.serving.tls import Listening, ServerTls
from holdfast.serving.tls_door import TlsDoor
from tests.tls_files import CertsDirectory, Kind

DEADLINE_S = 10


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> CertsDirectory:
    certs = CertsDirectory(tmp_path_factory.mktemp("certs") / "certs")
    certs.issue("n1", Kind.NODE)
    return certs


class Echo(asyncio.Protocol):
    """Says what it hears."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        assert isinstance(transport, asyncio.Transport)
        self._write = writer_of(transport)

    def data_received(self, data: bytes) -> None:
        self._write([data[:3], data[3:]])


@asynccontextmanager
async def opened(certs: CertsDirectory, **bounds: float) -> AsyncIterator[tuple[TlsDoor, int]]:
    listening = Listening(ServerTls(certs.path / "n1.crt", certs.path / "n1.key"))
    door = TlsDoor(listening.frames, "test", **bounds)  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    buffer = bytearray(READ_BYTES)
    door.open(listener, lambda: SecureReader(Echo(), buffer))
    try:
        yield door, port
    finally:
        await door.stop()


async def connect(certs: CertsDirectory, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cafile=certs.path / "ca.crt")
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def echoes(certs: CertsDirectory, port: int, data: bytes = b"hello") -> None:
    reader, writer = await connect(certs, port)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.readexactly(len(data)) == data
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_what_is_sent_comes_whatever_its_size(certs: CertsDirectory) -> None:
    async with opened(certs) as (door, port):
        for size in (1, 3, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 1_000_000):
            await echoes(certs, port, bytes(range(256)) * (size // 256) + bytes(size % 256))
        await asyncio.gather(*(echoes(certs, port, bytes([number]) * 100_000) for number in range(20)))
        assert (door.half_open, door.failed) == (0, 0)


async def test_one_too_many_pushes_the_oldest_out(certs: CertsDirectory) -> None:
    async with opened(certs, half_open_max=2) as (door, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        async with asyncio.timeout(DEADLINE_S):
            for reader, _ in silent[:3]:
                with suppress(OSError):
                    assert await reader.read() == b"", "it was ended"
        await echoes(certs, port)
        assert door.half_open <= 2
        assert door.failed >= 3
        for _, writer in silent:
            writer.close()


async def test_a_handshake_has_a_deadline(certs: CertsDirectory) -> None:
    made = Echo.made
    async with opened(certs, seconds_max=0.2) as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(DEADLINE_S):
            with suppress(OSError):
                assert await reader.read() == b""
            while door.half_open:
                await asyncio.sleep(0)
        writer.close()
        assert (door.failed, Echo.made) == (1, made), "nobody was made for it"
        await echoes(certs, port)


async def test_whoever_has_not_shaken_hands_is_cut_off_at_the_end(certs: CertsDirectory) -> None:
    async with opened(certs) as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not door.half_open:
            await asyncio.sleep(0)
        await door.stop()
        assert door.half_open == 0
        async with asyncio.timeout(DEADLINE_S):
            with suppress(OSError):
                assert await reader.read() == b""
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
