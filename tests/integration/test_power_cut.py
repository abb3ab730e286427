"""A power cut: what was acknowledged is on the disk, not only on its way there."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.system.disks import Disk
from holdfast.client import Accepted, AsyncClient, HoldfastError, NewTask, TaskState
from tests.integration.conftest import MakeServer
from tests.integration.small_disk import power_disk

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = power_disk(tmp_path, 96 * MIB)
    yield disk
    disk.close()


async def test_what_was_acknowledged_survives_a_power_cut(disk: Disk, make_server: MakeServer) -> None:
    server = make_server(data_dir=disk.path / "data", state_flush_log_bytes=MIB, state_flush_age_seconds=0.2)
    accepted: list[str] = []
    acked: list[str] = []

    async def produce(client: AsyncClient) -> None:
        while True:
            for outcome in await client.enqueue_many([NewTask("work", "t", bytes(1000)) for _ in range(20)]):
                assert isinstance(outcome, Accepted)
                accepted.append(outcome.task_id)

    async def work(client: AsyncClient) -> None:
        while True:
            claims = await client.reserve(["work"], max_tasks=10, wait_ms=1000, lease_ms=600_000)
            await client.ack_many(claims)
            acked.extend(claim.task_id for claim in claims)

    for _ in range(2):
        await asyncio.to_thread(server.start)
        async with AsyncClient(server.address, retry=False) as client:
            load = [asyncio.create_task(produce(client)), asyncio.create_task(work(client))]
            goal = len(acked) + 200
            async with asyncio.timeout(30):
                while len(acked) < goal and not any(call.done() for call in load):
                    await asyncio.sleep(0.01)
            # The process first: without power it could not answer anybody either.
            server.kill()
            disk.cut_power()
            ended = await asyncio.gather(*load, return_exceptions=True)
            assert all(isinstance(error, HoldfastError) for error in ended), ended
        disk.power_on()

    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address) as client:
        # The newest are those at risk.
        for task_id in acked[-200:]:
            assert (await client.get_task(task_id)).state is TaskState.SUCCEEDED
        for task_id in accepted[-200:]:
            await client.get_task(task_id)
        stats = await client.queue_stats("work")
        assert stats.enqueued_total >= len(accepted)
        assert stats.succeeded_total >= len(acked)
