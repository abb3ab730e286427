"""Bytes to the leader of a shard, and its answer's bytes back: over redirects, lost connections and silent leaders.

What is tried again, until the caller's deadline:
  * always: what was refused because the broker does not lead or shuts down, and what never left this router
  * only what may be carried out twice: what got no answer, and OUTCOME_UNKNOWN
Every other refusal goes back to the caller as it came.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from holdfast.proto.v1 import shards_pb2
from holdfast.router.admission import Admission
from holdfast.router.failures import Failure, reported
from holdfast.router.leaders import Leaders, MappedLeader, RouterRetryState
from holdfast.router.methods import SHARDS, Method
from holdfast.router.passing_on import PassingOn, metadata_of
from holdfast.routing.silence import InFlightCall
from holdfast.transport.channels import CallFailedError, Channels, Metadata, OutgoingCall
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.sending import LeaderCall, Sender, SilenceWatch

# With less time left an attempt would only be cut off, and make of a refusal an unknown outcome.
_ATTEMPT_S_MIN = 0.05
# For the same reason the refusal must have arrived before the caller hangs up: this part of its time is kept for that.
_ANSWER_SHARE = 0.1
_ANSWER_S_MAX = 0.25

MakeMetadata = Callable[[int], Metadata]  # of a call to a shard

_FIND_LEADER = SHARDS["FindLeader"]


class FirstAttempt(NamedTuple):
    """Of a call that was begun without a coroutine; it has failed."""

    failure: CallFailedError
    address: str
    sent_s: float


class RouterChannels(Channels, Protocol):
    """What a router needs of them beside calls."""

    def begin(
        self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float,
        on_end: Callable[[bytes | CallFailedError], None],
    ) -> OutgoingCall | None:  # fmt: skip
        """A call for whose end nobody waits: `on_end` hears of it, later. None if there is no such way at the
        moment."""
        ...


class _Forwarding(LeaderCall):
    """One call on its way to the leader of its shard."""

    leader: MappedLeader

    def __init__(
        self, channels: Channels, method: Method, leader: MappedLeader, shard: int, data: bytes, deadline_s: float,
        repeats_until_s: float, first: FirstAttempt | None, metadata: MakeMetadata,
    ) -> None:  # fmt: skip
        self.sent_s = self._began_s = time.monotonic() if first is None else first.sent_s
        super().__init__(leader, shard, (leader.pick(self._began_s) or "") if first is None else first.address)
        self._shard = shard
        self._channels = channels
        self._method = method
        self._data = data
        self._deadline_s = deadline_s
        self._repeats_until_s = repeats_until_s
        self._metadata = metadata
        self._state: RouterRetryState | None = None
        self._is_unknown = False  # an attempt may have been carried out
        self._asked_ms = 0
        self.wait_s = float("inf") if method.waits else 0.0

    async def begin(self, _patience: Patience) -> OutgoingCall:
        if not self.address:
            raise CallFailedError("UNAVAILABLE", "no replica has an address", was_connected=False)
        now_s = time.monotonic()
        if self._state is not None and self._method.waits:
            wait_ms = max(0, self._asked_ms - int((now_s - self._began_s) * 1000))
            self._data = self._method.with_wait(self._data, wait_ms)
        self.sent_s = now_s
        self.timeout_s = self._deadline_s - now_s
        metadata = self._metadata(self._shard)
        return self._channels.call(self.address, self._method.path, self._data, metadata, self.timeout_s)

    def may_repeat(self) -> bool:
        return self._method.may_repeat(self._data)

    def note(self, failure: CallFailedError) -> None:
        self._is_unknown = self._is_unknown or failure.is_unknown

    def after(self, failure: CallFailedError, now_s: float) -> float | None:
        self.note(failure)
        if self._state is None:
            self._state = RouterRetryState(self.leader, self.address)
            self._asked_ms = self._method.wait_ms(self._data)
        pause_s = self._state.after(failure, self.may_repeat, now_s)
        last_s = self._deadline_s - min(_ANSWER_S_MAX, _ANSWER_SHARE * (self._deadline_s - self._began_s))
        if pause_s is None or now_s + pause_s + _ATTEMPT_S_MIN >= min(last_s, self._repeats_until_s):
            return None
        self.address = self._state.address
        return pause_s

    def last_word(self, failure: CallFailedError) -> Failure:
        return reported(failure, self._shard, is_unknown=self._is_unknown)


class Forwarder:
    """Sends requests to shards."""

    def __init__(
        self, leaders: Leaders, channels: RouterChannels, admission: Admission, passing_on: PassingOn | None = None
    ) -> None:
        """`passing_on`: says for whom it calls; without it nobody does."""
        self._metadata: MakeMetadata = metadata_of if passing_on is None else passing_on.metadata
        self._passing_on = passing_on
        self._leaders = leaders
        self._channels = channels
        self._admission = admission
        self._sender = Sender(self)

    async def close(self) -> None:
        await self._sender.close()

    def leaders_changed(self, shards: Collection[int]) -> None:
        """The map has new leaders of these shards."""
        leaders = {self._leaders.of(shard) for shard in shards}
        for leader in leaders:
            leader.poll_map(time.monotonic())
        self._sender.leaders_changed(leaders)

    @property
    def repeated(self) -> int:
        """Attempts after the first of their calls."""
        return self._sender.repeated

    async def send(
        self, method: Method, shard: int, data: bytes, deadline_s: float, patience: Patience = ENDLESS, *,
        repeats_until_s: float = float("inf"), received_s: float | None = None, first: FirstAttempt | None = None,
    ) -> bytes:  # fmt: skip
        """Raises CallFailedError or RefusedError. `deadline_s` is on time.monotonic(). No attempt begins after
        `repeats_until_s`; the last one has time until the deadline, so that it is not cut off. `received_s`: when the
        router got the call, if that was before it began to send it. `first`: the first attempt, if it was made."""
        leader = self._leaders.of(shard)
        call = _Forwarding(
            self._channels, method, leader, shard, data, deadline_s, repeats_until_s, first, self._metadata
        )
        began_s = call.sent_s if received_s is None else received_s
        if not method.waits:
            (self._admission.enter_shard if first is None else self._admission.enter_shard_again)(shard)
        try:
            answer = await self._sender.send(call, patience, None if first is None else first.failure)
        finally:
            if not method.waits:
                self._admission.leave_shard(shard)
        return method.with_routed(answer, call.sent_s - began_s)

    def begin(
        self, method: Method, shard: int, data: bytes, deadline_s: float,
        on_end: Callable[[bytes | FirstAttempt], None], *, received_s: float,
    ) -> OutgoingCall | None:  # fmt: skip
        """Makes the first attempt without anybody who waits for it: `on_end` hears of the answer, or of the failure
        from which `send` goes on. None if there is no such way at the moment; may refuse."""
        leader = self._leaders.of(shard)
        sent_s = time.monotonic()
        address = leader.pick(sent_s)
        if not address:
            return None
        begun = _Begun(self._sender.watch, self._admission, method, leader, shard, data, address, sent_s, on_end)
        if not method.waits:
            self._admission.enter_shard(shard)
        begun.received_s = received_s
        timeout_s = deadline_s - sent_s
        outgoing = self._channels.begin(address, method.path, data, self._metadata(shard), timeout_s, begun.ended)
        if outgoing is not None:
            begun.is_watched_as(outgoing, timeout_s)
        elif not method.waits:
            self._admission.leave_shard(shard)
        return outgoing

    async def who_leads(self, addresses: Sequence[str], shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        """The newest that any of these replicas knows of."""
        assert shard is not None, "a router knows the shard of each call"
        answers = await asyncio.gather(*(self._ask(address, shard, timeout_s) for address in addresses))
        found = [answer for answer in answers if answer is not None]
        return max(found, key=lambda answer: answer[1], default=None)

    async def waits_for_leader(self, _address: str, _shard: int | None, _timeout_s: float) -> bool:
        return False  # no broker sends calls on

    async def _ask(self, address: str, shard: int, timeout_s: float) -> tuple[str, int] | None:
        request = shards_pb2.FindLeaderRequest(shard=shard).SerializeToString()
        passing_on = self._passing_on
        metadata = metadata_of(shard) if passing_on is None else passing_on.metadata(shard, as_router=True)
        try:
            answer = await self._channels.call(address, _FIND_LEADER.path, request, metadata, timeout_s).answer()
            found = shards_pb2.FindLeaderResponse.FromString(answer)
        except (CallFailedError, DecodeError):
            return None
        return (found.address, found.epoch) if found.address else None


class _Begun:
    """A call on its way without a coroutine."""

    __slots__ = (
        "_address", "_admission", "_data", "_in_flight", "_leader", "_method", "_on_end", "_outgoing", "_sent_s",
        "_shard", "_watch", "received_s",
    )  # fmt: skip

    def __init__(
        self, watch: SilenceWatch, admission: Admission, method: Method, leader: MappedLeader, shard: int, data: bytes,
        address: str, sent_s: float, on_end: Callable[[bytes | FirstAttempt], None],
    ) -> None:  # fmt: skip
        self._watch = watch
        self._admission = admission
        self._method = method
        self._leader = leader
        self._shard = shard
        self._data = data
        self._address = address
        self._sent_s = self.received_s = sent_s
        self._on_end = on_end
        self._in_flight: InFlightCall | None = None
        self._outgoing: OutgoingCall | None = None

    def is_watched_as(self, outgoing: OutgoingCall, timeout_s: float) -> None:
        """While its server is silent."""
        self._in_flight = InFlightCall(
            self._leader, self._shard, self._address, outgoing, wait_s=0.0, timeout_s=timeout_s, now_s=self._sent_s,
            may_give_up=self._may_give_up,
        )  # fmt: skip
        self._outgoing = outgoing
        self._watch.begin(self._in_flight)

    def _may_give_up(self) -> bool:
        return self._outgoing is None or self._outgoing.is_unsent or self._method.may_repeat(self._data)

    def ended(self, result: bytes | CallFailedError) -> None:
        if self._in_flight is not None:
            self._watch.end(self._in_flight)
        if not self._method.waits:
            self._admission.leave_shard(self._shard)
        if isinstance(result, CallFailedError):
            self._on_end(FirstAttempt(result, self._address, self._sent_s))
            return
        if self._leader.named != self._address:
            self._leader.answered(self._address)
        self._on_end(self._method.with_routed(result, self._sent_s - self.received_s))
