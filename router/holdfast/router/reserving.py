"""Reserve and AwaitTasks where the queues are on several shards.

A task must be claimed at one shard for one worker, so a Reserve never waits at a shard: whichever answered later would
have claimed for nobody. It asks one after another for what is there, then waits its turn here (`shared_waits`), and
claims where it is told that there is something. Where others wait already nothing is left to take: then it only waits.

A retry must meet the claims of the first attempt, whose answer was lost: it asks all shards first which one holds them.

A shard that does not answer must not keep tasks of the others from their workers. So each is given a short time
(`routing.patience`); after one that took all of it, the rest are asked at the same time; and a shard that has just
failed is looked at with the others, but not tried first. What it may have claimed, and the answer was lost, is asked
for before anything is claimed elsewhere, if the request has an id. If it has none, these claims go back. A caller that
says so (`settles_later`) waits neither for such a shard nor for that question: it is told that its call is unsettled.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from holdfast.common.service import end_tasks
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.callers import Caller
from holdfast.router.failures import ELSEWHERE, FAILURES, CallFailedError, Failure, is_passing, may_pass_if_read
from holdfast.router.forwarding import Forwarder, Sending
from holdfast.router.known_requests import KnownRequests
from holdfast.router.methods import TASKS
from holdfast.router.ready_waiters import Waiter
from holdfast.router.releases import Releases
from holdfast.router.rounds import Places, Round
from holdfast.router.shared_waits import AWAY_S, TASKS_MAX, SharedWaits
from holdfast.routing.patience import (
    DOUBT_S,
    GRACE_S,
    REPEATS_SHARE,
    TRY_S_MAX,
    UNHEALTHY_S,
    UNHEALTHY_S_MAX,
    Leader,
    UnhealthyShards,
    UsualTimes,
)
from holdfast.routing.turns import shards_in_turn
from holdfast.serving.refusals import NOT_LEADER, OUT_OF_RANGE, RefusedError, outcome_unknown, overloaded

# For the answers of the last shards if they are all known not to answer.
_UNHEALTHY_GRACE_S = 0.2
# What is left of the caller's time when its wait is ended for it, so that the answer arrives.
_MARGIN_S = 0.05
# Calls that look at shards before they wait, at a time. When very many workers come at once, the others only join the
# line: what is there is found by the waits that they share. The same for those that ask who holds claims of theirs.
LOOKS_MAX = 64
# Idle workers come back when their wait is over, and each time costs about half a millisecond. So the more of them
# wait, the longer they are told to wait: about twenty of them come back in a second.
IDLE_MS_PER_CALLER = 60
IDLE_MS_MIN = 60_000  # shorter than that is not worth telling

# Calls that ask what an unanswered one has claimed, at a time: a shard that does not answer keeps them all waiting.
HELD_ASKED_MAX = 256

_RESERVE = TASKS["Reserve"]
_AWAIT = TASKS["AwaitTasks"]


class Reserving:
    """Claims tasks, and gives back what its caller did not wait for."""

    def __init__(
        self,
        forwarder: Forwarder,
        releases: Releases,
        *,
        wait_ms_max: int,
        find_places: Callable[[Sequence[str]], Places],
        leader_of: Callable[[int], Leader],
        waits_max: int = 10_000,
        idle_wait_ms_max: int = 0,
    ) -> None:
        """`find_places`: of some queues, in the newest map; `leader_of`: who leads a shard by that map; `waits_max`:
        how many waits there may be at brokers; `idle_wait_ms_max`: how long callers may be told to wait if very many
        do."""
        self._forwarder = forwarder
        self._releases = releases
        self._wait_ms_max = wait_ms_max
        self._idle_wait_ms_max = idle_wait_ms_max
        self._find_places = find_places
        self._leader_of = leader_of
        self._unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
        self._usual = UsualTimes()
        self._held_asked = 0  # calls that ask what was claimed
        self._good: set[int] = set()  # shards that have answered something, and have not failed since
        self._known = KnownRequests()
        self._turn = 0
        self._looking = 0
        self._asking = asyncio.Semaphore(LOOKS_MAX)
        self.waits = SharedWaits(
            forwarder, wait_ms=wait_ms_max, waits_max=waits_max, find_shards=lambda queue: [*find_places([queue])],
            heard=self._heard_of,
        )  # fmt: skip

    def routes_changed(self, queues: Sequence[str]) -> None:
        """They are on other shards than before: calls that wait for their tasks wait there too."""
        self.waits.routes_changed(queues)

    async def reserve(self, request: pb.ReserveRequest, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """From all shards that may have tasks of the queues. `data`: the request's bytes."""
        places = self._find_places(request.queues)
        if request.held_only:
            return await self._claims_held(data, request.held_at or list(places) or [0], caller, deadline_s)
        if not places or (len(places) == 1 and not request.wait_ms):
            return await self.claim(next(iter(places), 0), data, caller, deadline_s)
        wait_ms_max = max(self._wait_ms_max, self._idle_wait_ms_max)
        round_ = Round(places, _wait_ends_s(request.wait_ms, wait_ms_max, deadline_s), deadline_s)
        is_empty_handed = request.empty_handed or not request.HasField("empty_handed")
        with self.waits.join(_wants(request), request.worker, is_empty_handed=is_empty_handed) as waiter:
            return await self._claim_anywhere(request, round_, caller, waiter)

    async def await_tasks(self, request: pb.AwaitTasksRequest, data: bytes, deadline_s: float) -> bytes:
        """The same without claiming."""
        places = self._find_places(request.queues)
        if not places or (len(places) == 1 and not request.wait_ms):
            return await self._forwarder.send(_AWAIT, next(iter(places), 0), data, deadline_s)
        round_ = Round(places, _wait_ends_s(request.wait_ms, self._wait_ms_max, deadline_s), deadline_s)
        ready, held = await self._ready(request, round_, round_.now()[0], time.monotonic())
        with self.waits.join(dict.fromkeys(request.queues, 1), request.worker) as waiter:
            if not ready and not held and not round_.is_over:
                shard = await self.waits.wait(waiter, round_.ends_s)
                if shard is not None:
                    ready = [shard]
                elif request.claim_request_id:
                    held = await self._holders(request, round_)
                self._note_health(round_, request.queues)
        if not ready and not held:
            round_.raise_if_nobody_answers()
        return pb.AwaitTasksResponse(
            ready=bool(ready or held), held=bool(held), tasks=int(bool(ready or held))
        ).SerializeToString()

    # --- at one shard -------------------------------------------------------------------------------------------

    async def claim(self, shard: int, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """At one shard, which may wait for a task.

        Claims with a claim_request_id are never given back: they are there to be asked for again, and another router
        may have handed them out already to a caller that did.
        """
        return await self._claim(shard, data, caller, deadline_s)

    async def _claim(
        self, shard: int, data: bytes, caller: Caller, deadline_s: float, repeats_until_s: float = float("inf"),
        *, is_settled_later: bool = False,
    ) -> bytes:  # fmt: skip
        sending = Sending(repeats_until_s, caller.received_s)
        reserve = asyncio.create_task(self._forwarder.send(_RESERVE, shard, data, deadline_s, sending))
        try:
            await asyncio.wait((reserve,))
        except asyncio.CancelledError:
            if is_settled_later:
                self._releases.forget(reserve)  # what it claims is asked for; cancelled, it would be claimed in vain
            else:
                self._let_go(shard, data, reserve, sending)
            raise
        answer = reserve.result()
        if answer and caller.is_gone:
            if not _RESERVE.may_repeat(data):
                self._releases.release(shard, answer)
            raise CallFailedError("CANCELLED", "The caller has gone.")
        return answer

    def _let_go(self, shard: int, data: bytes, reserve: "asyncio.Task[bytes]", sending: Sending) -> None:
        """Nobody waits for the answer any more."""
        sending.abandon()
        if _RESERVE.may_repeat(data):
            self._releases.forget(reserve)
        else:
            self._releases.adopt(shard, reserve)

    # --- at several ---------------------------------------------------------------------------------------------

    async def _claim_anywhere(self, request: pb.ReserveRequest, round_: Round, caller: Caller, waiter: Waiter) -> bytes:
        """At the first of its shards that has something."""
        asked = _await_of(request)
        is_repeated = caller.attempt > 1 and bool(request.claim_request_id)
        asks_holder = is_repeated
        order = [] if is_repeated else self._first_order(request, round_)
        is_told = False  # a shard has said that it has something
        while True:
            if asks_holder or round_.is_in_doubt:
                asks_holder = False
                order = await self._holders(asked, round_)
                order = order or [shard for shard in self._first_order(request, round_) if round_.has_answered(shard)]
            answer = await self._try_each(request, round_, order, caller, is_told=is_told)
            if answer:
                self.waits.took(waiter)
                return answer
            if round_.is_in_doubt and _is_hasty(request, round_):
                return pb.ReserveResponse(unsettled_shards=round_.doubts).SerializeToString()
            is_told = True
            looked_from_s = time.monotonic()
            if not round_.is_in_doubt and not round_.is_over:
                await self._stand_back(round_, waiter)
                order = await self._wait(asked, round_, waiter, is_repeated=is_repeated)
                continue
            if round_.is_in_doubt:
                if round_.is_over and round_.has_asked_holders:
                    round_.raise_doubt()
            else:
                ready, held = await self._look_out(asked, round_)
                order = [*held, *ready]
                if not order:
                    round_.raise_doubt()
                    round_.raise_if_nobody_answers()
                    return self._nothing()
            await round_.pause(looked_from_s)

    def _nothing(self) -> bytes:
        idle_ms = min(self.waits.callers * IDLE_MS_PER_CALLER, self._idle_wait_ms_max)
        if idle_ms < IDLE_MS_MIN:
            return b""
        # Not all of them at the same moment.
        return pb.ReserveResponse(suggested_wait_ms=int(idle_ms * random.uniform(0.7, 1.0))).SerializeToString()

    async def _claims_held(self, data: bytes, shards: Sequence[int], caller: Caller, deadline_s: float) -> bytes:
        """What an earlier call with the same id has claimed; a shard that does not say is a refusal that may pass."""
        if self._held_asked >= HELD_ASKED_MAX:
            raise overloaded("calls that ask what was claimed", HELD_ASKED_MAX)
        self._held_asked += 1
        sending = Sending(received_s=caller.received_s)
        ends_s = min(deadline_s, time.monotonic() + TRY_S_MAX)
        try:
            asked = (self._forwarder.send(_RESERVE, shard, data, ends_s, sending) for shard in shards)
            answers = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            self._held_asked -= 1
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        found = next((answer for answer in answers if not isinstance(answer, BaseException) and answer), b"")
        if failures and not found:
            raise failures[0]
        return found

    async def _try_each(
        self, request: pb.ReserveRequest, round_: Round, order: list[int], caller: Caller, *, is_told: bool
    ) -> bytes:
        """What the first of these shards gives that has something; nothing if none has. `is_told`: they have said that
        they have something, so they are not passed by."""
        self._looking += 1
        try:
            for shard in order:
                is_asked = is_told or shard in round_.held
                if not is_asked and not self._unhealthy.begin_try(shard, time.monotonic(), self._leader_of(shard)):
                    continue
                answer = await self._try(request, round_, shard, caller)
                if answer is not None and _is_answer(answer):
                    return answer
                if answer is not None and request.wait_ms:
                    self._known.add(request)
                if answer is None and self._is_unhealthy(shard):
                    break  # the others are looked at all at once: there may be more of this kind
        finally:
            self._looking -= 1
        return b""

    async def _stand_back(self, round_: Round, waiter: Waiter) -> None:
        """If a broker does not let this caller have what it was woken for: others may, and it is not in their way."""
        failure = None if waiter.woken_at is None else round_.failure_of(waiter.woken_at[1])
        if failure is not None and not _is_of_shard(failure):
            self.waits.pass_on(waiter)
            pause_s = max(AWAY_S, failure.retry_after_ms / 1000)
            await asyncio.sleep(max(0.0, min(pause_s, round_.ends_s - time.monotonic())))

    async def _wait(
        self, asked: pb.AwaitTasksRequest, round_: Round, waiter: Waiter, *, is_repeated: bool
    ) -> list[int]:
        """Where there is something for this caller; nowhere if the wait is over, or only that shards hold claims of a
        request that was sent before: an attempt that nobody waits for any more may claim at a later moment."""
        until_s = round_.ends_s
        if is_repeated and not round_.has_looked_again:
            until_s = min(until_s, time.monotonic() + DOUBT_S)
        shard = await self.waits.wait(waiter, until_s)
        round_.plan(self._find_places(asked.queues))
        if shard is not None:
            return [shard] if shard in round_.places else []
        if is_repeated:
            round_.has_looked_again = True
            held = await self._holders(asked, round_)
            if held:
                return held
        if round_.is_over:
            self._note_health(round_, asked.queues)
        return []

    def _note_health(self, round_: Round, queues: Sequence[str]) -> None:
        """What the shards have said to the waits that this call shared."""
        for shard, positions in round_.places.items():
            waits = [wait for at in positions if (wait := self.waits.of(queues[at], shard)) is not None]
            failures = [wait.failure for wait in waits if wait.failure is not None]
            own = round_.failure_of(shard)
            if own is not None and not _is_of_shard(own):
                continue  # what the shard says to others is not for this caller
            if shard in self._good and not failures:
                round_.answered(shard, settles=False)
            elif failures:
                round_.leave_alone(shard, failures[0])

    def _first_order(self, request: pb.ReserveRequest, round_: Round) -> list[int]:
        """The shards to be tried before a wait: those where something may be that nobody waits for already. One at
        least if no broker has seen such a request: it says what is wrong with it."""
        order = [shard for shard in self._order(request, round_.places) if not self._is_unhealthy(shard)]
        if round_.is_over:
            return order
        if self._looking >= LOOKS_MAX:
            return []
        open_ = {at for at, queue in enumerate(request.queues) if not self.waits.has_free(queue)}
        tried = [shard for shard in order if not open_.isdisjoint(round_.places[shard])]
        return tried or ([] if self._known.has(request) else order[:1])

    def _order(self, request: pb.ReserveRequest, places: Places) -> list[int]:
        """All shards, from another one each time, and for a repeated request from the same. The first queues first."""
        self._turn += 1
        return shards_in_turn(places, request.claim_request_id or str(self._turn))

    async def _try(self, request: pb.ReserveRequest, round_: Round, shard: int, caller: Caller) -> bytes | None:
        """What is there now, at one shard; None if it does not say.

        A shard that has said that it holds claims of this request is given all the time there is."""
        data = _reserve_at(request, round_.places[shard])
        is_hasty = _is_hasty(request, round_)
        limit_s = self._usual.hasty_s(shard) if is_hasty else TRY_S_MAX
        try_s = None if shard in round_.held else min(limit_s, round_.left_s)
        began_s = time.monotonic()
        last_s = round_.deadline_s if try_s is None else began_s + try_s * REPEATS_SHARE
        ends_s = min(round_.deadline_s, began_s + limit_s + DOUBT_S) if is_hasty else round_.deadline_s
        is_cut_off = False
        try:
            async with asyncio.timeout(try_s):
                answer = await self._claim(shard, data, caller, ends_s, last_s, is_settled_later=is_hasty)
        except TimeoutError:
            failure: Failure = outcome_unknown()
            is_cut_off = True
        except FAILURES as error:
            failure = error
            if not is_passing(failure) and not may_pass_if_read(failure):
                self._claimed_at(shard)
                raise
        else:
            self._usual.took(shard, time.monotonic() - began_s)
            round_.answered(shard)
            self._claimed_at(shard)
            return answer
        if is_cut_off:
            self._usual.took(shard, time.monotonic() - began_s)
            self._good.discard(shard)
            self._unhealthy.silent(shard, time.monotonic(), {each: self._leader_of(each) for each in round_.places})
        else:
            self._note(shard, failure)
        may_hold = not is_passing(failure) or shard in round_.held
        if may_hold and request.claim_request_id:
            round_.doubt(shard, failure)
        elif may_hold and not is_cut_off:
            raise failure  # no id would find these claims again, and there shall not be two batches of them
        else:
            round_.leave_alone(shard, failure)
        return None

    async def _holders(self, asked: pb.AwaitTasksRequest, round_: Round) -> list[int]:
        """Who holds claims of this request."""
        round_.asks_holders()
        async with self._asking:
            _, held = await self._ready(asked, round_, round_.now()[0], time.monotonic(), all_of_them=True)
        return held

    async def _look_out(self, asked: pb.AwaitTasksRequest, round_: Round) -> tuple[list[int], list[int]]:
        """Where there is something after a wait that is over: every shard is asked at least once, by a claim, by a wait
        or here."""
        while shards := [shard for shard in round_.now()[0] if shard in round_.unheard]:
            ready, held = await self._ready(asked, round_, shards, time.monotonic())
            if ready or held:
                return ready, held
        return [], []

    async def _ready(
        self, asked: pb.AwaitTasksRequest, round_: Round, shards: Sequence[int], until_s: float,
        *, all_of_them: bool = False,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Which of these shards have tasks, as soon as one has, or claims of this request. `all_of_them`: not before
        all have said whether they hold claims, or one that does."""
        waits = {asyncio.create_task(self._wait_at(shard, asked, round_, until_s)): shard for shard in shards}
        ready: list[int] = []
        held: list[int] = []
        pending = set(waits)
        try:
            while pending and not held and (all_of_them or not ready):
                grace_s = self._grace_s(round_, [waits[wait] for wait in pending], until_s)
                done, _ = await asyncio.wait(pending, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:  # those that do not answer must not hold up the next look at the others
                    for wait in pending:
                        self._failed(round_, waits[wait], _silent(waits[wait]))
                    break
                for wait in done:
                    answer = self._heard(round_, waits[wait], wait)
                    if answer is not None and answer.held:
                        held.append(waits[wait])
                        round_.held.add(waits[wait])
                    elif answer is not None and answer.ready:
                        ready.append(waits[wait])
                pending -= done
        finally:
            await end_tasks(waits)
        return ready, held

    def _heard(
        self, round_: Round, shard: int, wait: "asyncio.Task[pb.AwaitTasksResponse]"
    ) -> pb.AwaitTasksResponse | None:
        """What a shard has said; None if it has refused."""
        try:
            answer = wait.result()
        except FAILURES as failure:
            if not is_passing(failure) and not may_pass_if_read(failure):
                raise
            self._failed(round_, shard, failure)
            return None
        round_.answered(shard, settles=not answer.held)
        self._good.add(shard)
        return answer

    def _grace_s(self, round_: Round, pending: Sequence[int], until_s: float) -> float | None:
        """How long to wait for these when others have answered; None if nobody has: then the calls' own deadlines."""
        if round_.answered_s is None:
            return None
        if any(shard in round_.doubts for shard in pending):
            grace_s = DOUBT_S
        else:
            grace_s = _UNHEALTHY_GRACE_S if all(self._is_unhealthy(shard) for shard in pending) else GRACE_S
        ends_s = min(max(until_s, round_.answered_s) + grace_s, round_.deadline_s - _MARGIN_S)
        return max(0.0, ends_s - time.monotonic())

    async def _wait_at(
        self, shard: int, asked: pb.AwaitTasksRequest, round_: Round, until_s: float
    ) -> pb.AwaitTasksResponse:
        request = pb.AwaitTasksRequest()
        request.CopyFrom(asked)
        del request.queues[:]
        request.queues.extend([asked.queues[at] for at in round_.places[shard]])
        request.wait_ms = max(0, int((until_s - time.monotonic()) * 1000))
        answer_s = DOUBT_S if shard in round_.doubts else TRY_S_MAX
        ends_s = min(round_.deadline_s, until_s + answer_s)
        answer = await self._forwarder.send(_AWAIT, shard, request.SerializeToString(), ends_s)
        return pb.AwaitTasksResponse.FromString(answer)

    # --- shards that do not answer ------------------------------------------------------------------------------

    def _is_unhealthy(self, shard: int) -> bool:
        return self._unhealthy.has(shard, time.monotonic(), self._leader_of(shard))

    def _note(self, shard: int, failure: Failure) -> None:
        """One that is busy, or has no room, is well."""
        if _is_of_shard(failure):
            self._good.discard(shard)
            self._unhealthy.failed(shard, time.monotonic(), self._leader_of(shard))
        else:
            self._claimed_at(shard)

    def _claimed_at(self, shard: int) -> None:
        """It has answered a claim, whatever it said."""
        self._good.add(shard)
        self._unhealthy.answered(shard, self._leader_of(shard))

    def _heard_of(self, shard: int, failure: Failure | None) -> None:
        """By a wait that calls share."""
        if failure is None:
            self._good.add(shard)
        else:
            self._note(shard, failure)

    def _failed(self, round_: Round, shard: int, failure: Failure) -> None:
        self._note(shard, failure)
        round_.leave_alone(shard, failure)


def _is_hasty(request: pb.ReserveRequest, round_: Round) -> bool:
    """Its caller comes back for what is claimed meanwhile, and there are other shards that it can have tasks of."""
    return request.settles_later and bool(request.claim_request_id) and len(round_.places) > 1


def _is_of_shard(failure: Failure) -> bool:
    """It does not answer, or nobody leads it; otherwise the refusal is for this caller, or for this moment."""
    return failure.reason in ELSEWHERE or may_pass_if_read(failure)


def _wait_ends_s(wait_ms: int, wait_ms_max: int, deadline_s: float) -> float:
    if not 0 <= wait_ms <= wait_ms_max:
        sentence = f"Expected {{field}} from 0 to {wait_ms_max}, but got {wait_ms}."
        raise RefusedError(OUT_OF_RANGE, sentence, "wait_ms", f"0..{wait_ms_max}")
    return min(time.monotonic() + wait_ms / 1000, deadline_s - _MARGIN_S)


def _silent(shard: int) -> RefusedError:
    return RefusedError(
        NOT_LEADER,
        f"Expected the leader of shard {shard} to answer soon, but nobody did; try again in a moment.",
        retry_after_ms=200,
        metadata={"shard": str(shard)},
    )


def _reserve_at(request: pb.ReserveRequest, queues: Sequence[int]) -> bytes:
    """The same request for some of its queues, and for what is there now."""
    part = pb.ReserveRequest()
    part.CopyFrom(request)
    part.wait_ms = 0
    if len(queues) < len(request.queues):
        _keep(part.queues, queues)
        if len(request.queue_tasks_max) == len(request.queues):
            _keep(part.queue_tasks_max, queues)
    return part.SerializeToString()


def _keep(items: Any, positions: Sequence[int]) -> None:
    kept = [items[at] for at in positions]
    del items[:]
    items.extend(kept)


def _await_of(request: pb.ReserveRequest) -> pb.AwaitTasksRequest:
    asked = pb.AwaitTasksRequest(
        queues=request.queues,
        worker=request.worker,
        claim_request_id=request.claim_request_id,
        suspects_only=request.suspects_only,
    )
    if request.HasField("empty_handed"):
        asked.empty_handed = request.empty_handed
    return asked


def _is_answer(answer: bytes) -> bool:
    """Whether there is something that the caller should hear of now: claims, or that it should run dry."""
    if not answer:
        return False
    try:
        response = pb.ReserveResponse.FromString(answer)
    except DecodeError:
        return True  # the caller will say that it cannot be read
    return bool(response.claims or response.run_dry_ms)


def _wants(request: pb.ReserveRequest) -> dict[str, int]:
    """How many tasks of each of its queues the caller would take; 0 in the request sets no limit of its own."""
    limits = request.queue_tasks_max
    most = min(max(1, request.max_tasks), TASKS_MAX)
    if len(limits) != len(request.queues):
        return dict.fromkeys(request.queues, most)
    return {queue: min(limit, most) if limit > 0 else most for queue, limit in zip(request.queues, limits, strict=True)}
