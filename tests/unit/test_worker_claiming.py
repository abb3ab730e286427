"""A worker that is asked to run dry does so, takes a suspect, and goes on as usual."""

import asyncio
from typing import Any, cast

from holdfast.client import AsyncClient, ClaimedTask, Claims
from holdfast.client.worker.claiming import Claimer
from holdfast.client.worker.leases import Leases
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.slots import Slots
from holdfast.client.worker.standstill import Standstill
from tests.simulation import virtual_time

SUSPECT = ClaimedTask(task_id="suspect", token=9, queue="mail", type="t", alone=True)


class Server:
    """Gives the answers of a script, one after the other, and waits for ever after the last one."""

    def __init__(self, *answers: Claims) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, bool, bool, int]] = []

    async def reserve(self, queues: list[str], **asked: Any) -> Claims:
        now_s = asyncio.get_running_loop().time()
        self.asked.append((now_s, asked["empty_handed"], asked["suspects_only"], asked["wait_ms"]))
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)


def ask_while_busy(server: Server, busy_s: float) -> tuple[list[tuple[float, bool, bool, int]], Slots]:
    """With one handler that runs for so long, and then a second in which nothing ends."""

    async def act() -> Slots:
        slots = Slots(4, {"mail": None})
        slots.take("mail")

        def claimed(claim: ClaimedTask) -> None:
            slots.take(claim.queue, is_alone=claim.alone)

        claimer = Claimer(
            cast(AsyncClient, server), slots, "w", Leases(1000, {}), Standstill(list, 1000), claimed, Meter([])
        )  # fmt: skip
        claiming = asyncio.create_task(claimer.run())
        await asyncio.sleep(busy_s)
        slots.ended("mail")
        slots.reported()
        claimer.slots_changed(reopened=False)
        await asyncio.sleep(1)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        return slots

    slots = virtual_time.run(act, 1)
    began_s = server.asked[0][0]
    return [(round(asked[0] - began_s, 3), *asked[1:]) for asked in server.asked], slots


def test_it_claims_nothing_until_it_holds_nothing_and_then_a_suspect_alone() -> None:
    server = Server(Claims(run_dry_s=5.0), Claims([SUSPECT]))
    asked, slots = ask_while_busy(server, 2.0)
    assert asked == [(0, False, False, 30_000), (2.0, True, True, 0)], "and nothing more while it has the suspect"
    assert slots.held == 1


def test_it_asks_again_in_time_whether_it_still_need() -> None:
    server = Server(Claims(run_dry_s=5.0), Claims())
    asked, _ = ask_while_busy(server, 7.0)
    assert asked == [(0, False, False, 30_000), (5.0, False, False, 30_000), (5.0, False, False, 30_000)]


def test_if_the_suspect_has_gone_it_goes_on_as_usual() -> None:
    server = Server(Claims(run_dry_s=5.0), Claims())
    asked, _ = ask_while_busy(server, 2.0)
    assert asked == [(0, False, False, 30_000), (2.0, True, True, 0), (2.0, True, False, 30_000)]


def quiet_at(server: Server, quiet_s: float, *, resumes: bool) -> tuple[list[float], list[ClaimedTask]]:
    """When it asked, and what it gave back. It is quiet for 20 s, or for ever; one handler runs all the time."""
    given_back: list[ClaimedTask] = []

    async def act() -> float:
        slots = Slots(4, {"mail": None})
        slots.take("mail")
        claimer = Claimer(
            cast(AsyncClient, server), slots, "w", Leases(1000, {}), Standstill(list, 1000), lambda _: None, Meter([]),
            given_back.append,
        )  # fmt: skip
        began_s = asyncio.get_running_loop().time()
        claiming = asyncio.create_task(claimer.run())
        for seconds, is_quiet in ((quiet_s, True), (20.0, not resumes)):
            await asyncio.sleep(seconds)
            slots.is_quiet = is_quiet
            claimer.slots_changed(reopened=True)
        await asyncio.sleep(20)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        return began_s

    began_s = virtual_time.run(act, 1)
    return [round(asked[0] - began_s, 3) for asked in server.asked], given_back


def test_a_quiet_worker_ends_its_poll_and_gives_back_what_that_had_claimed() -> None:
    class Late(Server):
        """The first poll is never answered, but has claimed something: the next with its id is told of it."""

        async def reserve(self, queues: list[str], **asked: Any) -> Claims:
            if asked["wait_ms"]:
                return await super().reserve(queues, **asked)
            self.asked.append((asyncio.get_running_loop().time(), True, False, 0))
            return Claims([SUSPECT])

    asked, given_back = quiet_at(Late(), 3.0, resumes=False)
    assert asked == [0, 3.0], "the last look for what it may have claimed, and nothing more"
    assert given_back == [SUSPECT]


def test_a_quiet_worker_asks_again_when_it_may() -> None:
    asked, given_back = quiet_at(Server(Claims(), Claims()), 3.0, resumes=True)
    assert asked[-1] == 23.0
    assert given_back == []


def test_a_worker_that_runs_dry_can_be_quiet() -> None:
    """And does not ask whether that is still wanted."""
    asked, _ = quiet_at(Server(Claims(run_dry_s=5.0)), 3.0, resumes=False)
    assert asked == [0]
