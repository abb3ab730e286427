"""The services that callers see. Messages pass as bytes; what is in them is decided in `gateway`."""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, cast

from holdfast.common.metadata import ATTEMPT_KEY, FIRST_KEY, SHARD_KEY
from holdfast.router.callers import Caller, number_of
from holdfast.router.failures import Failure, status_of_failure
from holdfast.router.methods import ALL, Method
from holdfast.router.metrics import Metrics
from holdfast.router.passing_on import carry_out_for
from holdfast.router.whole_calls import WholeCalls
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.audited import OpenAudit
from holdfast.serving.authorization import Admitted
from holdfast.serving.call_server import CallServer, FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import RefusedError, internal_error
from holdfast.serving.request_limits import request_limit
from holdfast.serving.served import Answer, CallContext, Carried, CompletedCall, Served
from holdfast.serving.tls import Listening
from holdfast.transport.channels import CallFailedError

_log = get_logger(__name__)


class CallHandler(Protocol):
    """`Gateway` is the real one."""

    def check(self, method: Method, /) -> None:
        """Refuses a call before its request is let in."""
        ...

    def handle(self, method: Method, data: bytes, caller: Caller, /) -> Coroutine[Any, Any, bytes]: ...


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
        whole_calls: WholeCalls | None = None,
        tls: Listening | None = None,
        access: AccessRules | None = None,
        audit: OpenAudit | None = None,
    ) -> None:
        """`batch_bytes_max`: what brokers take. Here it counts for the whole call: whether that is too large must not
        depend on the shards of its items. `whole_calls`: carries out what comes in frames, as far as it can. `access`:
        the rules of who may do what; without them nobody is asked."""
        self._handler = handler
        self._guard = None if access is None else access.guard
        self._whole_calls = whole_calls
        self._metrics = metrics
        super().__init__(limits, readiness, self._refuse, frames_at, tls, audit)
        services: dict[str, dict[str, Served]] = {}
        for method in ALL:
            limit = request_limit(method.name, method.request, large_bytes_max=batch_bytes_max)
            served = Served(
                method.name, limit, metrics.rpc(method.name), partial(self._begin, method),
                begin_framed=partial(self._begin_framed, method),
            )  # fmt: skip
            if access is not None:
                framed = partial(self._begin_guarded_framed, method)
                access.switch(served, partial(self._begin_guarded, method), framed)
            services.setdefault(method.path.split("/")[1], {})[method.name] = served
        for service, methods in services.items():
            self.add(service, methods)

    def _begin(self, method: Method, context: CallContext) -> Answer:
        self._handler.check(method)
        caller = _caller_of(context)
        return lambda data: self._handler.handle(method, data, caller)

    def _begin_framed(self, method: Method, call: CompletedCall) -> Carried:
        self._handler.check(method)
        caller, whole_calls = _caller_of(call), self._whole_calls

        def carry_out(data: bytes) -> Coroutine[Any, Any, bytes] | None:
            if whole_calls is not None and whole_calls.begin(method, data, caller, call):
                return None
            return self._handler.handle(method, data, caller)

        return carry_out

    def _begin_guarded(self, method: Method, context: CallContext) -> Answer:
        """The same for a caller who is asked who it is."""
        assert self._guard is not None
        admitted = self._guard.admit(method.path, context)
        self._handler.check(method)
        caller = _caller_of(context)
        return lambda data: self._answer_guarded(admitted, context, method, data, caller)

    def _begin_guarded_framed(self, method: Method, call: CompletedCall) -> Carried:
        guard, whole_calls = self._guard, self._whole_calls
        assert guard is not None
        admitted = guard.admit(method.path, call)
        self._handler.check(method)
        caller = _caller_of(call)
        caller.identity = admitted.identity

        def carry_out(data: bytes) -> Coroutine[Any, Any, bytes] | None:
            if whole_calls is not None and whole_calls.takes(method):
                may_pass = admitted.is_unrestricted or guard.may_pass(admitted, method.parse(data))
                if may_pass and whole_calls.begin(method, data, caller, call):
                    return None
            return self._answer_guarded(admitted, call, method, data, caller)

        return carry_out

    async def _answer_guarded(
        self, admitted: Admitted, context: CallContext, method: Method, data: bytes, caller: Caller
    ) -> bytes:
        """Bytes pass as they came, unless the caller may not name, or see, all that is in them."""
        carry_out_for(admitted.identity)
        if admitted.is_unrestricted and not method.waits:
            return await self._handler.handle(method, data, caller)
        assert self._guard is not None
        request = method.parse(data)

        async def handle(part: Any) -> bytes:
            return await self._handler.handle(method, data if part is request else part.SerializeToString(), caller)

        answer = await self._guard.answer(admitted, context, request, handle, method.read)
        return answer if isinstance(answer, bytes) else cast(bytes, answer.SerializeToString())

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
