"""Reserve and AwaitTasks where the queues are on several shards.

A task must be claimed at one shard for one worker, so a Reserve never waits at several shards: whichever answered later
would have claimed for nobody. It asks one after another for what is there, then waits at all of them without claiming,
and claims at the first that has something.

A retry must meet the claims of the first attempt, whose answer was lost: it asks all shards first which one holds them.

A shard that does not answer must not keep tasks of the others from their workers. So each is given a short time
(`routing.patience`); after one that took all of it, the rest are asked at the same time; and a shard that has just
failed is looked at with the others, but not tried first. What it may have claimed, and the answer was lost, is asked
for before anything is claimed elsewhere, if the request has an id. If it has none, these claims go back.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from google.protobuf.message import DecodeError

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.callers import Caller
from holdfast.router.failures import ELSEWHERE, FAILURES, CallFailedError, Failure, is_passing, may_pass_if_read
from holdfast.router.forwarding import Forwarder, Sending
from holdfast.router.methods import TASKS
from holdfast.router.news import News, RouteNews
from holdfast.router.releases import Releases
from holdfast.routing.patience import DOUBT_S, GRACE_S, REPEATS_SHARE, TRY_S_MAX, SickShards
from holdfast.serving.background import end_tasks
from holdfast.serving.refusals import NOT_LEADER, OUT_OF_RANGE, RefusedError, outcome_unknown

# A shard that refused is left alone for as long, or longer if it asked for that.
_AWAY_S = 0.5
# For the answers of the last shards if they are all known not to answer.
_SICK_GRACE_S = 0.2
# There was something, and nobody could have it: somebody else was faster, or the queue is at a limit. It may happen
# again and again, so the next look waits a little, and ever longer; one that had to wait begins anew: that was a new
# task.
_BEATEN_S_FIRST = 0.002
_BEATEN_S_MAX = 0.5
_WAITED_S = 0.1
# What is left of the caller's time when its wait is ended for it, so that the answer arrives.
_MARGIN_S = 0.05

_RESERVE = TASKS["Reserve"]
_AWAIT = TASKS["AwaitTasks"]

# Shards, and which of the request's queues each of them may have tasks of.
Places = Mapping[int, Sequence[int]]


class Reserving:
    """Claims tasks, and gives back what its caller did not wait for."""

    def __init__(
        self,
        forwarder: Forwarder,
        releases: Releases,
        *,
        wait_ms_max: int,
        find_places: Callable[[Sequence[str]], Places],
        leader_of: Callable[[int], Hashable],
    ) -> None:
        """`find_places`: of some queues, in the newest map; `leader_of`: who leads a shard by that map."""
        self._forwarder = forwarder
        self._releases = releases
        self._wait_ms_max = wait_ms_max
        self._find_places = find_places
        self._leader_of = leader_of
        self._news = RouteNews()
        self._sick = SickShards()
        self._turn = 0

    def routes_changed(self, queues: Sequence[str]) -> None:
        """They are on other shards than before: calls that wait for their tasks wait there too."""
        self._news.tell(queues)

    async def reserve(self, request: pb.ReserveRequest, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """From all shards that may have tasks of the queues. `data`: the request's bytes."""
        places = self._find_places(request.queues)
        if len(places) <= 1 and not request.wait_ms:
            return await self.claim(next(iter(places), 0), data, caller, deadline_s)
        is_repeated = caller.attempt > 1
        with self._news.about(request.queues) as news:
            if len(places) <= 1:
                ends_s = time.monotonic() + request.wait_ms / 1000
                answer = await self._claim(next(iter(places), 0), data, caller, deadline_s, news)
                if answer is not None:
                    return answer
                is_repeated = True  # it was called back, and may have claimed all the same
                request.wait_ms = max(0, int((ends_s - time.monotonic()) * 1000))
            return await self._claim_anywhere(request, caller, deadline_s, news, is_repeated=is_repeated)

    async def await_tasks(self, request: pb.AwaitTasksRequest, data: bytes, deadline_s: float) -> bytes:
        """The same without claiming."""
        places = self._find_places(request.queues)
        if len(places) <= 1 and not request.wait_ms:
            return await self._forwarder.send(_AWAIT, next(iter(places), 0), data, deadline_s)
        with self._news.about(request.queues) as news:
            if len(places) <= 1:
                ends_s = time.monotonic() + request.wait_ms / 1000
                wait = asyncio.create_task(self._forwarder.send(_AWAIT, next(iter(places), 0), data, deadline_s))
                ends: list[asyncio.Future[Any]] = [wait, news.changed]
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if wait.done():
                        return wait.result()
                finally:
                    await end_tasks([wait])
                request.wait_ms = max(0, int((ends_s - time.monotonic()) * 1000))
            return (await self._wait_anywhere(request, deadline_s, news)).SerializeToString()

    # --- at one shard -------------------------------------------------------------------------------------------

    async def claim(self, shard: int, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """At one shard, which may wait for a task.

        Claims with a claim_request_id are never given back: they are there to be asked for again, and another router
        may have handed them out already to a caller that did.
        """
        answer = await self._claim(shard, data, caller, deadline_s, None)
        assert answer is not None
        return answer

    async def _claim(
        self, shard: int, data: bytes, caller: Caller, deadline_s: float, news: News | None,
        repeats_until_s: float = float("inf"),
    ) -> bytes | None:  # fmt: skip
        """None if there was news before an answer: then the call is called back."""
        sending = Sending(repeats_until_s, caller.received_s)
        reserve = asyncio.create_task(self._forwarder.send(_RESERVE, shard, data, deadline_s, sending))
        ends: list[asyncio.Future[Any]] = [reserve] if news is None else [reserve, news.changed]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._let_go(shard, data, reserve, sending)
            raise
        if not reserve.done():
            self._let_go(shard, data, reserve, sending)
            return None
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

    async def _claim_anywhere(
        self, request: pb.ReserveRequest, caller: Caller, deadline_s: float, news: News, *, is_repeated: bool
    ) -> bytes:
        """At the first of several shards that has something."""
        news.take()
        round_ = _Round(self._find_places(request.queues), self._wait_ends_s(request.wait_ms, deadline_s), deadline_s)
        asked = _await_of(request)
        asks_holder = is_repeated and bool(request.claim_request_id)
        order = [shard for shard in self._order(request, round_.places) if not self._is_sick(shard)]
        while True:
            if asks_holder or round_.is_in_doubt:
                order = await self._holder_first(asked, round_, self._order(request, round_.places), news)
                asks_holder = False
            for shard in order:
                answer = await self._try(request, round_, shard, caller)
                if answer is not None and _has_claims(answer):
                    return answer
                if answer is None and self._is_sick(shard):
                    break  # the others are looked at all at once: there may be more of this kind
            looked_from_s = time.monotonic()
            if round_.is_in_doubt:
                if round_.is_over and round_.has_asked_holders:
                    round_.raise_doubt()
            else:
                ready, held = await self._look_out(asked, round_, news)
                order = [*held, *ready]
                if not order:
                    round_.raise_doubt()
                    round_.raise_if_nobody_answers()
                    return b""
            await round_.pause(looked_from_s)

    async def _wait_anywhere(
        self, request: pb.AwaitTasksRequest, deadline_s: float, news: News
    ) -> pb.AwaitTasksResponse:
        news.take()
        round_ = _Round(self._find_places(request.queues), self._wait_ends_s(request.wait_ms, deadline_s), deadline_s)
        ready, held = await self._look_out(request, round_, news)
        if not ready and not held:
            round_.raise_if_nobody_answers()
        return pb.AwaitTasksResponse(ready=bool(ready or held), held=bool(held))

    def _wait_ends_s(self, wait_ms: int, deadline_s: float) -> float:
        if not 0 <= wait_ms <= self._wait_ms_max:
            limit = f"0..{self._wait_ms_max}"
            sentence = f"Expected {{field}} from 0 to {self._wait_ms_max}, but got {wait_ms}."
            raise RefusedError(OUT_OF_RANGE, sentence, "wait_ms", limit)
        return min(time.monotonic() + wait_ms / 1000, deadline_s - _MARGIN_S)

    def _order(self, request: pb.ReserveRequest, places: Places) -> list[int]:
        """All shards, from another one each time, and for a repeated request from the same. The first queues first."""
        shards = sorted(places)
        if request.claim_request_id:
            digest = blake2b(request.claim_request_id.encode(), digest_size=4).digest()
            start = int.from_bytes(digest, "big") % len(shards)
        else:
            self._turn += 1
            start = self._turn % len(shards)
        rotated = shards[start:] + shards[:start]
        return sorted(rotated, key=lambda shard: min(places[shard]))

    async def _try(self, request: pb.ReserveRequest, round_: "_Round", shard: int, caller: Caller) -> bytes | None:
        """What is there now, at one shard; None if it does not say.

        A shard that has said that it holds claims of this request is given all the time there is."""
        data = _reserve_at(request, round_.places[shard])
        try_s = None if shard in round_.held else min(TRY_S_MAX, round_.left_s)
        last_s = round_.deadline_s if try_s is None else time.monotonic() + try_s * REPEATS_SHARE
        is_cut_off = False
        try:
            async with asyncio.timeout(try_s):
                answer = await self._claim(shard, data, caller, round_.deadline_s, None, last_s)
        except TimeoutError:
            failure: Failure = outcome_unknown()
            is_cut_off = True
        except FAILURES as error:
            failure = error
            if not is_passing(failure) and not may_pass_if_read(failure):
                raise
        else:
            round_.answered(shard)
            self._sick.answered(shard)
            return answer
        self._note(shard, failure)
        may_hold = not is_passing(failure) or shard in round_.held
        if may_hold and request.claim_request_id:
            round_.doubt(shard, failure)
        elif may_hold and not is_cut_off:
            raise failure  # no id would find these claims again, and there shall not be two batches of them
        else:
            round_.leave_alone(shard, failure)
        return None

    async def _holder_first(
        self, asked: pb.AwaitTasksRequest, round_: "_Round", order: list[int], news: News
    ) -> list[int]:
        """Who holds claims of this request; if nobody says so, all that answer."""
        round_.asks_holders()
        shards, _ = round_.now()
        _, held = await self._ready(asked, round_, shards, time.monotonic(), news, all_of_them=True)
        if held:
            return held
        return [shard for shard in order if round_.has_answered(shard)]

    async def _look_out(self, asked: pb.AwaitTasksRequest, round_: "_Round", news: News) -> tuple[list[int], list[int]]:
        """Where there is something, or was just now; nowhere if the wait is over. Every shard is asked at least once,
        by a claim or here."""
        while True:
            if news.take():
                round_.plan(self._find_places(asked.queues))
            shards, until_s = round_.now()
            if round_.is_over:
                shards = [shard for shard in shards if shard in round_.unheard]
                if not shards:
                    return [], []
            if not shards:
                await asyncio.wait((news.changed,), timeout=max(0.0, until_s - time.monotonic()))
                continue
            ready, held = await self._ready(asked, round_, shards, until_s, news)
            if ready or held:
                return ready, held

    async def _ready(
        self, asked: pb.AwaitTasksRequest, round_: "_Round", shards: Sequence[int], until_s: float, news: News,
        *, all_of_them: bool = False,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Waits at these shards until one has tasks, or claims of this request: those that have. A shard that is left
        alone is asked again later, and the queues may be elsewhere by then, so this may return early with nothing.
        `all_of_them`: not before all have said whether they hold claims, or one that does."""
        began_s = time.monotonic()
        until_s = max(until_s, began_s)
        waits = {
            asyncio.create_task(self._wait_at(shard, asked, round_, until_s)): shard for shard in shards
        }  # fmt: skip
        ready: list[int] = []
        held: list[int] = []
        pending = set(waits)
        try:
            while pending and not held and (all_of_them or not ready):
                grace_s = self._grace_s(round_, [waits[wait] for wait in pending], until_s)
                news_of = () if all_of_them else (news.changed,)
                done, _ = await asyncio.wait((*pending, *news_of), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:  # those that do not answer must not hold up the next look at the others
                    for wait in pending:
                        self._failed(round_, waits[wait], _silent(waits[wait]))
                    break
                for wait in done & pending:
                    answer = self._heard(round_, waits[wait], wait)
                    if answer is not None and answer.held:
                        held.append(waits[wait])
                        round_.held.add(waits[wait])
                    elif answer is not None and answer.ready:
                        ready.append(waits[wait])
                pending -= done
                if not all_of_them and news.changed.done():
                    break
        finally:
            await end_tasks(waits)
        if not ready and not held and not all_of_them and time.monotonic() < until_s and not news.changed.done():
            await round_.pause(began_s)  # they said so before their wait was over, and may go on like that
        return ready, held

    def _heard(
        self, round_: "_Round", shard: int, wait: "asyncio.Task[pb.AwaitTasksResponse]"
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
        self._sick.answered(shard)
        return answer

    def _grace_s(self, round_: "_Round", pending: Sequence[int], until_s: float) -> float | None:
        """How long to wait for these when others have answered; None if nobody has: then the calls' own deadlines."""
        if round_.answered_s is None:
            return None
        if any(shard in round_.doubts for shard in pending):
            grace_s = DOUBT_S
        else:
            grace_s = _SICK_GRACE_S if all(self._is_sick(shard) for shard in pending) else GRACE_S
        ends_s = min(max(until_s, round_.answered_s) + grace_s, round_.deadline_s - _MARGIN_S)
        return max(0.0, ends_s - time.monotonic())

    async def _wait_at(
        self, shard: int, asked: pb.AwaitTasksRequest, round_: "_Round", until_s: float
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

    def _is_sick(self, shard: int) -> bool:
        return self._sick.has(shard, time.monotonic(), self._leader_of(shard))

    def _note(self, shard: int, failure: Failure) -> None:
        """One that is busy, or has no room, is well."""
        if failure.reason in ELSEWHERE or may_pass_if_read(failure):
            self._sick.failed(shard, time.monotonic(), self._leader_of(shard))

    def _failed(self, round_: "_Round", shard: int, failure: Failure) -> None:
        self._note(shard, failure)
        round_.leave_alone(shard, failure)


class _Round:
    """One call at several shards: how long it waits, what each shard has said, and which are left alone for now."""

    def __init__(self, places: Places, ends_s: float, deadline_s: float = float("inf")) -> None:
        self.places = places
        self.ends_s = ends_s
        self.deadline_s = deadline_s
        self.unheard = set(places)  # shards that have not said anything yet, nor failed
        self.answered_s: float | None = None  # when the last one did
        self.held: set[int] = set()  # shards that have said that they hold claims of this request
        # By shard: why it may have claims of this request that nobody has been given.
        self.doubts: dict[int, Failure] = {}
        self.is_in_doubt = False  # there are doubts, and the shards were not asked who holds claims since
        self.has_asked_holders = False  # because of doubts, at least once
        self._failures: dict[int, Failure] = {}  # of those whose last word was no answer
        self._away: dict[int, float] = {}  # until when
        self._beaten = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def plan(self, places: Places) -> None:
        """The queues are elsewhere by now."""
        self.unheard = {shard for shard in places if shard in self.unheard or shard not in self.places}
        self.places = places

    def answered(self, shard: int, *, settles: bool = True) -> None:
        """`settles`: it holds no claims of this request that it has not given."""
        self.unheard.discard(shard)
        self._failures.pop(shard, None)
        self.answered_s = time.monotonic()
        if settles:
            self.held.discard(shard)
            self.doubts.pop(shard, None)

    def has_answered(self, shard: int) -> bool:
        return shard not in self.unheard and shard not in self._failures

    def leave_alone(self, shard: int, failure: Failure) -> None:
        self.unheard.discard(shard)
        self._failures[shard] = failure
        self._away[shard] = time.monotonic() + max(_AWAY_S, failure.retry_after_ms / 1000)

    def doubt(self, shard: int, failure: Failure) -> None:
        """It may have claimed, and is asked about it before anything is claimed elsewhere."""
        self.unheard.discard(shard)
        self._failures[shard] = failure
        self.doubts[shard] = failure
        self.is_in_doubt = True

    def asks_holders(self) -> None:
        self.has_asked_holders = self.has_asked_holders or self.is_in_doubt
        self.is_in_doubt = False

    def now(self) -> tuple[list[int], float]:
        """Which shards may be asked, and until when: then the wait is over, or another one may."""
        now_s = time.monotonic()
        back_s = [until_s for shard, until_s in self._away.items() if until_s > now_s and shard in self.places]
        shards = [shard for shard in self.places if self._away.get(shard, 0.0) <= now_s]
        return shards, min([self.ends_s, *back_s])

    def raise_doubt(self) -> None:
        """That there is nothing would not be true."""
        for failure in self.doubts.values():
            raise failure

    def raise_if_nobody_answers(self) -> None:
        failures = [failure for shard, failure in self._failures.items() if shard in self.places]
        if failures and len(failures) == len(self.places):
            raise failures[0]

    async def pause(self, looked_from_s: float) -> None:
        """Between two looks of which the first was, or may have been, in vain."""
        now_s = time.monotonic()
        if now_s - looked_from_s > _WAITED_S:
            self._beaten = 0
        pause_s = _BEATEN_S_FIRST * (1 << min(self._beaten, 10)) * bool(self._beaten)
        self._beaten += 1
        await asyncio.sleep(max(0.0, min(pause_s, _BEATEN_S_MAX, self.ends_s - now_s)))


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
    return pb.AwaitTasksRequest(queues=request.queues, worker=request.worker, claim_request_id=request.claim_request_id)


def _has_claims(answer: bytes) -> bool:
    try:
        return bool(answer) and bool(pb.ReserveResponse.FromString(answer).claims)
    except DecodeError:
        return True  # the caller will say that it cannot be read
