"""What a worker says when the server does not answer, and what is not worth a line."""

import asyncio
import logging

import pytest

from holdfast.client import ConnectionFailed, Unavailable
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.outages import Outage
from holdfast.client.worker.standstill import Standstill
from tests.simulation import virtual_time

NOT_LEADER = Unavailable("Not here.", reason="NOT_LEADER")


async def fail_for(outage: Outage, seconds: float) -> int:
    """Returns after how many tries."""
    loop, tries = asyncio.get_running_loop(), 0
    ends_s = loop.time() + seconds
    while loop.time() < ends_s:
        await outage.pause(NOT_LEADER)
        tries += 1
    return tries


def test_a_leader_that_moves_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        outage = Outage("claim tasks", Standstill(list, 1000), Meter([]))
        for _ in range(5):  # each counts from its own beginning
            assert await fail_for(outage, 1.5) > 1
            outage.over()

    caplog.set_level(logging.INFO)
    virtual_time.run(act, 1)
    assert caplog.messages == []


def test_a_leader_that_does_not_come_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> int:
        outage = Outage("claim tasks", Standstill(list, 1000), Meter([]))
        tries = await fail_for(outage, 20)
        outage.over()
        outage.over()
        return tries

    caplog.set_level(logging.INFO)
    tries = virtual_time.run(act, 1)
    assert caplog.messages == [
        "Cannot claim tasks at the moment, and goes on trying: NOT_LEADER",
        f"Can claim tasks again, after {tries} failed tries.",
    ]


def test_anything_else_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        outage = Outage("claim tasks", Standstill(list, 1000), Meter([]))
        await outage.pause(NOT_LEADER)
        await outage.pause(ConnectionFailed("h:1", "connection refused"))

    virtual_time.run(act, 1)
    assert len(caplog.messages) == 1
    assert "connection refused" in caplog.messages[0]
