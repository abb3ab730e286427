"""The calls of a broker that asks who calls: the same as without, with a question before and after the body is read."""

from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf.message import Message

from holdfast.broker.api.scoped import scoped
from holdfast.broker.api.tasks import TaskService
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.request_limits import parse
from holdfast.serving.served import Answer, CallContext, Served

_Handler = Callable[[Any], Coroutine[Any, Any, Message]]
# Finds who answers a call, once it is admitted: what answers its request, and the shard's service if it is about one.
FindHandler = Callable[[CallContext], tuple[_Handler, TaskService | None]]


class GuardedCalls:
    """Switches what is served between asking and not asking, as the access rules come and go."""

    def __init__(self, access: AccessRules) -> None:
        self._access = access

    def add(self, served: Served, path: str, request_type: type[Message], find: FindHandler) -> None:
        """`served`: as it is without questions."""
        guard = self._access.guard

        def begin(context: CallContext) -> Answer:
            admitted = guard.admit(path, context)
            handler, service = find(context)
            if service is not None and not admitted.permit.is_everything:
                handler = scoped(served.name, service, admitted.permit, handler)
            return lambda data: guard.answer(admitted, context, parse(request_type, data), handler)

        self._access.switch(served, begin)
