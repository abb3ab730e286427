"""Calls to the servers.

A `Connection` sends bytes to the server that leads, waits no longer than the deadline, repeats what is safe to repeat,
and turns every way a call can go wrong into one error of the tree in `errors`. Where a call goes is decided in
`_leaders`; the attempts are made by `transport.sending`, over `transport.grpc_channels`.

What is repeated, with growing pauses and jitter, until the deadline:
  * a refusal that says that nothing was done and that trying again can help (OVERLOADED, SHUTTING_DOWN, NOT_LEADER),
    and with several servers a connection that could not be made: every call
  * a lost connection, silence while another server leads, and OUTCOME_UNKNOWN: only calls that may be carried out twice
    without harm
With `retry` off, a call asks each server at most once and pauses for nothing.

A long poll is such a call whose wait gets shorter with each attempt.

A call whose shard is known names it in its metadata. Calls without one go to the servers of the list: routers, which
know where each task belongs, or a broker with a single shard.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from holdfast.client import _forks
from holdfast.client._attempts import MESSAGE_BYTES_MAX, CallAttempts, OneCall, Poll, checked
from holdfast.client._leaders import ClientRetryState, ListedLeader, split_addresses
from holdfast.client._unknown_outcomes import CHANGES, mark_unknown
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    Overloaded,
    ServerError,
    Unauthenticated,
    UnexpectedAnswer,
    rejected,
)
from holdfast.client.tokens import TokenSource
from holdfast.common.metadata import ATTEMPT_KEY, FIRST_KEY, SHARD_KEY
from holdfast.proto.v1 import shards_pb2
from holdfast.routing.silence import InFlightCall
from holdfast.transport.channels import (
    CallFailedError,
    Channels,
    Metadata,
    OutgoingCall,
)
from holdfast.transport.frame_channels import FramesAddress
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.negotiated import NegotiatedChannels, Transport
from holdfast.transport.sending import LeaderCall, Sender

_ANYBODY = -1  # in the place of a shard: whoever is asked can answer
_RENEWALS_MAX = 3  # of the token, in one call
# How long a leader that is out of reach may keep a call that could go another way.
_CONNECT_S_MAX = 1.0
# With a call that says so a router may refuse automatic keys for an older set of shards: they can be made anew.
_FIRST = ((FIRST_KEY, "1"),)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One call of the wire API."""

    name: str
    path: str  # as gRPC wants it, e.g. /holdfast.proto.v1.Tasks/Enqueue
    request: type[RequestT]
    response: type[ResponseT]


class Reply(NamedTuple, Generic[ResponseT]):
    """An answer, and when the request it belongs to was sent: the last one, if it was sent more than once."""

    message: ResponseT
    sent_s: float  # on time.monotonic()


class FailedAttempt(NamedTuple):
    """The first attempt of a call."""

    failure: CallFailedError
    address: str
    begun_s: float


class UnderWay(NamedTuple):
    """The first attempt of a call, made by the thread that wants the answer."""

    outgoing: OutgoingCall
    address: str
    begun_s: float


FirstAttempt = FailedAttempt | UnderWay


class OwnWay(NamedTuple):
    """Where a thread that makes calls by itself makes those that name no shard."""

    address: str
    frames: FramesAddress
    has_others: bool  # that can be asked while the server is silent


class ClientChannels(Channels, Protocol):
    """What a client needs of them beside calls."""

    def __len__(self) -> int: ...

    def begin(
        self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float,
        on_end: Callable[[bytes | CallFailedError], None],
    ) -> OutgoingCall | None:  # fmt: skip
        """A call for whose end nobody waits: `on_end` hears of it, later. None if there is no such way at the
        moment."""
        ...

    def frames_at(self, address: str) -> FramesAddress | None:
        """For a connection of the caller's own; None if none could be made to it lately."""
        ...

    def is_connected(self, address: str) -> bool: ...

    async def connect(self, address: str, timeout_s: float) -> bool:
        """Whether there is a connection, within this time at the latest."""
        ...

    async def keep(self, addresses: Collection[str]) -> None:
        """All others are no longer needed, once their calls have ended."""
        ...

    async def close(self) -> None: ...


class _HasDescriptor(Protocol):
    DESCRIPTOR: FileDescriptor


