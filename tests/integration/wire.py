"""Calls as bytes, for what the client library would refuse to send, and what came back, read without it."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.proto.v1 import queues_pb2, schedules_pb2, tasks_pb2
from holdfast.transport.channels import CallFailedError
from holdfast.transport.negotiated import NegotiatedChannels

_PATHS = {
    method.name: f"/{service.full_name}/{method.name}"
    for messages in (tasks_pb2, queues_pb2, schedules_pb2)
    for service in messages.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_TIMEOUT_S = 30.0
_MESSAGE_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True)
class Refusal:
    """A whole call that was refused."""

    code: str  # the gRPC status code
    reason: str = ""  # of google.rpc.ErrorInfo; empty if there was none
    domain: str = ""
    message: str = ""
    field: str = ""
    violations: tuple[str, ...] = ()  # the fields of google.rpc.BadRequest
    retry_after_ms: int = 0


class Wire:
    """One connection over which anything can be sent: over gRPC, or in frames."""

    def __init__(self, address: str, transport: Literal["grpc", "frames"] = "grpc") -> None:
        self.transport = transport
        self._address = address
        self._channel = grpc.aio.insecure_channel(address)
        self._frames: NegotiatedChannels | None = None

    async def __aenter__(self) -> Self:
        if self.transport == "frames":
            self._frames = NegotiatedChannels(message_bytes_max=_MESSAGE_BYTES_MAX, keepalive_s=30, connects_first=True)
            asks = self._frames.call(self._address, _PATHS["ListQueues"], b"", None, _TIMEOUT_S)
            await asks.answer()
            async with asyncio.timeout(_TIMEOUT_S):
                while self._frames.link(self._address) is None:
                    await asyncio.sleep(0.002)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()
        if self._frames is not None:
            await self._frames.close()

    async def call(self, method: str, request: Message | bytes) -> bytes | Refusal:
        """The bytes of the answer, or the refusal."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        path = _PATHS[method]
        if self._frames is not None:
            assert self._frames.link(self._address) is not None, "the connection is there"
            try:
                return await self._frames.call(self._address, path, data, None, _TIMEOUT_S).answer()
            except CallFailedError as failed:
                return _refusal(failed.code, failed.message, failed.details)
        try:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
            return await call(data, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as status:
            metadata = dict(status.trailing_metadata() or ())
            details = metadata.get("grpc-status-details-bin")
            return _refusal(status.code().name, status.details() or "", details if isinstance(details, bytes) else None)


def _refusal(code: str, message: str, details: bytes | None) -> Refusal:
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(details or b"").details:
        for kind in (info, bad, retry):
            detail.Unpack(kind)
    return Refusal(
        code=code,
        reason=info.reason,
        domain=info.domain,
        message=message,
        field=info.metadata.get("field", ""),
        violations=tuple(violation.field for violation in bad.field_violations),
        retry_after_ms=retry.retry_delay.ToMilliseconds(),
    )
