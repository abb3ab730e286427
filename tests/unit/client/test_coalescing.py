"""Single calls share requests: nothing is lost or mixed up, and nobody suffers for a neighbour."""

import asyncio
from collections.abc import Hashable, Sequence

import pytest

from holdfast.client import ConnectionFailed, InvalidArgument, OutcomeUnknown, Overloaded, Rejected, Unavailable
from holdfast.client import _coalescing as coalescing
from holdfast.client._coalescing import Coalescer

WAIT_S = 20.0


class OneGroup:
    """Nothing is ever repeated."""

    def group_of(self, item: int) -> Hashable:
        return 0

    def group_of_repeated(self, item: int, refusal: Rejected) -> Hashable | None:
        return None


class Server(OneGroup):
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
    coalescer = Coalescer(server, items_max=100, bytes_max=1_000)
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
    coalescer = Coalescer(server, items_max=100, bytes_max=1_000)
    for number in range(3):
        assert await coalescer.put(number, 1, WAIT_S) == number * 2
    assert server.requests == [[0], [1], [2]]


@pytest.mark.parametrize(("items_max", "bytes_max"), [(3, 1_000), (100, 30)])
async def test_requests_keep_their_limits(items_max: int, bytes_max: int) -> None:
    server = Server(held=False)
    coalescer = Coalescer(server, items_max=items_max, bytes_max=bytes_max)
    assert await asyncio.gather(*(coalescer.put(number, 10, WAIT_S) for number in range(20))) == [
        n * 2 for n in range(20)
    ]
    assert max(map(len, server.requests)) == 3


async def test_an_item_that_is_too_large_by_itself_goes_alone() -> None:
    server = Server(held=False)
    coalescer = Coalescer(server, items_max=10, bytes_max=30)
    await asyncio.gather(*(coalescer.put(number, 50, WAIT_S) for number in range(5)))
    assert {len(request) for request in server.requests} == {1}


async def test_one_bad_item_fails_alone() -> None:
    server = Server()
    coalescer = Coalescer(server, items_max=100, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in (1, 2, 3, -4, 5)]
    await settle()
    server.gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(item) for item in done] == [int, int, int, InvalidArgument, int]


async def test_what_makes_a_request_fail_is_told_to_all_in_it_and_the_next_request_goes_on() -> None:
    server = Server()
    coalescer = Coalescer(server, items_max=100, bytes_max=1_000)
    first = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(4)]
    await settle()
    server.raises = [ConnectionFailed("x")]
    server.gate.set()
    done = await asyncio.gather(*first, return_exceptions=True)
    assert all(isinstance(item, ConnectionFailed) for item in done)
    assert len({id(item) for item in done}) == 4, "each caller has an error of its own"
    assert await coalescer.put(7, 1, WAIT_S) == 14


async def test_a_caller_that_has_gone_before_its_request_is_not_sent() -> None:
    server = Server()
    coalescer = Coalescer(server, items_max=1, bytes_max=1_000)
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
    coalescer = Coalescer(server, items_max=1, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(20)]
    await settle()
    server.gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    refused = [item for item in done if isinstance(item, Overloaded)]
    assert refused
    assert refused[0].retry_after_ms > 0
    assert len(refused) + sum(map(len, server.requests)) == 20


async def test_a_call_made_as_the_last_answers_come_is_not_forgotten() -> None:
    """Both senders have looked for the last time when somebody whom they woke calls again."""
    answers: list[asyncio.Future[None]] = []

    class Answers(OneGroup):
        async def send(self, items: Sequence[int], timeout_s: float) -> list[int | Rejected]:
            answers.append(asyncio.get_running_loop().create_future())
            await answers[-1]
            return list(items)

    coalescer = Coalescer(Answers(), items_max=100, bytes_max=1_000)

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
    coalescer = Coalescer(server, items_max=1, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, 0.05)) for number in range(10)]
    async with asyncio.timeout(WAIT_S):
        done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(item) for item in done] == [TimeoutError] * 10
    assert len(server.requests) == 2, "what nobody waits for is not sent"
    server.gate.set()
    await coalescer.drain()


class Shards:
    """Doubles numbers. The last digit of a number is its group; held groups are answered when they are let through."""

    def __init__(self, *held: int) -> None:
        self.gates = {group: asyncio.Event() for group in held}
        self.requests: list[list[int]] = []

    def group_of(self, item: int) -> Hashable:
        return item % 10

    def group_of_repeated(self, item: int, refusal: Rejected) -> Hashable | None:
        return "again"

    async def send(self, items: Sequence[int], timeout_s: float) -> list[int | Rejected]:
        self.requests.append(list(items))
        if gate := self.gates.get(items[0] % 10):
            await gate.wait()
        return [item * 2 for item in items]


