"""gRPC on both sides: the services that callers see, and the channels to brokers. The only file of the router that
knows it. Messages pass as bytes; what is in them is decided in `gateway`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio

from holdfast.router.callers import Caller, number_of
from holdfast.router.failures import Failure, status_of_failure
from holdfast.router.methods import ALL, Method
from holdfast.router.metrics import Metrics
from holdfast.serving.grpc_server import Answer, GrpcServer, Served, ServerLimits
from holdfast.serving.intake import Intake
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import RefusedError, internal_error
from holdfast.serving.request_limits import request_limit
from holdfast.transport.channels import (
    ATTEMPT_KEY,
    DETAILS_KEY,
    FIRST_KEY,
    SHARD_KEY,
    CallFailedError,
    Metadata,
)

UNUSED_S = 60.0  # a channel that carried nothing for as long is closed

_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    # A long poll over a connection that died without a word must notice.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what newer versions of gRPC go by
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC's own pauses between connection attempts grow to two minutes: a broker that restarted would wait for that.
    # What is behind a name may have another address by now, as a pod that was replaced has: gRPC would look it up again
    # half a minute later.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    # Brokers are inside the network: a proxy meant for the web must not swallow calls to them.
    ("grpc.enable_http_proxy", 0),
    # Calls are repeated by rules that know the calls, in `forwarding`.
    ("grpc.enable_retries", 0),
]
_READY = grpc.ChannelConnectivity.READY
_NO_CONNECTION = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)

_log = get_logger(__name__)


# --- to the brokers ---------------------------------------------------------------------------------------------


class _Broker:
    """A channel to one address."""

    def __init__(self, address: str, options: list[tuple[str, int]]) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.under_way = 0
        self.used_s = 0.0
        self._calls: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._connecting: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is _READY

    def connect(self) -> "asyncio.Task[None]":
        """Done when there is a connection, or none can be made now. One for all calls that wait for it."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        return self._connecting

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        await self.channel.close()

    async def _connect(self) -> None:
        while (state := self.channel.get_state(try_to_connect=True)) is not _READY and state not in _NO_CONNECTION:
            await self.channel.wait_for_state_change(state)

    def find(self, path: str) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self.channel.unary_unary(path)
        return call


