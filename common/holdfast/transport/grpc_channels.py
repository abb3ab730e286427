"""`channels` over gRPC: one channel to each server that is needed. The only file that calls servers for routers and
clients."""

import asyncio
import time
from collections.abc import Callable, Collection

import grpc
import grpc.aio

from holdfast.common.certificates import Pem
from holdfast.common.metadata import DETAILS_KEY, FRAMES_KEY
from holdfast.transport.channels import CallFailedError, Metadata

UNUSED_S = 60.0  # a channel that carried nothing for as long may be closed

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A long poll over a connection that died without a word must notice; an idle caller need not keep one alive.
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
    # Each caller has its own connections; otherwise a new one inherits the pauses of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    # Brokers are inside the network: a proxy meant for the web must not swallow calls to them.
    ("grpc.enable_http_proxy", 0),
)
_READY = grpc.ChannelConnectivity.READY
_NO_CONNECTION = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
OnFrames = Callable[[str], None]

# What gRPC itself says, not the server, when a call never left because there is no connection.
_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")


class _Server:
    """A channel to one address."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.calls_under_way = 0
        self.used_s = 0.0
        self._calls: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._connecting: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._channel.get_state() is _READY

    def connect(self) -> "asyncio.Task[None]":
        """Done when there is a connection, or none can be made now. One for all calls that wait for it."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        return self._connecting

    async def _connect(self) -> None:
        try:
            while (state := self._channel.get_state(try_to_connect=True)) is not _READY and state not in _NO_CONNECTION:
                await self._channel.wait_for_state_change(state)
        except grpc.aio.UsageError:  # of a channel that was closed meanwhile
            return

    def find(self, path: str) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        return call

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        await self._channel.close()


class GrpcCall:
    """A call under way.

    With `connects_first` it is sent only over a connection that is there: what failed before that was certainly never
    sent, and whatever fails after it may have been carried out. Afterwards nobody could tell: when a failure is heard,
    the connection that took the call may be gone, and the channel look as if there had never been one. Without it gRPC
    says why there is no connection, which a person wants to know.
    """

    __slots__ = (
        "_call", "_data", "_deadline_s", "_metadata", "_on_frames", "_path", "_server", "_stopped", "_was_connected",
    )  # fmt: skip

    def __init__(
        self, server: _Server, path: str, data: bytes, metadata: Metadata | None, timeout_s: float,
        *, connects_first: bool, on_frames: OnFrames | None = None,
    ) -> None:  # fmt: skip
        """`on_frames`: told where the server says that its frames are, nothing if it does not say."""
        self._server = server
        self._path = path
        self._data = data
        self._metadata = metadata
        self._deadline_s = time.monotonic() + timeout_s
        self._on_frames = on_frames
        self._was_connected = connects_first
        self._call: grpc.aio.UnaryUnaryCall[bytes, bytes] | None = None
        self._stopped: asyncio.Future[None] | None = None  # while it waits for a connection: tells it not to
        if not connects_first or server.is_connected:
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
        server = self._server
        server.calls_under_way += 1
        try:
            call = self._call or await self._send_when_connected()
            answer = await call
            if self._on_frames is not None:
                await self._announce_frames(call)
            return answer
        except grpc.aio.AioRpcError as status:
            raise self._failure_of(status) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CallFailedError("CANCELLED", "It was silent.", was_given_up=True) from None
        finally:
            server.calls_under_way -= 1
            server.used_s = time.monotonic()

    def _send(self, timeout_s: float) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        send = self._server.find(self._path)
        self._call = send(self._data, timeout=max(0.0, timeout_s), metadata=self._metadata)
        return self._call

    async def _send_when_connected(self) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        left_s = self._deadline_s - time.monotonic()
        # Neither the end of this call nor its deadline ends the connecting, which others may wait for.
        await asyncio.wait(
            {self._stopped, self._server.connect()}, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
        )
        left_s = self._deadline_s - time.monotonic()
        if self._stopped.done():
            raise CallFailedError("CANCELLED", "It was given up before there was a connection.", was_connected=False)
        if left_s <= 0.0:
            raise CallFailedError("DEADLINE_EXCEEDED", "There was no connection in time.", was_connected=False)
        if not self._server.is_connected:
            raise CallFailedError("UNAVAILABLE", "No connection could be made.", was_connected=False)
        return self._send(left_s)

    async def _announce_frames(self, call: "grpc.aio.UnaryUnaryCall[bytes, bytes]") -> None:
        announced = ""
        for key, value in await call.trailing_metadata() or ():
            if key == FRAMES_KEY and isinstance(value, str):
                announced = value
        if self._on_frames is not None:
            self._on_frames(announced)

    def _failure_of(self, status: grpc.aio.AioRpcError) -> CallFailedError:
        details = None
        for key, value in status.trailing_metadata() or ():
            if key == DETAILS_KEY and isinstance(value, bytes):
                details = value
        message = status.details() or ""
        was_connected = self._was_connected or not message.startswith(_NEVER_SENT)
        return CallFailedError(status.code().name, message, details, was_connected=was_connected)


