"""SIGTERM: what is under way is finished, those who wait are sent home, and the next start has nothing to replay."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from holdfast.client import AsyncClient, ConnectionFailed, NewTask, Unavailable
from tests.integration.conftest import MakeServer
from tests.integration.faults import Faults
from tests.integration.server import DEADLINE_S

HELD_UP_S = 60.0


async def test_a_stop_finishes_what_is_under_way(make_server: MakeServer, faults: Faults) -> None:
    server = make_server(env=faults.env)
    await asyncio.to_thread(server.start)
    async with (
        AsyncClient(server.address, retry=False) as client,
        AsyncClient(server.address, retry=False) as waiter,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await client.enqueue(NewTask("work", "first"))
        [claim] = await client.reserve(["work"], lease_ms=3_600_000)
        waiting = [asyncio.create_task(waiter.reserve(["idle"], wait_ms=60_000)) for _ in range(3)]
        faults.slow_disk(HELD_UP_S)
        enqueuing = asyncio.create_task(client.enqueue(NewTask("work", "under way", request_id="r")))
        acking = asyncio.create_task(client.ack(claim))
        await asyncio.to_thread(faults.wait_for_slow_sync)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        health = stub.Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
        await client.queue_stats_many(["work"])  # by now the server has begun with all of them

        server.ask_to_stop()
        async with asyncio.timeout(DEADLINE_S):
            assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        health.cancel()
        # Workers are told at once that there is nothing, so that they go elsewhere.
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*waiting) == [[], [], []]
        try:
            await client.enqueue(NewTask("work", "too late"))
        except (Unavailable, ConnectionFailed) as refused:
            assert isinstance(refused, ConnectionFailed) or refused.reason == "SHUTTING_DOWN"
        else:
            raise AssertionError("Expected a server that stops to take nothing new.")
        assert not enqueuing.done()
        assert not acking.done()
        faults.slow_disk(0)
        accepted, _acked = await asyncio.gather(enqueuing, acking)

    assert await asyncio.to_thread(server.wait_for_exit) == 0
    assert server.events("stopped")
    assert not server.events("stopped_by_failure")
    assert not [line for line in server.log_text.splitlines() if '"level": "error"' in line]

    await asyncio.to_thread(server.start)
    [recovered] = server.events("recovered")
    assert (recovered["entries_to_apply"], recovered["clean"]) == (0, True)
    async with AsyncClient(server.address) as client:
        stats = await client.queue_stats("work")
        assert (stats.ready, stats.claimed, stats.succeeded_total) == (1, 0, 1)
        again = await client.enqueue(NewTask("work", "under way", request_id="r"))
        assert again.duplicate
        assert again.task_id == accepted.task_id
    assert await asyncio.to_thread(server.stop) == 0


def test_a_stop_asked_for_at_the_first_moment_is_graceful(tmp_path: Path) -> None:
    """Whoever sees that it serves may stop it: it must not be killed by the signal."""
    command = [sys.executable, "-m", "holdfast.cli", "dev", "--port", "0", "--ops-port", "0", "--log-format", "json"]
    for _ in range(2):
        server = subprocess.Popen([*command, "--data-dir", str(tmp_path / "data")], stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            for line in server.stderr:
                if '"serving"' in line:
                    break
            server.terminate()
            rest = server.stderr.read()
            assert server.wait(DEADLINE_S) == 0, rest
        finally:
            server.kill()
            server.wait()
            assert server.stderr is not None
            server.stderr.close()
