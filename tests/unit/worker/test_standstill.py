"""A worker that stood still knows it, by its own clock."""

import logging

import pytest

from holdfast.client import ClaimedTask, ConnectionFailed
from holdfast.client.worker.jobs import Job, new_job
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.outages import Outage
from holdfast.client.worker.standstill import Standstill
from tests.simulation import virtual_time

LEASE_MS = 4_000
SERVER = "the server does not answer"


class Clocks:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.cpu_s = 50.0
        self.jobs: list[Job] = []
        self.standstill = Standstill(lambda: self.jobs, LEASE_MS, lambda: self.now_s, lambda: self.cpu_s)

    def pass_time(self, seconds: float, cpu_s: float = 0.0) -> None:
        self.now_s += seconds
        self.cpu_s += cpu_s

    def look_for(self, seconds: float) -> None:
        """Nothing stands still meanwhile."""
        for _ in range(int(seconds / 0.9) + 1):
            self.pass_time(0.9)
            self.standstill.poll()

    def job(self, name: str = "send", number: int = 1) -> Job:
        """One that was claimed just now."""
        claim = ClaimedTask(
            task_id=f"id{number}", token=1, queue="q", type=name, payload=b"", headers={}, priority=None, tenant="",
            request_id="", attempt=1, claims=1, max_attempts=None, limit_key="", unique_key="", timeout_ms=None,
            enqueued_at_ms=1, lease_ms=LEASE_MS, lease_ends_s=self.now_s + LEASE_MS / 1000,
        )  # fmt: skip
        return new_job(claim, LEASE_MS, LEASE_MS)


@pytest.fixture
def clocks(caplog: pytest.LogCaptureFixture) -> Clocks:
    caplog.set_level(logging.INFO)
    return Clocks()


def test_looks_that_come_in_time_say_nothing(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    job = clocks.job()
    clocks.look_for(36)
    assert clocks.standstill.why_lost(job, SERVER) == SERVER
    assert not clocks.standstill.is_recent()
    assert caplog.messages == []


def test_a_late_look_tells_of_it_once(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    job = clocks.job()
    clocks.pass_time(5.5)
    assert clocks.standstill.why_lost(job, SERVER).startswith("this worker itself stood still for 5.5 s")
    clocks.standstill.poll()
    assert clocks.standstill.is_recent()
    assert caplog.messages == [
        "This worker stood still for 5.5 s: its process was stopped, or its machine had no time for it."
    ]
    clocks.look_for(1)
    assert not clocks.standstill.is_recent()


@pytest.mark.parametrize(
    ("cpu_s", "cause"), [(5.0, "most likely a handler held"), (0.1, "its process was stopped, or a handler held")]
)
def test_it_names_the_handlers_that_ran(
    clocks: Clocks, caplog: pytest.LogCaptureFixture, cpu_s: float, cause: str
) -> None:
    clocks.jobs = [clocks.job(f"task{number}", number) for number in range(7)]
    clocks.pass_time(6.0, cpu_s)
    clocks.standstill.poll()
    [message] = caplog.messages
    assert cause in message
    assert message.endswith("task0 (id0), task1 (id1), task2 (id2), task3 (id3), task4 (id4) and 2 more.")


def test_an_older_standstill_does_not_explain_what_was_lost_after_it(clocks: Clocks) -> None:
    clocks.pass_time(6.0)
    clocks.look_for(9)
    job = clocks.job()
    clocks.look_for(9)
    assert clocks.standstill.why_lost(job, SERVER) == SERVER


def test_what_fails_by_a_standstill_is_no_outage(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    async def fail_twice() -> None:
        outage = Outage("extend leases", clocks.standstill, Meter([]))
        clocks.pass_time(6.0)
        await outage.pause(ConnectionFailed("gone"))
        caplog.clear()
        clocks.look_for(1)
        await outage.pause(ConnectionFailed("gone"))

    virtual_time.run(fail_twice, 1)
    assert [message[:20] for message in caplog.messages] == ["Cannot extend leases"], "but one that goes on is"
