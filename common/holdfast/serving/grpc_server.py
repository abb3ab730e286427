"""A gRPC server that no caller can fill or silence: bounds on calls, bytes and connections, refusals that are
typed, and health. What the calls do is its owner's.

Handlers are registered as if requests were streams: on the wire there is no difference, and so a call is seen before
its body has been received.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from holdfast.common.certificates import Pem
from holdfast.common.metadata import DETAILS_KEY, FRAMES_KEY
from holdfast.serving.health import SERVICE as HEALTH
from holdfast.serving.health import Health
from holdfast.serving.intake import Intake
from holdfast.serving.ports import listen
from holdfast.serving.refusals import forget_frames
from holdfast.serving.served import Refuse, Served
from holdfast.serving.tls import Listening

REFLECTIONS_MAX = 8
HANDSHAKE_SECONDS = 10
IDLE_SECONDS = 300
WAITING_SHARE = 8  # of all calls one in so many may wait to be received in each of four lines

_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the port must be refused, not share it
    ("grpc.keepalive_time_ms", 20_000),  # notices workers that vanished while they wait
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what newer versions of gRPC go by
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Connections that say nothing, before and after they have shaken hands.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    # 16 KB can be 16 MB that are compressed: they are not unpacked, and so no message.
    ("grpc.per_message_decompression", 0),
    # Otherwise gRPC holds ever more of the calls that nobody reads, the faster their connections are, and for each
    # connection a buffer that grows as large as the bodies that have come: a megabyte for each of five hundred.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.experimental.tcp_max_read_buffer_size", 64 * 1024),
]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """`calls_max` is only a last bound: within it, what is too much gets a typed refusal."""

    message_bytes_max: int  # larger ones gRPC itself refuses
    bytes_max: int  # of requests under way
    calls_max: int
    connections_max: int = 10_000
    has_reflection: bool = True  # whether tools are shown the API

    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_send_message_length", -1),  # what we answer is bounded where it is made
            ("grpc.max_allowed_incoming_connections", self.connections_max),
            # Left to itself gRPC cancels some calls beyond 1,000 that nobody has looked at yet, and all beyond 3,000.
            # A caller cannot tell that from a lost connection, after which the call may have been carried out.
            ("grpc.server.max_pending_requests", self.calls_max),
            ("grpc.server.max_pending_requests_hard_limit", self.calls_max),
            # Over a fast network it would let megabytes of each of them in. So it is 64 KiB of each, and the rest comes
            # when somebody asks for it.
            ("grpc.http2.bdp_probe", 0),
        ]


class GrpcServer:
    """Serves what is added to it, health checking and reflection on one port."""

    def __init__(
        self, limits: ServerLimits, readiness: Callable[[], tuple[bool, str]], refuse: Refuse,
        where_frames_are: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """`where_frames_are`: what callers who ask for it are told; nothing if it is empty."""
        self.where_frames_are = where_frames_are
        self.intake = Intake(
            bytes_max=limits.bytes_max,
            message_bytes_max=limits.message_bytes_max,
            waiting_max=max(1, limits.calls_max // WAITING_SHARE),
        )
        self._refuse = refuse
        self._has_reflection = limits.has_reflection
        self._server = grpc.aio.server(options=_OPTIONS + limits.options(), maximum_concurrent_rpcs=limits.calls_max)
        self._names: list[str] = []
        self._health = Health(readiness)

    def add(self, service: str, methods: Mapping[str, Served]) -> None:
        handlers: dict[str, Any] = {}
        for name, served in methods.items():
            handlers[name] = grpc.stream_unary_rpc_method_handler(self._wrap(served))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._names.append(service)
        self._health.add(service)

    async def start(self, host: str, port: int, tls: Listening | None = None) -> int:
        """Listens; returns the port, which is chosen by the system if `port` is 0."""
        handlers: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check_health),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch_health),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, handlers),))
        if self._has_reflection:
            reflected = (*self._names, HEALTH, reflection.SERVICE_NAME)
            add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
            add_reflection(_Reflection(reflected), self._server)
        bound = listen(self._server, host, port, None if tls is None else _credentials(tls))
        await self._server.start()
        return bound

    def drain(self) -> None:
        """Tells health checks that no more work should be sent here."""
        self._health.drain()

    async def stop(self, grace_seconds: float) -> None:
        self._health.drain()
        await self._server.stop(grace_seconds)

    def _wrap(self, served: Served) -> Callable[..., Awaitable[bytes]]:
        brings_tasks = served.brings_tasks
        intake = self.intake

        async def call(_bodies: object, context: Any) -> bytes:
            started = time.perf_counter()
            code, size = "OK", 0
            try:
                answer = served.begin(context)
                data = await intake.receive(context, brings_tasks=brings_tasks)
                size = len(data)
                served.limit.check(data)
                answered = answer(data)
                del data  # what is made of it is enough to keep
                response = served.encode(await answered)
                self._announce_frames(context)
                return response
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:  # noqa: BLE001 - the last line of defence: it is logged and answered
                code = self._end_refused(served.name, error, context)
                return b""  # the status is sent instead
            finally:
                intake.leave(size)
                served.observed.observe(code, time.perf_counter() - started)

        return call

    def _announce_frames(self, context: Any) -> None:
        """In the trailers of the answer, to those who ask."""
        if any(key == FRAMES_KEY for key, _ in context.invocation_metadata() or ()) and (
            where := self.where_frames_are()
        ):
            context.set_trailing_metadata(((FRAMES_KEY, where),))

    def _end_refused(self, method: str, error: Exception, context: Any) -> str:
        """Sets the status that a failed call ends with; returns its code.

        It is set, and not sent by `context.abort`: that raises an error which the context keeps, so every refused
        request would stay in memory until the garbage collector looks.
        """
        code, message, details = self._refuse(method, error)
        forget_frames(error)
        context.set_code(grpc.StatusCode[code])
        context.set_details(message)
        if details is not None:
            context.set_trailing_metadata(((DETAILS_KEY, details),))
        return code

    # Calls about health never wait for others. If too many of them send nothing, the next ones are answered unread, as
    # if they asked for the whole server: every service is as ready as that.

    async def _check_health(self, _bodies: object, context: Any) -> bytes:
        try:
            answer = self._health.check(await self.intake.receive_aside(context) or b"")
        except Exception as error:  # noqa: BLE001 - as above
            self._end_refused("Check", error, context)
            return b""
        if answer is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
        return answer or b""

    async def _watch_health(self, _bodies: object, context: Any) -> AsyncIterator[bytes]:
        try:
            async for answer in self._health.watch(await self.intake.receive_aside(context) or b""):
                yield answer
        except Exception as error:  # noqa: BLE001 - as above
            self._end_refused("Watch", error, context)


def _credentials(tls: Listening) -> grpc.ServerCredentials:
    """gRPC asks again, in a thread of its own, for each connection that begins."""
    shown = tls.pem()

    def newer() -> Any:
        """None if they are the same."""
        nonlocal shown
        pem = tls.pem()
        if pem is shown:
            return None
        shown = pem
        return _configuration(pem, tls)

    return grpc.dynamic_ssl_server_credentials(_configuration(shown, tls), newer, tls.asks_callers)


def _configuration(pem: Pem, tls: Listening) -> grpc.ServerCertificateConfiguration:
    authority = pem.authority if tls.asks_callers else None
    assert pem.key is not None
    assert pem.certificate is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], authority)


class _Reflection:
    """Shows the API to tools, to a few at a time: gRPC reads all of what they send."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._servicer: Any = reflection.aio.ReflectionServicer(names)
        self._under_way = 0

    async def ServerReflectionInfo(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC calls it
        if self._under_way >= REFLECTIONS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"Expected at most {REFLECTIONS_MAX} of these calls at once."
            )
        self._under_way += 1
        try:
            async for answer in self._servicer.ServerReflectionInfo(requests, context):
                yield answer
        finally:
            self._under_way -= 1
