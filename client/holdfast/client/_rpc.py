"""The way to the server: the only file of the client that knows gRPC.

One `Connection` is one channel. It sends bytes, waits no longer than the deadline, repeats what is safe to repeat,
and turns every way a call can go wrong into one error of the tree in `errors`.

What is repeated, with growing pauses and jitter, until the deadline:
  * a refusal that says that nothing was done and that trying again can help (OVERLOADED, SHUTTING_DOWN): every call
  * a lost or refused connection, and OUTCOME_UNKNOWN: only calls that may be carried out twice without harm

A long poll is such a call whose request is made anew for each attempt, because its wait gets shorter.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.client import _forks
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidAddress,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    ServerError,
    UnexpectedAnswer,
    rejected,
)

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
POLL_S_MAX = 30.0  # short enough for whatever sits between client and server and cuts silent connections

_ERROR_DOMAIN = "holdfast"
_DETAILS_KEY = "grpc-status-details-bin"

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0
_REASONS_DONE_NOTHING = frozenset({"OVERLOADED", "SHUTTING_DOWN"})

# What a fault in a server or in something between becomes: nothing is known of the call, and it may pass.
_FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.ABORTED, grpc.StatusCode.DATA_LOSS)

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A long poll over a connection that died without a word must notice; an idle client need not keep one alive.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC's own pauses between connection attempts grow to two minutes: a server that restarted would wait for that.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each client has its own connection; otherwise a new client inherits the pauses of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    # Brokers are inside the network: a proxy meant for the web must not swallow calls to them.
    ("grpc.enable_http_proxy", 0),
)

_PORT = r":(?P<port>\d{1,5})"
_ADDRESS = re.compile(rf"(?:dns:///)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\]){_PORT}|unix:.+")

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One call of the wire API."""

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
    return Method(f"/{descriptor.full_name}/{name}", request, response)


