"""The gRPC server: parses requests itself, so that bad bytes get a typed answer, and turns refusals into statuses."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from holdfast.broker.metrics import Metrics
from holdfast.broker.service import Service
from holdfast.broker.state import StateDamagedError
from holdfast.proto.v1 import cluster_pb2 as cluster_pb
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import schedules_pb2 as schedules_pb
from holdfast.proto.v1 import shards_pb2 as shards_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.logs import get_logger
from holdfast.serving.ports import listen
from holdfast.serving.refusals import (
    INVALID_FIELD,
    OutcomeUnknownError,
    RefusedError,
    forget_frames,
    internal_error,
    outcome_unknown,
)
from holdfast.serving.request_limits import RequestLimit, parse, request_limit
from holdfast.serving.statuses import DETAILS_KEY, status_of
from holdfast.serving.waiting_room import waiting_room

SHARD_KEY = "holdfast-shard"
ROOMS = {"DeadLetters": "dead_letters", "Queues": "queues", "Schedules": "schedules"}  # of a shard's service
ANSWER_BYTES_SPARE = 4 * 1024 * 1024  # for lists, however small the batches are
RECEIVE_FACTOR = 4  # how far beyond the largest batch a call is still read, to refuse it by name
OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the port must be refused, not share it
    ("grpc.keepalive_time_ms", 20_000),  # notices workers that vanished while they wait
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what newer versions of gRPC go by
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

_log = get_logger(__name__)

_Handler = Callable[[Any], Awaitable[Message]]


class RpcServer:
    """Serves the wire API, health checking and reflection on one port."""

    def __init__(
        self,
        find_service: Callable[[int], Service],
        admin: object,
        cluster: object,
        metrics: Metrics,
        *,
        batch_bytes_max: int,
        calls_max: int,
        default_shard: Callable[[], int] = lambda: 0,
        on_damage: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        self._on_damage = on_damage
        self._find_service = find_service  # of a shard's number
        self._default_shard = default_shard  # of a call that names none; may refuse it
        self._batch_bytes_max = batch_bytes_max
        self._metrics = metrics
        limit = max(batch_bytes_max * RECEIVE_FACTOR, batch_bytes_max + ANSWER_BYTES_SPARE)
        limits = [
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
            *waiting_room(calls_max),
        ]
        self._server = grpc.aio.server(options=OPTIONS + limits, maximum_concurrent_rpcs=calls_max)
        # Who answers: what is about tasks, the service of the shard that the call is for; the rest, one of this node.
        served: list[tuple[Any, object | None]] = [
            (pb, None),
            (queues_pb, None),
            (schedules_pb, None),
            (shards_pb, admin),
            (cluster_pb, cluster),
        ]
        self._names = [
            self._register(messages, descriptor, servant)
            for messages, servant in served
            for descriptor in messages.DESCRIPTOR.services_by_name.values()
        ]
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflected = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(reflected, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which is chosen by the system if `port` is 0."""
        bound = listen(self._server, host, port)
        await self._server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def drain(self) -> None:
        """Tells health checks that no more work should be sent here."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)

    def _register(self, messages: Any, descriptor: Any, servant: object | None) -> str:
        handlers: dict[str, Any] = {}
        for method in descriptor.methods:
            request_type = getattr(messages, method.input_type.name)
            name = _snake_case(method.name)
            room = ROOMS.get(descriptor.name, "")
            find = partial(self._find_handler, room, name) if servant is None else partial(_find_in, servant, name)
            limit = request_limit(method.name, request_type, large_bytes_max=self._batch_bytes_max)
            call = self._wrap(method.name, request_type, find, limit)
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(call)
        generic = grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        return str(descriptor.full_name)

    def _find_handler(self, room: str, name: str, context: Any) -> _Handler:
        """The method of the service of the shard that the call is about."""
        number = _shard_of(context.invocation_metadata())
        service: object = self._find_service(self._default_shard() if number is None else number)
        handler: _Handler = getattr(getattr(service, room) if room else service, name)
        return handler

    def _wrap(
        self, method: str, request_type: type[Message], find: Callable[[Any], _Handler], limit: RequestLimit
    ) -> Callable[..., Awaitable[bytes]]:
        observed = self._metrics.rpc(method)

        async def call(data: bytes, context: Any) -> bytes:
            started = time.perf_counter()
            code = "OK"
            try:
                limit.check(data)
                response = await find(context)(parse(request_type, data))
                return response.SerializeToString()
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:  # noqa: BLE001 - the last line of defence: it is logged and answered
                code = self._refuse(method, error, context)
                return b""  # the status is sent instead
            finally:
                observed.observe(code, time.perf_counter() - started)

        return call

    def _refuse(self, method: str, error: Exception, context: Any) -> str:
        """Sets the status that a failed call ends with; returns its code.

        It is set, and not sent by `context.abort`: that raises an error which the context keeps, so every refused
        request would stay in memory until the garbage collector looks.
        """
        if isinstance(error, StateDamagedError):
            self._on_damage(error)
        refused = _as_refusal(method, error)
        forget_frames(error)
        self._metrics.rejected(refused.reason).inc()
        code, details = status_of(refused)
        context.set_code(grpc.StatusCode[code])
        context.set_details(refused.message)
        context.set_trailing_metadata(((DETAILS_KEY, details),))
        return code


def _find_in(servant: object, name: str, _context: Any) -> _Handler:
    handler: _Handler = getattr(servant, name)
    return handler


def _shard_of(metadata: Any) -> int | None:
    """The number of the shard that a call names; None if it names none."""
    for key, value in metadata or ():
        if key == SHARD_KEY:
            if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5):
                raise RefusedError(
                    INVALID_FIELD, f"Expected the number of a shard in the metadata {SHARD_KEY}.", field=SHARD_KEY
                )
            return int(value)
    return None


def _as_refusal(method: str, error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OutcomeUnknownError | StateDamagedError):
        return outcome_unknown()  # of damage too: this broker stops, and another may have it whole
    _log.error("call_failed", method=method, error=type(error).__name__, exc_info=error)
    return internal_error()


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
