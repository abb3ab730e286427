"""Bodies of calls are let in a few at a time, and only while there is room for their bytes."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from holdfast.serving import intake as module
from holdfast.serving.intake import Intake
from holdfast.serving.refusals import RefusedError

MESSAGE_BYTES = 1000


class Body:
    """A call whose body comes when the test says so."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._data: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def arrive(self, data: Any = b"body") -> None:
        self._data.set_result(data)

    async def read(self) -> Any:
        self.begun.set()
        return await self._data


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Intake:
    monkeypatch.setattr(module, "RECEIVING_MIN", 2)
    monkeypatch.setattr(module, "RECEIVING_BYTES_MAX", 0)
    return Intake(bytes_max=100, message_bytes_max=MESSAGE_BYTES)


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


async def test_a_slow_body_makes_room_only_for_those_who_wait(
    two_at_a_time: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.05)
    slow = [begin(two_at_a_time, Body()) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert not any(call.done() for call in slow), "nobody waits for their places"
    waiting = Body()
    waiting.arrive()
    assert await begin(two_at_a_time, waiting) == b"body"
    assert [await refused(call) for call in slow] == ["OVERLOADED"] * 2
    assert two_at_a_time.bytes == 4


async def test_a_call_without_a_body_is_malformed(two_at_a_time: Intake) -> None:
    body = Body()
    body.arrive(grpc.aio.EOF)
    assert await refused(begin(two_at_a_time, body)) == "MALFORMED_REQUEST"
    assert two_at_a_time.bytes == 0
