"""Which calls are noted in the audit log, and what of them: who, from where, what, on what, with which result. Never
what a task holds.

What operators change is noted however it ends; of all other calls only that they were refused to somebody.
"""

from collections.abc import Callable
from typing import Any, Protocol

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

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

# What tells on what something was done. Nothing else of a request is ever noted.
_NAMED = ("queue", "name", "node", "shard", "worker", "task_id", "task_ids", "items", "to", "desired", "by", "dry_run",
          "pause", "paused", "drain", "reset")  # fmt: skip
_LISTED_MAX = 3

Who = Callable[[CallContext], str]


class Audit(Protocol):
    """Where calls are noted, and who is said to have made them."""

    log: AuditLog
    can_refuse: bool  # whether callers are asked who they are

    def who(self, context: CallContext) -> str: ...


class OpenAudit:
    """Of a server that asks nobody who he is: calls that are not an operator's are left alone."""

    can_refuse = False

    def __init__(self, log: AuditLog) -> None:
        self.log = log

    def who(self, _context: CallContext) -> str:
        return NOBODY


def audited(served: Served, service: str, audit: Audit) -> Served:
    is_operators = f"{service.rpartition('.')[2]}/{served.name}" in OPERATOR_CALLS
    return Audited(served, service, audit) if is_operators or audit.can_refuse else served


class Audited(Served):
    """A method whose calls are noted. What it is without that may change meanwhile, e.g. with the access rules."""

    __slots__ = ("_audit", "_inner", "_is_operators", "_request_type", "_what")

    def __init__(self, inner: Served, service: str, audit: Audit) -> None:
        super().__init__(
            inner.name, inner.limit, inner.observed, self._begin, encode=inner.encode, is_driven=inner.is_driven
        )
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[inner.name]
        self._request_type: type[Message] = GetMessageClass(method.input_type)
        self._what = f"{service.rpartition('.')[2]}/{inner.name}"
        self._is_operators = self._what in OPERATOR_CALLS
        self._inner = inner
        self._audit = audit

    def _begin(self, context: CallContext) -> Answer:
        try:
            answer = self._inner.begin(context)
        except Exception as error:
            self._note(context, "", error)
            raise
        return lambda data: self._answer(context, answer, data)

    def _answer(self, context: CallContext, answer: Answer, data: bytes) -> Any:
        on = subject(self._request_type, data) if self._is_operators else ""
        try:
            answered = answer(data)
        except Exception as error:
            self._note(context, on, error)
            raise
        return self._until_answered(context, on, answered) if self._is_operators else answered

    async def _until_answered(self, context: CallContext, on: str, answered: Any) -> Any:
        try:
            answer = await answered
        except BaseException as error:  # also the end of a caller's patience: it may have been done
            self._note(context, on, error)
            raise
        self._note(context, on, None)
        return answer

    def _note(self, context: CallContext, on: str, error: BaseException | None) -> None:
        result = "OK" if error is None else str(getattr(error, "reason", "") or type(error).__name__)
        if self._is_operators or result in REFUSALS:
            self._audit.log.note(self._who(context), where(context), self._what, on, result)

    def _who(self, context: CallContext) -> str:
        try:
            return self._audit.who(context)
        except Exception:  # noqa: BLE001 - whoever cannot be told is noted as such
            return "unknown"


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
