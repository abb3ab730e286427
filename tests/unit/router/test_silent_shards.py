"""Reserve over several shards of which one does not answer: it does not keep the tasks of the others."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.common.backoff import Backoff
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router import reserving
from holdfast.routing import patience
from holdfast.routing.patience import HASTY_S_MIN, TRY_S_MAX, UNHEALTHY_S, UNHEALTHY_S_MAX, UnhealthyShards, UsualTimes
from holdfast.routing.reserve_calls import shards_in_turn
from tests.unit.router.router_stage import Call, FakeBroker, Refusal, never, not_leader, task_id
from tests.unit.router.test_passing import refusal_of
from tests.unit.router.test_reserving import Shop

LOST = 0  # the shard that does not answer
LONG_S = 90.0  # the caller has time, and no test has as much


pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TRY_S_MAX", 0.8), ("GRACE_S", 0.8), ("UNSETTLED_S", 1.2)):
        monkeypatch.setattr(f"holdfast.transport.reserving.{name}", value)


@pytest.fixture
async def shop(short: None) -> AsyncIterator[Shop]:
    async with Shop() as built:
        yield built


def first_is(shard: int, shards: int = 3) -> str:
    """A request id with which this shard is the first to be asked."""
    places = {item: [0] for item in range(shards)}
    return next(name for name in map(str, range(100)) if shards_in_turn(places, name)[0] == shard)


def lose(shop: Shop, how: str, *methods: str) -> None:
    """The shard has lost its majority, so that everybody says that nobody leads; or its leader is silent, and the
    others do not know of another one. Or it is back."""
    for broker in shop.brokers:
        for name in methods or ("Reserve", "AwaitTasks"):
            broker.on[name] = _Lost(shop, how, broker, name)
        broker.on["FindLeader"] = not_leader(None, 0)


class _Lost:
    def __init__(self, shop: Shop, how: str, broker: FakeBroker, name: str) -> None:
        self._shop, self._how, self._broker, self._name = shop, how, broker, name

    def __call__(self, call: Call) -> Any:
        if call.shard != LOST or self._how == "back":
            fake_shard = self._shop.fake_shards[call.shard]
            return fake_shard.reserve(call) if self._name == "Reserve" else fake_shard.await_tasks(call)
        if self._how == "silent" and self._broker is self._shop.brokers[LOST]:
            return never(call)
        return not_leader(None, 0)


HOW = pytest.mark.parametrize("how", ["leaderless", "silent"])


@HOW
@pytest.mark.parametrize(
    ("request_id", "attempt", "wait_ms"),
    [
        ("", 1, 0),
        (first_is(LOST), 1, 0),
        (first_is(LOST), 1, 60_000),
        (first_is(LOST), 2, 0),
        (first_is(LOST), 2, 60_000),
    ],
)
async def test_a_shard_that_does_not_answer_does_not_hold_up_the_others(
    shop: Shop, how: str, request_id: str, attempt: int, wait_ms: int
) -> None:
    lose(shop, how)
    for name in ("a", "b", "c")[: 1 if request_id else 3]:  # without an id, each begins at another shard
        shop.fake_shards[1].put(name)
        assert await shop.reserve(wait_ms, request_id, attempt=attempt, timeout_s=LONG_S) == [name]
        shop.fake_shards[1].held.clear()


@HOW
async def test_nor_the_answer_that_there_is_nothing(shop: Shop, how: str) -> None:
    lose(shop, how, "AwaitTasks")
    shop.brokers[LOST].on["Reserve"] = pb.ReserveResponse()
    assert await shop.reserve(200, first_is(1), timeout_s=LONG_S) == []
    answer = await shop.call("AwaitTasks", pb.AwaitTasksRequest(queues=["q"], wait_ms=200), timeout_s=LONG_S)
    assert not answer.ready


@HOW
async def test_a_task_that_comes_while_the_others_wait_is_claimed_at_once(shop: Shop, how: str) -> None:
    lose(shop, how)
    call = asyncio.create_task(shop.reserve(60_000, first_is(LOST), timeout_s=LONG_S))
    await shop.brokers[2].wait_for("AwaitTasks")
    shop.fake_shards[2].put("late")
    assert await call == ["late"]


@HOW
async def test_it_is_not_tried_first_for_a_while(shop: Shop, how: str) -> None:
    """Neither by a repeat nor by another call: it is only looked at, together with the others."""
    lose(shop, how)
    shop.fake_shards[1].put(*map(str, range(20)))
    await shop.reserve(0, first_is(LOST), max_tasks=1, timeout_s=LONG_S)

    before = _reserves_at_lost(shop)
    for index in range(2):
        shop.fake_shards[1].held.clear()
        assert await shop.reserve(0, first_is(LOST), max_tasks=1, attempt=1 + index % 2, timeout_s=LONG_S)
        assert await shop.reserve(0, max_tasks=1, timeout_s=LONG_S)
        shop.fake_shards[1].held.clear()
    assert _reserves_at_lost(shop) == before


async def lose_and_find(shop: Shop) -> None:
    """The shard counts as lost, but answers again."""
    lose(shop, "leaderless")
    shop.fake_shards[1].put("a")
    assert await shop.reserve(0, first_is(LOST), timeout_s=LONG_S) == ["a"]
    for broker in shop.brokers:
        broker.on |= {
            "Reserve": lambda call: shop.fake_shards[call.shard].reserve(call),
            "AwaitTasks": lambda call: shop.fake_shards[call.shard].await_tasks(call),
        }


async def test_a_new_leader_in_the_map_ends_that(shop: Shop) -> None:
    await lose_and_find(shop)
    shop.table.leaders[LOST] = (shop.brokers[2].address, 7)
    for fake_shard in shop.fake_shards:
        fake_shard.held.clear()
        fake_shard.put(f"of {fake_shard.shard}")
    assert await shop.reserve(0, first_is(LOST), timeout_s=LONG_S) == [f"of {LOST}"]


async def test_so_does_an_answer(shop: Shop) -> None:
    """While it counts as lost it is looked at all the same, so that its tasks are found when it is back."""
    await lose_and_find(shop)
    shop.fake_shards[LOST].put("back")
    shop.fake_shards[1].held.clear()
    assert await shop.reserve(10_000, first_is(LOST), timeout_s=LONG_S) == ["back"]


async def test_claims_that_came_too_late_are_given_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """No id would find them again. The caller has its answer from another shard meanwhile."""
    deliver, released = asyncio.Event(), asyncio.Event()

    async def claim_late(_call: Call) -> pb.ReserveResponse:
        await asyncio.shield(asyncio.ensure_future(deliver.wait()))
        return pb.ReserveResponse(claims=[pb.Claim(task_id=task_id(LOST, 5), token=77)])

    def release(call: Call) -> pb.ReleaseResponse:
        released.set()
        return shop.fake_shards[LOST].release(call)

    lose(shop, "silent", "AwaitTasks")
    shop.brokers[LOST].on |= {"Reserve": claim_late, "Release": release}
    # It is on its way already when the call is cancelled.
    monkeypatch.setattr("holdfast.transport.grpc_channels.GrpcCall.cancel", lambda _call: False)
    for _ in range(3):  # one of them begins at the lost shard
        shop.fake_shards[1].put("mine")
        assert await shop.reserve(timeout_s=LONG_S) == ["mine"]
    deliver.set()
    await asyncio.wait_for(released.wait(), 10)
    assert shop.fake_shards[LOST].released == [task_id(LOST, 5)]


async def test_claims_whose_answer_was_given_up_are_found_again(shop: Shop) -> None:
    """By the same call, before it claims anything elsewhere: it says which request they belong to."""

    async def claim_and_be_silent(call: Call) -> Any:
        shop.fake_shards[LOST].held[call.request.claim_request_id] = ["claimed"]
        shop.brokers[LOST].on["Reserve"] = shop.fake_shards[LOST].reserve
        return await never(call)

    shop.brokers[LOST].on |= {"Reserve": claim_and_be_silent, "FindLeader": not_leader(None, 0)}
    for broker in shop.brokers[1:]:
        broker.on["FindLeader"] = not_leader(None, 0)
    shop.fake_shards[1].put("another")
    assert await shop.reserve(0, first_is(LOST), timeout_s=LONG_S) == ["claimed"]
    assert shop.fake_shards[1].waiting == ["another"]


async def test_a_slow_shard_that_holds_claims_of_the_request_is_given_all_the_time(shop: Shop) -> None:
    async def slowly(call: Call) -> pb.ReserveResponse:
        await asyncio.sleep(1.5)  # more than one is given that may have nothing
        return shop.fake_shards[LOST].reserve(call)

    shop.fake_shards[LOST].held["mine"] = ["claimed before"]
    shop.brokers[LOST].on["Reserve"] = slowly
    for broker in shop.brokers:
        broker.on["FindLeader"] = not_leader(None, 0)
    shop.fake_shards[1].put("another")
    began_s = time.monotonic()
    assert await shop.reserve(0, "mine", attempt=2, timeout_s=LONG_S) == ["claimed before"]
    assert time.monotonic() - began_s >= 1.5
    assert shop.fake_shards[1].waiting == ["another"]


async def test_claims_that_a_shard_holds_but_does_not_give_are_not_replaced_by_others(shop: Shop) -> None:
    shop.fake_shards[LOST].held["mine"] = ["claimed before"]
    answers = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "Later.")] * 2

    def busy(call: Call) -> Any:
        return answers.pop() if answers else shop.fake_shards[LOST].reserve(call)

    shop.brokers[LOST].on["Reserve"] = busy
    shop.fake_shards[1].put("another")
    assert await shop.reserve(10_000, "mine", attempt=2, timeout_s=LONG_S) == ["claimed before"]
    assert shop.fake_shards[1].waiting == ["another"]


async def test_nothing_is_not_the_answer_while_a_shard_may_hold_claims(shop: Shop) -> None:
    lose(shop, "silent")
    _, reason, _ = await refusal_of(shop.reserve(0, first_is(LOST), timeout_s=LONG_S))
    assert reason == "OUTCOME_UNKNOWN"


@HOW
async def test_if_nobody_answers_that_is_what_is_told(shop: Shop, how: str) -> None:
    answer = never if how == "silent" else not_leader(None, 0)
    for broker in shop.brokers:
        broker.on |= {"Reserve": answer, "AwaitTasks": answer, "FindLeader": not_leader(None, 0)}
    _, reason, _ = await refusal_of(shop.reserve(500, "", timeout_s=LONG_S))
    assert reason in ("NOT_LEADER", "OUTCOME_UNKNOWN")


def test_a_unhealthy_shard_is_forgotten_in_time_and_with_its_leader() -> None:
    unhealthy = UnhealthyShards()
    unhealthy.failed(3, 100.0, ("a", 1))
    assert unhealthy.has(3, 100.0, ("a", 1))
    assert not unhealthy.has(4, 100.0, ("a", 1))
    assert not unhealthy.has(3, 100.0, ("b", 2))
    assert not unhealthy.has(3, 100.0 + patience.UNHEALTHY_S, ("a", 1))
    unhealthy.failed(4, 200.0)
    assert list(unhealthy._until) == [4], "what is over takes no room"
    unhealthy.answered(4)
    assert not unhealthy.has(4, 200.0)


def test_one_caller_tries_a_unhealthy_shard_again_and_ever_later() -> None:
    unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
    leader, now_s = ("a", 1), 100.0
    unhealthy.failed(3, now_s, leader)
    unhealthy.failed(3, now_s + 0.1, leader)  # by another one that had tried it meanwhile
    for unhealthy_s in (UNHEALTHY_S, 2 * UNHEALTHY_S, 4 * UNHEALTHY_S, UNHEALTHY_S_MAX, UNHEALTHY_S_MAX):
        assert not unhealthy.begin_try(3, now_s + unhealthy_s - 0.01, leader)
        now_s += unhealthy_s + 0.2
        assert unhealthy.begin_try(3, now_s, leader)
        assert not unhealthy.begin_try(3, now_s, leader), "one is enough to find out"
        now_s += 0.3
        unhealthy.failed(3, now_s, leader)
    unhealthy.answered(3, leader)
    assert unhealthy.begin_try(3, now_s, leader)
    assert unhealthy.begin_try(3, now_s, leader)
    unhealthy.failed(3, now_s, leader)
    assert not unhealthy.has(3, now_s + UNHEALTHY_S, leader), "and it begins anew"


def test_a_silent_leader_is_avoided_by_all_its_shards_until_one_answers() -> None:
    unhealthy = UnhealthyShards()
    silent, also, other = ("a", 1), ("a", 7), ("b", 1)
    leaders = {1: silent, 2: also, 3: other, 4: None}
    unhealthy.silent(1, 100.0, leaders)
    assert [shard for shard, leader in leaders.items() if unhealthy.has(shard, 100.0, leader)] == [1, 2]
    assert unhealthy.begin_try(2, 100.0 + UNHEALTHY_S, also)
    assert not unhealthy.begin_try(1, 100.0 + UNHEALTHY_S, silent), (
        "that one caller tries it at another shard is enough"
    )
    unhealthy.answered(2, also)
    assert unhealthy.begin_try(1, 100.0 + UNHEALTHY_S, silent)


def test_a_node_that_was_silent_and_is_elected_again_is_not_avoided() -> None:
    unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
    unhealthy.silent(1, 100.0, {1: ("a", 1), 2: ("a", 7)})
    assert unhealthy.begin_try(2, 100.1, ("a", 9)), "it stood still, another one led, and now it leads again"
    assert unhealthy.has(1, 100.1, ("a", 1)), "what it has led all the time waits for an answer"
    unhealthy.silent(2, 100.2, {2: ("a", 9)})
    assert not unhealthy.has(2, 100.2 + UNHEALTHY_S, ("a", 9)), "and what it did before does not count"


def test_hasty_callers_wait_for_many_times_what_answers_usually_take() -> None:
    usual = UsualTimes()
    assert usual.hasty_s(1) == HASTY_S_MIN
    for _ in range(100):
        usual.took(1, 0.05)
    assert 0.7 < usual.hasty_s(1) < 0.8
    usual.took(1, 0.75)
    assert 1.5 < usual.hasty_s(1) <= TRY_S_MAX, "one that was given up in vain makes the next ones more patient"
    for _ in range(3):  # a shard that needs half a second, beside many that are quick
        usual.took(2, usual.hasty_s(2))
    assert usual.hasty_s(2) > 0.5
    assert usual.hasty_s(3) == HASTY_S_MIN


# --- callers that settle later ----------------------------------------------------------------------------------------


async def test_who_settles_later_is_told_soon_and_gets_tasks_of_the_others_at_once(shop: Shop) -> None:
    lose(shop, "silent")
    shop.fake_shards[1].put("a", "b")
    answer = await shop.answer(60_000, first_is(LOST), settles_later=True, timeout_s=LONG_S)
    assert list(answer.unsettled_shards) == [LOST]
    assert not answer.claims
    tried = _reserves_at_lost(shop)
    for name in ("a", "b"):
        request_id = f"{first_is(LOST)}-{name}"
        answer = await shop.answer(60_000, request_id, max_tasks=1, settles_later=True, timeout_s=LONG_S)
        assert [claim.task_id for claim in answer.claims] == [name]
    assert _reserves_at_lost(shop) == tried, "it is known not to answer"


async def test_a_lost_answer_is_not_waited_for_either(shop: Shop) -> None:
    """The shard says that it does not know whether it has claimed."""
    shop.brokers[LOST].on["Reserve"] = Refusal(grpc.StatusCode.INTERNAL, "INTERNAL")
    shop.fake_shards[1].put("a")
    answer = await shop.answer(60_000, first_is(LOST), settles_later=True, timeout_s=LONG_S)
    assert list(answer.unsettled_shards) == [LOST]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_claims_of_others_come_with_the_shards_that_may_have_claimed_as_well(shop: Shop, attempt: int) -> None:
    """However often the call was sent, and whether or not its caller said that it settles later."""
    lose(shop, "silent")
    shop.fake_shards[1].put("a")
    answer = await shop.answer(60_000, first_is(LOST), timeout_s=LONG_S, attempt=attempt)
    assert [claim.task_id for claim in answer.claims] == ["a"]
    assert LOST in answer.unsettled_shards
    assert 1 not in answer.unsettled_shards, "it has given what it claimed"


async def test_a_repeated_call_says_that_a_shard_did_not_tell_what_it_holds(shop: Shop) -> None:
    lose(shop, "silent")
    answer = await shop.answer(100, first_is(LOST), timeout_s=LONG_S, attempt=2, settles_later=True)
    assert (list(answer.claims), list(answer.unsettled_shards)) == ([], [LOST])
    _, reason, _ = await refusal_of(shop.answer(100, first_is(LOST), timeout_s=LONG_S, attempt=2))
    assert reason in ("NOT_LEADER", "OUTCOME_UNKNOWN"), "nothing would not be true"


async def test_with_one_shard_there_is_nothing_to_be_hasty_for() -> None:
    async with Shop(1) as shop:
        lose(shop, "silent")
        call = asyncio.create_task(shop.answer(60_000, "mine", settles_later=True, timeout_s=LONG_S))
        await shop.brokers[LOST].wait_for("Reserve")
        done, _ = await asyncio.wait((call,), timeout=3 * HASTY_S_MIN)
        assert not done
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_what_an_unsettled_call_claimed_is_had_when_its_shard_answers_again(shop: Shop) -> None:
    fake_shard = shop.fake_shards[LOST]
    fake_shard.put("mine")
    fake_shard.held[first_is(LOST)] = ["mine"]
    lose(shop, "silent")
    _, reason, _ = await refusal_of(shop.answer(0, first_is(LOST), held_only=True, timeout_s=LONG_S))
    assert reason in ("", "NOT_LEADER", "OUTCOME_UNKNOWN"), "nothing would not be true"
    assert await shop.reserve(0, first_is(LOST), held_only=True, held_at=[1, 2]) == [], "the others can say it"
    lose(shop, "back")
    for held_at in ([LOST], []):
        answer = await shop.answer(0, first_is(LOST), held_only=True, held_at=held_at, timeout_s=LONG_S)
        assert [claim.task_id for claim in answer.claims] == ["mine"]


async def test_what_one_shard_claimed_does_not_hide_what_others_may_hold(shop: Shop) -> None:
    for shard in (1, 2):
        shop.fake_shards[shard].held["mine"] = [f"of-{shard}"]
    lose(shop, "silent")
    answer = await shop.answer(0, "mine", held_only=True, timeout_s=LONG_S)
    assert ([claim.task_id for claim in answer.claims], list(answer.unsettled_shards)) == (["of-1"], [LOST, 2])
    lose(shop, "back")
    answer = await shop.answer(0, "mine", held_only=True, held_at=answer.unsettled_shards, timeout_s=LONG_S)
    assert ([claim.task_id for claim in answer.claims], list(answer.unsettled_shards)) == (["of-2"], [])


async def test_only_so_many_ask_what_was_claimed_at_a_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "HELD_ASKED_MAX", 2)
    lose(shop, "silent")
    asking = [
        asyncio.create_task(shop.answer(0, f"r{number}", held_only=True, held_at=[LOST], timeout_s=LONG_S))
        for number in range(2)
    ]
    while len(shop.brokers[LOST].requests("Reserve")) < 2:
        await asyncio.sleep(0.01)
    _, reason, _ = await refusal_of(shop.answer(0, "r2", held_only=True, held_at=[LOST], timeout_s=LONG_S))
    assert reason == "OVERLOADED"
    await asyncio.gather(*asking, return_exceptions=True)
    assert await shop.reserve(0, "r3", held_only=True, held_at=[1]) == []


async def test_a_shard_that_is_not_there_cannot_have_claimed(shop: Shop) -> None:
    code, reason, _ = await refusal_of(shop.answer(0, "mine", held_only=True, held_at=[9]))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "SHARD_NOT_FOUND")


async def test_what_a_slow_shard_claims_is_not_claimed_in_vain(shop: Shop) -> None:
    """The call that nobody waits for goes on."""
    slow, may_answer = shop.fake_shards[LOST], asyncio.Event()
    slow.put("slow")

    async def slowly(call: Call) -> pb.ReserveResponse:
        if not call.request.held_only:
            await may_answer.wait()
        return slow.reserve(call)

    shop.brokers[LOST].on["Reserve"] = slowly
    answer = await shop.answer(60_000, first_is(LOST), settles_later=True, timeout_s=LONG_S)
    assert list(answer.unsettled_shards) == [LOST]
    may_answer.set()
    while not slow.held:
        await asyncio.sleep(0.01)
    assert shop.brokers[LOST].hung_up["Reserve"] == 0
    assert await shop.reserve(0, first_is(LOST), held_only=True, held_at=[LOST]) == ["slow"]


async def test_a_shard_that_says_that_it_has_something_is_tried_however_it_failed_before(shop: Shop) -> None:
    """Sickness says which shard is not tried first; a task that is there is claimed at once."""
    lose(shop, "silent", "Reserve")
    answer = await shop.answer(60_000, first_is(LOST), settles_later=True, timeout_s=LONG_S)
    assert list(answer.unsettled_shards) == [LOST]
    call = asyncio.create_task(shop.reserve(60_000, "next", settles_later=True, timeout_s=LONG_S))
    await shop.brokers[LOST].wait_for("AwaitTasks")
    lose(shop, "back")
    shop.fake_shards[LOST].put("there")
    assert await call == ["there"]


async def test_who_asks_for_what_was_claimed_gets_nothing_else(shop: Shop) -> None:
    await shop.reserve(0, "nobodys", held_only=True)
    requests = [request for broker in shop.brokers for request in broker.requests("Reserve")]
    assert [request.held_only for request in requests] == [True, True, True], "brokers know what to do with it"


def _reserves_at_lost(shop: Shop) -> int:
    return sum(call.method == "Reserve" and call.shard == LOST for broker in shop.brokers for call in broker.calls)


async def test_a_caller_that_hangs_up_says_nothing_about_the_leader(shop: Shop) -> None:
    """Otherwise each worker that ends its wait would send the calls of all others round the replicas."""
    shop.table.at_home("single", 1)
    shop.brokers[1].on["Reserve"] = never
    request = pb.ReserveRequest(
        queues=["single"], max_tasks=1, lease_ms=5000, wait_ms=30_000, claim_request_id="mine"
    )  # fmt: skip
    waiting = asyncio.create_task(shop.call("Reserve", request))
    await shop.brokers[1].wait_for("Reserve")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await shop.brokers[1].wait_for_hang_up("Reserve")
    while shop.admission.calls or shop.releases._forgotten:
        await asyncio.sleep(0.01)
    assert shop.leaders.of(1).named == shop.brokers[1].address


async def test_a_refusal_is_told_while_the_caller_still_listens(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes when it has just hung up leaves it unknown whether something was claimed."""
    # So that there is an attempt at the last possible moment.
    monkeypatch.setattr("holdfast.routing.retries.BACKOFF", Backoff(0.02, 0.02))
    shop.table.at_home("single", LOST)
    lose(shop, "leaderless")
    request = pb.ReserveRequest(queues=["single"], max_tasks=1, lease_ms=5000, claim_request_id="mine")
    began_s = time.monotonic()
    _, reason, _ = await refusal_of(shop.call("Reserve", request, timeout_s=2.0))
    last_s = min(call.timeout_s or 0.0 for broker in shop.brokers for call in broker.calls if call.method == "Reserve")
    assert reason == "NOT_LEADER"
    assert time.monotonic() - began_s < 2.0
    assert last_s > 0.17, "the last attempt began with so much time left"
