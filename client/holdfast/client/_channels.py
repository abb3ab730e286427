"""The way to the servers: the only file of the client that knows gRPC. A channel to each server that is needed."""

import asyncio
from collections.abc import Collection

import grpc
import grpc.aio

from holdfast.client import _forks
from holdfast.client._attempts import MESSAGE_BYTES_MAX
from holdfast.transport.channels import DETAILS_KEY, CallFailedError, Metadata, Outgoing

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

# What gRPC itself says, not the server, when a call never left because there is no connection.
_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")


class _Server:
    """A channel to one address, opened by the first call."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.calls_under_way = 0
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    def call(
        self, path: str, data: bytes, metadata: Metadata | None, timeout_s: float
    ) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._open().unary_unary(path)
        return call(data, timeout=timeout_s, metadata=metadata)

    async def connect(self, timeout_s: float) -> bool:
        channel = self._open()
        self.calls_under_way += 1
        try:
            async with asyncio.timeout(timeout_s):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False  # at once, e.g. because nobody listens there
                    await channel.wait_for_state_change(state)
        except (TimeoutError, grpc.aio.UsageError):  # the latter of a channel that was closed meanwhile
            return False
        finally:
            self.calls_under_way -= 1
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
            self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        return self._channel


class _Call:
    """A call under way."""

    is_unsent = False  # nobody can tell before it has failed

    def __init__(self, server: _Server, call: "grpc.aio.UnaryUnaryCall[bytes, bytes]") -> None:
        self._server = server
        self._call = call

    def cancel(self) -> object:
        return self._call.cancel()

    async def answer(self) -> bytes:
        self._server.calls_under_way += 1
        try:
            return await self._call
        except grpc.aio.AioRpcError as status:
            raise self._failure_of(status) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CallFailedError("CANCELLED", "It was given up.", was_given_up=True) from None
        finally:
            self._server.calls_under_way -= 1

    @staticmethod
    def _failure_of(status: grpc.aio.AioRpcError) -> CallFailedError:
        details = None
        for key, value in status.trailing_metadata() or ():
            if key == DETAILS_KEY and isinstance(value, bytes):
                details = value
        message = status.details() or ""
        return CallFailedError(status.code().name, message, details, was_connected=not message.startswith(_NEVER_SENT))


class ServerChannels:
    """The channels of one client."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}  # by address

    def __len__(self) -> int:
        return len(self._servers)

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    @property
    def calls_under_way(self) -> int:
        return sum(server.calls_under_way for server in self._servers.values())

    def call(self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> Outgoing:
        server = self._server(address)
        return _Call(server, server.call(path, data, metadata, timeout_s))

    async def connect(self, address: str, timeout_s: float) -> bool:
        """Whether there is a connection, within this time at the latest."""
        return await self._server(address).connect(timeout_s)

    def is_connected(self, address: str) -> bool:
        return address in self._servers and self._servers[address].is_connected

    async def keep(self, addresses: Collection[str]) -> None:
        """Closes the channels to all others, but for those with calls under way."""
        for address, server in list(self._servers.items()):
            if address not in addresses and not server.calls_under_way:
                del self._servers[address]
                await server.close()

    async def close(self) -> None:
        servers = list(self._servers.values())
        self._servers.clear()
        for server in servers:
            await server.close()

    def _server(self, address: str) -> _Server:
        server = self._servers.get(address)
        if server is None:
            server = self._servers[address] = _Server(address)
        return server
