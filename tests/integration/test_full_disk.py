"""A full disk: writes are refused with a reason, nothing is lost, and service resumes by itself."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import (
    Accepted,
    AsyncClient,
    ClaimedTask,
    ConnectionFailed,
    HoldfastError,
    NewTask,
    Rejected,
    TaskState,
    Unavailable,
)
from tests.integration.conftest import MakeServer
from tests.integration.server import DEADLINE_S, ServerProcess
from tests.integration.small_disk import SmallDisk

KIB = 1024
MIB = 1024 * KIB
WATERMARK_BYTES = 16 * MIB
HUNG_S = 2.0  # a call that is tried again and again is given up after this
SETTINGS: dict[str, object] = {
    "free_bytes_min": WATERMARK_BYTES,
    "segment_bytes": MIB,
    "batch_bytes_max": MIB,
    "payload_bytes_max": 256 * KIB,
    "result_bytes_max": 256 * KIB,
    # Often written out, so that the state meets the full disk as well as the log.
    "state_write_buffer_bytes": MIB,
    "state_flush_log_bytes": 512 * KIB,
    "state_flush_age_seconds": 0.2,
}

STATE_STAYS_IN_MEMORY: dict[str, object] = {
    "state_write_buffer_bytes": 64 * MIB,
    "state_flush_log_bytes": 1024 * MIB,
    "state_flush_age_seconds": 3600,
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small-disk", 64 * MIB)
    yield disk
    disk.close()


class Producer:
    """Enqueues until it is refused and remembers what was accepted."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.accepted: dict[str, bytes] = {}
        self.unknown: set[bytes] = set()  # payloads of calls that were not answered: they may or may not be there
        self._sent = 0

    async def enqueue(self, timeout_s: float = DEADLINE_S) -> HoldfastError | None:
        """One batch; returns why it was not accepted."""
        batch = [NewTask("work", "t", b"%d-" % (self._sent + n) + bytes(32 * KIB)) for n in range(8)]
        self._sent += len(batch)
        try:
            outcomes = await self.client.enqueue_many(batch, timeout_s=timeout_s)
        except Unavailable as refused:
            return refused
        except HoldfastError as unanswered:
            self.unknown |= {task.payload for task in batch}
            return unanswered
        for task, outcome in zip(batch, outcomes, strict=True):
            assert isinstance(outcome, Accepted)
            self.accepted[outcome.task_id] = task.payload
        return None

    async def enqueue_until_refused(self) -> Unavailable:
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(refused := await self.enqueue(HUNG_S), Unavailable):
                assert not isinstance(refused, ConnectionFailed), "the server is gone"
        return refused

    async def enqueue_until_accepted(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.enqueue(HUNG_S) is not None:
                await asyncio.sleep(0.05)

    async def check_all_there(self) -> None:
        """Claims and acks everything: each task is there once, as it was sent, in the order it was accepted."""
        seen: dict[str, bytes] = {}
        async with asyncio.timeout(DEADLINE_S):
            while claims := await self.client.reserve(["work"], max_tasks=100, lease_ms=600_000):
                seen |= {claim.task_id: claim.payload for claim in claims}
                for outcome in await self.client.ack_many(claims):
                    assert not isinstance(outcome, Rejected)
        assert {task_id: seen.get(task_id) for task_id in self.accepted} == self.accepted
        assert {payload for task_id, payload in seen.items() if task_id not in self.accepted} <= self.unknown
        assert [task_id for task_id in seen if task_id in self.accepted] == list(self.accepted)
        stats = await self.client.queue_stats("work")
        assert (stats.enqueued_total, stats.succeeded_total) == (len(seen), len(seen))


def check_disk_low(refused: HoldfastError | None) -> None:
    assert isinstance(refused, Unavailable), refused
    assert refused.reason == "DISK_LOW"
    assert refused.retry_after_ms > 0
    assert str(WATERMARK_BYTES) in refused.message


async def test_below_the_watermark_new_tasks_are_refused_until_there_is_room(
    disk: SmallDisk, make_server: MakeServer
) -> None:
    server = make_server(data_dir=disk.path / "data", **SETTINGS)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address, retry=False) as client:
        producer = Producer(client)
        done = await client.enqueue(NewTask("done", "t"))
        [claim] = await client.reserve(["done"], lease_ms=600_000)
        # The tasks themselves use up the room that the ballast leaves. The server looks once a second.
        await asyncio.to_thread(disk.leave_free, WATERMARK_BYTES + 2 * MIB)
        while disk.free_bytes > WATERMARK_BYTES:
            assert await producer.enqueue() is None
        await asyncio.to_thread(server.wait_for_event, "writes_refused")
        check_disk_low(await producer.enqueue())

        # Between the watermark and half of it, reading and finishing go on.
        await asyncio.to_thread(disk.leave_free, WATERMARK_BYTES * 3 // 4)
        status, body = server.get("/readyz")
        assert (status, json.loads(body)["ready"]) == (503, False)
        assert server.get("/livez")[0] == 200
        assert (await client.queue_stats("work")).ready == len(producer.accepted)
        await client.ack(claim)
        assert (await client.get_task(done.task_id)).state is TaskState.SUCCEEDED
        [held] = await client.reserve(["work"], lease_ms=600_000)
        assert held.payload == producer.accepted[held.task_id]
        await client.release(held)
        check_disk_low(await producer.enqueue())

        # A waiting worker is still there when the first task can be accepted again.
        waiting = asyncio.create_task(client.reserve(["later"], wait_ms=60_000))
        await asyncio.to_thread(disk.remove_ballast)
        await asyncio.to_thread(server.wait_for_event, "writes_resumed")
        assert server.get("/readyz")[0] == 200
        assert await producer.enqueue() is None
        later = await client.enqueue(NewTask("later", "t"))
        assert [claim.task_id for claim in await waiting] == [later.task_id]
    await check_restart(server, producer)


async def test_a_producer_faster_than_the_watermark_does_not_lock_workers_out(
    disk: SmallDisk, make_server: MakeServer
) -> None:
    """The log itself runs out of room before the server looks. Once there is some again, work can be finished."""
    server = make_server(data_dir=disk.path / "data", **SETTINGS | STATE_STAYS_IN_MEMORY)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address, retry=False) as client:
        producer = Producer(client)
        await client.enqueue(NewTask("done", "t"))
        [claim] = await client.reserve(["done"], lease_ms=600_000)
        await asyncio.to_thread(disk.leave_free, 2 * MIB)
        check_disk_low(await producer.enqueue_until_refused())
        await asyncio.to_thread(disk.leave_free, WATERMARK_BYTES * 3 // 4)
        await ack_when_possible(client, claim)


async def test_a_disk_without_a_byte_left_is_survived(disk: SmallDisk, make_server: MakeServer) -> None:
    server = make_server(data_dir=disk.path / "data", **SETTINGS)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address, retry=False) as client:
        producer = Producer(client)
        for _ in range(8):
            assert await producer.enqueue() is None
        # All at once, so that there is no warning: the log and the state find no room in the middle of their work.
        await asyncio.to_thread(disk.leave_free, 0)
        check_disk_low(await producer.enqueue_until_refused())
        await asyncio.to_thread(server.wait_for_event, "writes_refused")
        check_disk_low(await producer.enqueue())
        with pytest.raises(Unavailable, match="DISK_LOW"):
            await client.reserve(["work"])
        for task_id in list(producer.accepted)[::10]:
            assert (await client.get_task(task_id)).state is TaskState.READY, "reads go on"
        assert server.exit_code is None, server.log_text

        await asyncio.to_thread(disk.remove_ballast)
        await producer.enqueue_until_accepted()
        for _ in range(8):
            assert await producer.enqueue() is None
    await check_restart(server, producer)