def method(
    module: _HasDescriptor, service: str, name: str, request: type[RequestT], response: type[ResponseT]
) -> Method[RequestT, ResponseT]:
    """The method as the descriptors know it; asking for one that does not exist, or with other messages, fails."""
    descriptor: ServiceDescriptor = module.DESCRIPTOR.services_by_name[service]
    found = descriptor.methods_by_name[name]
    assert found.input_type is request.DESCRIPTOR, f"{name} takes {found.input_type.name}"
    assert found.output_type is response.DESCRIPTOR, f"{name} returns {found.output_type.name}"
    return Method(name, f"/{descriptor.full_name}/{name}", request, response)


_FIND_LEADER = method(shards_pb2, "Shards", "FindLeader", shards_pb2.FindLeaderRequest, shards_pb2.FindLeaderResponse)


class _Sending(LeaderCall):
    """One call on its way to the leader."""

    leader: ListedLeader

    def __init__(
        self, connection: "Connection", method: Method[Any, Any], attempts: CallAttempts, leader: ListedLeader,
        shard: int | None, *, repeatable: bool, attempt: int, is_first: bool, failed: FailedAttempt | None = None,
    ) -> None:  # fmt: skip
        """`failed`: an attempt that was made already."""
        self.state = ClientRetryState(
            leader, retry=connection.retries, repeatable=repeatable, changes=method.name in CHANGES
        )
        super().__init__(leader, shard, self.state.address)
        self._connection = connection
        self._path = method.path
        self._attempts = attempts
        self._repeatable = repeatable
        self._attempt = attempt + 1 if failed and attempt else attempt
        self._is_first = is_first and failed is None
        if failed is not None:
            self.address = self.state.address = failed.address
        self._error: HoldfastError | None = None  # of the last attempt, if it failed
        self._renewals = 0  # how often another token was looked for
        self.sent_s = 0.0 if failed is None else failed.begun_s  # the last attempt

    async def begin(self, patience: Patience) -> OutgoingCall:
        if self._error is not None:
            await self._connection.close_unneeded()
        self.is_watched = self.leader.several
        self.sent_s = time.monotonic()
        data, self.timeout_s = self._attempts.next(self.sent_s)
        self.wait_s = self._attempts.wait_s
        metadata = metadata_of(self.shard, self._attempt, is_first=self._is_first)
        self._is_first = False
        self._attempt += 1 if self._attempt else 0
        if self.leader.is_direct and self.is_watched:
            await self._connection.reach(self.address, min(_CONNECT_S_MAX, self.timeout_s), patience)
            self.sent_s = time.monotonic()
        return self._connection.begin(self.address, self._path, data, metadata, self.timeout_s)

    def may_repeat(self) -> bool:
        return self._repeatable

    def note(self, failure: CallFailedError) -> None:
        self.state.note(self._heard(failure))

    def after(self, failure: CallFailedError, now_s: float) -> float | None:
        error = self._heard(failure)
        if isinstance(error, Unauthenticated) and (pause_s := self._after_unknown_caller(error)) is not None:
            return self._attempts.pause_s(pause_s)
        pause_s = self.state.after(error, now_s)
        self.address = self.state.address
        return None if pause_s is None else self._attempts.pause_s(pause_s)

    def _after_unknown_caller(self, error: Unauthenticated) -> float | None:
        """Nothing was done. There may be another token by now, or the server asks for a moment."""
        token = self._connection.token
        if token is None or self._renewals == _RENEWALS_MAX:
            return None
        self._renewals += 1
        return 0.0 if token.renew() else error.retry_after_ms / 1000 or None

    def _heard(self, failure: CallFailedError) -> HoldfastError:
        self._error = self._connection.error_of(failure, self.address, self._attempts.timeout_s)
        return self._error

    def last_word(self, failure: CallFailedError) -> HoldfastError:
        assert self._error is not None
        return self._error if isinstance(self._error, ClientClosed) else self.state.last_word(self._error)


