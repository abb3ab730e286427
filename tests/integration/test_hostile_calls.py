"""What anybody can send to a real server: it costs little, and others are served."""

import asyncio
import re
import socket
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Literal

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from holdfast.client import AsyncClient, NewTask
from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.server import ServerProcess
from tests.integration.wire import Refusal, Wire

MIB = 1024 * 1024
TRANSPORTS = ["grpc", "frames"]
OPEN_FILES = 500
RESERVED_FILES = 100  # for the state, however many connect


def memory_mb(server: ServerProcess, which: str) -> int:
    """`VmHWM` is the most that it ever had, `VmRSS` what it has now."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def bombs() -> list[tuple[str, str, bytes]]:
    empty_headers = b"\x22\x00" * (2 * MIB - 8)
    follow_ups = b"\x1a\x00" * (2 * MIB - 8)
    nested = pb.AckRequest(items=[pb.AckItem(follow_ups=[pb.TaskSpec(type="t")] * 100)] * 1000).SerializeToString()
    return [
        ("Enqueue", "BATCH_TOO_LARGE", b"\x0a\x00" * (2 * MIB)),
        ("Enqueue", "TOO_LARGE", b"\x0a\xf0\xff\xff\x01" + empty_headers),
        ("Ack", "TOO_LARGE", b"\x0a\xf0\xff\xff\x01" + follow_ups),
        ("Ack", "BATCH_TOO_LARGE", nested),
        ("GetTask", "BATCH_TOO_LARGE", b"\x0a\x00" * (2 * MIB)),
    ]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_small_requests_do_not_become_large(server: ServerProcess, transport: Literal["grpc", "frames"]) -> None:
    before_mb = memory_mb(server, "VmHWM")
    async with Wire(server.address, transport) as wire:
        for method, reason, body in bombs():
            answers = await asyncio.gather(*(wire.call(method, body) for _ in range(4)))
            for answer in answers:
                assert isinstance(answer, Refusal)
                assert (answer.code, answer.reason) == ("INVALID_ARGUMENT", reason)
    async with grpc.aio.insecure_channel(server.address) as channel:
        enqueue: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/holdfast.proto.v1.Tasks/Enqueue"
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await enqueue(b"\x0a\x00" * (4 * MIB), compression=grpc.Compression.Gzip, timeout=30)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    # Parsed, each of the first would have taken 500 MB.
    assert memory_mb(server, "VmHWM") - before_mb < 150


async def test_probes_of_a_shard_come_one_at_a_time(server: ServerProcess) -> None:
    """Each has every replica read its whole state."""
    request = shards_pb2.ProbeShardRequest(shard=0).SerializeToString()
    async with grpc.aio.insecure_channel(server.address) as channel:
        probe: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/holdfast.proto.v1.Shards/ProbeShard"
        )

        async def code() -> str:
            try:
                await probe(request, timeout=30)
            except grpc.aio.AioRpcError as refused:
                return refused.code().name
            return "OK"

        codes = Counter(await asyncio.gather(*(code() for _ in range(20))))
    assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}


async def test_scrapers_share_what_is_read(server: ServerProcess) -> None:
    answers = await asyncio.gather(*(asyncio.to_thread(server.get, "/metrics") for _ in range(16)))
    assert {status for status, _ in answers} == {200}
    assert len({body for _, body in answers}) < 16


async def health_of(server: ServerProcess) -> bool:
    async with grpc.aio.insecure_channel(server.address) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = health_pb2.HealthCheckResponse.FromString(await check(b"", timeout=30))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_health_is_what_readyz_says(tmp_path: Path) -> None:
    """A disk that is too full for new tasks: load balancers must hear of it, whichever way they ask."""
    with ServerProcess(tmp_path, free_bytes_min=1 << 40) as server:
        await asyncio.to_thread(server.start)
        status, body = await asyncio.to_thread(server.get, "/readyz")
        assert (status, "disk" in body) == (503, True)
        assert not await health_of(server)


async def test_connections_leave_descriptors_for_the_state(tmp_path: Path) -> None:
    """More connections than there are descriptors: the node goes on reading and writing, and says that it lives."""
    with ServerProcess(tmp_path, open_files_max=OPEN_FILES) as server, ExitStack() as callers:
        await asyncio.to_thread(server.start)
        async with AsyncClient(server.address) as client:
            await client.enqueue(NewTask("q", "t"))  # it is connected before the others
            for port in (server.port, server.frames_port, server.ops_port):
                for _ in range(600):
                    callers.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(5):  # for ten seconds they need not shake hands
                    await asyncio.sleep(0.1)
                    assert OPEN_FILES - open_files(server) >= RESERVED_FILES
            assert (await asyncio.to_thread(server.get, "/livez"))[0] == 200
            for _ in range(20):
                await client.enqueue(NewTask("q", "t", bytes(500_000)))
        # A stop writes the state, which takes descriptors too.
        assert await asyncio.to_thread(server.stop) == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_flood_of_large_batches_takes_a_bounded_amount_of_memory(
    tmp_path: Path, transport: Literal["grpc", "frames"]
) -> None:
    batch = pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="flood", type="t", payload=bytes(MIB - 1000))] * 4)
    with ServerProcess(tmp_path) as server:
        await asyncio.to_thread(server.start)
        before_mb = memory_mb(server, "VmHWM")
        async with Wire(server.address, transport) as wire:
            answers = await asyncio.gather(*(wire.call("Enqueue", batch) for _ in range(120)))
            assert all(isinstance(answer, bytes) or answer.reason == "OVERLOADED" for answer in answers)
            assert any(isinstance(answer, bytes) for answer in answers)
        # Received all at once they are 500 MB, and twice that when they are parsed.
        assert memory_mb(server, "VmHWM") - before_mb < 450


async def test_connections_that_have_sent_much_hold_little(server: ServerProcess) -> None:
    """gRPC would keep a buffer for each that is as large as what has come, as long as the connection is there."""
    refused = pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="", type="t", payload=bytes(MIB - 1000))]).SerializeToString()
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each
    async with AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(server.address, options=own) for _ in range(100)]
        calls: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
            (await stack.enter_async_context(channel)).unary_unary("/holdfast.proto.v1.Tasks/Enqueue")
            for channel in channels
        ]
        before_mb = memory_mb(server, "VmRSS")
        for call in calls * 3:
            await call(refused)
        assert memory_mb(server, "VmRSS") - before_mb < 50
