"""The services that callers see. Messages pass as bytes; what is in them is decided in `gateway`."""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.common.metadata import ATTEMPT_KEY, FIRST_KEY, SHARD_KEY
from holdfast.router.callers import Caller, number_of
from holdfast.router.failures import Failure, status_of_failure
from holdfast.router.methods import ALL, Method
from holdfast.router.metrics import Metrics
from holdfast.serving.audited import Audit
from holdfast.serving.call_server import CallServer, FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import RefusedError, internal_error
from holdfast.serving.request_limits import request_limit
from holdfast.serving.served import Answer, CallContext, Served
from holdfast.transport.channels import CallFailedError

_log = get_logger(__name__)


class CallHandler(Protocol):
    """`Gateway` is the real one."""

    def check(self, method: Method, /) -> None:
        """Refuses a call before its request is let in."""
        ...

    async def handle(self, method: Method, data: bytes, caller: Caller, /) -> bytes: ...


class RouterServer(CallServer):
    """Serves the wire API, over gRPC and over frames."""

    def __init__(
        self,
        handler: CallHandler,
        metrics: Metrics,
        limits: ServerLimits,
        *,
        batch_bytes_max: int,
        readiness: Callable[[], tuple[bool, str]],
        frames_at: FramesAt | None = None,
        audit: Audit | None = None,
    ) -> None:
        """`batch_bytes_max`: what brokers take. Here it counts for the whole call: whether that is too large must not
        depend on the shards of its items."""
        self._handler = handler
        self._metrics = metrics
        super().__init__(limits, readiness, self._refuse, frames_at, audit)
        services: dict[str, dict[str, Served]] = {}
        for method in ALL:
            limit = request_limit(method.name, method.request, large_bytes_max=batch_bytes_max)
            served = Served(method.name, limit, metrics.rpc(method.name), partial(self._begin, method))
            services.setdefault(method.path.split("/")[1], {})[method.name] = served
        for service, methods in services.items():
            self.add(service, methods)

    def _begin(self, method: Method, context: CallContext) -> Answer:
        self._handler.check(method)
        caller = _caller_of(context)
        return lambda data: self._handler.handle(method, data, caller)

    def _refuse(self, method: str, error: Exception) -> tuple[str, str, bytes | None]:
        failure = _as_failure(method, error)
        self._metrics.refused(failure.reason or "NONE")
        return status_of_failure(failure)


def _caller_of(context: CallContext) -> Caller:
    shard, attempt, is_first = None, 1, False
    for key, value in context.invocation_metadata() or ():
        if key == SHARD_KEY:
            shard = number_of(key, value)
        elif key == ATTEMPT_KEY:
            attempt = number_of(key, value)
        elif key == FIRST_KEY:
            is_first = True
    remaining_s = context.time_remaining()
    deadline_s = float("inf") if remaining_s is None else time.monotonic() + remaining_s
    return Caller(shard, attempt, deadline_s, context.done, is_first)


def _as_failure(method: str, error: Exception) -> Failure:
    if isinstance(error, CallFailedError | RefusedError):
        return error
    _log.error("call_failed", method=method, error=type(error).__name__, exc_info=error)
    return internal_error()
