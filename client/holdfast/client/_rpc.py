"""The way to the servers: the only file of the client that knows gRPC.

A `Connection` keeps a channel to each server that it needs. It sends bytes to the one that leads, waits no longer than
the deadline, repeats what is safe to repeat, and turns every way a call can go wrong into one error of the tree in
`errors`. Where a call goes is decided in `_leaders`; calls that stay unanswered are looked after by
`transport.silence`.

What is repeated, with growing pauses and jitter, until the deadline:
  * a refusal that says that nothing was done and that trying again can help (OVERLOADED, SHUTTING_DOWN, NOT_LEADER),
    and with several servers a connection that could not be made: every call
  * a lost connection, silence while another server leads, and OUTCOME_UNKNOWN: only calls that may be carried out twice
    without harm
With `retry` off, a call asks each server at most once and pauses for nothing.

A long poll is such a call whose request is made anew for each attempt, because its wait gets shorter.

A call whose shard is known names it in its metadata. Calls without one go to the servers of the list: routers, which
know where each task belongs, or a broker with a single shard.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.client import _forks
from holdfast.client._attempts import MESSAGE_BYTES_MAX, Attempts, OneRequest, OneWait, Poll, checked
from holdfast.client._doubts import CHANGES, doubt_refusals
from holdfast.client._leaders import ClientRetryState, ListedLeader, split_addresses
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    Overloaded,
    Rejected,
    ServerError,
    UnexpectedAnswer,
    rejected,
)
from holdfast.proto.v1 import shards_pb2
from holdfast.routing.silence import InFlightCall
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.silence import SilenceWatch

_ERROR_DOMAIN = "holdfast"
_DETAILS_KEY = "grpc-status-details-bin"

_SHARD_KEY = "holdfast-shard"
# With a call that says so a router may refuse ids made up for an older set of shards: they can be made anew.
_FIRST = (("holdfast-first", "1"),)
_ATTEMPT_KEY = "holdfast-attempt"  # of a reserve that is repeated: an earlier one may have claimed at another shard
_ANYBODY = -1  # in the place of a shard: whoever is asked can answer
# How long a leader that is out of reach may keep a call that could go another way.
_CONNECT_S_MAX = 1.0

# What gRPC itself says, not the server, when a call never left because there is no connection.
_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

# What a fault in a server or in something between becomes: nothing is known of the call, and it may pass.
_FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.ABORTED, grpc.StatusCode.DATA_LOSS)

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A long poll over a connection that died without a word must notice; an idle client need not keep one alive.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what newer versions of gRPC go by
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC's own pauses between connection attempts grow to two minutes: a server that restarted would wait for that.
    # What is behind a name may have another address by now, as a pod that was replaced has: gRPC would look it up again
    # half a minute later.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each client has its own connection; otherwise a new client inherits the pauses of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    # Brokers are inside the network: a proxy meant for the web must not swallow calls to them.
    ("grpc.enable_http_proxy", 0),
)

_Metadata = tuple[tuple[str, str], ...]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One call of the wire API."""

    name: str
    path: str  # as gRPC wants it, e.g. /holdfast.proto.v1.Tasks/Enqueue
    request: type[RequestT]
    response: type[ResponseT]


@dataclass(frozen=True, slots=True)
class Reply(Generic[ResponseT]):
    """An answer, and when the request it belongs to was sent: the last one, if it was sent more than once."""

    message: ResponseT
    sent_s: float  # on time.monotonic()


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


