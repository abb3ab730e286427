"""Bodies of calls are let in a few at a time, and only while there is room for their bytes."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from holdfast.common.loop import new_event_loop
from holdfast.serving import intake as module
from holdfast.serving.intake import Intake
from holdfast.serving.refusals import RefusedError

MESSAGE_BYTES = 1000
MOMENT_S = 0.02
LONG_S = 60.0  # nobody is ended while a test lasts
WAITING_MAX = 6


class Body:
    """A call whose body comes when the test says so."""

    def __init__(self, connection: str = "a") -> None:
        self._connection = connection
        self.begun = asyncio.Event()
        self._data: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def arrive(self, data: Any = b"body") -> None:
        self._data.set_result(data)

    def peer(self) -> str:
        return self._connection

    async def read(self) -> Any:
        self.begun.set()
        return await self._data


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Intake:
    """And one more that is slow."""
    monkeypatch.setattr(module, "RECEIVING_MIN", 3)
    monkeypatch.setattr(module, "NEW_TASKS_BYTES_MAX", 0)
    monkeypatch.setattr(module, "OTHERS_BYTES_MAX", 0)
    monkeypatch.setattr(module, "NEW_TASKS_SECONDS", LONG_S)
    monkeypatch.setattr(module, "OTHERS_SECONDS", MOMENT_S)
    return Intake(bytes_max=100, message_bytes_max=MESSAGE_BYTES, waiting_max=WAITING_MAX)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def begin(intake: Intake, body: Body, *, brings_tasks: bool = True) -> asyncio.Task[bytes]:
    return asyncio.create_task(intake.receive(body, brings_tasks=brings_tasks))


async def refused(call: asyncio.Task[bytes]) -> str:
    with pytest.raises(RefusedError) as caught:
        await call
    return caught.value.reason


async def test_a_few_are_read_at_a_time_in_the_order_in_which_they_came(two_at_a_time: Intake) -> None:
    bodies = [Body() for _ in range(4)]
    calls = [begin(two_at_a_time, body) for body in bodies]
    await turn()
    assert [body.begun.is_set() for body in bodies] == [True, True, False, False]
    bodies[1].arrive()
    assert await calls[1] == b"body"
    await turn()
    assert [body.begun.is_set() for body in bodies] == [True, True, True, False]
    for body in (bodies[0], bodies[2], bodies[3]):
        body.arrive()
    assert [await calls[0], await calls[2], await calls[3]] == [b"body"] * 3
    assert two_at_a_time.bytes == 16


async def test_other_calls_do_not_wait_for_new_tasks(two_at_a_time: Intake) -> None:
    stuck = [begin(two_at_a_time, Body()) for _ in range(3)]
    ack = Body()
    ack.arrive(b"ack")
    assert await begin(two_at_a_time, ack, brings_tasks=False) == b"ack"
    for call in stuck:
        call.cancel()


async def test_nothing_is_read_while_there_is_no_room_for_more_bytes(two_at_a_time: Intake) -> None:
    first, second, third, settling = Body(), Body(), Body(), Body()
    first.arrive(bytes(100))
    await begin(two_at_a_time, first)
    assert await refused(begin(two_at_a_time, second)) == "OVERLOADED"
    assert not second.begun.is_set()
    settling.arrive(bytes(25))  # acks have a quarter more
    await begin(two_at_a_time, settling, brings_tasks=False)
    assert await refused(begin(two_at_a_time, Body(), brings_tasks=False)) == "OVERLOADED"
    two_at_a_time.leave(100)
    third.arrive(b"x")
    assert await begin(two_at_a_time, third) == b"x"


async def test_who_waited_is_refused_unread_if_there_is_no_room_any_more(two_at_a_time: Intake) -> None:
    bodies = [Body() for _ in range(3)]
    calls = [begin(two_at_a_time, body) for body in bodies]
    await turn()
    bodies[0].arrive(bytes(100))
    await calls[0]
    assert await refused(calls[2]) == "OVERLOADED"
    assert not bodies[2].begun.is_set()
    bodies[1].arrive()
    await calls[1]


async def test_who_gives_up_makes_room(two_at_a_time: Intake) -> None:
    bodies = [Body() for _ in range(5)]
    calls = [begin(two_at_a_time, body) for body in bodies]
    await turn()
    for call in (calls[0], calls[2], calls[1]):  # one that waits among them
        call.cancel()
    await turn()
    assert [body.begun.is_set() for body in bodies] == [True, True, False, True, True]
    bodies[3].arrive()
    bodies[4].arrive()
    await asyncio.gather(calls[3], calls[4])


def begin_other(intake: Intake, body: Body) -> asyncio.Task[bytes]:
    return begin(intake, body, brings_tasks=False)


def arrived(connection: str = "a") -> Body:
    body = Body(connection)
    body.arrive()
    return body


async def ended(calls: list[asyncio.Task[bytes]]) -> list[str]:
    async with asyncio.timeout(30):
        return [await refused(call) for call in calls]


async def test_a_slow_body_makes_room_only_for_those_who_wait(two_at_a_time: Intake) -> None:
    bodies = [Body() for _ in range(2)]
    calls = [begin_other(two_at_a_time, body) for body in bodies]
    await asyncio.sleep(3 * MOMENT_S)
    assert not any(call.done() for call in calls), "nobody waits for their places"
    assert await begin_other(two_at_a_time, arrived()) == b"body"
    await asyncio.sleep(3 * MOMENT_S)
    assert not any(call.done() for call in calls), "one of them has the place for slow ones, the other one its own"
    for body in bodies:
        body.arrive()
    assert await asyncio.gather(*calls) == [b"body"] * 2


async def test_who_sends_nothing_holds_a_place_for_a_moment(two_at_a_time: Intake) -> None:
    """Hundreds of calls without a body, of a few connections; those who send theirs are served meanwhile."""
    silent = [begin_other(two_at_a_time, Body(f"silent {index % 3}")) for index in range(WAITING_MAX)]
    await turn()
    for _ in range(10):
        async with asyncio.timeout(20 * MOMENT_S):
            assert await begin_other(two_at_a_time, arrived()) == b"body"
        silent += [begin_other(two_at_a_time, Body(f"silent {index % 3}")) for index in range(3)]
    for call in silent:
        call.cancel()
    await asyncio.wait(silent)
    assert await asyncio.gather(*(begin_other(two_at_a_time, arrived()) for _ in range(4))) == [b"body"] * 4
    assert two_at_a_time.bytes == 14 * 4


async def test_a_body_that_has_come_is_not_taken_for_missing(two_at_a_time: Intake) -> None:
    """The loop stood still for longer than a moment: what came meanwhile counts before anybody is ended."""
    bodies = [Body() for _ in range(4)]
    calls = [begin_other(two_at_a_time, body) for body in bodies]
    await turn()
    for body in bodies:
        asyncio.get_running_loop().call_soon(body.arrive)
    time.sleep(3 * MOMENT_S)  # noqa: ASYNC251 - that is what it is about
    assert await asyncio.gather(*calls) == [b"body"] * 4


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
def test_a_body_that_is_in_the_socket_is_not_taken_for_missing(
    two_at_a_time: Intake, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Each loop has an order of its own of timers, network and what is ready."""

    async def stand_still() -> None:
        loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
        bodies = [Body() for _ in range(4)]

        def arrive() -> None:
            loop.remove_reader(ours)
            for body in bodies:
                body.arrive()

        with ours, theirs:
            loop.add_reader(ours, arrive)
            calls = [begin_other(two_at_a_time, body) for body in bodies]
            await turn()
            theirs.send(b"bodies")
            time.sleep(3 * MOMENT_S)  # noqa: ASYNC251 - that is what it is about
            assert await asyncio.gather(*calls) == [b"body"] * 4

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(stand_still())


