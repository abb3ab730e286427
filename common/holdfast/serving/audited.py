"""Which calls are noted in the audit log, and what of them: who, from where, what, on what, with which result. Never
what a task holds.

What operators change is noted however it ends; of all other calls only that they were refused to somebody.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from holdfast.access.identities import Identity
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.audit_log import AuditLog
from holdfast.serving.served import Answer, CallContext, Served

# What changes things, or takes copies of them, on behalf of a person. Not what is repeated until that is done.
OPERATOR_CALLS = frozenset({
    "Backups/ReadMap", "Backups/BeginBackup", "Backups/CopyShard", "Backups/EndBackup", "Backups/RestoreCluster",
    "Backups/RestoreQueues", "Backups/RestoreShard",
    "Cluster/InitCluster", "Cluster/SetQueue", "Cluster/DrainNode", "Cluster/RemoveNode", "Cluster/HandOverNode",
    "Cluster/StartPlan", "Cluster/CancelPlan", "Cluster/SetRebalancing", "Cluster/SetAccess",
    "DeadLetters/RetryDeadLetters", "DeadLetters/DiscardDeadLetters",
    "Queues/PurgeQueue", "Queues/SignalWorker",
    "Schedules/PutSchedule", "Schedules/DeleteSchedule", "Schedules/PauseSchedule", "Schedules/TriggerSchedule",
    "Shards/TransferLeadership",
    "Tasks/Cancel", "Tasks/UpdateTasks",
})  # fmt: skip
REFUSALS = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})  # reasons that are noted of any call
NOBODY = "anonymous"
UNKNOWN = "unknown"  # somebody without anything that tells who it is, where that is asked
REFUSALS_MAX: Final = 100  # of one caller that are noted in so many seconds; more are counted
REFUSALS_SECONDS: Final = 60.0
REFUSED_MAX: Final = 10_000  # callers of whom that is known

# What tells on what something was done. Nothing else of a request is ever noted.
_NAMED = ("queue", "name", "node", "shard", "worker", "task_id", "task_ids", "items", "to", "desired", "by", "dry_run",
          "pause", "paused", "drain", "reset", "version")  # fmt: skip
_LISTED_MAX = 3


class OpenAudit:
    """Where calls are noted, of a server that asks nobody who he is."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def who(self, _context: CallContext) -> str:
        return NOBODY

    def note(self, who: str, where: str, what: str, on: str, result: str) -> None:
        self._log.note(who, where, what, on, result)


