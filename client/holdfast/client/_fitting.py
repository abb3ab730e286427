"""Requests of values that may not fit, and answers of one outcome per item: what all files between values and messages
have in common."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from holdfast.client.errors import InvalidArgument, Rejected, UnexpectedAnswer, rejected
from holdfast.client.models import Choice, RetryPolicy, TaskState
from holdfast.proto.v1 import tasks_pb2 as pb

_PLAIN = frozenset({bytes, float, int, list, str})  # neither nothing, nor one thing that is taken for another

T = TypeVar("T")
ChoiceT = TypeVar("ChoiceT", bound=Choice)
MessageT = TypeVar("MessageT", bound=Message)
RejectedT = TypeVar("RejectedT", bound=Rejected)
NumberT = TypeVar("NumberT", bound=float)

# What protobuf raises for a value that does not fit its field. Its own text names no field and may show the value.
MISFITS = (TypeError, ValueError, OverflowError, AttributeError)

# How the field of an enqueue begins that is one of its tasks, or, without a place, of some of them.
_IN_TASKS = re.compile(r"tasks(\[\d+\])?(?=\.|$)")

_STATES: dict[int, TaskState] = {
    pb.TASK_STATE_READY: TaskState.READY,
    pb.TASK_STATE_CLAIMED: TaskState.CLAIMED,
    pb.TASK_STATE_DELAYED: TaskState.DELAYED,
    pb.TASK_STATE_RETRY_PENDING: TaskState.RETRY_PENDING,
    pb.TASK_STATE_SUCCEEDED: TaskState.SUCCEEDED,
    pb.TASK_STATE_DEAD: TaskState.DEAD,
    pb.TASK_STATE_CANCELLED: TaskState.CANCELLED,
}


# ---------------------------------------------------------------------------------------------- requests


def build(make: Callable[[], T], where: str) -> T:
    try:
        return make()
    except InvalidArgument:  # a ValueError, too, but one that says more
        raise
    except MISFITS as found:
        raise misfit(where, found) from None


def fit(kind: type[MessageT], where: str = "", /, **values: Any) -> MessageT:
    """A message of these values; what does not fit is refused by its name, after `where`. A value that is a mapping is
    a message of its own, and None is nothing for fields that can be left out."""
    try:
        return kind(**_without_gaps(kind, values))
    except MISFITS as found:
        raise field_misfit(kind, values, where, found) from None


def number(value: NumberT) -> NumberT:
    """TypeError for True and False, which protobuf takes for 1 and 0."""
    if value is True or value is False:
        raise TypeError
    return value


def check_number(kind: type[Message], name: str, value: object) -> None:
    """The same for a value of a field that may hold anything."""
    if isinstance(value, bool) and kind.DESCRIPTOR.fields_by_name[name].type != FieldDescriptor.TYPE_BOOL:
        raise TypeError


def _without_gaps(kind: type[Message], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Protobuf takes None for a zero or an empty text; TypeError where that is something else than nothing."""
    for name, value in values.items():
        if type(value) in _PLAIN:
            continue
        check_number(kind, name, value)
        if value is None and not kind.DESCRIPTOR.fields_by_name[name].has_presence:
            raise TypeError
        if isinstance(value, Mapping) and (inner := _message_of(kind, name)) is not None:
            _without_gaps(inner, value)
    return values


def parts(value: object, *names: str) -> dict[str, Any]:
    """Those of a value's fields that it has, for `field_misfit`."""
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def several(values: Sequence[str]) -> Sequence[str]:
    """A lone string is a sequence of strings too, and would be taken letter by letter."""
    if isinstance(values, str):
        raise TypeError
    return values


class _WrongChoiceError(ValueError):
    """Its text says what there is to choose from."""


def choice_of(choice: ChoiceT, kind: type[ChoiceT]) -> ChoiceT:
    """A choice may also be given by its name; ValueError if there is none of that name."""
    try:
        chosen = kind(choice)
    except ValueError:
        chosen = None
    if chosen is None or chosen.name == "UNKNOWN":  # the latter is known to newer clients only
        names = ", ".join(member.lower() for member in kind if member.name != "UNKNOWN")
        raise _WrongChoiceError(f"one of {names}, but got {choice!r}")
    return chosen


def number_of(choice: ChoiceT, numbers: Mapping[ChoiceT, T], kind: type[ChoiceT]) -> T:
    """What a choice is on the wire."""
    return numbers[choice_of(choice, kind)]


