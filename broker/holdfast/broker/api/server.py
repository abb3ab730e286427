"""The gRPC services of a broker: who answers a call is found before its body is let in; failures become refusals."""

import re
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from holdfast.broker.api.guarded import FindHandler, GuardedCalls
from holdfast.broker.api.shard_services import ShardServices
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.metrics import Metrics
from holdfast.common.metadata import SHARD_KEY
from holdfast.proto.v1 import backups_pb2 as backups_pb
from holdfast.proto.v1 import cluster_pb2 as cluster_pb
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import schedules_pb2 as schedules_pb
from holdfast.proto.v1 import shards_pb2 as shards_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.audited import OpenAudit
from holdfast.serving.call_server import CallServer, FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.intake import Intake
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import (
    INVALID_FIELD,
    OutcomeUnknownError,
    RefusedError,
    another_shard,
    internal_error,
    outcome_unknown,
)
from holdfast.serving.request_limits import parse, request_limit
from holdfast.serving.served import Answer, CallContext, Served
from holdfast.serving.statuses import status_of
from holdfast.serving.tls import Listening
from holdfast.storage.rocksdb import StateDamagedError

SUB_SERVICES = {"DeadLetters": "dead_letters", "Queues": "queues", "Schedules": "schedules"}  # of a shard's service

# Methods that write much: while nothing can be written they are refused before their bodies are let in.
_CHECKED_FIRST = frozenset({"enqueue", "put_schedule"})
# Those that are called for every task, and wait for futures only.
_DRIVEN = frozenset({"enqueue", "reserve", "await_tasks", "ack", "fail", "extend", "release"})

_log = get_logger(__name__)

_Handler = Callable[[Any], Coroutine[Any, Any, Message]]