async def test_connections_take_turns(two_at_a_time: Intake) -> None:
    held = [Body("greedy") for _ in range(2)]
    calls = [begin(two_at_a_time, body) for body in held]
    greedy = [Body("greedy") for _ in range(3)]
    modest = Body("modest")
    calls += [begin(two_at_a_time, body) for body in (*greedy, modest)]
    await turn()
    for body in held:
        body.arrive()
    await turn()
    assert [body.begun.is_set() for body in (*greedy, modest)] == [True, False, False, True]
    for body in (*greedy, modest):
        body.arrive()
    await asyncio.gather(*calls)


async def test_a_connection_that_sent_nothing_comes_after_the_others(two_at_a_time: Intake) -> None:
    silent = [begin_other(two_at_a_time, Body("silent")) for _ in range(5)]
    assert await ended(silent[1:3]) == ["OVERLOADED"] * 2
    late, early = Body("silent"), Body("other")
    calls = [begin(two_at_a_time, body) for body in (Body(), Body(), late, early)]  # remembered for new tasks as well
    await turn()
    calls[0].cancel()
    await turn()
    assert (early.begun.is_set(), late.begun.is_set()) == (True, False)
    for call in (*silent, *calls):
        call.cancel()


async def test_a_silent_connection_loses_the_place_for_slow_ones_to_one_that_is_not(two_at_a_time: Intake) -> None:
    silent = [begin_other(two_at_a_time, Body("silent")) for _ in range(5)]
    assert await ended(silent[1:3]) == ["OVERLOADED"] * 2
    assert not silent[0].done()
    slow = Body("slow")
    call = begin_other(two_at_a_time, slow)
    more = [begin_other(two_at_a_time, Body("silent")) for _ in range(4)]
    assert await ended([silent[0]]) == ["OVERLOADED"]
    await ended(more[:2])  # and keeps it
    slow.arrive()
    assert await call == b"body"
    for item in (*silent, *more):
        item.cancel()


