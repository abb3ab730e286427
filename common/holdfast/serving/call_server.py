"""A server of calls: gRPC for every language, and frames on a port of their own for callers that know them. Both answer
the same methods, with the same bounds."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.serving.frame_server import FrameServer
from holdfast.serving.grpc_server import GrpcServer, ServerLimits
from holdfast.serving.intake import Intake
from holdfast.serving.served import Refuse, Served


@dataclass(frozen=True, slots=True)
class FramesAt:
    """Where frames are served."""

    port: int  # 0 takes a free one
    name: Callable[[], str]  # who the server is: callers that were told of it by gRPC find out whether they are there


class CallServer:
    """Serves what is added to it over gRPC, with health checking and reflection, and over frames."""

    def __init__(
        self,
        limits: ServerLimits,
        readiness: Callable[[], tuple[bool, str]],
        refuse: Refuse,
        frames_at: FramesAt | None,
    ) -> None:
        """`frames_at`: None for no frames."""
        self._frames_at = frames_at
        self._grpc = GrpcServer(limits, readiness, refuse, self._where_frames_are)
        self._frames = None if frames_at is None else FrameServer(limits, self._grpc.intake, refuse, frames_at.name)

    @property
    def intake(self) -> Intake:
        return self._grpc.intake

    @property
    def frames_port(self) -> int:
        """0: there are none."""
        return 0 if self._frames is None else self._frames.port

    @property
    def frame_connections(self) -> int:
        return 0 if self._frames is None else len(self._frames.connections)

    @property
    def frame_calls(self) -> int:
        """That came in frames since the start, and not over gRPC."""
        return 0 if self._frames is None else self._frames.calls_begun

    def add(self, service: str, methods: Mapping[str, Served]) -> None:
        self._grpc.add(service, methods)
        if self._frames is not None:
            self._frames.add(service, methods)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns gRPC's port, which is chosen by the system if `port` is 0."""
        if self._frames is None or self._frames_at is None:
            return await self._grpc.start(host, port)
        await self._frames.start(host, self._frames_at.port)
        try:
            return await self._grpc.start(host, port)
        except BaseException:
            await self._frames.stop(0)
            raise

    def drain(self) -> None:
        """Tells health checks that no more work should be sent here."""
        self._grpc.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Both at the same time: the grace is that of all calls."""
        stops = [self._grpc.stop(grace_seconds)]
        if self._frames is not None:
            stops.append(self._frames.stop(grace_seconds))
        await asyncio.gather(*stops)

    def _where_frames_are(self) -> str:
        return f"{self._frames.port} {self._frames.name()}" if self._frames is not None and self._frames.port else ""
