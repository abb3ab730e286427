"""Calls to a server over one transport or the other, as bytes, with all that their refusals say."""

import asyncio
from types import ModuleType
from typing import Self

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from holdfast.proto.v1 import backups_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2, tasks_pb2
from holdfast.transport.channels import CallFailedError
from holdfast.transport.negotiated import NegotiatedChannels

MIB = 1024 * 1024
CONNECT_S = 20.0
MODULES: tuple[ModuleType, ...] = (tasks_pb2, queues_pb2, schedules_pb2, shards_pb2, cluster_pb2, backups_pb2)
_METHODS = [
    method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
PATHS = {method.name: f"/{method.containing_service.full_name}/{method.name}" for method in _METHODS}
RESPONSES: dict[str, type[Message]] = {method.name: GetMessageClass(method.output_type) for method in _METHODS}


class Way:
    """To one server, over one transport."""

    def __init__(self, address: str, transport: str) -> None:
        """`transport`: `frames` or `grpc`."""
        self.address = address
        self.transport = transport
        self._channels = NegotiatedChannels(
            message_bytes_max=64 * MIB, keepalive_s=30, connects_first=True,
            transport="auto" if transport == "frames" else "grpc",
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        await self._send(PATHS["ListQueues"], b"", None)
        if self.transport == "frames":
            async with asyncio.timeout(CONNECT_S):
                while self._channels.link(self.address) is None:
                    await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self._channels.close()

    async def _send(self, path: str, data: bytes, shard: str | None) -> bytes:
        metadata = None if shard is None else (("holdfast-shard", shard),)
        if self.transport == "frames" and self._channels.frames:
            link = self._channels.link(self.address)
            assert link is not None
            assert link.takes(path)
        return await self._channels.call(self.address, path, data, metadata, 30.0).answer()

    async def call(self, method: str, request: Message | bytes, shard: str | None = None) -> bytes | tuple[object, ...]:
        """The answer, or all that a refusal says."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            return await self._send(PATHS[method], data, shard)
        except CallFailedError as failed:
            return (
                failed.code,
                failed.reason,
                failed.message,
                tuple(sorted(failed.metadata.items())),
                failed.retry_after_ms,
            )
