"""A server of calls: gRPC for every language, and frames on a port of their own for callers that know them. Both answer
the same methods, with the same bounds."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.serving.audited import OpenAudit, audited
from holdfast.serving.frame_server import FrameServer
from holdfast.serving.grpc_server import GrpcServer, ServerLimits
from holdfast.serving.intake import Intake
from holdfast.serving.served import Refuse, Served
from holdfast.serving.tls import Listening


@dataclass(frozen=True, slots=True)
class FramesAt:
    """Where frames are served."""

    port: int  # 0 takes a free one
    name: Callable[[], str]  # who the server is: callers that were told of it by gRPC find out whether they are there
    host: str | None = None  # None: where gRPC listens


class CallServer:
    """Serves what is added to it over gRPC, with health checking and reflection, and over frames."""

    def __init__(
        self,
        limits: ServerLimits,
        readiness: Callable[[], tuple[bool, str]],
        refuse: Refuse,
        frames_at: FramesAt | None,
        tls: Listening | None = None,
        audit: OpenAudit | None = None,
    ) -> None:
        """`frames_at`: None for no frames. `tls`: None for none. `audit`: None notes nothing, and costs nothing."""
        self._tls = tls
        self._audit = audit
        self._frames_at = frames_at
        self.grpc = GrpcServer(limits, readiness, refuse, self._where_frames_are)
        self.frames = None if frames_at is None else FrameServer(limits, self.grpc.intake, refuse, frames_at.name)

    @property
    def intake(self) -> Intake:
        return self.grpc.intake

    @property
    def frames_port(self) -> int:
        """0: there are none."""
        return 0 if self.frames is None else self.frames.port

    @property
    def frame_connections(self) -> int:
        return 0 if self.frames is None else len(self.frames.connections)

    @property
    def frame_calls(self) -> int:
        """That came in frames since the start, and not over gRPC."""
        return 0 if self.frames is None else self.frames.calls_begun

    def add(self, service: str, methods: Mapping[str, Served]) -> None:
        if self._audit is not None:
            methods = {name: audited(served, service, self._audit) for name, served in methods.items()}
        self.grpc.add(service, methods)
        if self.frames is not None:
            self.frames.add(service, methods)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns gRPC's port, which is chosen by the system if `port` is 0."""
        if self.frames is None or self._frames_at is None:
            return await self.grpc.start(host, port, self._tls)
        await self.frames.start(self._frames_at.host or host, self._frames_at.port, self._tls)
        try:
            return await self.grpc.start(host, port, self._tls)
        except BaseException:
            await self.frames.stop(0)
            raise

    def drain(self) -> None:
        """Tells health checks that no more work should be sent here."""
        self.grpc.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Both at the same time: the grace is that of all calls."""
        stops = [self.grpc.stop(grace_seconds)]
        if self.frames is not None:
            stops.append(self.frames.stop(grace_seconds))
        await asyncio.gather(*stops)

    def _where_frames_are(self) -> str:
        return f"{self.frames.port} {self.frames.name()}" if self.frames is not None and self.frames.port else ""
