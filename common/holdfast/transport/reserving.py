"""Claiming where the queues are on several shards, as routers and clients do it.

A task must be claimed at one shard for one worker, so a claim never waits at one of several shards: whichever answered
later would have claimed for nobody. Shards are tried for what is there, then the call waits until it is told where
there is something, and claims there. How it waits is up to each side.

A retry must meet the claims of the first attempt, whose answer was lost: it asks all shards first which one holds them.

A shard that does not answer must not keep tasks of the others from their workers. So each is given a short time
(`routing.patience`); after one that took all of it, the rest are asked at the same time; and a shard that has just
failed is looked at with the others, but not tried first. What it may have claimed, and the answer was lost, is asked
for before anything is claimed elsewhere, if the request has an id. A caller that says so (`settles_later`) waits
neither for such a shard nor for that question: it is told that its call is unsettled.

Whatever is answered names the shards that may have claimed for this request and have not said so (`unsettled_shards`),
so that no claim is left to the end of its lease because another shard had something as well.
"""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.patience import (
    GRACE_S,
    REPEATS_SHARE,
    TRY_S_MAX,
    UNHEALTHY_S,
    UNHEALTHY_S_MAX,
    UNSETTLED_S,
    Leader,
    UnhealthyShards,
    UsualTimes,
)
from holdfast.routing.reserve_calls import FailureMeaning, Places, ReserveCall, shards_in_turn

# What is left of the caller's time when its wait is ended for it, so that the answer arrives.
MARGIN_S = 0.05


class ShardsCall(ReserveCall):
    """With what the shards are asked."""

    def __init__(
        self, request: pb.ReserveRequest | pb.AwaitTasksRequest, places: Places, ends_s: float,
        deadline_s: float = float("inf"), *, attempt: int,
    ) -> None:  # fmt: skip
        """`attempt`: from the second on, an earlier one may have claimed, at any shard."""
        super().__init__(
            places, ends_s, deadline_s, is_repeated=attempt > 1, has_id=bool(request.claim_request_id),
            settles_later=isinstance(request, pb.ReserveRequest) and request.settles_later,
        )  # fmt: skip
        self.request = request
        self.asked = _poll_request(request) if isinstance(request, pb.ReserveRequest) else request


CallT = TypeVar("CallT", bound=ShardsCall)
ReplyT = TypeVar("ReplyT")


