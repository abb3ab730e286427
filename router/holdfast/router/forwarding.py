"""Bytes to the leader of a shard, and its answer's bytes back: over redirects, lost connections and silent leaders.

What is tried again, until the caller's deadline:
  * always: what was refused because the broker does not lead or shuts down, and what never left this router
  * only what may be carried out twice: what got no answer, and OUTCOME_UNKNOWN
Every other refusal goes back to the caller as it came.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from google.protobuf.message import DecodeError

from holdfast.proto.v1 import shards_pb2
from holdfast.router.admission import Admission
from holdfast.router.failures import CallFailedError, told
from holdfast.router.leaders import Leaders, RouterRetryState
from holdfast.router.methods import SHARDS, Method
from holdfast.routing.leaders import KnownLeader
from holdfast.routing.silence import InFlightCall
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.silence import SilenceWatch

# With less time left an attempt would only be cut off, and make of a refusal an unknown outcome.
_ATTEMPT_S_MIN = 0.05
# For the same reason the refusal must have arrived before the caller hangs up: this part of its time is kept for that.
_ANSWER_SHARE = 0.1
_ANSWER_S_MAX = 0.25

_FIND_LEADER = SHARDS["FindLeader"]


class Outgoing(Protocol):
    """A call under way to a broker."""

    def cancel(self) -> object: ...

    async def answer(self) -> bytes:
        """Raises CallFailedError; also when `cancel` ended it. CancelledError only if the waiting task is."""
        ...

    @property
    def is_unsent(self) -> bool:
        """It still waits for a connection, so nothing of it can have been carried out."""
        ...


class Channels(Protocol):
    """The ways to the brokers."""

    def call(self, address: str, method: Method, data: bytes, shard: int, timeout_s: float) -> Outgoing: ...


class Forwarder:
    """Sends requests to shards."""

    def __init__(self, leaders: Leaders, channels: Channels, admission: Admission) -> None:
        self._leaders = leaders
        self._channels = channels
        self._admission = admission
        self._watch = SilenceWatch(self)
        self.repeated = 0  # attempts after the first

    async def close(self) -> None:
        await self._watch.close()

    def leaders_changed(self, shards: Collection[int]) -> None:
        """The map has new leaders of these shards."""
        leaders = {self._leaders.of(shard) for shard in shards}
        for leader in leaders:
            leader.look_at_map(time.monotonic())
        self._watch.leaders_changed(leaders)

    async def send(
        self, method: Method, shard: int, data: bytes, deadline_s: float, patience: Patience = ENDLESS, *,
        repeats_until_s: float = float("inf"), received_s: float | None = None,
    ) -> bytes:  # fmt: skip
        """Raises CallFailedError or RefusedError. `deadline_s` is on time.monotonic(). No attempt begins after
        `repeats_until_s`; the last one has time until the deadline, so that it is not cut off. `received_s`: when the
        router got the call, if that was before it began to send it."""
        if method.waits:
            return await self._send(method, shard, data, deadline_s, patience, repeats_until_s, received_s)
        self._admission.enter_shard(shard)
        try:
            return await self._send(method, shard, data, deadline_s, patience, repeats_until_s, received_s)
        finally:
            self._admission.leave_shard(shard)

    async def _send(
        self, method: Method, shard: int, data: bytes, deadline_s: float, patience: Patience, repeats_until_s: float,
        received_s: float | None,
    ) -> bytes:  # fmt: skip
        began_s = now_s = time.monotonic()
        leader = self._leaders.of(shard)
        address = leader.pick(now_s) or ""
        state: RouterRetryState | None = None
        wished_ms = 0
        while True:
            try:
                answer = await self._attempt(method, leader, shard, address, data, deadline_s - now_s, patience)
                if leader.named != address:
                    leader.answered(address)
                return method.with_routed(answer, now_s - (began_s if received_s is None else received_s))
            except CallFailedError as error:
                failure = error
            if patience.is_over:  # that says nothing about the leader
                is_unknown = failure.is_unknown or (state is not None and state.is_unknown)
                raise told(failure, shard, is_unknown=is_unknown) from None
            now_s = time.monotonic()
            if state is None:
                state = RouterRetryState(leader, address)
                wished_ms = method.wait_ms(data)
            pause_s = state.after(failure, partial(method.may_repeat, data), now_s)
            last_s = deadline_s - min(_ANSWER_S_MAX, _ANSWER_SHARE * (deadline_s - began_s))
            if pause_s is None or now_s + pause_s + _ATTEMPT_S_MIN >= min(last_s, repeats_until_s):
                raise told(failure, shard, is_unknown=state.is_unknown) from None
            if pause_s:
                await patience.pause(pause_s)
                now_s = time.monotonic()
                if patience.is_over:
                    raise told(failure, shard, is_unknown=state.is_unknown) from None
            if method.waits:
                data = method.with_wait(data, max(0, wished_ms - int((now_s - began_s) * 1000)))
            address = state.address
            self.repeated += 1

    async def _attempt(
        self, method: Method, leader: KnownLeader, shard: int, address: str, data: bytes, timeout_s: float,
        patience: Patience,
    ) -> bytes:  # fmt: skip
        if not address:
            raise CallFailedError("UNAVAILABLE", "no replica has an address", was_connected=False)
        call = self._channels.call(address, method, data, shard, timeout_s)
        patience.began(call)
        in_flight = InFlightCall(
            leader, shard, address, call, wait_s=float("inf") if method.waits else 0.0, timeout_s=timeout_s,
            now_s=time.monotonic(), may_give_up=lambda: call.is_unsent or method.may_repeat(data),
        )  # fmt: skip
        self._watch.begin(in_flight)
        try:
            return await call.answer()
        finally:
            self._watch.end(in_flight)
            patience.ended()

    async def who_leads(self, addresses: Sequence[str], shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        """The newest that any of these replicas knows of."""
        assert shard is not None, "a router knows the shard of each call"
        answers = await asyncio.gather(*(self._ask(address, shard, timeout_s) for address in addresses))
        found = [answer for answer in answers if answer is not None]
        return max(found, key=lambda answer: answer[1], default=None)

    async def looks_for_leader(self, _address: str, _shard: int | None, _timeout_s: float) -> bool:
        return False  # no broker sends calls on

    async def _ask(self, address: str, shard: int, timeout_s: float) -> tuple[str, int] | None:
        request = shards_pb2.FindLeaderRequest(shard=shard).SerializeToString()
        try:
            answer = await self._channels.call(address, _FIND_LEADER, request, shard, timeout_s).answer()
            found = shards_pb2.FindLeaderResponse.FromString(answer)
        except (CallFailedError, DecodeError):
            return None
        return (found.address, found.epoch) if found.address else None
