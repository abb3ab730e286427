"""Whoever reaches a port with TLS may send what he likes, or nothing: servers stay as they are, and others get in."""

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.client import AsyncClient, Client, NewTask
from tests.integration.server import ServerProcess, wait_until
from tests.long import IS_LONG, long_only
from tests.tls_files import CertsDirectory

INPUTS = 20_000 if IS_LONG else 1_500  # over all ports
AT_ONCE = 32


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> CertsDirectory:
    return CertsDirectory(tmp_path_factory.mktemp("certs") / "certs")


@pytest.fixture(scope="module")
def server(certs: CertsDirectory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), **certs.settings("n1")) as server:
        yield server.start()


def memory_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def client_hello(certs: CertsDirectory) -> bytes:
    """What a good caller says first."""
    mine = certs.client("billing")
    context = ssl.create_default_context(cafile=str(mine.ca))
    context.load_cert_chain(str(mine.cert), str(mine.key))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def mutated(hello: bytes, chance: random.Random) -> bytes:
    """A hello with some bytes changed, cut, doubled, or none at all."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 2000))
    data = bytearray(hello)
    if kind == 1:
        return bytes(data[: chance.randrange(len(data))])
    if kind == 2:  # sizes that say more, or less, than there is
        place = chance.choice((3, 4, 6, 7, 8, 43))
        data[place] = chance.randrange(256)
        return bytes(data)
    if kind == 3:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + chance.randbytes(chance.randrange(50))
    for _ in range(chance.randrange(1, 20)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data) * (2 if kind == 4 else 1)


async def say(port: int, data: bytes) -> None:
    """And reads what comes, to the end."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()
    except OSError:
        pass  # reset: it was not taken for a caller


async def test_whatever_is_said_in_place_of_a_handshake_harms_nobody(
    server: ServerProcess, certs: CertsDirectory
) -> None:
    chance = random.Random(20)
    hello = client_hello(certs)
    async with AsyncClient(server.address, tls=certs.client("billing"), retry=False) as client:
        await client.enqueue(NewTask("mail", "t"))
        before_bytes, before_files = memory_bytes(server), open_files(server)
        ports = (server.port, server.frames_port)
        waiting: set[asyncio.Task[None]] = set()
        for number in range(INPUTS):
            waiting.add(asyncio.create_task(say(ports[number % 2], mutated(hello, chance))))
            if len(waiting) >= AT_ONCE:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if number % 100 == 0:
                await client.enqueue(NewTask("mail", "t"))
        if waiting:
            await asyncio.wait(waiting)
        await asyncio.to_thread(wait_until, lambda: open_files(server) <= before_files + 8, "connections to be closed")
        assert memory_bytes(server) < before_bytes + 64 * 1024 * 1024
        assert "Traceback" not in server.log_text
        assert "ssl_transport_security" not in server.log_text, "what gRPC says of strangers is not for the log"
        await client.enqueue(NewTask("mail", "t"))


def test_who_says_nothing_keeps_nobody_out(server: ServerProcess, certs: CertsDirectory) -> None:
    """More connections than may shake hands at once, of which none does. Callers get in at once; the others end."""
    before_files = open_files(server)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.frames_port))) for _ in range(600)]
        for port in (server.port, server.frames_port):
            for _ in range(20):
                stack.enter_context(socket.create_connection(("127.0.0.1", port))).send(b"\x16\x03\x01\x02\x00\x01")
        began_s = time.monotonic()
        with Client(server.address, tls=certs.client("billing"), timeout_s=10) as client:
            wait_until(
                lambda: (
                    bool(client.enqueue(NewTask("mail", "t")).task_id)
                    and server.metric("holdfast_frame_connections") > 0
                ),
                "a connection of frames beside them",
            )
        assert time.monotonic() - began_s < 10.0
        assert open_files(server) < before_files + 400, "the oldest were pushed out"
        for sock in silent:
            sock.settimeout(30)
            assert sock.recv(1) == b"", "and after a while so were all others"
    wait_until(lambda: open_files(server) <= before_files + 8, "connections to be closed")


@long_only
def test_who_says_it_byte_by_byte_is_ended(server: ServerProcess, certs: CertsDirectory) -> None:
    """Each byte is a sign of life, and the whole of a handshake has one deadline all the same."""
    hello = client_hello(certs)
    for port in (server.port, server.frames_port):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            began_s = time.monotonic()
            sock.settimeout(0.2)
            ended = False
            for byte in hello:
                try:
                    sock.send(bytes([byte]))
                    ended = sock.recv(1) == b""
                except TimeoutError:
                    continue
                except OSError:
                    ended = True
                if ended:
                    break
            assert ended
            assert time.monotonic() - began_s < 20
