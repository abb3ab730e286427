"""Calls from one server to the nodes of its cluster for operators. The only file here, beside the etcd client, that
knows gRPC."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.common.metadata import CALLER_KEY, DETAILS_KEY

_CHANNELS_MAX: Final = 256
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # What is behind a name may have another address by now, as a pod that was replaced has: gRPC would look it up again
    # half a minute later.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)

ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(eq=False)
class NodeCallError(Exception):
    """A node refused a call, or could not be reached. `reason` is that of a refusal, otherwise empty."""

    address: str
    reason: str
    sentence: str
    leader: str = ""  # host:port, of a node that does not lead and knows who does

    def __str__(self) -> str:
        return f"{self.address}: {self.sentence}"


class NodeCalls:
    """Channels to nodes, opened when they are first needed."""

    def __init__(self, word: Callable[[], str] | None = None) -> None:
        """`word`: with which this server says who it is, to nodes that ask (serving/router_word.py)."""
        self._word = word
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def call(
        self,
        address: str,
        path: str,
        request: Message,
        parse: Callable[[bytes], ResponseT],
        *,
        timeout_s: float,
    ) -> ResponseT:
        """Asks once."""
        channel = self._channels.get(address)
        if channel is None:
            channel = await self._open(address)
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        try:
            metadata = None if self._word is None else ((CALLER_KEY, self._word()),)
            return parse(await ask(request.SerializeToString(), timeout=timeout_s, metadata=metadata))
        except grpc.aio.AioRpcError as status:
            raise _error_of(address, status) from None
        except DecodeError:
            raise NodeCallError(address, "", "its answer cannot be read") from None

    async def _open(self, address: str) -> grpc.aio.Channel:
        while len(self._channels) >= _CHANNELS_MAX:
            oldest = next(iter(self._channels))
            await self._channels.pop(oldest).close()
        channel = self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return channel


def _error_of(address: str, status: grpc.aio.AioRpcError) -> NodeCallError:
    for key, value in status.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
                    leader = info.metadata.get("leader", "")
                    return NodeCallError(address, info.reason, status.details() or "", leader)
    return NodeCallError(address, "", f"{status.code().name}: {status.details() or 'no answer'}")