class Connection:
    """Channels to the servers of a list, and to the leaders that these name."""

    def __init__(
        self, address: str, *, retry: bool, transport: Transport = "auto", token: TokenSource | None = None,
        channels: ClientChannels | None = None,
    ) -> None:  # fmt: skip
        self.addresses = split_addresses(address)
        self.address = ",".join(self.addresses)
        self._retry = retry
        self.token = token
        self._leaders: dict[int | None, ListedLeader] = {}  # by shard; None: of calls that name none
        self._channels = channels or NegotiatedChannels(
            message_bytes_max=MESSAGE_BYTES_MAX, keepalive_s=30, connects_first=False, caller="client",
            check=_forks.check, transport=transport, token=token,
        )  # fmt: skip
        self._sender = Sender(self)
        self._closed = False

    @property
    def retries(self) -> bool:
        return self._retry

    async def close(self) -> None:
        self._closed = True
        await self._sender.close()
        await self._channels.close()

    def learn(self, shard: int, servers: Sequence[str], leader: str, epoch: int) -> None:
        """From a map: who leads the shard (empty if that is not known), and who else may know or take its calls."""
        leaders = self._leaders.get(shard)
        if leaders is None or not leaders.is_direct:
            leaders = self._leaders[shard] = ListedLeader(servers, is_direct=True)
        leaders.relist(servers)
        if leader and leaders.named != leader:
            leaders.name(leader, epoch, time.monotonic())

    def may_ask(self, servers: Sequence[str]) -> None:
        """Who else can answer what every server can."""
        leaders = self._leaders.setdefault(_ANYBODY, ListedLeader(self.addresses))
        leaders.relist(tuple(dict.fromkeys((*self.addresses, *servers))))

    async def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float,
        repeatable: bool,
        wait_ms: int = 0,
        attempt: int = 0,
        shard: int | None = None,
        is_first: bool = False,
        repeats_s: float = float("inf"),
        patience: Patience = ENDLESS,
        first: FirstAttempt | None = None,
    ) -> Reply[ResponseT]:
        """Sends the request to the leader and returns the answer, or raises one of the errors of this library.

        `wait_ms`: how long the server may wait, as the request says. A repeated one says what is left of that, and the
        call ends `timeout_s` after the wait. `attempt`: the number of the first one, if the server is to be told when
        it is not the first. `is_first`: a router is to be told that what is in it was never sent before. `repeats_s`:
        no attempt but the first begins later than that. `first`: the first attempt, if it was made already."""
        leader = self._leaders.get(shard) or self._leader_of(shard)
        failed = first if isinstance(first, FailedAttempt) else None
        if failed is None and patience is ENDLESS and (not leader.is_direct or self._can_begin(leader)):
            # Nearly always this attempt is all there is: what others need is made once it has failed.
            wait_s = wait_ms / 1000 if wait_ms > 0 else 0.0
            if not isinstance(first, UnderWay):
                begun_s, address = time.monotonic(), leader.target
                data, metadata = checked(request.SerializeToString()), metadata_of(shard, attempt, is_first=is_first)
                outgoing = self.begin(address, method.path, data, metadata, wait_s + timeout_s)
            else:
                outgoing, address, begun_s = first
            in_flight = None
            if leader.several:
                in_flight = self._watch(leader, shard, outgoing, wait_s, timeout_s, begun_s, repeatable=repeatable)
            try:
                answer = await outgoing.answer()
            except CallFailedError as failure:
                failed = FailedAttempt(failure.with_traceback(None), address, begun_s)
            else:
                return self._reply(method, leader, address, answer, begun_s)
            finally:
                if in_flight is not None:
                    self._sender.watch.end(in_flight)
                del outgoing, in_flight  # an error holds this frame, which would hold the channel
        call = OneCall(
            request, timeout_s, wait_ms=wait_ms, repeats_s=repeats_s, begun_s=None if failed is None else failed.begun_s
        )
        return await self._send_until_answered(
            method, call, repeatable=repeatable, shard=shard, attempt=attempt, is_first=is_first, patience=patience,
            failed=failed,
        )  # fmt: skip

    def begin_call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float, *, repeatable: bool,
        is_first: bool, on_end: Callable[[Reply[ResponseT] | FirstAttempt | HoldfastError], None],
    ) -> bool:  # fmt: skip
        """Makes the first attempt of a call that names no shard, without anybody who waits for it: `on_end` hears of
        the answer, or of a failure, after which `call` goes on. False if there is no such way at the moment."""
        leader = self._leaders.get(None) or self._leader_of(None)
        begun_s, address = time.monotonic(), leader.target
        in_flight: list[InFlightCall] = []

        def end(result: "bytes | CallFailedError") -> None:
            if in_flight:
                self._sender.watch.end(in_flight.pop())
            if isinstance(result, CallFailedError):
                on_end(FailedAttempt(result, address, begun_s))
                return
            try:
                reply = self._reply(method, leader, address, result, begun_s)
            except UnexpectedAnswer as error:
                on_end(error)
            else:
                on_end(reply)

        data = checked(request.SerializeToString())
        if self._closed:
            return False
        outgoing = self._channels.begin(address, method.path, data, _FIRST if is_first else None, timeout_s, end)
        if outgoing is None:
            return False
        if leader.several:
            in_flight.append(self._watch(leader, None, outgoing, 0.0, timeout_s, begun_s, repeatable=repeatable))
        return True

    def own_way(self) -> OwnWay | None:
        """None if there are no frames there that are known. May be asked by any thread."""
        leader = self._leaders.get(None)
        if leader is None or self._closed:
            return None
        address = leader.target
        frames = self._channels.frames_at(address)
        return None if frames is None else OwnWay(address, frames, leader.several)

    def _leader_of(self, shard: int | None) -> ListedLeader:
        leader = self._leaders.get(shard)
        if leader is None:
            leader = self._leaders[shard] = ListedLeader(self.addresses)
        return leader

    def _can_begin(self, leader: ListedLeader) -> bool:
        """Or else it is to be reached first (`reach`)."""
        return not leader.several or self._channels.is_connected(leader.target)

    def _watch(
        self, leader: ListedLeader, shard: int | None, outgoing: OutgoingCall, wait_s: float, timeout_s: float,
        begun_s: float, *, repeatable: bool,
    ) -> InFlightCall:  # fmt: skip
        """Others are asked while it is silent."""
        in_flight = InFlightCall(
            leader, shard, leader.target, outgoing, wait_s=wait_s, timeout_s=wait_s + timeout_s, now_s=begun_s,
            may_give_up=lambda: outgoing.is_unsent or repeatable,
        )  # fmt: skip
        self._sender.watch.begin(in_flight)
        return in_flight

    def _reply(
        self, method: Method[RequestT, ResponseT], leader: ListedLeader, address: str, answer: bytes, sent_s: float
    ) -> Reply[ResponseT]:
        if leader.named != address:
            leader.answered(address)
        return Reply(self._read(method, answer, address), sent_s)

    async def ask_any(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_s: float, repeatable: bool
    ) -> ResponseT:
        """The same for what every server of the list can answer."""
        return (await self.call(method, request, timeout_s=timeout_s, repeatable=repeatable, shard=_ANYBODY)).message

    async def poll(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        ends_s: float,
        answer_s: float,
        shard: int | None = None,
    ) -> Reply[ResponseT]:
        """Sends the request, each time with another wait, again and again until there is an answer.

        After `ends_s` (on time.monotonic(), may be infinite) no attempt begins; each may last `answer_s` longer than
        its wait. One wait is at most POLL_S_MAX, so the answer may come before the end.
        """
        return await self._send_until_answered(method, Poll(request, ends_s, answer_s), repeatable=True, shard=shard)

    async def call_at(
        self, address: str, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_s: float
    ) -> ResponseT:
        """Asks this one server, once."""
        try:
            call = self.begin(address, method.path, request.SerializeToString(), None, timeout_s)
            return self._read(method, await call.answer(), address)
        except CallFailedError as failure:
            raise self.error_of(failure, address, timeout_s) from failure.with_traceback(None)
        finally:
            await self.close_unneeded()

    async def _send_until_answered(
        self, method: Method[RequestT, ResponseT], attempts: CallAttempts, *, repeatable: bool, shard: int | None,
        attempt: int = 0, is_first: bool = False, patience: Patience = ENDLESS, failed: FailedAttempt | None = None,
    ) -> Reply[ResponseT]:  # fmt: skip
        call = _Sending(
            self, method, attempts, self._leader_of(shard), shard, repeatable=repeatable, attempt=attempt,
            is_first=is_first, failed=failed,
        )  # fmt: skip
        answer = await self._sender.send(call, patience, failed and failed.failure)
        return Reply(
            self._read(method, answer, call.address, may_have_taken_effect=call.state.may_have_taken_effect),
            call.sent_s,
        )

    def begin(self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> OutgoingCall:
        """One attempt."""
        if self._closed:
            raise ClientClosed
        return self._channels.call(address, path, data, metadata, timeout_s)

    async def reach(self, address: str, timeout_s: float, patience: Patience) -> None:
        """Before a call is sent to a leader: if it is out of reach, the call can still go another way."""
        if self._is_closed():
            raise ClientClosed
        is_connected = self._channels.is_connected(address) or await self._channels.connect(address, timeout_s)
        if self._is_closed():
            raise ClientClosed
        if not is_connected or patience.is_over:
            raise CallFailedError("UNAVAILABLE", "", was_connected=False, was_given_up=True)

    def error_of(self, failure: CallFailedError, address: str, timeout_s: float) -> HoldfastError:
        """Closing the channels ends their calls."""
        if failure.was_given_up and self._closed:
            return ClientClosed()
        return _error_of(failure, address, timeout_s, is_connected=self._channels.is_connected(address))

    def _is_closed(self) -> bool:
        return self._closed  # a call of its own, because it can change while a caller waits

    async def close_unneeded(self) -> None:
        """Channels to servers that are neither in the list nor among the leaders that were named lately."""
        if len(self._channels) > len(self.addresses):
            leaders = self._leaders.values()
            await self._channels.keep(
                {*self.addresses, *(candidate for leader in leaders for candidate in leader.candidates())}
            )

    def _read(
        self, method: Method[RequestT, ResponseT], answer: bytes, address: str, *, may_have_taken_effect: bool = False
    ) -> ResponseT:
        """`may_have_taken_effect`: an earlier attempt may have taken effect, whatever this answer refuses."""
        try:
            message = method.response.FromString(answer)
        except DecodeError:
            raise UnexpectedAnswer("its message cannot be read", address) from None
        if may_have_taken_effect:
            mark_unknown(message)
        return message

    async def who_leads(self, addresses: Sequence[str], shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        """What the first of them says that knows of a leader."""
        for address in addresses:
            found = await self._ask(address, shard, timeout_s)
            if found is not None and found[0]:
                return found
        return None

    async def waits_for_leader(self, address: str, shard: int | None, timeout_s: float) -> bool:
        leaders = self._leaders[shard]
        if not leaders.is_direct or leaders.named is not None:
            return False
        found = await self._ask(address, shard, timeout_s)
        return found is not None and not found[0]

    async def _ask(self, address: str, shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        """Who leads; an empty address if this server knows of nobody, None if it does not answer."""
        try:
            found = await self.call_at(
                address, _FIND_LEADER, shards_pb2.FindLeaderRequest(shard=shard or 0), timeout_s=timeout_s
            )
        except HoldfastError:
            return None
        # The list may be one of routers: a call that names no shard must not go past them to a broker.
        is_usable = shard is not None or found.address in self.addresses
        return (found.address if is_usable else "", found.epoch)


def metadata_of(shard: int | None, attempt: int, *, is_first: bool) -> Metadata | None:
    """None, at no cost, for nearly every call that does not go straight to a leader."""
    if is_first:
        return _FIRST
    if shard is None or shard < 0:
        return None if attempt < 2 else ((ATTEMPT_KEY, str(attempt)),)
    named = (SHARD_KEY, str(shard))
    return (named,) if attempt < 2 else (named, (ATTEMPT_KEY, str(attempt)))


def _error_of(failure: CallFailedError, address: str, timeout_s: float, *, is_connected: bool) -> HoldfastError:
    if failure.reason:
        metadata = dict(failure.metadata)
        return rejected(
            failure.reason,
            failure.message,
            field=metadata.pop("field", ""),
            retry_after_ms=failure.retry_after_ms,
            metadata=metadata,
            status=failure.code,
        )
    code, details = failure.code, failure.message
    if failure.was_given_up:
        words = "no answer" if failure.was_connected else "no connection"
        return ConnectionFailed(address, words, sent=failure.was_connected)
    if code == "DEADLINE_EXCEEDED":
        if not is_connected:
            return ConnectionFailed(address, f"no connection within {timeout_s:g} s")
        return DeadlineExceeded(address, timeout_s)
    # A server that goes down cancels the calls it still has.
    if code in ("UNAVAILABLE", "CANCELLED"):
        return ConnectionFailed(address, _cause(details), sent=failure.was_connected)
    if code == "UNIMPLEMENTED":
        return UnexpectedAnswer("it does not know the call", address)
    if code == "RESOURCE_EXHAUSTED":
        if "larger than max" in details:
            return UnexpectedAnswer(f"its answer is larger than {MESSAGE_BYTES_MAX} bytes", address)
        # Its last bound, which knows no reasons: more calls at once than it takes.
        return Overloaded("The server has too many calls at once.", reason="OVERLOADED", retry_after_ms=200)
    if failure.is_fault:  # nothing is known of the call, and it may pass
        return ServerError(f"The server failed with {code} and gave no reason.", reason="INTERNAL")
    return UnexpectedAnswer(f"status {code} without a reason", address)


def _cause(details: str) -> str:
    """A few words for people out of gRPC's long text."""
    for sign, words in (
        ("Connection refused", "connection refused"),
        ("DNS resolution failed", "unknown host name"),
        ("Domain name not found", "unknown host name"),
        ("http1.x", "something else answers there, and not gRPC"),
        ("failed to connect", "cannot connect"),
    ):
        if sign in details:
            return words
    return "the connection was lost"
