"""Workers that are killed while they wait for tasks: it is noticed at once, and what comes then goes to others."""

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.client import AsyncClient, NewTask
from tests.integration.map_cluster import MapCluster
from tests.integration.server import ServerProcess
from tests.integration.waiters import use, wait_for_waiters

WAITS = 20
LEASE_MS = 120_000  # far longer than the test: nobody gets a task because a lease has ended
SOON_S = 20.0
VICTIM = textwrap.dedent("""
    import asyncio, sys
    from holdfast.client import AsyncClient
    address, queue, transport, waits = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    async def main():
        async with AsyncClient(address, transport=transport) as client:
            for _ in range(3):  # the first one finds the frames
                await client.list_queues()
                await asyncio.sleep(0.1)
            await asyncio.gather(*(
                client.reserve([queue], wait_ms=60_000, lease_ms=120_000, worker=f"victim {number}")
                for number in range(waits)
            ))
    asyncio.run(main())
""")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    with MapCluster(tmp_path_factory.mktemp("killed-waiters"), size=1, shards=2, replication=1) as running:
        yield running.start()


@pytest.fixture(params=["broker", "router"])
def address(request: pytest.FixtureRequest) -> str:
    served: ServerProcess | MapCluster = request.getfixturevalue(
        "shared_server" if request.param == "broker" else "cluster"
    )
    return served.address


@contextmanager
def victim(address: str, queue: str, transport: str) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen([sys.executable, "-c", VICTIM, address, queue, transport, str(WAITS)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("transport", ["auto", "grpc"])
async def test_tasks_go_to_those_who_are_still_there(address: str, queue: str, transport: str) -> None:
    async with AsyncClient(address) as client:
        await use(client, queue)
        with victim(address, queue, transport) as process:
            await wait_for_waiters(client, queue, WAITS)
            survivor = asyncio.create_task(collect(client, queue))
            await wait_for_waiters(client, queue, WAITS + 1)
            process.kill()
            await asyncio.to_thread(process.wait)
            began_s = time.monotonic()
            accepted = [await client.enqueue(NewTask(queue, "t")) for _ in range(WAITS)]
            async with asyncio.timeout(SOON_S):
                assert sorted(await survivor) == sorted(task.task_id for task in accepted)
            assert time.monotonic() - began_s < LEASE_MS / 1000 / 4
        await wait_for_waiters(client, queue, 0)


async def collect(client: AsyncClient, queue: str) -> list[str]:
    """One task after the other, as the last of all that wait."""
    found: list[str] = []
    while len(found) < WAITS:
        for claim in await client.reserve([queue], wait_ms=30_000, lease_ms=LEASE_MS, worker="survivor"):
            found.append(claim.task_id)
            await client.ack(claim)
    return found