class GuardedAudit(OpenAudit):
    """Of a server with access rules, also while there are none: hears from its guard what is refused.

    Somebody who may do nothing can call as often as he likes. He must not fill the files until what operators did is
    gone from them: so of what is refused to him some is noted each minute, and the rest is counted.
    """

    def __init__(self, log: AuditLog, access: AccessRules, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(log)
        self._access = access
        self._now_s = now_s
        self._refused: dict[str, _Refused] = {}  # by caller
        access.guard.refusals = self

    def who(self, context: CallContext) -> str:
        """Raises RefusedError."""
        authentication = self._access.guard.authentication
        if authentication is None:
            return UNKNOWN if self._access.is_asked else NOBODY
        return str(authentication.identify(context).identity)

    def note(self, who: str, where: str, what: str, on: str, result: str) -> None:
        if result in REFUSALS:
            so_far = self._refused.get(who)
            if so_far is None:
                if len(self._refused) >= REFUSED_MAX:
                    self._refused.clear()
                so_far = self._refused[who] = _Refused()
            more = so_far.take(self._now_s())
            if more is None:
                return
            on = f"{on} (and {more} calls before)".lstrip() if more else on
        super().note(who, where, what, on, result)

    def refused(self, path: str, context: CallContext, identity: Identity | None, on: str, reason: str) -> None:
        """By the guard. What operators call is noted where it ends."""
        what = path.rpartition(".")[2]  # e.g. /holdfast.proto.v1.Tasks/Enqueue
        if what not in OPERATOR_CALLS and reason in REFUSALS:
            self.note(UNKNOWN if identity is None else str(identity), where(context), what, on, reason)


class _Refused:
    """To one caller, of late."""

    __slots__ = ("_count", "_since_s")

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._count = 0

    def take(self, now_s: float) -> int | None:
        """One more: how many before it were not noted; None if this is not noted either."""
        more = 0
        if now_s - self._since_s >= REFUSALS_SECONDS:
            more = max(0, self._count - REFUSALS_MAX)
            self._since_s, self._count = now_s, 0
        self._count += 1
        return more if self._count <= REFUSALS_MAX else None


def audited(served: Served, service: str, audit: OpenAudit) -> Served:
    is_operators = f"{service.rpartition('.')[2]}/{served.name}" in OPERATOR_CALLS
    return Audited(served, service, audit) if is_operators else served


class Audited(Served):
    """A method whose calls are noted. What it is without that may change meanwhile, e.g. with the access rules."""

    __slots__ = ("_audit", "_inner", "_request_type", "_what")

    def __init__(self, inner: Served, service: str, audit: OpenAudit) -> None:
        super().__init__(
            inner.name, inner.limit, inner.observed, self._begin, encode=inner.encode, is_driven=inner.is_driven
        )
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[inner.name]
        self._request_type: type[Message] = GetMessageClass(method.input_type)
        self._what = f"{service.rpartition('.')[2]}/{inner.name}"
        self._inner = inner
        self._audit = audit

    def _begin(self, context: CallContext) -> Answer:
        call = _Noted(self._audit, self._who(context), where(context), self._what)  # later the context may be empty
        try:
            answer = self._inner.begin(context)
        except Exception as error:
            call.note("", error)
            raise
        return lambda data: self._answer(call, answer, data)

    def _answer(self, call: "_Noted", answer: Answer, data: bytes) -> Any:
        on = subject(self._request_type, data)
        try:
            answered = answer(data)
        except Exception as error:
            call.note(on, error)
            raise
        return _until_answered(call, on, answered)

    def _who(self, context: CallContext) -> str:
        try:
            return self._audit.who(context)
        except Exception:  # noqa: BLE001 - whoever cannot be told is noted as such
            return UNKNOWN


class _Noted:
    """A call that is noted when it ends."""

    __slots__ = ("_audit", "_what", "_where", "_who")

    def __init__(self, audit: OpenAudit, who: str, where: str, what: str) -> None:
        self._audit = audit
        self._who = who
        self._where = where
        self._what = what

    def note(self, on: str, error: BaseException | None) -> None:
        result = "OK" if error is None else str(getattr(error, "reason", "") or type(error).__name__)
        self._audit.note(self._who, self._where, self._what, on, result)


async def _until_answered(call: _Noted, on: str, answered: Any) -> Any:
    try:
        answer = await answered
    except BaseException as error:  # also the end of a caller's patience: it may have been done
        call.note(on, error)
        raise
    call.note(on, None)
    return answer


def where(context: Any) -> str:
    """From which address a call came."""
    peer = getattr(context, "peer", None)
    return str(peer()).removeprefix("ipv4:") if callable(peer) else ""


def subject(request_type: type[Message], data: bytes) -> str:
    """On what: names and ids, and how many more there are."""
    try:
        request = request_type.FromString(data)
    except DecodeError:
        return "a request that cannot be read"
    found = []
    for field, value in request.ListFields():
        if field.name not in _NAMED:
            continue
        if isinstance(value, str | int | bool):
            found.append(f"{field.name}={value}")
        elif field.is_repeated:
            texts = [item if isinstance(item, str) else str(getattr(item, "task_id", "")) for item in value]
            more = f" and {len(texts) - _LISTED_MAX} more" if len(texts) > _LISTED_MAX else ""
            found.append(f"{field.name}={','.join(texts[:_LISTED_MAX])}{more}")
    return " ".join(found)