async def test_a_restart_on_a_full_disk_serves_again(disk: SmallDisk, make_server: MakeServer) -> None:
    """Whoever restarts a server to get out of trouble must not end up with less than before."""
    server = make_server(data_dir=disk.path / "data", **SETTINGS | STATE_STAYS_IN_MEMORY)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address, retry=False) as client:
        producer = Producer(client)
        assert await producer.enqueue() is None
        await asyncio.to_thread(disk.leave_free, 0)
    # What cannot be written out is in the log, so nothing is lost by stopping: it is replayed.
    assert await asyncio.to_thread(server.stop) == 0, server.log_text
    assert "Traceback" not in server.log_text

    await asyncio.to_thread(disk.leave_free, WATERMARK_BYTES // 4)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address, retry=False) as client:
        producer.client = client
        check_disk_low(await producer.enqueue())
        assert (await client.queue_stats("work")).ready == len(producer.accepted)
        await asyncio.to_thread(disk.remove_ballast)
        await producer.enqueue_until_accepted()
        await producer.check_all_there()


async def ack_when_possible(client: AsyncClient, claim: ClaimedTask) -> None:
    """The server looks at the disk once a second, so it may take a moment."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await client.ack(claim)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def check_restart(server: ServerProcess, producer: Producer) -> None:
    """A stop is clean, and everything that was ever accepted is there afterwards."""
    assert await asyncio.to_thread(server.stop) == 0
    await asyncio.to_thread(server.start)
    [recovered] = server.events("recovered")
    assert (recovered["entries_to_apply"], recovered["clean"]) == (0, True)
    async with AsyncClient(server.address) as client:
        producer.client = client
        await producer.check_all_there()