class ReserveOverShards(ABC, Generic[CallT, ReplyT]):
    """Claims at the first shard that has something, and remembers which shards did not answer."""

    unhealthy_grace_s = GRACE_S  # for the answers of the last shards if they are all known not to answer

    def __init__(self, failures: tuple[type[Exception], ...]) -> None:
        """`failures`: how calls end that are not answered."""
        self._failures = failures
        self._unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
        self._usual = UsualTimes()
        self._good: set[int] = set()  # shards that have answered something, and have not failed since
        self._turn = random.randrange(1 << 16)

    # --- what each side does in its own way ---------------------------------------------------------------------

    @abstractmethod
    async def send_claim(
        self, call: CallT, shard: int, request: pb.ReserveRequest, limit_s: float | None, repeats_s: float
    ) -> ReplyT:
        """To one shard. `limit_s`: how long it may take, if that is less than the call's time; `repeats_s`: no attempt
        but the first begins later than that."""

    @abstractmethod
    async def send_held(self, call: CallT, shard: int) -> ReplyT:
        """The request as it is, to a shard that may hold claims of it."""

    @abstractmethod
    async def send_poll(
        self, call: CallT, shard: int, request: pb.AwaitTasksRequest, wait_s: float
    ) -> pb.AwaitTasksResponse:
        """To one shard, which may wait for so long."""

    @abstractmethod
    def judge(self, failure: Exception) -> FailureMeaning: ...

    @abstractmethod
    def silent(self, shard: int) -> Exception:
        """The failure of a shard that is not waited for any longer."""

    @abstractmethod
    def has_something(self, reply: ReplyT) -> bool:
        """That the caller should hear of now: claims, or that it should run dry."""

    @abstractmethod
    def first_order(self, call: CallT) -> list[int]:
        """The shards to be tried before a wait."""

    @abstractmethod
    async def wait(self, call: CallT) -> list[int]:
        """Where there is something for this call; nowhere if its wait is over."""

    @abstractmethod
    def unsettled(self, shards: Sequence[int], reply: ReplyT | None = None) -> ReplyT:
        """This reply, or one without claims, that names the shards which may have claimed as well."""

    @abstractmethod
    def nothing(self, call: CallT) -> ReplyT: ...

    @abstractmethod
    def leader_of(self, shard: int) -> Leader: ...

    @abstractmethod
    def leaders(self, call: CallT) -> Mapping[int, Leader]:
        """Of the shards that are avoided if they are led by somebody who is silent."""

    def limit_s(self, call: CallT, shard: int) -> float | None:
        """For a try at this shard. One that has said that it holds claims of this call is given all the time."""
        if shard in call.held:
            return None
        limit_s = self._usual.hasty_s(shard) if call.is_hasty else TRY_S_MAX
        return min(limit_s, max(0.0, call.deadline_s - time.monotonic()))

    def took(self, call: CallT) -> None:
        """There was something."""

    def got_nothing(self, call: CallT) -> None:
        """A shard has answered a claim, and there was nothing."""

    def failed(self, failure: Exception) -> None:
        """A claim or a look."""

    # --- one call -----------------------------------------------------------------------------------------------

    async def claim_anywhere(self, call: CallT) -> ReplyT:
        """At the first of its shards that has something."""
        asks_holders = call.is_repeated
        order = [] if asks_holders else self.first_order(call)
        while True:
            if asks_holders or call.must_ask_holders:
                asks_holders = False
                ready, held = await self.holders(call)
                order = held or self.order_without_holders(call, ready)
            reply = await self.try_each(call, order)
            if reply is not None:
                self.took(call)
                return self.unsettled(call.unsettled_shards, reply)
            if call.must_ask_holders and call.is_hasty:
                return self.unsettled(call.unsettled_shards)
            call.is_notified = True
            polled_from_s = time.monotonic()
            if not call.must_ask_holders and not call.is_over(polled_from_s):
                order = await self.wait(call)
                continue
            if call.must_ask_holders:
                if call.is_over(polled_from_s) and call.has_asked_holders:
                    call.raise_if_unsettled()
            else:
                order = await self._poll_unheard(call)
                if not order:
                    return self._nothing_anywhere(call)
            await self.pause(call, time.monotonic() - polled_from_s)

    def _nothing_anywhere(self, call: CallT) -> ReplyT:
        call.raise_if_nobody_answers()
        if call.is_hasty and call.unsettled_shards:
            return self.unsettled(call.unsettled_shards)
        call.raise_if_unsettled()
        return self.nothing(call)

    async def claims_held(self, call: CallT, shards: Sequence[int]) -> ReplyT:
        """What an earlier call with the same id has claimed, at one of these shards; the others that hold claims, or do
        not say, are named. Raises if none has any and one does not say."""
        replies = await asyncio.gather(*(self.send_held(call, shard) for shard in shards), return_exceptions=True)
        found: dict[int, ReplyT] = {}
        failures: dict[int, BaseException] = {}
        for shard, reply in zip(shards, replies, strict=True):
            if isinstance(reply, BaseException):
                failures[shard] = reply
            elif self.has_something(reply):
                found[shard] = reply
        if found:
            first = next(iter(found))
            return self.unsettled(sorted({*found, *failures} - {first}), found[first])
        for failure in failures.values():
            raise failure
        return self.nothing(call)

    async def holders(self, call: CallT) -> tuple[list[int], list[int]]:
        """Who has something, and who holds claims of this request."""
        call.asks_holders()
        return await self.poll(call, call.to_be_asked(time.monotonic()), all_of_them=True)

    def order_without_holders(self, call: CallT, ready: Sequence[int]) -> list[int]:
        """Where to claim when nobody holds claims of this request, and these have said that they have something."""
        return [shard for shard in self.first_order(call) if call.has_answered(shard)]

    async def pause(self, call: CallT, polled_s: float) -> None:
        """Between two looks of which the first was, or may have been, in vain."""
        await asyncio.sleep(call.pause_s(polled_s, time.monotonic()) * random.uniform(0.75, 1.0))

    def in_turn(self, call: CallT) -> list[int]:
        """All shards, from another one each time, and for a repeated request from the same. The first queues first."""
        self._turn += 1
        named = call.request.claim_request_id
        return shards_in_turn(call.places, named or str(self._turn))

    def is_unhealthy(self, shard: int) -> bool:
        return self._unhealthy.has(shard, time.monotonic(), self.leader_of(shard))

    # --- claims -------------------------------------------------------------------------------------------------

    async def try_each(self, call: CallT, order: Sequence[int]) -> ReplyT | None:
        """What the first of these shards gives that has something; None if none has. Those that have said so are not
        passed by."""
        for shard in order:
            is_asked = call.is_notified or shard in call.held
            if not is_asked and not self._unhealthy.begin_try(shard, time.monotonic(), self.leader_of(shard)):
                continue
            reply = await self._try(call, shard)
            if reply is not None and self.has_something(reply):
                return reply
            if reply is not None:
                self.got_nothing(call)
            elif call.must_ask_holders or (not call.is_notified and self.is_unhealthy(shard)):
                break  # the others are looked at all at once: there may be more of this kind
        return None

    async def _try(self, call: CallT, shard: int) -> ReplyT | None:
        """What is there now, at one shard; None if it does not say."""
        assert isinstance(call.request, pb.ReserveRequest)
        part = _part_of(call.request, call.places[shard])
        limit_s = self.limit_s(call, shard)
        began_s = time.monotonic()
        try:
            repeats_s = float("inf") if limit_s is None else limit_s * REPEATS_SHARE
            reply = await self.send_claim(call, shard, part, limit_s, repeats_s)
        except self._failures as error:
            self._claim_failed(call, shard, error, time.monotonic() - began_s)
            return None
        self._usual.took(shard, time.monotonic() - began_s)
        call.answered(shard, time.monotonic())
        self._claimed_at(shard)
        return reply

    def _claim_failed(self, call: CallT, shard: int, failure: Exception, took_s: float) -> None:
        verdict = self.judge(failure)
        if verdict.is_final:
            self._claimed_at(shard)
            raise failure
        if verdict.is_cut_off:
            self._usual.took(shard, took_s)
        if verdict.is_silent:
            self._good.discard(shard)
            self._unhealthy.silent(shard, time.monotonic(), self.leaders(call))
        else:
            self._note(shard, verdict)
        self.failed(failure)
        may_hold = verdict.may_have_claimed or shard in call.held
        if may_hold and call.has_id:
            call.note_unknown_outcome(shard, failure)
        elif may_hold and not verdict.goes_back:
            raise failure  # no id would find these claims again, and there shall not be two batches of them
        else:
            call.leave_alone(shard, failure, time.monotonic(), verdict.retry_after_ms)

    # --- polls --------------------------------------------------------------------------------------------------

    async def _poll_unheard(self, call: CallT) -> list[int]:
        """Where there is something after a wait that is over: every shard is asked at least once, by a claim, by a wait
        or here."""
        while shards := [shard for shard in call.to_be_asked(time.monotonic()) if shard in call.unheard]:
            ready, held = await self.poll(call, shards)
            if ready or held:
                return [*held, *ready]
        return []

    async def poll(
        self, call: CallT, shards: Sequence[int], wait_s: float = 0.0, *, all_of_them: bool = False
    ) -> tuple[list[int], list[int]]:
        """Which of these shards have tasks, as soon as one has, or claims of this request. `all_of_them`: not before
        all have said whether they hold claims, or one that does."""
        polls = {asyncio.create_task(self._poll_one(call, shard, wait_s)): shard for shard in shards}
        ready: list[int] = []
        held: list[int] = []
        pending = set(polls)
        # Those that do not answer must not hold up the next look at the others. Of shards that wait nobody has answered
        # before they have.
        answered_s = time.monotonic() if call.answered_s is not None and not wait_s else None
        try:
            while pending and not held and (all_of_them or not ready):
                grace_s = self._grace_s(call, [polls[poll] for poll in pending], answered_s)
                done, _ = await asyncio.wait(pending, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    for poll in pending:
                        self._poll_failed(call, polls[poll], self.silent(polls[poll]))
                    break
                for poll in [poll for poll in polls if poll in done]:
                    answer = self._heard(call, polls[poll], poll)
                    if answer is not None:
                        answered_s = time.monotonic()
                        (held if answer.held else ready if answer.ready else []).append(polls[poll])
                pending -= done
        finally:
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
        call.held.update(held)
        return ready, held

    async def _poll_one(self, call: CallT, shard: int, wait_s: float) -> pb.AwaitTasksResponse:
        request = pb.AwaitTasksRequest()
        request.CopyFrom(call.asked)
        _keep(request.queues, call.places[shard])
        request.wait_ms = int(wait_s * 1000)
        return await self.send_poll(call, shard, request, wait_s)

    def _heard(
        self, call: CallT, shard: int, poll: "asyncio.Task[pb.AwaitTasksResponse]"
    ) -> pb.AwaitTasksResponse | None:
        """What a shard has said; None if it has refused."""
        try:
            answer = poll.result()
        except self._failures as failure:
            if self.judge(failure).is_final:
                raise
            self._poll_failed(call, shard, failure)
            return None
        call.answered(shard, time.monotonic(), settles=not answer.held)
        self._good.add(shard)
        return answer

    def _poll_failed(self, call: CallT, shard: int, failure: Exception) -> None:
        verdict = self.judge(failure)
        self._note(shard, verdict)
        self.failed(failure)
        call.leave_alone(shard, failure, time.monotonic(), verdict.retry_after_ms)

    def _grace_s(self, call: CallT, pending: Sequence[int], answered_s: float | None) -> float | None:
        """How long to wait for these when others have answered; None if nobody has: then the calls' own deadlines."""
        if answered_s is None:
            return None
        if any(shard in call.unknown_outcomes for shard in pending):
            grace_s = UNSETTLED_S
        else:
            grace_s = self.unhealthy_grace_s if all(map(self.is_unhealthy, pending)) else GRACE_S
        return max(0.0, min(answered_s + grace_s, call.deadline_s - MARGIN_S) - time.monotonic())

    # --- shards that do not answer ------------------------------------------------------------------------------

    def _note(self, shard: int, verdict: FailureMeaning) -> None:
        """One that is busy, or has no room, is well."""
        if verdict.is_of_shard:
            self._good.discard(shard)
            self._unhealthy.failed(shard, time.monotonic(), self.leader_of(shard))
        else:
            self._claimed_at(shard)

    def _claimed_at(self, shard: int) -> None:
        """It has answered a claim, whatever it said."""
        self._good.add(shard)
        self._unhealthy.answered(shard, self.leader_of(shard))


def says_something(response: pb.ReserveResponse) -> bool:
    """That the caller should hear of now: claims, or that it should run dry."""
    return bool(response.runs or response.claims or response.run_dry_ms)


def _part_of(request: pb.ReserveRequest, queues: Sequence[int]) -> pb.ReserveRequest:
    """The same request for some of its queues, and for what is there now."""
    part = pb.ReserveRequest()
    part.CopyFrom(request)
    part.wait_ms = 0
    if len(request.queue_tasks_max) == len(request.queues):
        _keep(part.queue_tasks_max, queues)
    _keep(part.queues, queues)
    return part


def _keep(items: Any, positions: Sequence[int]) -> None:
    if len(positions) < len(items):
        kept = [items[index] for index in positions]
        del items[:]
        items.extend(kept)


def _poll_request(request: pb.ReserveRequest) -> pb.AwaitTasksRequest:
    asked = pb.AwaitTasksRequest(
        queues=request.queues,
        worker=request.worker,
        claim_request_id=request.claim_request_id,
        suspects_only=request.suspects_only,
    )
    if request.HasField("empty_handed"):
        asked.empty_handed = request.empty_handed
    return asked
