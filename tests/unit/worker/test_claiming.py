"""A worker that is asked to run dry does so, takes a suspect, and goes on as usual. A poll that met a shard which does
not answer is settled beside the next one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from holdfast.client import AsyncClient, ClaimedTask, Claims, HoldfastError, InvalidArgument, Unavailable
from holdfast.client.worker.claiming import Claimer
from holdfast.client.worker.leases import Leases
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.slots import Slots
from holdfast.client.worker.standstill import Standstill
from holdfast.common.service import end_tasks
from tests.simulation import virtual_time


def nobody(_claim: ClaimedTask) -> None: ...


Take = Callable[[ClaimedTask], None]


def claimer_of(
    server: object, slots: Slots, claimed: Take = nobody, give_back: Take = nobody, lease_ms: int = 1000
) -> Claimer:
    leases, standstill = Leases(lease_ms, {}), Standstill(list, 1000)
    return Claimer(cast(AsyncClient, server), slots, "w", leases, standstill, claimed, give_back, Meter([]))


@asynccontextmanager
async def running(claimer: Claimer) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(claimer.run())
    yield task
    await end_tasks([task])


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

        claimer = claimer_of(server, slots, claimed, claimed)
        async with running(claimer):
            await asyncio.sleep(busy_s)
            slots.ended("mail")
            slots.reported()
            claimer.slots_changed(reopened=False)
            await asyncio.sleep(1)
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


# --- polls that are left unsettled ------------------------------------------------------------------------------------

LATE = [ClaimedTask(task_id=f"late-{number}", token=number, queue="mail", type="t") for number in range(3)]
NEXT = ClaimedTask(task_id="next", token=7, queue="mail", type="t")
UNSETTLED = Claims(unsettled_shards=(3,))
AWAY = Unavailable("", reason="NOT_LEADER", retry_after_ms=100)


class SilentShard:
    """The first polls are unsettled; what they claimed is told after some refusals."""

    def __init__(
        self, unsettled: int, settled: list[Claims | HoldfastError], polls: list[Claims], poll_s: float = 0.0
    ) -> None:
        self._unsettled, self._polls, self._poll_s = unsettled, polls, poll_s
        self.settled = settled
        self.polled: list[tuple[str, bool]] = []
        self.settled_for: list[str] = []

    async def reserve(self, queues: list[str], **asked: Any) -> Claims:
        if asked["held_only"]:
            self.settled_for.append(asked["claim_request_id"])
            answer = self.settled.pop(0) if self.settled else AWAY
            if isinstance(answer, HoldfastError):
                raise answer
            return answer
        self.polled.append((asked["claim_request_id"], asked["settles_later"]))
        if len(self.polled) <= self._unsettled:
            return UNSETTLED
        if not self._polls:
            await asyncio.Event().wait()
        await asyncio.sleep(self._poll_s)
        return self._polls.pop(0)


def settle(
    server: SilentShard, seconds: float = 5.0, slots: int = 2, lease_ms: int = 30_000
) -> tuple[list[str], list[str], list[str]]:
    """What was begun with, what was given back, and what was collected at the end."""

    async def act() -> tuple[list[str], list[str], list[str]]:
        begun: list[str] = []
        given_back: list[str] = []
        room = Slots(slots, {"mail": None})

        def claimed(claim: ClaimedTask) -> None:
            begun.append(claim.task_id)
            room.take(claim.queue, is_alone=claim.alone)

        claimer = claimer_of(server, room, claimed, lambda claim: given_back.append(claim.task_id), lease_ms)
        async with running(claimer):
            await asyncio.sleep(seconds)
        return begun, given_back, [claim.task_id for claim in await claimer.collect()]

    return virtual_time.run(act, 1)


def test_the_next_poll_does_not_wait_for_what_an_unsettled_one_claimed() -> None:
    server = SilentShard(1, [AWAY, AWAY, Claims(LATE[:1])], [Claims([NEXT])])
    assert settle(server) == (["next", "late-0"], [], [])
    ids = [request_id for request_id, _ in server.polled]
    assert len(set(ids)) == len(ids)
    assert server.settled_for[:4] == [*ids[:1] * 3, ids[-1]], "and when it stops, what the last poll may have claimed"


def test_claims_of_others_are_begun_with_while_a_silent_shard_is_asked() -> None:
    """And what one shard held does not wait for another one's answer."""
    late: list[Claims | HoldfastError] = [AWAY, Claims(LATE[:1], unsettled_shards=(4,)), AWAY, Claims(LATE[1:2])]
    server = SilentShard(0, late, [Claims([NEXT], unsettled_shards=(3, 4))])
    assert settle(server, slots=3) == (["next", "late-0", "late-1"], [], [])


