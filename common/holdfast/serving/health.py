"""Health as gRPC asks for it: the same truth as /readyz, asked when it is asked for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc_health.v1 import health_pb2

from holdfast.serving.refusals import overloaded
from holdfast.serving.request_limits import parse, request_limit

SERVICE = "grpc.health.v1.Health"
WATCHERS_MAX = 100
POLL_SECONDS = 0.5
_REQUEST_BYTES_MAX = 1024

_Status = health_pb2.HealthCheckResponse


class Health:
    """`readiness` tells whether the server takes work. It is called on the loop and must not block."""

    def __init__(self, readiness: Callable[[], tuple[bool, str]]) -> None:
        self._readiness = readiness
        self._names = {""}
        self._watchers = 0
        self._limit = request_limit("Check", health_pb2.HealthCheckRequest, large_bytes_max=_REQUEST_BYTES_MAX)
        self._draining = asyncio.Event()

    def add(self, service: str) -> None:
        self._names.add(service)

    def drain(self) -> None:
        """No more work should be sent here; who watches is told, and need not be waited for."""
        self._draining.set()

    def check(self, data: bytes) -> bytes | None:
        """The answer to a HealthCheckRequest; None if it asks for a service that is not here."""
        name = self._name(data)
        return self._answer(self._status()) if name in self._names else None

    async def watch(self, data: bytes) -> AsyncIterator[bytes]:
        """The status, and again whenever it changes."""
        name = self._name(data)
        if self._watchers >= WATCHERS_MAX:
            raise overloaded("watchers of health", WATCHERS_MAX)
        self._watchers += 1
        try:
            last: Any = None
            while True:
                is_last = self._draining.is_set()
                status = self._status() if name in self._names else _Status.SERVICE_UNKNOWN
                if status != last:
                    yield self._answer(status)
                    last = status
                if is_last:
                    return
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._draining.wait()
                except TimeoutError:
                    pass
        finally:
            self._watchers -= 1

    def _name(self, data: bytes) -> str:
        self._limit.check(data)
        return parse(health_pb2.HealthCheckRequest, data).service

    def _status(self) -> Any:
        is_ready = not self._draining.is_set() and self._readiness()[0]
        return _Status.SERVING if is_ready else _Status.NOT_SERVING

    @staticmethod
    def _answer(status: Any) -> bytes:
        return _Status(status=status).SerializeToString()
