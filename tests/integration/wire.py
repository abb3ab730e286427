"""Calls as bytes, for what the client library would refuse to send, and what came back, read without it."""

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.proto.v1 import queues_pb2, schedules_pb2, tasks_pb2

_PATHS = {
    method.name: f"/{service.full_name}/{method.name}"
    for messages in (tasks_pb2, queues_pb2, schedules_pb2)
    for service in messages.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_TIMEOUT_S = 30.0


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
    """One connection over which anything can be sent."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def call(self, method: str, request: Message | bytes) -> bytes | Refusal:
        """The bytes of the answer, or the refusal."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_PATHS[method])
            return await call(data, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as status:
            return _refusal(status)


def _refusal(status: grpc.aio.AioRpcError) -> Refusal:
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for key, value in status.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                for message in (info, bad, retry):
                    detail.Unpack(message)
    return Refusal(
        code=status.code().name,
        reason=info.reason,
        domain=info.domain,
        message=status.details() or "",
        field=info.metadata.get("field", ""),
        violations=tuple(violation.field for violation in bad.field_violations),
        retry_after_ms=retry.retry_delay.ToMilliseconds(),
    )