def test_a_worker_asks_for_only_so_many_unsettled_calls() -> None:
    server = SilentShard(100, [], [])
    settle(server, seconds=600.0, lease_ms=3_600_000)
    assert len(server.polled) > 40
    assert len(set(server.settled_for)) == 33, "with the last poll, which was cut off"


def test_what_comes_late_goes_back_if_others_have_taken_its_place() -> None:
    server = SilentShard(1, [AWAY, Claims(LATE)], [Claims([NEXT])])
    assert settle(server) == (["next", "late-0"], ["late-1", "late-2"], [])


def test_what_was_asked_for_meanwhile_goes_back_if_late_ones_have_taken_its_place() -> None:
    server = SilentShard(1, [Claims(LATE[:2])], [Claims([NEXT])], poll_s=1.0)
    assert settle(server) == (["late-0", "late-1"], ["next"], [])


def test_a_suspect_that_comes_late_is_never_begun_beside_others() -> None:
    server = SilentShard(1, [AWAY, Claims([SUSPECT])], [Claims([NEXT])])
    assert settle(server) == (["next"], ["suspect"], [])


def test_only_so_many_polls_are_left_unsettled() -> None:
    server = SilentShard(10, [], [])
    settle(server)
    assert [settles_later for _, settles_later in server.polled][:6] == [True] * 4 + [False] * 2


def test_a_worker_that_stops_asks_once_more_for_what_is_unsettled() -> None:
    server = SilentShard(1, [], [])

    async def act() -> list[str]:
        claimer = claimer_of(server, Slots(2, {"mail": None}), lease_ms=30_000)
        async with running(claimer):
            await asyncio.sleep(1)
        server.settled = [AWAY, Claims(LATE)]
        return [claim.task_id for claim in await claimer.collect()]

    assert virtual_time.run(act, 1) == [claim.task_id for claim in LATE]


# --- how long it waits ------------------------------------------------------------------------------------------------


class Crowded:
    """Suggests a long wait, then says that this is too long, and then nothing."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []

    async def reserve(self, queues: list[str], *, wait_ms: int, **asked: Any) -> Claims:
        self.waits_ms.append(wait_ms)
        if len(self.waits_ms) == 1:
            return Claims(suggested_wait_ms=200_000)
        if len(self.waits_ms) == 2:
            return Claims(suggested_wait_ms=250_000)
        if len(self.waits_ms) == 3:
            raise InvalidArgument("at most 60000", reason="OUT_OF_RANGE", field="wait_ms")
        await asyncio.Event().wait()
        return Claims()


def test_it_waits_as_long_as_a_crowded_server_suggests_and_as_usual_where_that_is_refused() -> None:
    server = Crowded()

    async def act() -> None:
        async with running(claimer_of(server, Slots(2, {"mail": None}))) as claiming:
            await asyncio.sleep(1)
            assert not claiming.done()

    virtual_time.run(act, 1)
    assert server.waits_ms == [30_000, 200_000, 250_000, 30_000]


def test_a_bug_in_asking_for_earlier_claims_ends_it() -> None:
    class Buggy:
        async def reserve(self, queues: list[str], **asked: Any) -> Claims:
            if not asked["wait_ms"]:
                raise ZeroDivisionError
            return Claims(unsettled_shards=[3])

    async def act() -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(claimer_of(Buggy(), Slots(2, {"mail": None})).run(), 10)

    virtual_time.run(act, 1)


def quiet_at(server: Server, quiet_s: float, *, resumes: bool) -> tuple[list[float], list[ClaimedTask]]:
    """When it asked, and what it gave back. It is quiet for 20 s, or for ever; one handler runs all the time."""
    given_back: list[ClaimedTask] = []

    async def act() -> float:
        slots = Slots(4, {"mail": None})
        slots.take("mail")
        claimer = claimer_of(server, slots, give_back=given_back.append)
        began_s = asyncio.get_running_loop().time()
        async with running(claimer):
            for seconds, is_quiet in ((quiet_s, True), (20.0, not resumes)):
                await asyncio.sleep(seconds)
                slots.is_quiet = is_quiet
                claimer.slots_changed(reopened=True)
            await asyncio.sleep(20)
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
