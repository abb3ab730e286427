"""Claiming from several shards: look where there is something, without claiming, then claim at one of them.

Claims are made at one shard per call, so that a call that fails half-way leaves as little behind as with one shard. The
shard that is tried first changes from call to call. Shards that cannot be reached are passed over while others answer.
But a shard that may have claimed, and whose answer was lost, is asked for these claims before any are made elsewhere:
they would be given to nobody until their leases end. A caller that says so (`settles_later`) does not wait for that: it
is told that its call is unsettled.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from holdfast.client._leaders import may_have_taken_effect
from holdfast.client._rpc import Connection, Reply, method
from holdfast.client._topology import TopologyCache
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidArgument,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.patience import (
    DOUBT_S,
    GRACE_S,
    REPEATS_SHARE,
    TRY_S_MAX,
    UNHEALTHY_S,
    UNHEALTHY_S_MAX,
    UnhealthyShards,
    UsualTimes,
)
from holdfast.routing.sets import visible
from holdfast.routing.turns import shards_in_turn

RESERVE = method(pb, "Tasks", "Reserve", pb.ReserveRequest, pb.ReserveResponse)
_AWAIT = method(pb, "Tasks", "AwaitTasks", pb.AwaitTasksRequest, pb.AwaitTasksResponse)

# After this the queues' routes are looked at again: they may be on more shards by now.
_LOOK_S = 5.0
_ANSWER_S_MIN = 0.1
# After a look that was in vain: somebody else was faster, or the queue is at a limit. Ever longer, but a look that had
# to wait begins anew: that was a new task.
_PAUSE_FIRST_S = 0.01
_PAUSE_MAX_S = 0.5
_WAITED_S = 0.1


class _Call:
    """One reserve on its way over the shards."""

    def __init__(self, request: pb.ReserveRequest, timeout_s: float, attempt: int) -> None:
        self.request = request
        self.attempt = attempt
        self._wait_ms = request.wait_ms
        self._waits_until_s = time.monotonic() + request.wait_ms / 1000
        self._ends_s = max(time.monotonic(), self._waits_until_s) + timeout_s
        self._is_first_look = True
        self.errors: list[HoldfastError] = []  # of the present look
        # By shard: why it may have claims of this call that nobody has been given.
        self.doubts: dict[int, HoldfastError] = {}
        self.held: set[int] = set()  # shards that have said that they hold some
        self.is_in_doubt = False  # there are doubts that no look was made for yet
        self._pause_s = _PAUSE_FIRST_S

    @property
    def wait_left_s(self) -> float:
        return self._waits_until_s - time.monotonic()

    def answer_s(self, wait_s: float = 0.0) -> float:
        """How long an answer may take beyond this wait."""
        return max(_ANSWER_S_MIN, self._ends_s - time.monotonic() - wait_s)

    async def pause(self, looked_s: float) -> None:
        """After a look that took so long."""
        if looked_s > _WAITED_S:
            self._pause_s = _PAUSE_FIRST_S
        await asyncio.sleep(max(0.0, min(self._pause_s * random.uniform(0.5, 1.0), self.wait_left_s)))
        self._pause_s = min(_PAUSE_MAX_S, self._pause_s * 2)

    def doubt(self, shard: int, error: HoldfastError) -> None:
        """The shard may have claimed; all that is sent from now on is a repetition."""
        self.doubts[shard] = error
        self.is_in_doubt = True
        self.attempt = max(1, self.attempt) + 1

    def settle(self, shard: int) -> None:
        """The shard has given what it held, or holds nothing."""
        self.doubts.pop(shard, None)
        self.held.discard(shard)

    def next_look_ms(self) -> int:
        """For how long to wait before the routes are looked at again. As it was given if that is short: the server
        refuses what makes no sense."""
        is_first, self._is_first_look = self._is_first_look, False
        left_ms = self._wait_ms if is_first else max(0, int(self.wait_left_s * 1000))
        return min(left_ms, int(_LOOK_S * 1000))


class ReserveOverShards:
    """Reserves from all shards that may have tasks of the queues."""

    def __init__(self, connection: Connection, topology: TopologyCache) -> None:
        self._connection = connection
        self._topology = topology
        self._turns = itertools.count(random.randrange(1 << 16))
        self._unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
        self._usual = UsualTimes()
        self._left: set[asyncio.Task[Reply[pb.ReserveResponse]]] = set()  # claims that nobody waits for any more

    async def close(self) -> None:
        for claim in self._left:
            claim.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)

    async def reserve(self, request: pb.ReserveRequest, timeout_s: float, attempt: int) -> Reply[pb.ReserveResponse]:
        """`attempt`: from the second on, an earlier one may have claimed, at any shard."""
        call = _Call(request, timeout_s, attempt)
        is_first, is_repeated = True, attempt > 1
        while True:
            queues = await self._queues_by_shard(request, call.answer_s())
            if request.held_only:
                return await self._claims_held(call, request.held_at or list(queues))
            if len(queues) == 1:
                reply = await self._at_one(call, next(iter(queues)))
            elif is_repeated or call.is_in_doubt:
                reply = await self._look_and_claim(call, queues, 0.0, is_repeated=True)
            else:
                reply = await self._at_several(call, queues, is_first=is_first)
            if _is_answer(reply.message):
                return reply
            if call.is_in_doubt and _is_hasty(request):
                return Reply(pb.ReserveResponse(unsettled_shards=call.doubts), time.monotonic())
            if call.wait_left_s <= 0:
                if call.doubts:  # that there is nothing would not be true
                    raise next(iter(call.doubts.values()))
                return reply
            is_first = is_repeated = False

    async def _queues_by_shard(self, request: pb.ReserveRequest, timeout_s: float) -> dict[int, list[int]]:
        """By shard, the places of the queues that may have tasks there, in the order of the request."""
        routes = await self._topology.routes(request.queues, timeout_s) or {}
        found: dict[int, list[int]] = {}
        for at, queue in enumerate(request.queues):
            for shard in visible(routes[queue]) if queue in routes else (0,):
                found.setdefault(shard, []).append(at)
        return found or {0: []}

    async def _at_one(self, call: _Call, shard: int) -> Reply[pb.ReserveResponse]:
        """The leader waits for us: nothing is faster."""

        def make(left_ms: int) -> pb.ReserveRequest:
            call.request.wait_ms = left_ms
            return call.request

        wait_ms = call.next_look_ms()
        return await self._connection.wait(
            RESERVE, make, wait_ms=wait_ms, timeout_s=call.answer_s(max(0, wait_ms) / 1000),
            repeatable=bool(call.request.claim_request_id), attempt=call.attempt, shard=self._topology.aim(shard),
        )  # fmt: skip

    async def _at_several(
        self, call: _Call, queues: dict[int, list[int]], *, is_first: bool
    ) -> Reply[pb.ReserveResponse]:
        # Where there is work at all there is mostly some at the first.
        first = self._first(call, queues) if is_first else None
        if first is not None:
            try_s = min(self._limit_s(call, first), call.answer_s())
            reply = await self._claim(call, first, queues[first], try_s, try_s * REPEATS_SHARE)
            if reply is not None and _is_answer(reply.message):
                return reply
            if call.is_in_doubt and _is_hasty(call.request):
                return Reply(pb.ReserveResponse(), time.monotonic())
            if call.is_in_doubt:
                return await self._look_and_claim(call, queues, 0.0, is_repeated=True)
        return await self._look_and_claim(call, queues, max(0.0, min(_LOOK_S, call.wait_left_s)))

    def _first(self, call: _Call, queues: dict[int, list[int]]) -> int | None:
        """The shard that is tried before any look: the next one in turn that is not known not to answer."""
        now_s = time.monotonic()
        for shard in self._in_turn(call, queues):
            if self._unhealthy.begin_try(shard, now_s, self._topology.leader_of(shard)):
                return shard
        return None

    def _limit_s(self, call: _Call, shard: int) -> float:
        return self._usual.hasty_s(shard) if _is_hasty(call.request) else TRY_S_MAX

    async def _claims_held(self, call: _Call, shards: Sequence[int]) -> Reply[pb.ReserveResponse]:
        """What an earlier call with the same id has claimed; raises if a shard does not say."""
        limit_s = min(TRY_S_MAX, call.answer_s())
        asked = (
            self._connection.wait(
                RESERVE, lambda _: call.request, wait_ms=0, timeout_s=limit_s, repeatable=True,
                shard=self._topology.aim(shard),
            )
            for shard in shards
        )  # fmt: skip
        replies = await asyncio.gather(*asked, return_exceptions=True)
        errors = [reply for reply in replies if isinstance(reply, BaseException)]
        good = [reply for reply in replies if not isinstance(reply, BaseException)]
        found = next((reply for reply in good if reply.message.claims), None)
        if found is None and errors:
            raise errors[0]
        return found or good[0]

    async def _look_and_claim(
        self, call: _Call, queues: dict[int, list[int]], wait_s: float, *, is_repeated: bool = False
    ) -> Reply[pb.ReserveResponse]:
        """One look at all shards, and claims at one of them if there is something."""
        call.errors.clear()
        call.is_in_doubt = False
        now_s = time.monotonic()
        shards = self._in_turn(call, queues)
        ready, is_answered = await self._await_tasks(call, shards, queues, wait_s, waits_for_all=is_repeated)
        if not is_answered:
            raise call.errors[0]
        looked_s = time.monotonic() - now_s
        replies = []
        for shard in ready:
            try_s = min(self._limit_s(call, shard), call.answer_s()) if _is_hasty(call.request) else call.answer_s()
            reply = await self._claim(call, shard, queues[shard], try_s)
            if reply is not None and _is_answer(reply.message):
                return reply
            replies.append(reply)
            if call.is_in_doubt:
                break  # what the shard may have claimed comes first
        if call.is_in_doubt and _is_hasty(call.request):
            return Reply(pb.ReserveResponse(), now_s)
        if ready and not any(replies) and call.wait_left_s <= 0:
            raise call.errors[-1]  # there is something, and nobody lets us have it
        if ready or looked_s < wait_s:  # there was something, or servers do not wait as they should
            await call.pause(looked_s)
        return Reply(pb.ReserveResponse(), now_s)

    def _in_turn(self, call: _Call, queues: dict[int, list[int]]) -> list[int]:
        """From another shard each time, and for a repeated request from the same. Those of the first queues first."""
        return shards_in_turn(queues, call.request.claim_request_id or str(next(self._turns)))

    async def _claim(
        self, call: _Call, shard: int, places: Sequence[int], timeout_s: float, repeats_s: float = float("inf")
    ) -> Reply[pb.ReserveResponse] | None:
        """None if the shard does not answer. Raises if it may have claimed, and no request id tells these claims."""
        part = _part(call.request, places)
        began_s = time.monotonic()
        try:
            reply = await self._send(call, part, shard, timeout_s, repeats_s)
        except (InvalidArgument, ClientClosed):
            raise
        except HoldfastError as error:
            if isinstance(error, DeadlineExceeded):
                self._usual.took(shard, time.monotonic() - began_s)
            self._failed(call, shard, error, is_silent=isinstance(error, DeadlineExceeded | ConnectionFailed))
            if may_have_taken_effect(error) or shard in call.held:
                if not part.claim_request_id:
                    raise
                call.doubt(shard, error)
            return None
        self._usual.took(shard, time.monotonic() - began_s)
        self._unhealthy.answered(shard, self._topology.leader_of(shard))
        call.settle(shard)
        return reply

    async def _send(
        self, call: _Call, part: pb.ReserveRequest, shard: int, timeout_s: float, repeats_s: float
    ) -> Reply[pb.ReserveResponse]:
        """A claim that is settled later goes on when its time is over: cancelled, it would be claimed in vain."""
        is_hasty = _is_hasty(call.request)
        claim = asyncio.create_task(
            self._connection.wait(
                RESERVE, lambda _: part, wait_ms=0, timeout_s=timeout_s + DOUBT_S * is_hasty,
                repeatable=bool(part.claim_request_id), attempt=call.attempt, shard=self._topology.aim(shard),
                repeats_s=repeats_s,
            )
        )  # fmt: skip
        try:
            done, _ = await asyncio.wait((claim,), timeout=timeout_s if is_hasty else None)
        except asyncio.CancelledError:
            claim.cancel()
            await asyncio.gather(claim, return_exceptions=True)
            raise
        if done:
            return claim.result()
        self._left.add(claim)
        claim.add_done_callback(self._forget)
        raise DeadlineExceeded(f"the leader of shard {shard}", timeout_s)

    def _forget(self, claim: "asyncio.Task[Reply[pb.ReserveResponse]]") -> None:
        self._left.discard(claim)
        if not claim.cancelled():
            claim.exception()

    async def _await_tasks(
        self, call: _Call, shards: Sequence[int], queues: dict[int, list[int]], wait_s: float, *, waits_for_all: bool
    ) -> tuple[list[int], bool]:
        """The shards that have something as soon as one has, only those with claims of this very call if there are any;
        and whether any shard has answered at all."""
        asked = {asyncio.create_task(self._await_at(call, shard, queues[shard], wait_s)): shard for shard in shards}
        held: list[int] = []
        ready: list[int] = []
        is_answered = False
        waiting: set[asyncio.Task[pb.AwaitTasksResponse]] = set(asked)
        try:
            while waiting and not held and (waits_for_all or not ready):
                grace_s = None
                if is_answered:
                    grace_s = DOUBT_S if any(asked[task] in call.doubts for task in waiting) else GRACE_S
                done, waiting = await asyncio.wait(waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break  # those that do not answer must not hold up the next look at the others
                for task in done:
                    error = task.exception()
                    if isinstance(error, HoldfastError) and not isinstance(error, InvalidArgument | ClientClosed):
                        self._failed(call, asked[task], error)
                        continue
                    answer = task.result()
                    is_answered = True
                    if answer.held:
                        held.append(asked[task])
                        call.held.add(asked[task])
                        continue
                    call.settle(asked[task])
                    if answer.ready:
                        ready.append(asked[task])
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return held or sorted(ready, key=shards.index), is_answered

    async def _await_at(self, call: _Call, shard: int, places: Sequence[int], wait_s: float) -> pb.AwaitTasksResponse:
        request = pb.AwaitTasksRequest(
            queues=[call.request.queues[at] for at in places],
            worker=call.request.worker,
            claim_request_id=call.request.claim_request_id,
            suspects_only=call.request.suspects_only,
        )
        if call.request.HasField("empty_handed"):
            request.empty_handed = call.request.empty_handed

        def make(left_ms: int) -> pb.AwaitTasksRequest:
            request.wait_ms = left_ms
            return request

        reply = await self._connection.wait(
            _AWAIT, make, wait_ms=int(wait_s * 1000), timeout_s=call.answer_s(wait_s), repeatable=True,
            shard=self._topology.aim(shard),
        )  # fmt: skip
        return reply.message

    def _failed(self, call: _Call, shard: int, error: HoldfastError, *, is_silent: bool = False) -> None:
        call.errors.append(error)
        if is_silent:
            self._unhealthy.silent(shard, time.monotonic(), self._topology.leaders)
        else:
            self._unhealthy.failed(shard, time.monotonic(), self._topology.leader_of(shard))
        self._topology.doubt_after(error)


def _is_hasty(request: pb.ReserveRequest) -> bool:
    """Its caller comes back for what is claimed meanwhile."""
    return request.settles_later and bool(request.claim_request_id)


def _is_answer(message: pb.ReserveResponse) -> bool:
    """Whether there is something that the caller should hear of now: claims, or that it should run dry."""
    return bool(message.claims or message.run_dry_ms)


def _part(request: pb.ReserveRequest, places: Sequence[int]) -> pb.ReserveRequest:
    """The same for some of the queues, without a wait."""
    part = pb.ReserveRequest()
    part.CopyFrom(request)
    part.wait_ms = 0
    del part.queues[:]
    part.queues.extend(request.queues[at] for at in places)
    if request.queue_tasks_max:
        del part.queue_tasks_max[:]
        part.queue_tasks_max.extend(request.queue_tasks_max[at] for at in places)
    return part