def whole(name: str, value: int, low: int, high: int | None) -> None:
    """Checks a number that is no field of a message, or one of another name. `high`: None if there is no end."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise misfit(name, TypeError(), "a whole number")
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidArgument(f"Expected {name} to be {wanted}, but it is not.", reason="OUT_OF_RANGE", field=name)


def at_most_one_start(run_at_ms: int | None, delay_ms: int | None, where: str) -> None:
    if run_at_ms is not None and delay_ms is not None:
        raise both_given("run_at_ms", "delay_ms", where)


def check_pauses(retry: RetryPolicy, where: str) -> None:
    """A first pause that is longer than the longest is a contradiction, as in the policy of a queue."""
    base_ms, cap_ms = retry.base_ms, retry.cap_ms
    if isinstance(base_ms, int) and isinstance(cap_ms, int) and base_ms > cap_ms:
        raise InvalidArgument(
            f"Expected {where}.base_ms of at most cap_ms ({cap_ms}), but it is {base_ms}.",
            reason="OUT_OF_RANGE",
            field=f"{where}.base_ms",
        )


def both_given(one: str, other: str, where: str) -> InvalidArgument:
    return InvalidArgument(
        f"Expected at most one of {one} and {other}, but both are set.",
        reason="INVALID_FIELD",
        field=f"{where}.{one}",
    )


def misfit(where: str, found: Exception, wanted: str = "a value of its type") -> InvalidArgument:
    """`wanted`: what the field holds, for a value that is something else."""
    if isinstance(found, UnicodeError):
        problem = "hold text that can be written as UTF-8, but it cannot"
    elif isinstance(found, _WrongChoiceError):
        problem = f"be {found}"
    elif isinstance(found, ValueError | OverflowError):
        problem = "hold a value that its field can hold, but it cannot"
    else:
        problem = f"hold {wanted}, but it is of another type"
    return InvalidArgument(f"Expected {where} to {problem}.", reason="INVALID_FIELD", field=where)


def field_misfit(kind: type[Message], values: Mapping[str, Any], where: str, found: Exception) -> InvalidArgument:
    """Finds which of the values does not fit a message of this kind, once one does not."""
    for name, value in values.items():
        try:
            kind(**_without_gaps(kind, {name: value}))
        except MISFITS as of_this_one:
            field = f"{where}.{name}" if where else name
            if isinstance(value, Mapping) and (inner := _message_of(kind, name)) is not None:
                return field_misfit(inner, value, field, of_this_one)
            return misfit(field, of_this_one, wanted_by(kind, name))
    return misfit(where or "the request", found)


def _message_of(kind: type[Message], name: str) -> type[Message] | None:
    """What a field of this name holds, if that is a message."""
    field = kind.DESCRIPTOR.fields_by_name.get(name)
    if field is None or field.message_type is None or field.message_type.GetOptions().map_entry:
        return None
    return GetMessageClass(cast(Descriptor, field.message_type))


def wanted_by(kind: type[Message], name: str) -> str:
    """What a field of this name holds, in words."""
    field = kind.DESCRIPTOR.fields_by_name.get(name)
    if field is not None and field.message_type is not None and field.message_type.GetOptions().map_entry:
        return "texts by names that are texts"
    if field is None or field.message_type is not None:
        return "a value of its type"
    if field.is_repeated:
        return "a list of texts" if field.type == field.TYPE_STRING else "a list of its type"
    words = {
        field.TYPE_STRING: "text",
        field.TYPE_BYTES: "bytes",
        field.TYPE_BOOL: "True or False",
        field.TYPE_DOUBLE: "a number",
    }
    return words.get(field.type, "a whole number")


# ----------------------------------------------------------------------------------------------- answers


class _Outcome(Protocol):
    @property
    def rejection(self) -> pb.Rejection: ...
    # Named as protobuf names it.
    def WhichOneof(self, oneof_group: str, /) -> str | None: ...  # noqa: N802


OutcomeT = TypeVar("OutcomeT", bound=_Outcome)


def read_each(outcomes: Sequence[OutcomeT], asked: int, done: str, read: Callable[[OutcomeT], T]) -> list[T | Rejected]:
    """One result per item, in order; `done` is the case of the oneof that is not a rejection."""
    if len(outcomes) != asked:
        raise UnexpectedAnswer(f"{len(outcomes)} outcomes for {asked} items")
    results: list[T | Rejected] = []
    for outcome in outcomes:
        case = outcome.WhichOneof("outcome")
        if case == done:
            results.append(read(outcome))
        elif case == "rejection":
            results.append(rejection_of(outcome.rejection))
        else:
            raise UnexpectedAnswer("an outcome of an unknown kind")
    return results


def only(outcomes: list[T | Rejected]) -> T:
    """The outcome of a call on one item."""
    [outcome] = outcomes
    if isinstance(outcome, Rejected):
        raise outcome
    return outcome


def at_place(refusal: RejectedT, place: int) -> RejectedT:
    """A refusal names its task by the place in the request; whoever asked knows of another one.

    >>> at_place(InvalidArgument("Expected tasks[3].priority from 0 to 9.", field="tasks[3].priority"), 1003)
    InvalidArgument('Expected tasks[1003].priority from 0 to 9.', reason='', field='tasks[1003].priority')
    >>> at_place(InvalidArgument("Expected fewer names.", field="tasks.headers"), 7).field
    'tasks[7].headers'
    """
    named = _IN_TASKS.match(refusal.field)
    if named is None:
        return refusal
    was, now = named[0], f"tasks[{place}]"
    field = refusal.field.replace(was, now, 1)
    # Its place may be in the sentence more than once; the bare word need not mean the field.
    message = refusal.message.replace(*((was, now) if "[" in was else (refusal.field, field)))
    return changed(refusal, message=message, field=field)


def changed(refusal: RejectedT, *, message: str | None = None, field: str | None = None) -> RejectedT:
    """Another of its kind."""
    return type(refusal)(
        refusal.message if message is None else message,
        reason=refusal.reason,
        field=refusal.field if field is None else field,
        retry_after_ms=refusal.retry_after_ms,
        metadata=refusal.metadata,
    )


def state_of(number: int) -> TaskState:
    return _STATES.get(number, TaskState.UNKNOWN)


def wire_state(state: TaskState) -> int:
    """ValueError for what no server knows."""
    return pb.TaskState.Value(f"TASK_STATE_{TaskState(state).name}")


def rejection_of(message: pb.Rejection) -> Rejected:
    return rejected(message.reason, message.message, field=message.field, retry_after_ms=max(0, message.retry_after_ms))