class _Server:
    """A channel to one address, opened by the first call."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.calls_under_way = 0
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    def call(
        self, path: str, data: bytes, timeout_s: float, metadata: _Metadata | None
    ) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._open().unary_unary(path)
        return call(data, timeout=timeout_s, metadata=metadata)

    async def connect(self, timeout_s: float) -> bool:
        """Whether there is a connection, within this time at the latest."""
        channel = self._open()
        try:
            async with asyncio.timeout(timeout_s):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False  # at once, e.g. because nobody listens there
                    await channel.wait_for_state_change(state)
        except (TimeoutError, grpc.aio.UsageError):  # the latter of a channel that was closed meanwhile
            return False
        return True

    @property
    def is_connected(self) -> bool:
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        self._calls.clear()
        if channel is not None:
            await channel.close()

    def _open(self) -> grpc.aio.Channel:
        # Not in __init__: a channel belongs to the event loop that is running when it is made.
        if self._channel is None:
            _forks.check()
            self._channel = grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        return self._channel


class Connection:
    """Channels to the servers of a list, and to the leaders that these name."""

    def __init__(self, address: str, *, retry: bool) -> None:
        self.addresses = split_addresses(address)
        self.address = ",".join(self.addresses)
        self._retry = retry
        self._leaders: dict[int | None, ListedLeader] = {}  # by shard; None: of calls that name none
        self._servers: dict[str, _Server] = {}  # by address
        self._watch = SilenceWatch(self)
        self._closed = False

    @property
    def retries(self) -> bool:
        return self._retry

    async def close(self) -> None:
        self._closed = True
        servers = list(self._servers.values())
        self._servers.clear()
        await self._watch.close()
        for server in servers:
            await server.close()

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
        shard: int | None = None,
        is_first: bool = False,
        patience: Patience = ENDLESS,
    ) -> Reply[ResponseT]:
        """Sends the request to the leader and returns the answer, or raises one of the errors of this library.

        `is_first`: a router is to be told that what is in it was never sent before."""
        attempts = OneRequest(checked(request.SerializeToString()), timeout_s)
        return await self._send_until_answered(
            method, attempts, repeatable=repeatable, shard=shard, is_first=is_first, patience=patience
        )

    async def ask_any(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_s: float, repeatable: bool
    ) -> ResponseT:
        """The same for what every server of the list can answer."""
        return (await self.call(method, request, timeout_s=timeout_s, repeatable=repeatable, shard=_ANYBODY)).message

    async def wait(
        self,
        method: Method[RequestT, ResponseT],
        make: Callable[[int], RequestT],
        *,
        wait_ms: int,
        timeout_s: float,
        repeatable: bool,
        attempt: int = 0,
        shard: int | None = None,
        repeats_s: float = float("inf"),
    ) -> Reply[ResponseT]:
        """The same for a call that lets the server wait. `make` makes the request of the wait in milliseconds: all of
        it at first, what is left of it when it is repeated. Ends `timeout_s` after the wait.

        `attempt`: the number of the first one, if the server is to be told when it is not the first. `repeats_s`: none
        but the first begins later than that."""
        attempts = OneWait(make, wait_ms, timeout_s, repeats_s)
        return await self._send_until_answered(method, attempts, repeatable=repeatable, shard=shard, attempt=attempt)

    async def poll(
        self,
        method: Method[RequestT, ResponseT],
        make: Callable[[int], RequestT],
        *,
        ends_s: float,
        answer_s: float,
        shard: int | None = None,
    ) -> Reply[ResponseT]:
        """Sends what `make` makes of the wait in milliseconds, again and again until there is an answer.

        After `ends_s` (on time.monotonic(), may be infinite) no attempt begins; each may last `answer_s` longer than
        its wait. One wait is at most POLL_S_MAX, so the answer may come before the end.
        """
        return await self._send_until_answered(method, Poll(make, ends_s, answer_s), repeatable=True, shard=shard)

    async def call_at(
        self, address: str, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_s: float
    ) -> ResponseT:
        """Asks this one server, once."""
        server = self._server(address)
        try:
            return self._read(
                method, await self._send(server, method.path, request.SerializeToString(), timeout_s, None), server
            )
        except grpc.aio.AioRpcError as status:
            raise _error_of(status, server, timeout_s) from status.with_traceback(None)
        finally:
            await self._close_unneeded()

    async def _send_until_answered(
        self, method: Method[RequestT, ResponseT], attempts: Attempts, *, repeatable: bool, shard: int | None,
        attempt: int = 0, is_first: bool = False, patience: Patience = ENDLESS,
    ) -> Reply[ResponseT]:  # fmt: skip
        leaders = self._leaders.get(shard)
        if leaders is None:
            leaders = self._leaders[shard] = ListedLeader(self.addresses)
        state = ClientRetryState(leaders, retry=self._retry, repeatable=repeatable, changes=method.name in CHANGES)
        while True:
            sent_s = time.monotonic()
            data, timeout_s = attempts.next(sent_s)
            server = self._server(state.address)
            metadata = _FIRST if is_first else _metadata(shard, attempt)
            is_first = False
            cause: grpc.aio.AioRpcError | None = None
            try:
                if leaders.is_direct and leaders.several and not server.is_connected:
                    await self._connect(server, timeout_s, patience)
                    sent_s = time.monotonic()
                if leaders.several:
                    answer = await self._send_watched(
                        server, method.path, data, timeout_s, metadata, attempts.wait_s, leaders, shard, patience,
                        repeatable=repeatable,
                    )  # fmt: skip
                else:
                    answer = await self._send(server, method.path, data, timeout_s, metadata, patience)
                if leaders.named != server.address:
                    leaders.answered(server.address)
                return Reply(self._read(method, answer, server, is_doubtful=state.may_have_taken_effect), sent_s)
            except grpc.aio.AioRpcError as status:
                # Its traceback would keep the channel for as long as somebody keeps the error.
                cause = status.with_traceback(None)
                error = _error_of(status, server, attempts.timeout_s)
            except _GaveUpError:
                error = ConnectionFailed(server.address, "no answer")
            except _NotConnectedError:
                error = ConnectionFailed(server.address, "no connection", sent=False)
            pause_s = _pause_s(state, error, attempts, patience)
            if pause_s:
                await patience.pause(pause_s)
            if pause_s is None or patience.is_over:
                raise state.last_word(error) from cause
            attempt += 1 if attempt else 0
            await self._close_unneeded()

    async def _connect(self, server: _Server, timeout_s: float, patience: Patience) -> None:
        """Before a call is sent to a leader: if it is out of reach, the call can still go another way."""
        if self._is_closed():
            raise ClientClosed
        server.calls_under_way += 1
        try:
            is_connected = await server.connect(min(_CONNECT_S_MAX, timeout_s))
        finally:
            server.calls_under_way -= 1
        if self._is_closed():
            raise ClientClosed
        if not is_connected or patience.is_over:
            raise _NotConnectedError

    async def _send_watched(
        self, server: _Server, path: str, data: bytes, timeout_s: float, metadata: _Metadata | None, wait_s: float,
        leaders: ListedLeader, shard: int | None, patience: Patience, *, repeatable: bool,
    ) -> bytes:  # fmt: skip
        """The same, and other servers are asked who leads while this one is silent."""
        if self._is_closed():
            raise ClientClosed
        call = server.call(path, data, timeout_s, metadata)
        in_flight = InFlightCall(
            leaders, shard, server.address, call, wait_s=wait_s, timeout_s=timeout_s, now_s=time.monotonic(),
            may_give_up=lambda: repeatable,
        )  # fmt: skip
        self._watch.begin(in_flight)
        try:
            return await self._answer(server, call, patience)
        except asyncio.CancelledError:
            if in_flight.gave_up and not _is_cancelled():
                raise _GaveUpError from None
            raise
        finally:
            self._watch.end(in_flight)
            del call, in_flight  # an error holds this frame, which would hold the channel

    async def _send(
        self, server: _Server, path: str, data: bytes, timeout_s: float, metadata: _Metadata | None,
        patience: Patience = ENDLESS,
    ) -> bytes:  # fmt: skip
        if self._is_closed():
            raise ClientClosed
        return await self._answer(server, server.call(path, data, timeout_s, metadata), patience)

    async def _answer(
        self, server: _Server, call: "grpc.aio.UnaryUnaryCall[bytes, bytes]", patience: Patience
    ) -> bytes:
        server.calls_under_way += 1
        patience.began(call)
        try:
            return await call
        except asyncio.CancelledError:
            if patience.is_over and not _is_cancelled():
                raise _GaveUpError from None
            # Closing the channel cancels its calls; a task that nobody cancelled must not see a cancellation.
            if self._is_closed() and not _is_cancelled():
                raise ClientClosed from None
            raise
        finally:
            server.calls_under_way -= 1
            patience.ended()
            del call

    def _is_closed(self) -> bool:
        return self._closed  # a call of its own, because it can change while a caller waits

    def _server(self, address: str) -> _Server:
        server = self._servers.get(address)
        if server is None:
            server = _Server(address)
            if not self._closed:
                self._servers[address] = server
        return server

    async def _close_unneeded(self) -> None:
        """Channels to servers that are neither in the list nor among the leaders that were named lately."""
        if len(self._servers) <= len(self.addresses):
            return
        needed = {*self.addresses, *(each for leaders in self._leaders.values() for each in leaders.candidates())}
        for server in [
            each for each in self._servers.values() if each.address not in needed and not each.calls_under_way
        ]:
            del self._servers[server.address]
            await server.close()

    def _read(
        self, method: Method[RequestT, ResponseT], answer: bytes, server: _Server, *, is_doubtful: bool = False
    ) -> ResponseT:
        """`is_doubtful`: an earlier attempt may have taken effect, whatever this answer refuses."""
        try:
            message = method.response.FromString(answer)
        except DecodeError:
            raise UnexpectedAnswer("its message cannot be read", server.address) from None
        if is_doubtful:
            doubt_refusals(message)
        return message

    async def who_leads(self, addresses: Sequence[str], shard: int | None, timeout_s: float) -> tuple[str, int] | None:
        """What the first of them says that knows of a leader."""
        for address in addresses:
            found = await self._ask(address, shard, timeout_s)
            if found is not None and found[0]:
                return found
        return None

    async def looks_for_leader(self, address: str, shard: int | None, timeout_s: float) -> bool:
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


class _GaveUpError(Exception):
    """The call was cancelled here because its server was silent and another one leads, or may lead."""


class _NotConnectedError(Exception):
    """There is no connection to the server, and the call was not sent."""


def _pause_s(state: ClientRetryState, error: HoldfastError, attempts: Attempts, patience: Patience) -> float | None:
    """Before the next attempt; None if there is to be none."""
    if patience.is_over:  # that says nothing about the leader
        state.note(error)
        return None
    pause_s = state.after(error, time.monotonic())
    return None if pause_s is None else attempts.pause_s(pause_s)


def _metadata(shard: int | None, attempt: int) -> _Metadata | None:
    """None, at no cost, for nearly every call that does not go straight to a leader."""
    if shard is None or shard < 0:
        return None if attempt < 2 else ((_ATTEMPT_KEY, str(attempt)),)
    named = (_SHARD_KEY, str(shard))
    return (named,) if attempt < 2 else (named, (_ATTEMPT_KEY, str(attempt)))


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _error_of(status: grpc.aio.AioRpcError, server: _Server, timeout_s: float) -> HoldfastError:
    refusal = _refusal(status)
    if refusal is not None:
        return refusal
    address, code, details = server.address, status.code(), status.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        if not server.is_connected:
            return ConnectionFailed(address, f"no connection within {timeout_s:g} s")
        return DeadlineExceeded(address, timeout_s)
    # A server that goes down cancels the calls it still has.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return ConnectionFailed(address, _cause(details), sent=not details.startswith(_NEVER_SENT))
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnexpectedAnswer("it does not know the call", address)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "larger than max" in details:
            return UnexpectedAnswer(f"its answer is larger than {MESSAGE_BYTES_MAX} bytes", address)
        # Its last bound, which knows no reasons: more calls at once than it takes.
        return Overloaded("The server has too many calls at once.", reason="OVERLOADED", retry_after_ms=200)
    if code in _FAULTS:
        return ServerError(f"The server failed with {code.name} and gave no reason.", reason="INTERNAL")
    return UnexpectedAnswer(f"status {code.name} without a reason", address)


def _refusal(status: grpc.aio.AioRpcError) -> Rejected | None:
    """What a Holdfast server says when it refuses a whole call; None if this is something else."""
    info, retry_after_ms = None, 0
    for detail in _details(status):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            candidate = error_details_pb2.ErrorInfo()
            if detail.Unpack(candidate) and candidate.domain == _ERROR_DOMAIN:
                info = candidate
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_ms = max(0, retry.retry_delay.ToMilliseconds())
    if info is None:
        return None
    metadata = dict(info.metadata)
    return rejected(
        info.reason,
        status.details() or "",
        field=metadata.pop("field", ""),
        retry_after_ms=retry_after_ms,
        metadata=metadata,
        status=status.code().name,
    )


def _details(status: grpc.aio.AioRpcError) -> list[status_pb2.Status]:
    for key, value in status.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []


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
