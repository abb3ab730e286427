"""Whether a call is allowed: asked once for each, in the same way on both transports, by brokers and by routers.

Before the body of a call is let in: who calls, and whether any role of theirs could allow such a call. Once it is read:
the queues and tenants that it names. Items of a batch are refused one by one, lists are answered with what may be seen.
Calls that wait are ended when their caller is no longer allowed to make them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdfast.access.identities import Identity
from holdfast.access.permits import Permit, reaches
from holdfast.access.rights import Reach, Right
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.proto.v1.method_rules import RULES
from holdfast.routing.splitting import answered_in, join_parts, split_lists, split_request
from holdfast.serving.authentication import Authentication, Caller
from holdfast.serving.refusals import (
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    RefusedError,
    etcd_unavailable,
    permission_denied,
    unauthenticated,
)
from holdfast.serving.requested import BATCHES, Items, Named, denied_items, first_denied, narrow
from holdfast.serving.served import CallContext

_ALLOWED, _DENIED = 0, 1

Handler = Callable[[Any], Coroutine[Any, Any, Any]]
Read = Callable[[Any], Any]


class Rule:
    """What a caller needs for a method."""

    __slots__ = ("path", "reach", "right")

    def __init__(self, path: str) -> None:
        right, reach = RULES[path]
        self.path = path
        self.right = None if right == "any" else Right(right)
        self.reach = Reach(reach)


class Admitted:
    """A caller who may make such calls; which, depends on what they name."""

    __slots__ = ("batch_permit", "caller", "is_unrestricted", "permit", "rule")

    def __init__(self, rule: Rule, caller: Caller) -> None:
        self.rule = rule
        self.caller = caller
        self.permit: Permit = caller.permits.any if rule.right is None else caller.permits.of(rule.right)
        enqueues = caller.permits.of(Right.ENQUEUE)
        self.batch_permit: Permit = enqueues if rule.path.endswith("/Ack") else self.permit
        self.is_unrestricted = self.permit.is_everything and self.batch_permit.is_everything

    @property
    def identity(self) -> Identity:
        return self.caller.identity

    @property
    def may_call(self) -> bool:
        """Where queues are anybody may ask who is known; a router needs that to find its way for them."""
        return self.rule.reach is Reach.ROUTES or reaches(self.permit, self.rule.reach)

    def denied(self, named: Named | None = None) -> RefusedError:
        """In what it says the queue is only what the caller named."""
        right = Right.ENQUEUE if named is not None and self.rule.path.endswith("/Ack") else self.rule.right or "ask"
        who = str(self.identity)
        if named is None:
            what = "with every queue and tenant" if self.rule.reach is Reach.CLUSTER else "with any queue"
            return permission_denied(who, right, what)
        field, queue, tenant = named
        return permission_denied(who, right, f"with {_what(queue, tenant)}", field=field, queue=queue)


def _what(queue: str, tenant: str | None) -> str:
    if tenant is None:
        return f"the whole queue {queue}, whosever tasks are in it"
    if tenant.startswith("\0"):
        return f"the queue {queue}"
    return f"tasks of {f'tenant {tenant}' if tenant else 'no tenant'} in the queue {queue}"


class Refusals(Protocol):
    """Hears of every call, and of every batch with items, that was refused to somebody."""

    def refused(self, path: str, context: CallContext, identity: Identity | None, on: str, reason: str) -> None:
        """`identity`: None if nobody knows who it is. `on`: what was named."""
        ...


class Guard:
    """Asks for a server. `authentication` is set anew whenever the access rules change; None refuses everybody."""

    def __init__(self) -> None:
        self.authentication: Authentication | None = None
        self.awaits_rules = False  # nobody knows yet whether there are any
        self.refusals: Refusals | None = None  # who hears of them
        self._rules = {path: Rule(path) for path in RULES}
        self._waiting: dict[asyncio.Task[Any], tuple[Admitted, CallContext, Authentication | None]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    def admit(self, path: str, context: CallContext) -> Admitted:
        """Raises RefusedError."""
        authentication = self.authentication
        try:
            if authentication is None:
                raise self._without_rules()
            caller = authentication.identify(context)
        except RefusedError as error:
            self._tell(path, context, None, "", error.reason)
            raise
        admitted: Admitted | None = caller.admitted.get(path)
        if admitted is None:
            admitted = caller.admitted[path] = Admitted(self._rules[path], caller)
        if not admitted.may_call:
            raise self._denied(admitted, context)
        return admitted

    def _without_rules(self) -> RefusedError:
        if self.awaits_rules:
            return etcd_unavailable("this server has not been able to read yet who may do what")
        return unauthenticated(
            "Expected access rules, but this server has none, and was told to let nobody in without; an "
            "administrator of its machine gives it some (access_file)."
        )

    def _denied(self, admitted: Admitted, context: CallContext, named: Named | None = None) -> RefusedError:
        error = admitted.denied(named)
        on = "" if named is None else f"queue={named[1]}"
        self._tell(admitted.rule.path, context, admitted.identity, on, error.reason)
        return error

    def _tell(self, path: str, context: CallContext, identity: Identity | None, on: str, reason: str) -> None:
        if self.refusals is not None:
            self.refusals.refused(path, context, identity, on, reason)

    def may_pass(self, admitted: Admitted, request: Any) -> bool:
        """Whether nothing in the request, which waits for nothing and asks for no list, is denied to the caller."""
        if first_denied(admitted.permit, request) is not None:
            return False
        batch = BATCHES.get(type(request).__name__)
        return batch is None or not denied_items(batch, admitted.batch_permit, request)

    def answer(
        self, admitted: Admitted, context: CallContext, request: Any, handle: Handler, read: Read | None = None
    ) -> Coroutine[Any, Any, Any]:
        """What answers the request; raises RefusedError if it names what the caller may not. `read`: makes a message of
        what `handle` answers, where that has to be looked into."""
        if admitted.is_unrestricted:
            answered = handle(request)
        else:
            answered = self._restricted(admitted, context, request, handle, read)
        if getattr(request, "wait_ms", 0) > 0:
            return self._until_revoked(admitted, context, answered)
        return answered

    def _restricted(
        self, admitted: Admitted, context: CallContext, request: Any, handle: Handler, read: Read | None
    ) -> Coroutine[Any, Any, Any]:
        named = first_denied(admitted.permit, request)
        if named is not None:
            raise self._denied(admitted, context, named)
        batch = BATCHES.get(type(request).__name__)
        if batch is not None:
            denied = denied_items(batch, admitted.batch_permit, request)
            if denied:
                self._tell(admitted.rule.path, context, admitted.identity, _items(denied), PERMISSION_DENIED)
                return _in_part(admitted, batch, request, denied, handle, read)
            return handle(request)
        return _narrowed(admitted, request, handle, read) if "/List" in admitted.rule.path else handle(request)

    async def _until_revoked(self, admitted: Admitted, context: CallContext, answered: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.get_running_loop().create_task(answered)
        self._waiting[task] = admitted, context, self.authentication
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._ended:
                self._tell(admitted.rule.path, context, admitted.identity, "", UNAUTHENTICATED)
                raise unauthenticated(
                    "The call was ended because its caller may not make it any more: a token was revoked, or has "
                    "expired, or the access rules have changed.",
                    retry_after_ms=100,
                ) from None
            task.cancel()
            raise
        finally:
            self._ended.discard(task)
            del self._waiting[task]

    def end_revoked(self) -> None:
        """Ends the waits of those who could not begin them now."""
        for task, (admitted, context, authentication) in list(self._waiting.items()):
            if not self._still_covers(admitted, context, authentication) and not task.done():
                self._ended.add(task)
                task.cancel()

    def _still_covers(self, admitted: Admitted, context: CallContext, before: Authentication | None) -> bool:
        """A wait of whose roles any is gone ends: its caller asks again."""
        now = self.authentication
        if now is None or before is None:
            return False
        if now is before:
            return not now.is_over(admitted.caller)
        try:
            again = Admitted(admitted.rule, now.again(admitted.caller, context))
        except RefusedError:
            return False
        return again.identity == admitted.identity and again.permit.covers(admitted.permit)


def _items(denied: dict[str, dict[int, Named]]) -> str:
    """How many items of a batch, and the queue that the first of them names."""
    named = [each for items in denied.values() for each in items.values()]
    return f"queue={named[0][1]} items={len(named)}"


async def _narrowed(admitted: Admitted, request: Any, handle: Handler, read: Read | None) -> Any:
    answer = await handle(request)
    response = answer if read is None else read(answer)
    narrow(admitted.permit, response)
    return response


async def _in_part(
    admitted: Admitted, batch: Items, request: Any, denied: dict[str, dict[int, Named]], handle: Handler,
    read: Read | None,
) -> Any:  # fmt: skip
    """The items that are allowed, answered, and a refusal for each of the others. Raises RefusedError if it is all of
    them."""
    keys = [
        _DENIED if index in denied.get(field, ()) else _ALLOWED
        for field in batch.lists
        for index in range(len(getattr(request, field)))
    ]
    positions = split_lists(request, list(batch.lists), keys)
    if _ALLOWED not in positions:
        field, items = next(iter(denied.items()))
        index, (where, queue, tenant) = next(iter(items.items()))
        raise admitted.denied((f"{field}[{index}].{where}", queue, tenant))
    answer = await handle(split_request(request, positions)[_ALLOWED])
    response = answer if read is None else read(answer)
    refusals = _refusals(admitted, type(response), denied)
    return join_parts(type(response), [(positions[_ALLOWED], response), (positions[_DENIED], refusals)])


def _refusals(admitted: Admitted, kind: Any, denied: dict[str, dict[int, Named]]) -> Any:
    """As the answer to a batch of the refused items alone."""
    response = kind()
    for field, items in denied.items():
        for place, (where, queue, tenant) in enumerate(items.values()):
            refused = admitted.denied((f"{field}[{place}].{where}", queue, tenant))
            rejection = pb.Rejection(reason=refused.reason, message=refused.message, field=refused.field)
            getattr(response, answered_in(field)).add(rejection=rejection)
    return response