def check_address(address: str) -> str:
    """gRPC would take an address without a port for one with port 443, and fail much later."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"] or 1) < 65_536:
        raise InvalidAddress(address)
    return address


class _OneRequest:
    """The attempts of a call: the same bytes, all within one deadline."""

    def __init__(self, data: bytes, timeout_s: float) -> None:
        self._data = data
        self._deadline_s = time.monotonic() + timeout_s
        self.timeout_s = timeout_s

    def next(self, now_s: float) -> tuple[bytes, float]:
        """What to send, and how long to wait for the answer."""
        return self._data, self._deadline_s - now_s

    def pause_s(self, wished_s: float) -> float | None:
        """How long to pause before the next attempt; None if there is none."""
        return wished_s if time.monotonic() + wished_s < self._deadline_s else None


class _Poll:
    """The attempts of a long poll: each waits for as long as is left, and the last one begins when nothing is."""

    def __init__(self, make: Callable[[int], Message], ends_s: float, answer_s: float) -> None:
        self._make = make
        self._ends_s = ends_s
        self._answer_s = answer_s
        self.timeout_s = answer_s  # of the attempt under way

    def next(self, now_s: float) -> tuple[bytes, float]:
        wait_s = min(POLL_S_MAX, max(0.0, self._ends_s - now_s))
        self.timeout_s = wait_s + self._answer_s
        return self._make(int(wait_s * 1000)).SerializeToString(), self.timeout_s

    def pause_s(self, wished_s: float) -> float | None:
        left_s = self._ends_s - time.monotonic()
        return min(wished_s, left_s) if left_s > 0 else None


class Connection:
    """A channel to one address, opened by the first call."""

    def __init__(self, address: str, *, retry: bool) -> None:
        self.address = check_address(address)
        self._retry = retry
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._closed = False

    @property
    def retries(self) -> bool:
        return self._retry

    async def close(self) -> None:
        self._closed = True
        channel, self._channel = self._channel, None
        self._calls.clear()
        if channel is not None:
            await channel.close()

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_s: float, repeatable: bool
    ) -> Reply[ResponseT]:
        """Sends the request and returns the answer, or raises one of the errors of this library."""
        data = request.SerializeToString()
        if len(data) > MESSAGE_BYTES_MAX:
            raise InvalidArgument(
                f"Expected a request of at most {MESSAGE_BYTES_MAX} bytes, but it has {len(data)}.",
                reason="BATCH_TOO_LARGE",
            )
        return await self._send_until_answered(method, _OneRequest(data, timeout_s), repeatable=repeatable)

    async def poll(
        self,
        method: Method[RequestT, ResponseT],
        make: Callable[[int], RequestT],
        *,
        ends_s: float,
        answer_s: float,
    ) -> Reply[ResponseT]:
        """Sends what `make` makes of the wait in milliseconds, again and again until there is an answer.

        After `ends_s` (on time.monotonic(), may be infinite) no attempt begins; each may last `answer_s` longer than
        its wait. One wait is at most POLL_S_MAX, so the answer may come before the end.
        """
        return await self._send_until_answered(method, _Poll(make, ends_s, answer_s), repeatable=True)

    async def _send_until_answered(
        self, method: Method[RequestT, ResponseT], attempts: _OneRequest | _Poll, *, repeatable: bool
    ) -> Reply[ResponseT]:
        failed = 0
        while True:
            sent_s = time.monotonic()
            try:
                answer = await self._send(method.path, *attempts.next(sent_s))
                return Reply(method.response.FromString(answer), sent_s)
            except DecodeError:
                raise UnexpectedAnswer("its message cannot be read", self.address) from None
            except grpc.aio.AioRpcError as status:
                error = self._error_of(status, attempts.timeout_s)
                if not (self._retry and _may_repeat(error, repeatable=repeatable)):
                    # Its traceback would keep the channel for as long as somebody keeps the error.
                    raise error from status.with_traceback(None)
                pause_s = attempts.pause_s(wished_pause_s(failed, error))
                if pause_s is None:
                    raise error from status.with_traceback(None)
            failed += 1
            await asyncio.sleep(pause_s)

    async def _send(self, path: str, data: bytes, timeout_s: float) -> bytes:
        if self._is_closed():
            raise ClientClosed
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._open().unary_unary(path)
        try:
            return await call(data, timeout=timeout_s)
        except asyncio.CancelledError:
            # Closing the channel cancels its calls; a task that nobody cancelled must not see a cancellation.
            task = asyncio.current_task()
            if self._is_closed() and task is not None and not task.cancelling():
                raise ClientClosed from None
            raise

    def _is_closed(self) -> bool:
        return self._closed  # a call of its own, because it can change while a caller waits

    def _open(self) -> grpc.aio.Channel:
        # Not in __init__: a channel belongs to the event loop that is running when it is made.
        if self._channel is None:
            _forks.check()
            self._channel = grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        return self._channel

    def _error_of(self, status: grpc.aio.AioRpcError, timeout_s: float) -> HoldfastError:
        refusal = _refusal(status)
        if refusal is not None:
            return refusal
        code, details = status.code(), status.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if self._channel is not None and self._channel.get_state() is not grpc.ChannelConnectivity.READY:
                return ConnectionFailed(self.address, f"no connection within {timeout_s:g} s")
            return DeadlineExceeded(self.address, timeout_s)
        # A server that goes down cancels the calls it still has.
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return ConnectionFailed(self.address, _cause(details))
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnexpectedAnswer("it does not know the call", self.address)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "larger than max" in details:
                return UnexpectedAnswer(f"its answer is larger than {MESSAGE_BYTES_MAX} bytes", self.address)
            # Its last bound, which knows no reasons: more calls at once than it takes.
            return Overloaded("The server has too many calls at once.", reason="OVERLOADED", retry_after_ms=200)
        if code in _FAULTS:
            return ServerError(f"The server failed with {code.name} and gave no reason.", reason="INTERNAL")
        return UnexpectedAnswer(f"status {code.name} without a reason", self.address)


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


def _may_repeat(error: HoldfastError, *, repeatable: bool) -> bool:
    if isinstance(error, ConnectionFailed | DeadlineExceeded | OutcomeUnknown):
        return repeatable  # for a call, the deadline leaves no time to repeat it; for a poll, its end counts
    return isinstance(error, Rejected) and error.reason in _REASONS_DONE_NOTHING


def wished_pause_s(attempt: int, error: HoldfastError) -> float:
    """Grows with each attempt, never undercuts what the server asked for, and spreads clients that failed together."""
    doublings = min(attempt, 10)
    pause_s = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * (1 << doublings)) * random.uniform(0.5, 1.0)
    if isinstance(error, Rejected):
        pause_s = max(pause_s, error.retry_after_ms / 1000 * random.uniform(1.0, 1.25))
    return pause_s
