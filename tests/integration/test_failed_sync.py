"""A sync that fails: the process stops with a clear message, nobody was told a lie, and a restart recovers."""

import asyncio

from holdfast.client import AsyncClient, ConnectionFailed, NewTask, OutcomeUnknown, Unavailable
from tests.integration.conftest import MakeServer
from tests.integration.faults import Faults


async def test_a_failed_sync_stops_the_server(make_server: MakeServer, faults: Faults) -> None:
    server = make_server(env=faults.env)
    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address, retry=False) as client:
        before = [await client.enqueue(NewTask("work", "t", b"body", request_id=f"before-{n}")) for n in range(20)]
        [claim] = await client.reserve(["work"], lease_ms=3_600_000)
        await client.ack(claim)
        [held] = await client.reserve(["work"], lease_ms=3_600_000)
        waiting = asyncio.create_task(client.reserve(["idle"], wait_ms=60_000))

        # Several share the round that fails, others come behind it: none may be told that it is done.
        faults.slow_disk(60)
        calls = [asyncio.create_task(client.enqueue(NewTask("work", "t", request_id=f"during-{n}"))) for n in range(10)]
        calls_ack = asyncio.create_task(client.ack(held))
        await asyncio.to_thread(faults.wait_for_slow_sync)
        syncs = faults.syncs
        faults.fail_next_sync()
        faults.slow_disk(0)
        outcomes = await asyncio.gather(*calls, calls_ack, return_exceptions=True)
        # Unknown for what was on its way; a call that arrives at the last moment may still be refused or cut off.
        kinds = {type(outcome) for outcome in outcomes}
        assert OutcomeUnknown in kinds
        assert kinds <= {OutcomeUnknown, Unavailable, ConnectionFailed}
        await asyncio.gather(waiting, return_exceptions=True)

    exit_code = await asyncio.to_thread(server.wait_for_exit)
    assert exit_code not in (0, None)
    assert exit_code > 0, "it ends by itself, not by a signal"
    [stopped] = server.events("stopped_by_failure")
    assert "fdatasync" in stopped["error"]
    assert "Input/output error" in stopped["error"]
    assert "holdfast stopped: Expected to fdatasync" in server.log_text
    assert "Traceback" not in server.log_text
    assert faults.syncs_failed == 1
    assert faults.syncs == syncs, "a failed sync must never be repeated"
    assert faults.writes_after_failure == 0

    await asyncio.to_thread(server.start)
    async with AsyncClient(server.address) as client:
        # The tasks of the lost round are not there; the client sends them again and they are new.
        again = [await client.enqueue(NewTask("work", "t", request_id=f"during-{n}")) for n in range(10)]
        assert not any(accepted.duplicate for accepted in again)
        for accepted in before:
            await client.get_task(accepted.task_id)
        await client.ack(held)
        stats = await client.queue_stats("work")
        assert (stats.enqueued_total, stats.succeeded_total, stats.ready) == (30, 2, 28)
        await client.ack(claim)


async def test_a_sync_that_fails_at_the_start_is_refused_clearly(make_server: MakeServer, faults: Faults) -> None:
    server = make_server(env=faults.env)
    faults.fail_next_sync()
    server.launch()
    assert await asyncio.to_thread(server.wait_for_exit) == 1
    assert "holdfast cannot start: Expected to fdatasync" in server.log_text
    assert "Traceback" not in server.log_text
