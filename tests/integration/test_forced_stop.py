"""A stop that is asked for twice ends at once, also when the disk hangs; what was accepted is still there."""

import asyncio

import pytest

from holdfast.client import AsyncClient, HoldfastError, NewTask, TaskState
from tests.integration.conftest import MakeServer
from tests.integration.faults import Faults


async def test_asked_twice_it_stops_at_once(make_server: MakeServer, faults: Faults) -> None:
    server = make_server(env=faults.env, shutdown_grace_seconds=60).start()
    async with AsyncClient(server.address, retry=False) as client:
        accepted = await client.enqueue(NewTask("work", "kept"))
        faults.slow_disk(60)
        held_up = asyncio.create_task(client.enqueue(NewTask("work", "held up")))
        await asyncio.to_thread(faults.wait_for_slow_sync)
        server.ask_to_stop()
        await asyncio.to_thread(server.wait_for_event, "stopping")
        server.ask_to_stop()
        assert await asyncio.to_thread(server.wait_for_exit) == 1
        with pytest.raises(HoldfastError):
            await held_up
    faults.slow_disk(0)
    server.start()
    async with AsyncClient(server.address) as client:
        assert (await client.get_task(accepted.task_id)).state is TaskState.READY
