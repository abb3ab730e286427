"""Reserve and AwaitTasks where the queues are on several shards.

A task must be claimed at one shard for one worker, so a Reserve never waits at several shards: whichever answered later
would have claimed for nobody. It asks one after another for what is there, then waits at all of them without claiming,
and claims at the first that has something.

A retry must meet the claims of the first attempt, whose answer was lost: it asks all shards first which one holds them.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from google.protobuf.message import DecodeError

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.callers import Caller
from holdfast.router.failures import FAILURES, CallFailedError, Failure, is_passing
from holdfast.router.forwarding import Forwarder, Sending
from holdfast.router.methods import TASKS
from holdfast.router.releases import Releases
from holdfast.serving.refusals import OUT_OF_RANGE, RefusedError

# A shard that refused is left alone for as long, or longer if it asked for that.
_AWAY_S = 0.5
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

    def __init__(self, forwarder: Forwarder, releases: Releases, *, wait_ms_max: int) -> None:
        self._forwarder = forwarder
        self._releases = releases
        self._wait_ms_max = wait_ms_max
        self._turn = 0

    async def claim(self, shard: int, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """At one shard, which may wait for a task.

        Claims with a claim_request_id are never given back: they are there to be asked for again, and another router
        may have handed them out already to a caller that did.
        """
        sending = Sending()
        reserve = asyncio.create_task(self._forwarder.send(_RESERVE, shard, data, deadline_s, sending))
        try:
            answer = await asyncio.shield(reserve)
        except asyncio.CancelledError:
            sending.abandon()
            if _RESERVE.may_repeat(data):
                self._releases.forget(reserve)
            else:
                self._releases.adopt(shard, reserve)
            raise
        if answer and caller.is_gone:
            if not _RESERVE.may_repeat(data):
                self._releases.release(shard, answer)
            raise CallFailedError("CANCELLED", "The caller has gone.")
        return answer

    async def claim_anywhere(
        self, request: pb.ReserveRequest, places: Places, caller: Caller, deadline_s: float
    ) -> bytes:
        """At the first of several shards that has something."""
        round_ = _Round(places, self._wait_ends_s(request.wait_ms, deadline_s))
        order = self._order(request, places)
        if caller.attempt > 1 and request.claim_request_id:
            order = await self._holder_first(order, request, places, deadline_s)
        while True:
            for shard in order:
                try:
                    data = _reserve_at(request, places[shard])
                    answer = await self.claim(shard, data, caller, deadline_s)
                except FAILURES as failure:
                    if not is_passing(failure):
                        raise
                    round_.leave_alone(shard, failure)
                    continue
                if _has_claims(answer):
                    return answer
            looked_from_s = time.monotonic()
            order = await self._look_out(request, round_, deadline_s)
            if not order:
                round_.raise_if_nobody_answers()
                return b""
            await round_.pause(looked_from_s)

    async def wait_anywhere(
        self, request: pb.AwaitTasksRequest, places: Places, deadline_s: float
    ) -> pb.AwaitTasksResponse:
        """The same without claiming."""
        round_ = _Round(places, self._wait_ends_s(request.wait_ms, deadline_s))
        while True:
            ready, held = await self._ready(request, round_, deadline_s)
            if ready or held or round_.is_over:
                break
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

    async def _holder_first(
        self, order: list[int], request: pb.ReserveRequest, places: Places, deadline_s: float
    ) -> list[int]:
        """If nobody holds claims of this request, the order stays."""
        asked = _await_of(request)
        _, held = await self._ready(asked, _Round(places, time.monotonic()), deadline_s, all_of_them=True)
        return [*held, *(shard for shard in order if shard not in held)]

    async def _look_out(self, request: pb.ReserveRequest, round_: "_Round", deadline_s: float) -> list[int]:
        """Where there is something, or was just now; nowhere if the wait is over."""
        asked = _await_of(request)
        while not round_.is_over:
            ready, held = await self._ready(asked, round_, deadline_s)
            if ready or held:
                return [*held, *ready]
        return []

    async def _ready(
        self, asked: pb.AwaitTasksRequest, round_: "_Round", deadline_s: float, *, all_of_them: bool = False
    ) -> tuple[list[int], list[int]]:
        """Waits at all shards until one has tasks, or claims of this request: those that have. A shard that is left
        alone is asked again later, so this may return early with nothing."""
        began_s = time.monotonic()
        shards, until_s = round_.now()
        if not shards:
            await asyncio.sleep(max(0.0, until_s - time.monotonic()))
            return [], []
        waits = {
            asyncio.create_task(self._wait_at(shard, asked, round_.places[shard], until_s, deadline_s)): shard
            for shard in shards
        }
        ready: list[int] = []
        held: list[int] = []
        pending = set(waits)
        try:
            while pending and (all_of_them or not (ready or held)):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for wait in done:
                    shard = waits[wait]
                    try:
                        answer = wait.result()
                    except FAILURES as failure:
                        if not is_passing(failure) and not failure_may_pass(failure):
                            raise
                        round_.leave_alone(shard, failure)
                        continue
                    if answer.held:
                        held.append(shard)
                    elif answer.ready:
                        ready.append(shard)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not ready and not held and not all_of_them and time.monotonic() < until_s:
            await round_.pause(began_s)  # they said so before their wait was over, and may go on like that
        return ready, held

    async def _wait_at(
        self, shard: int, asked: pb.AwaitTasksRequest, queues: Sequence[int], until_s: float, deadline_s: float
    ) -> pb.AwaitTasksResponse:
        request = pb.AwaitTasksRequest()
        request.CopyFrom(asked)
        del request.queues[:]
        request.queues.extend([asked.queues[at] for at in queues])
        request.wait_ms = max(0, int((until_s - time.monotonic()) * 1000))
        answer = await self._forwarder.send(_AWAIT, shard, request.SerializeToString(), deadline_s)
        return pb.AwaitTasksResponse.FromString(answer)


class _Round:
    """One call at several shards: how long it waits, and which shards are left alone for now."""

    def __init__(self, places: Places, ends_s: float) -> None:
        self.places = places
        self.ends_s = ends_s
        self._away: dict[int, tuple[float, Failure]] = {}
        self._beaten = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s

    def leave_alone(self, shard: int, failure: Failure) -> None:
        self._away[shard] = (time.monotonic() + max(_AWAY_S, failure.retry_after_ms / 1000), failure)

    def now(self) -> tuple[list[int], float]:
        """Which shards may be asked, and until when: then the wait is over, or another one may."""
        now_s = time.monotonic()
        back_s = [until_s for until_s, _ in self._away.values() if until_s > now_s]
        shards = [shard for shard in self.places if self._away.get(shard, (0.0,))[0] <= now_s]
        return shards, min([self.ends_s, *back_s])

    def raise_if_nobody_answers(self) -> None:
        now_s = time.monotonic()
        failures = [failure for until_s, failure in self._away.values() if until_s > now_s]
        if len(failures) == len(self.places):
            raise failures[0]

    async def pause(self, looked_from_s: float) -> None:
        """Between two looks of which the first was, or may have been, in vain."""
        now_s = time.monotonic()
        if now_s - looked_from_s > _WAITED_S:
            self._beaten = 0
        pause_s = _BEATEN_S_FIRST * (1 << min(self._beaten, 10)) * bool(self._beaten)
        self._beaten += 1
        await asyncio.sleep(max(0.0, min(pause_s, _BEATEN_S_MAX, self.ends_s - now_s)))


def failure_may_pass(failure: Failure) -> bool:
    """Of a call that only waits: whatever became of it, it did no harm."""
    return (isinstance(failure, CallFailedError) and failure.is_unknown) or failure.reason == "OUTCOME_UNKNOWN"


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