async def test_a_place_for_slow_ones_is_not_for_ever(two_at_a_time: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", MOMENT_S)
    slow = begin_other(two_at_a_time, Body("slow"))
    others = [begin_other(two_at_a_time, Body(f"other {index}")) for index in range(WAITING_MAX)]
    assert await ended([slow]) == ["OVERLOADED"]
    for call in others:
        call.cancel()


async def test_too_many_wait_at_the_cost_of_whoever_has_most(two_at_a_time: Intake) -> None:
    reading = [begin(two_at_a_time, Body()) for _ in range(2)]
    greedy = [begin(two_at_a_time, Body("greedy")) for _ in range(WAITING_MAX)]
    await turn()
    assert await refused(begin(two_at_a_time, Body("greedy"))) == "OVERLOADED"
    modest = [begin(two_at_a_time, arrived("modest")) for _ in range(2)]
    assert await ended(greedy[-2:]) == ["OVERLOADED"] * 2
    for call in (*reading, *greedy):
        call.cancel()
    assert await asyncio.gather(*modest) == [b"body"] * 2


async def test_who_goes_away_at_its_turn_hands_it_on(two_at_a_time: Intake) -> None:
    bodies = [Body() for _ in range(4)]
    calls = [begin(two_at_a_time, body) for body in bodies]
    await turn()
    calls[0].cancel()
    asyncio.get_running_loop().call_soon(calls[2].cancel)
    await turn()
    assert bodies[3].begun.is_set()
    for body in (bodies[1], bodies[3]):
        body.arrive()
    await asyncio.gather(calls[1], calls[3])


async def test_what_is_received_aside_never_waits(two_at_a_time: Intake) -> None:
    silent = [asyncio.create_task(two_at_a_time.receive_aside(Body())) for _ in range(module.RECEIVING_MIN)]
    await turn()
    assert await two_at_a_time.receive_aside(arrived()) is None
    silent[0].cancel()
    await turn()
    assert await two_at_a_time.receive_aside(arrived()) == b"body"
    for call in silent:
        call.cancel()


async def test_a_call_without_a_body_is_malformed(two_at_a_time: Intake) -> None:
    body = Body()
    body.arrive(grpc.aio.EOF)
    assert await refused(begin(two_at_a_time, body)) == "MALFORMED_REQUEST"
    assert two_at_a_time.bytes == 0
