"""Single calls share requests: nothing is lost or mixed up, and nobody suffers for a neighbour."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.client import ConnectionFailed, InvalidArgument, Overloaded, Rejected
from holdfast.client import _coalescing as coalescing
from holdfast.client._coalescing import Coalescer

WAIT_S = 20.0


class Server:
    """Doubles numbers; holds every request until it is let through."""

    def __init__(self, *, held: bool = True) -> None:
        self.requests: list[list[int]] = []
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()
        self.raises: list[Exception] = []

    async def send(self, items: Sequence[int], timeout_s: float) -> list[int | Rejected]:
        assert 0 < timeout_s <= WAIT_S
        self.requests.append(list(items))
        await self.gate.wait()
        if self.raises:
            raise self.raises.pop()
        if any(item < 0 for item in items):
            raise InvalidArgument("negative", reason="INVALID_FIELD")
        return [item * 2 for item in items]

    def sent(self) -> list[int]:
        return sorted(item for request in self.requests for item in request)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_first_calls_go_at_once_and_the_rest_together() -> None:
    server = Server()
    coalescer = Coalescer(server.send, items_max=100, bytes_max=1_000)
    calls = []
    for number in range(10):
        calls.append(asyncio.create_task(coalescer.put(number, 1, WAIT_S)))
        await settle()
    assert server.requests == [[0], [1]]
    server.gate.set()
    assert await asyncio.gather(*calls) == [number * 2 for number in range(10)]
    assert server.requests == [[0], [1], list(range(2, 10))]


async def test_a_lonely_call_is_a_request_of_its_own() -> None:
    server = Server(held=False)
    coalescer = Coalescer(server.send, items_max=100, bytes_max=1_000)
    for number in range(3):
        assert await coalescer.put(number, 1, WAIT_S) == number * 2
    assert server.requests == [[0], [1], [2]]


@pytest.mark.parametrize(("items_max", "bytes_max"), [(3, 1_000), (100, 30)])
async def test_requests_keep_their_limits(items_max: int, bytes_max: int) -> None:
    server = Server(held=False)
    coalescer = Coalescer(server.send, items_max=items_max, bytes_max=bytes_max)
    assert await asyncio.gather(*(coalescer.put(number, 10, WAIT_S) for number in range(20))) == [
        n * 2 for n in range(20)
    ]
    assert max(map(len, server.requests)) == 3


async def test_an_item_that_is_too_large_by_itself_goes_alone() -> None:
    server = Server(held=False)
    coalescer = Coalescer(server.send, items_max=10, bytes_max=30)
    await asyncio.gather(*(coalescer.put(number, 50, WAIT_S) for number in range(5)))
    assert {len(request) for request in server.requests} == {1}


async def test_one_bad_item_fails_alone() -> None:
    server = Server()
    coalescer = Coalescer(server.send, items_max=100, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in (1, 2, 3, -4, 5)]
    await settle()
    server.gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in done] == [int, int, int, InvalidArgument, int]


async def test_what_makes_a_request_fail_is_told_to_all_in_it_and_the_next_request_goes_on() -> None:
    server = Server()
    coalescer = Coalescer(server.send, items_max=100, bytes_max=1_000)
    first = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(4)]
    await settle()
    server.raises = [ConnectionFailed("x")]
    server.gate.set()
    done = await asyncio.gather(*first, return_exceptions=True)
    assert all(isinstance(each, ConnectionFailed) for each in done)
    assert len({id(each) for each in done}) == 4, "each caller has an error of its own"
    assert await coalescer.put(7, 1, WAIT_S) == 14


async def test_a_caller_that_has_gone_before_its_request_is_not_sent() -> None:
    server = Server()
    coalescer = Coalescer(server.send, items_max=1, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(5)]
    await settle()
    calls[3].cancel()
    await settle()
    server.gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[3], asyncio.CancelledError)
    assert server.sent() == [0, 1, 2, 4]


async def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "_WAITING_MAX", 5)
    server = Server()
    coalescer = Coalescer(server.send, items_max=1, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(20)]
    await settle()
    server.gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in done if isinstance(each, Overloaded)]
    assert refused
    assert refused[0].retry_after_ms > 0
    assert len(refused) + sum(map(len, server.requests)) == 20


async def test_a_call_made_as_the_last_answers_come_is_not_forgotten() -> None:
    """Both senders have looked for the last time when somebody whom they woke calls again."""
    answers: list[asyncio.Future[None]] = []

    async def send(items: Sequence[int], timeout_s: float) -> list[int | Rejected]:
        answers.append(asyncio.get_running_loop().create_future())
        await answers[-1]
        return list(items)

    coalescer = Coalescer(send, items_max=100, bytes_max=1_000)

    async def calls(count: int) -> None:
        for number in range(count):
            await coalescer.put(number, 1, WAIT_S)

    twice = asyncio.create_task(calls(2))
    await settle()
    once = asyncio.create_task(calls(1))
    await settle()
    for answer in answers:  # both in one turn of the loop
        answer.set_result(None)
    answers.clear()
    await settle()
    assert len(answers) == 1, "the second call is on its way"
    answers[0].set_result(None)
    await asyncio.gather(twice, once)


async def test_nobody_waits_longer_than_asked_for_sent_or_not() -> None:
    server = Server()
    coalescer = Coalescer(server.send, items_max=1, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, 0.05)) for number in range(10)]
    async with asyncio.timeout(WAIT_S):
        done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in done] == [TimeoutError] * 10
    assert len(server.requests) == 2, "what nobody waits for is not sent"
    server.gate.set()
    await coalescer.drain()
