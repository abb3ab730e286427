"""Claiming from several shards (`transport.reserving`) by a client that goes straight to their leaders.

Where there is one shard, its leader waits for the call. With several the client looks where there is something, without
claiming, and claims there.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

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
from holdfast.routing.patience import GRACE_S, TRY_S_MAX, UNSETTLED_S, Leader
from holdfast.routing.reserve_calls import FailureMeaning, Places
from holdfast.routing.sets import visible
from holdfast.routing.splitting import split_over
from holdfast.transport.reserving import ReserveOverShards, ShardsCall, says_something

RESERVE = method(pb, "Tasks", "Reserve", pb.ReserveRequest, pb.ReserveResponse)
_AWAIT = method(pb, "Tasks", "AwaitTasks", pb.AwaitTasksRequest, pb.AwaitTasksResponse)

# After this the queues' routes are looked at again: they may be on more shards by now.
POLL_S = 5.0
_ANSWER_S_MIN = 0.1


class DirectCall(ShardsCall):
    """One reserve on its way over the shards."""

    request: pb.ReserveRequest

    def __init__(self, request: pb.ReserveRequest, timeout_s: float, attempt: int) -> None:
        now_s = time.monotonic()
        super().__init__(request, {}, now_s + request.wait_ms / 1000, attempt=attempt)
        self.attempt = attempt
        self._wait_ms = request.wait_ms
        self._answer_ends_s = max(now_s, self.ends_s) + timeout_s
        self._is_first_poll = True
        self.polled_s: float | None = None  # how long the last look took, if it was or may be in vain
        self.refusals: list[Exception | None] = []  # of the shards that said last that they have something

    def answer_s(self, wait_s: float = 0.0) -> float:
        """How long an answer may take beyond this wait."""
        return max(_ANSWER_S_MIN, self._answer_ends_s - time.monotonic() - wait_s)

    def note_unknown_outcome(self, shard: int, failure: Exception) -> None:
        """All that is sent from now on is a repetition."""
        super().note_unknown_outcome(shard, failure)
        self.attempt = max(1, self.attempt) + 1

    def next_poll_ms(self) -> int:
        """For how long to wait before the routes are looked at again. As it was given if that is short: the server
        refuses what makes no sense."""
        is_first, self._is_first_poll = self._is_first_poll, False
        left_ms = self._wait_ms if is_first else max(0, int((self.ends_s - time.monotonic()) * 1000))
        return min(left_ms, int(POLL_S * 1000))


class DirectReserve(ReserveOverShards[DirectCall, Reply[pb.ReserveResponse]]):
    """Reserves from all shards that may have tasks of the queues."""

    def __init__(self, connection: Connection, topology: TopologyCache) -> None:
        super().__init__((HoldfastError,))
        self._connection = connection
        self._topology = topology
        self._left: set[asyncio.Task[Reply[pb.ReserveResponse]]] = set()  # claims that nobody waits for any more

    async def close(self) -> None:
        for claim in self._left:
            claim.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)

    async def reserve(self, request: pb.ReserveRequest, timeout_s: float, attempt: int) -> Reply[pb.ReserveResponse]:
        call = DirectCall(request, timeout_s, attempt)
        while True:
            call.plan(await self._find_places(call))
            if request.held_only:
                return await self.claims_held(call, request.held_at or list(call.places))
            if len(call.places) > 1:
                return await self.claim_anywhere(call)
            reply = await self._at_one(call, next(iter(call.places)))
            if self.has_something(reply) or call.is_over(time.monotonic()):
                return reply

    async def _find_places(self, call: DirectCall) -> Places:
        routes = await self._topology.routes(call.request.queues, call.answer_s()) or {}
        return split_over(visible(routes[queue]) if queue in routes else (0,) for queue in call.request.queues) or {
            0: []
        }

    async def _at_one(self, call: DirectCall, shard: int) -> Reply[pb.ReserveResponse]:
        """The leader waits for us: nothing is faster."""
        wait_ms = call.request.wait_ms = call.next_poll_ms()
        return await self._connection.call(
            RESERVE, call.request, wait_ms=wait_ms, timeout_s=call.answer_s(max(0, wait_ms) / 1000),
            repeatable=call.has_id, attempt=call.attempt, shard=self._topology.aim(shard),
        )  # fmt: skip

    # --- at several ---------------------------------------------------------------------------------------------

    async def send_claim(
        self, call: DirectCall, shard: int, request: pb.ReserveRequest, limit_s: float | None, repeats_s: float
    ) -> Reply[pb.ReserveResponse]:
        """A claim that is settled later goes on when its time is over: cancelled, it would be claimed in vain."""
        timeout_s = call.answer_s() if limit_s is None else limit_s
        claim = asyncio.create_task(
            self._connection.call(
                RESERVE, request, timeout_s=timeout_s + UNSETTLED_S * call.is_hasty,
                repeatable=call.has_id, attempt=call.attempt, shard=self._topology.aim(shard), repeats_s=repeats_s,
            )
        )  # fmt: skip
        try:
            done, _ = await asyncio.wait((claim,), timeout=timeout_s if call.is_hasty else None)
        except asyncio.CancelledError:
            claim.cancel()
            await asyncio.gather(claim, return_exceptions=True)
            raise
        if done:
            return claim.result()
        self._left.add(claim)
        claim.add_done_callback(self._forget)
        raise self.silent(shard, timeout_s)

    def _forget(self, claim: "asyncio.Task[Reply[pb.ReserveResponse]]") -> None:
        self._left.discard(claim)
        if not claim.cancelled():
            claim.exception()

    async def send_held(self, call: DirectCall, shard: int) -> Reply[pb.ReserveResponse]:
        return await self._connection.call(
            RESERVE, call.request, timeout_s=min(TRY_S_MAX, call.answer_s()), repeatable=True,
            shard=self._topology.aim(shard),
        )  # fmt: skip

    async def send_poll(
        self, call: DirectCall, shard: int, request: pb.AwaitTasksRequest, wait_s: float
    ) -> pb.AwaitTasksResponse:
        reply = await self._connection.call(
            _AWAIT, request, wait_ms=request.wait_ms, timeout_s=call.answer_s(wait_s), repeatable=True,
            shard=self._topology.aim(shard),
        )  # fmt: skip
        return reply.message

    def limit_s(self, call: DirectCall, shard: int) -> float | None:
        """A shard that has said that it has something is given all the time, unless the caller comes back."""
        if call.is_hasty:
            return min(self._usual.hasty_s(shard), call.answer_s())
        return None if call.is_notified or shard in call.held else min(TRY_S_MAX, call.answer_s())

    def judge(self, failure: Exception) -> FailureMeaning:
        assert isinstance(failure, HoldfastError)
        return FailureMeaning(
            is_final=isinstance(failure, InvalidArgument | ClientClosed),
            may_have_claimed=may_have_taken_effect(failure),
            is_silent=isinstance(failure, DeadlineExceeded | ConnectionFailed),
            is_cut_off=isinstance(failure, DeadlineExceeded),
        )

    def silent(self, shard: int, waited_s: float = GRACE_S) -> HoldfastError:
        return DeadlineExceeded(f"the leader of shard {shard}", waited_s)

    def failed(self, failure: Exception) -> None:
        assert isinstance(failure, HoldfastError)
        self._topology.request_refresh_after(failure)

    def has_something(self, reply: Reply[pb.ReserveResponse]) -> bool:
        return says_something(reply.message)

    def unsettled(
        self, shards: Sequence[int], reply: Reply[pb.ReserveResponse] | None = None
    ) -> Reply[pb.ReserveResponse]:
        reply = reply or Reply(pb.ReserveResponse(), time.monotonic())
        reply.message.unsettled_shards.extend(shards)
        return reply

    def nothing(self, call: DirectCall) -> Reply[pb.ReserveResponse]:
        if call.refusals and None not in call.refusals:
            assert call.refusals[-1] is not None
            raise call.refusals[-1]  # there is something, and nobody lets us have it
        return Reply(pb.ReserveResponse(), time.monotonic())

    def leader_of(self, shard: int) -> Leader:
        return self._topology.leader_of(shard)

    def leaders(self, _call: DirectCall) -> Mapping[int, Leader]:
        return self._topology.leaders

    def first_order(self, call: DirectCall) -> list[int]:
        """Where there is work at all there is mostly some at the first."""
        return [shard for shard in self.in_turn(call) if not self.is_unhealthy(shard)][:1]

    def order_without_holders(self, call: DirectCall, ready: Sequence[int]) -> list[int]:
        """They were all looked at: another look would only give somebody else the time to be faster."""
        call.is_notified = call.is_notified or bool(ready)
        return [shard for shard in self.in_turn(call) if shard in ready]

    async def try_each(self, call: DirectCall, order: Sequence[int]) -> Reply[pb.ReserveResponse] | None:
        reply = await super().try_each(call, order)
        call.refusals = [call.failure_of(shard) for shard in order if call.is_notified]
        return reply

    async def wait(self, call: DirectCall) -> list[int]:
        """Looks at all shards; their leaders wait."""
        if call.polled_s is not None:
            await self.pause(call, call.polled_s)
        call.plan(await self._find_places(call))
        began_s = time.monotonic()
        wait_s = max(0.0, min(POLL_S, call.ends_s - began_s))
        shards = self.in_turn(call)
        ready, held = await self.poll(call, shards, wait_s)
        call.raise_if_nobody_answers()
        polled_s = time.monotonic() - began_s
        # In vain is what somebody else takes first; or servers do not wait as they should.
        call.polled_s = polled_s if ready or held or polled_s < wait_s else None
        return held or sorted(ready, key=shards.index)