class GrpcChannels:
    """One channel to each server that is needed, kept for as long as it is used."""

    def __init__(
        self, *, message_bytes_max: int, keepalive_s: int, connects_first: bool,
        check: Callable[[], None] = lambda: None, tls: Pem | None = None,
    ) -> None:  # fmt: skip
        """`check`: called before a channel is opened. `tls`: None for none."""
        self._options = [
            *_CHANNEL_OPTIONS,
            ("grpc.keepalive_time_ms", keepalive_s * 1000),
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
        ]
        if connects_first:  # calls are repeated by rules that know the calls
            self._options.append(("grpc.enable_retries", 0))
        self._connects_first = connects_first
        self._check = check
        self._servers: dict[str, _Server] = {}  # by address
        self._former: list[_Server] = []  # with the certificates before these
        self._tls = tls

    def __len__(self) -> int:
        return len(self._servers)

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    @property
    def calls_under_way(self) -> int:
        return sum(server.calls_under_way for server in (*self._servers.values(), *self._former))

    @property
    def addresses(self) -> Collection[str]:
        return self._servers.keys()

    def call(
        self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float, *,
        on_frames: OnFrames | None = None,
    ) -> GrpcCall:  # fmt: skip
        server = self._server(address)
        return GrpcCall(
            server, path, data, metadata, timeout_s, connects_first=self._connects_first, on_frames=on_frames
        )

    def is_connected(self, address: str) -> bool:
        return address in self._servers and self._servers[address].is_connected

    async def connect(self, address: str, timeout_s: float) -> bool:
        """Whether there is a connection, within this time at the latest."""
        server = self._server(address)
        server.calls_under_way += 1
        try:
            await asyncio.wait((server.connect(),), timeout=timeout_s)
            return self.is_connected(address)
        finally:
            server.calls_under_way -= 1

    async def keep(self, addresses: Collection[str]) -> None:
        """Closes the channels to all others, but for those with calls under way."""
        await self._close(
            [
                address
                for address, server in self._servers.items()
                if address not in addresses and not server.calls_under_way
            ]
        )

    async def close_unused(self, now_s: float) -> None:
        used = [address for address, server in self._servers.items() if now_s - server.used_s <= UNUSED_S]
        await self.keep(used)

    async def renew(self, tls: Pem) -> None:
        """gRPC cannot change the certificates of a channel: calls from now on go over new ones. Those under way end on
        the ones before, which are closed when the certificates change once more."""
        oldest, self._former = self._former, list(self._servers.values())
        self._servers.clear()
        self._tls = tls
        for server in oldest:
            await server.close()

    async def close(self) -> None:
        former, self._former = self._former, []
        await self._close(list(self._servers))
        for server in former:
            await server.close()

    async def _close(self, addresses: Collection[str]) -> None:
        for server in [self._servers.pop(address) for address in addresses]:
            await server.close()

    def _server(self, address: str) -> _Server:
        server = self._servers.get(address)
        if server is None:
            self._check()
            if self._tls is None:
                channel = grpc.aio.insecure_channel(address, options=self._options)
            else:
                pem = self._tls
                credentials = grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate)
                channel = grpc.aio.secure_channel(address, credentials, options=self._options)
            server = self._servers[address] = _Server(channel)
        return server