async def test_a_group_without_answers_holds_up_no_other_and_none_shares_a_request_with_it() -> None:
    shards = Shards(7)
    coalescer = Coalescer(shards, items_max=100, bytes_max=1_000)
    held = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(7, 1_007, 10)]
    await settle()
    others = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(1_000) if number % 10 != 7]
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(*others) == [number * 2 for number in range(1_000) if number % 10 != 7]
    assert not any(call.done() for call in held)
    assert all(len({number % 10 for number in request}) == 1 for request in shards.requests)
    shards.gates[7].set()
    assert await asyncio.gather(*held) == [number * 2 for number in range(7, 1_007, 10)]
    assert not coalescer._groups


async def test_requests_that_are_late_are_passed_by_others_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "_LATE_S", 0.001)
    server = Server()
    coalescer = Coalescer(server, items_max=1, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(20)]
    async with asyncio.timeout(WAIT_S):
        while len(server.requests) < 8:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert len(server.requests) == 8, "two, and six that are late"
    server.gate.set()
    assert await asyncio.gather(*calls) == [number * 2 for number in range(20)]
    assert server.sent() == list(range(20))


class Refusing(OneGroup):
    """Refuses what is odd for as long as there are refusals; what is repeated is in a group of its own."""

    def __init__(self, *refusals: Rejected | Exception) -> None:
        self.refusals = list(refusals)
        self.requests: list[list[int]] = []
        self.asked: list[Rejected] = []
        self.repeats_unknown_only = False

    def group_of_repeated(self, item: int, refusal: Rejected) -> Hashable | None:
        self.asked.append(refusal)
        return None if self.repeats_unknown_only and refusal is not UNKNOWN else "again"

    async def send(self, items: Sequence[int], timeout_s: float) -> list[int | Rejected]:
        self.requests.append(list(items))
        if not self.refusals or all(item % 2 == 0 for item in items):
            return [item * 2 for item in items]
        refusal = self.refusals.pop(0)
        if not isinstance(refusal, Rejected):
            raise refusal
        return [refusal if item % 2 else item * 2 for item in items]


NOT_LEADER = Unavailable("Not here.", reason="NOT_LEADER")
UNKNOWN = OutcomeUnknown("Nobody knows.", reason="OUTCOME_UNKNOWN")


async def test_only_what_was_refused_is_sent_again_and_nobody_else_waits_for_it() -> None:
    requests = Refusing(NOT_LEADER, UNKNOWN)
    coalescer = Coalescer(requests, items_max=100, bytes_max=1_000)
    calls = [asyncio.create_task(coalescer.put(number, 1, WAIT_S)) for number in range(4)]
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(*calls) == [0, 2, 4, 6]
    assert requests.requests[0] == [0, 1, 2, 3]
    assert {number for request in requests.requests[1:] for number in request} == {1, 3}


@pytest.mark.parametrize("then", [NOT_LEADER, ConnectionFailed("x")])
async def test_what_may_have_taken_effect_once_stays_unknown(then: Rejected | Exception) -> None:
    requests = Refusing(UNKNOWN, then)
    requests.repeats_unknown_only = True
    coalescer = Coalescer(requests, items_max=100, bytes_max=1_000)
    async with asyncio.timeout(WAIT_S):
        assert await coalescer.put(1, 1, WAIT_S) is UNKNOWN
    assert requests.requests == [[1], [1]]


async def test_what_may_have_taken_effect_stays_unknown_if_its_repetition_is_not_answered() -> None:
    class ThenSilent(Refusing):
        async def send(self, items: Sequence[int], timeout_s: float) -> list[int | Rejected]:
            if not self.refusals:
                await asyncio.sleep(WAIT_S)
            return await super().send(items, timeout_s)

    coalescer = Coalescer(ThenSilent(UNKNOWN), items_max=100, bytes_max=1_000)
    async with asyncio.timeout(WAIT_S):
        assert await coalescer.put(1, 1, 0.3) is UNKNOWN


async def test_what_is_refused_at_the_end_of_its_time_is_told_so() -> None:
    requests = Refusing(NOT_LEADER)
    assert await Coalescer(requests, items_max=100, bytes_max=1_000).put(1, 1, 0.1) is NOT_LEADER
    assert not requests.asked


async def test_nothing_that_pauses_is_left_behind_at_the_end() -> None:
    requests = Refusing(Unavailable("Not here.", reason="NOT_LEADER", retry_after_ms=10_000))
    coalescer = Coalescer(requests, items_max=100, bytes_max=1_000)
    call = asyncio.create_task(coalescer.put(1, 1, WAIT_S))
    await settle()
    assert not call.done()
    async with asyncio.timeout(5):
        await coalescer.drain()
        assert await call == 2