class RpcServer:
    """Serves the wire API, over gRPC and over frames."""

    def __init__(
        self,
        shards: ShardServices,
        admin: object,
        cluster: object,
        backups: object,
        metrics: Metrics,
        limits: ServerLimits,
        *,
        batch_bytes_max: int,
        payload_bytes_max: int | None = None,
        readiness: Callable[[], tuple[bool, str]],
        frames_at: FramesAt | None = None,
        tls: Listening | None = None,
        access: AccessRules | None = None,
        audit: OpenAudit | None = None,
    ) -> None:
        """`access`: the rules of who may do what; without them nobody is asked."""
        self._guarded = None if access is None else GuardedCalls(access)
        self._shards = shards
        self._batch_bytes_max = batch_bytes_max
        self._payload_bytes_max = payload_bytes_max
        self._metrics = metrics
        self._server = CallServer(limits, readiness, self._refuse, frames_at, tls, audit)
        # Who answers: what is about tasks, the service of the shard that the call is for; the rest, one of this node.
        served: list[tuple[Any, object | None]] = [
            (pb, None),
            (queues_pb, None),
            (schedules_pb, None),
            (shards_pb, admin),
            (cluster_pb, cluster),
            (backups_pb, backups),
        ]
        for messages, servant in served:
            for descriptor in messages.DESCRIPTOR.services_by_name.values():
                methods = {method.name: self._served(messages, method, servant) for method in descriptor.methods}
                self._server.add(descriptor.full_name, methods)

    @property
    def intake(self) -> Intake:
        return self._server.intake

    @property
    def frames_port(self) -> int:
        """0: there are no frames."""
        return self._server.frames_port

    @property
    def frame_connections(self) -> int:
        return self._server.frame_connections

    @property
    def frame_calls(self) -> int:
        return self._server.frame_calls

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which is chosen by the system if `port` is 0."""
        return await self._server.start(host, port)

    def drain(self) -> None:
        """Tells health checks that no more work should be sent here."""
        self._server.drain()

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)

    def _served(self, messages: Any, method: Any, servant: object | None) -> Served:
        request_type: type[Message] = getattr(messages, method.input_type.name)
        response_type: type[Message] = getattr(messages, method.output_type.name)
        name = _snake_case(method.name)
        sub_service = SUB_SERVICES.get(method.containing_service.name, "")
        begin: Callable[[CallContext], Answer]
        find: FindHandler
        if servant is None:
            handler_of = attrgetter(f"{sub_service}.{name}" if sub_service else name)
            begin = partial(self._begin, request_type, handler_of, checks_first=name in _CHECKED_FIRST)
            find = partial(self._find, handler_of, checks_first=name in _CHECKED_FIRST)
        else:
            names_shard = "shard" in request_type.DESCRIPTOR.fields_by_name
            begin = partial(_begin_with_shard if names_shard else _begin, request_type, servant, name)
            find = partial(_find_with_shard if names_shard else _find, servant, name)
        limit = request_limit(
            method.name,
            request_type,
            large_bytes_max=self._batch_bytes_max,
            payload_bytes_max=self._payload_bytes_max,
        )
        served = Served(
            method.name, limit, self._metrics.rpc(method.name), begin,
            encode=response_type.SerializeToString, is_driven=servant is None and name in _DRIVEN,
        )  # fmt: skip
        if self._guarded is not None:
            path = f"/{method.containing_service.full_name}/{method.name}"
            self._guarded.add(served, path, request_type, find)
        return served

    def _begin(
        self, request_type: type[Message], handler_of: Callable[[TaskService], _Handler], context: CallContext, *,
        checks_first: bool,
    ) -> Answer:  # fmt: skip
        """Of what the service of the shard answers that the call is about."""
        handler, _ = self._find(handler_of, context, checks_first=checks_first)
        return lambda data: handler(parse(request_type, data))

    def _find(
        self, handler_of: Callable[[TaskService], _Handler], context: CallContext, *, checks_first: bool
    ) -> tuple[_Handler, TaskService]:
        number = _shard_of(context.invocation_metadata())
        service = self._shards.find(self._shards.default_shard() if number is None else number)
        if checks_first:
            service.check_open()
        return handler_of(service), service

    def _refuse(self, method: str, error: Exception) -> tuple[str, str, bytes]:
        if isinstance(error, StateDamagedError):
            self._shards.note_damage(error)
        refused = _as_refusal(method, error)
        self._metrics.rejected(refused.reason).inc()
        code, details = status_of(refused)
        return code, refused.message, details


def _begin(request_type: type[Message], servant: object, name: str, context: CallContext) -> Answer:
    handler, _ = _find(servant, name, context)
    return lambda data: handler(parse(request_type, data))


def _find(servant: object, name: str, _context: CallContext) -> tuple[_Handler, None]:
    return getattr(servant, name), None


def _begin_with_shard(request_type: type[Message], servant: object, name: str, context: CallContext) -> Answer:
    """The same for requests that say themselves which shard they are about."""
    handler, _ = _find_with_shard(servant, name, context)
    return lambda data: handler(parse(request_type, data))


def _find_with_shard(servant: object, name: str, context: CallContext) -> tuple[_Handler, None]:
    """The metadata must not say another shard than the request."""
    handler: _Handler = getattr(servant, name)
    named = _shard_of(context.invocation_metadata())

    async def checked(request: Any) -> Message:
        if named is not None and request.shard != named:
            raise another_shard(named, request.shard)
        return await handler(request)

    return checked, None


def _shard_of(metadata: Any) -> int | None:
    """The number of the shard that a call names; None if it names none."""
    for key, value in metadata or ():
        if key == SHARD_KEY:
            return _shard_number(value)
    return None


@lru_cache
def _shard_number(value: str | bytes) -> int:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5):
        raise RefusedError(
            INVALID_FIELD, f"Expected the number of a shard in the metadata {SHARD_KEY}.", field=SHARD_KEY
        )
    return int(value)


def _as_refusal(method: str, error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OutcomeUnknownError | StateDamagedError):
        return outcome_unknown()  # of damage too: this broker stops, and another may have it whole
    _log.error("call_failed", method=method, error=type(error).__name__, exc_info=error)
    return internal_error()


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