class _Call:
    """A call under way. It is sent only over a connection that is there: what failed before that was certainly never
    sent, and whatever fails after it may have been carried out. Afterwards nobody could tell: when a failure is heard,
    the connection that took the call may be gone, and the channel look as if there had never been one.
    """

    __slots__ = ("_broker", "_call", "_data", "_deadline_s", "_metadata", "_path", "_stopped")

    def __init__(self, broker: _Broker, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> None:
        self._broker = broker
        self._path = path
        self._data = data
        self._metadata = metadata
        self._deadline_s = time.monotonic() + timeout_s
        self._call: grpc.aio.UnaryUnaryCall[bytes, bytes] | None = None
        self._stopped: asyncio.Future[None] | None = None  # while it waits for a connection: tells it not to
        if broker.is_connected:
            self._send(timeout_s)

    def cancel(self) -> object:
        if self._call is not None:
            return self._call.cancel()
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        if not self._stopped.done():
            self._stopped.set_result(None)
        return True

    @property
    def is_unsent(self) -> bool:
        return self._call is None

    async def answer(self) -> bytes:
        broker = self._broker
        broker.under_way += 1
        try:
            return await (self._call or await self._send_when_connected())
        except grpc.aio.AioRpcError as status:
            raise _failure_of(status) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CallFailedError("CANCELLED", "It was silent.", was_given_up=True) from None
        finally:
            broker.under_way -= 1
            broker.used_s = time.monotonic()

    def _send(self, timeout_s: float) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        send = self._broker.find(self._path)
        self._call = send(self._data, timeout=max(0.0, timeout_s), metadata=self._metadata)
        return self._call

    async def _send_when_connected(self) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        left_s = self._deadline_s - time.monotonic()
        # Neither the end of this call nor its deadline ends the connecting, which others may wait for.
        await asyncio.wait(
            {self._stopped, self._broker.connect()}, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
        )
        left_s = self._deadline_s - time.monotonic()
        if self._stopped.done():
            raise CallFailedError("CANCELLED", "It was given up before there was a connection.", was_connected=False)
        if left_s <= 0.0:
            raise CallFailedError("DEADLINE_EXCEEDED", "There was no connection in time.", was_connected=False)
        if not self._broker.is_connected:
            raise CallFailedError("UNAVAILABLE", "No connection could be made.", was_connected=False)
        return self._send(left_s)


def _failure_of(status: grpc.aio.AioRpcError) -> CallFailedError:
    details = None
    for key, value in status.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = value
    return CallFailedError(status.code().name, status.details() or "", details)


class BrokerChannels:
    """One channel to each broker that is needed, kept for as long as it is used."""

    def __init__(self, *, message_bytes_max: int) -> None:
        limits = [
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
        ]
        self._options = _CHANNEL_OPTIONS + limits
        self._brokers: dict[str, _Broker] = {}

    def __len__(self) -> int:
        return len(self._brokers)

    def call(self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> _Call:
        broker = self._brokers.get(address)
        if broker is None:
            broker = self._brokers[address] = _Broker(address, self._options)
        return _Call(broker, path, data, metadata, timeout_s)

    async def close_unused(self, now_s: float) -> None:
        for address, broker in list(self._brokers.items()):
            if not broker.under_way and now_s - broker.used_s > UNUSED_S:
                del self._brokers[address]
                await broker.close()

    async def close(self) -> None:
        brokers = list(self._brokers.values())
        self._brokers.clear()
        for broker in brokers:
            await broker.close()


# --- to the callers ---------------------------------------------------------------------------------------------

Handle = Callable[[Method, bytes, Caller], Awaitable[bytes]]


class RouterServer:
    """Serves the wire API, health checking and reflection on one port."""

    def __init__(
        self,
        handle: Handle,
        metrics: Metrics,
        limits: ServerLimits,
        *,
        batch_bytes_max: int,
        readiness: Callable[[], tuple[bool, str]],
        check: Callable[[Method], None] = lambda _method: None,
    ) -> None:
        """`batch_bytes_max`: what brokers take. Here it counts for the whole call: whether that is too large must not
        depend on the shards of its items. `check` refuses a call before its request is let in."""
        self._handle = handle
        self._metrics = metrics
        self._check = check
        self._server = GrpcServer(limits, readiness, self._refuse)
        services: dict[str, dict[str, Served]] = {}
        for method in ALL:
            limit = request_limit(method.name, method.request, large_bytes_max=batch_bytes_max)
            served = Served(method.name, limit, metrics.rpc(method.name), partial(self._begin, method))
            services.setdefault(method.path.split("/")[1], {})[method.name] = served
        for service, methods in services.items():
            self._server.add(service, methods)

    @property
    def intake(self) -> Intake:
        return self._server.intake

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which is chosen by the system if `port` is 0."""
        return await self._server.start(host, port)

    def drain(self) -> None:
        """Tells health checks that no more work should be sent here."""
        self._server.drain()

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)

    def _begin(self, method: Method, context: Any) -> Answer:
        self._check(method)
        caller = _caller_of(context)
        return lambda data: self._handle(method, data, caller)

    def _refuse(self, method: str, error: Exception) -> tuple[str, str, bytes | None]:
        failure = _as_failure(method, error)
        self._metrics.refused(failure.reason or "NONE")
        return status_of_failure(failure)


def _caller_of(context: Any) -> Caller:
    shard, attempt, is_first = None, 1, False
    for key, value in context.invocation_metadata() or ():
        if key == SHARD_KEY:
            shard = number_of(key, value)
        elif key == ATTEMPT_KEY:
            attempt = number_of(key, value)
        elif key == FIRST_KEY:
            is_first = True
    remaining_s = context.time_remaining()
    deadline_s = float("inf") if remaining_s is None else time.monotonic() + remaining_s
    return Caller(shard, attempt, deadline_s, context.done, is_first)


def _as_failure(method: str, error: Exception) -> Failure:
    if isinstance(error, CallFailedError | RefusedError):
        return error
    _log.error("call_failed", method=method, error=type(error).__name__, exc_info=error)
    return internal_error()
