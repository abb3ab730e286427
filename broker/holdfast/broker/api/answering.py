"""What all calls that take a batch have in common: items are checked one by one, and each gets an outcome in order."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

from holdfast.broker.api.validation import Validator
from holdfast.broker.metrics import Metrics
from holdfast.machine import rejections
from holdfast.machine.outcomes import Outcome
from holdfast.machine.rejections import Rejection
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import RefusedError

OUTBOX_RETRY_MS = 2000

Item = TypeVar("Item")
Valid = TypeVar("Valid")
Rest = TypeVarTuple("Rest")


class HasRejection(Protocol):
    @property
    def rejection(self) -> pb.Rejection: ...


class Answering:
    """Checks the items of a batch and writes down why some are refused."""

    def __init__(self, validator: Validator, metrics: Metrics) -> None:
        self._validator = validator
        self._metrics = metrics

    def validate(
        self, items: Sequence[Item], field: str, check: Callable[[Item, *Rest], Valid], *rest: *Rest
    ) -> tuple[list[Valid], dict[int, RefusedError]]:
        """The valid items, and the refusals of the others by their place in the request's `field`. `rest`: what
        `check` gets beside the item."""
        valid: list[Valid] = []
        refused: dict[int, RefusedError] = {}
        for index, item in enumerate(items):
            try:
                valid.append(check(item, *rest))
            except RefusedError as error:
                refused[index] = error.within(f"{field}[{index}]")
        return valid, refused

    def validate_ids(self, texts: Sequence[str]) -> tuple[list[bytes], dict[int, RefusedError]]:
        self._validator.batch(len(texts), "task_ids")
        return self.validate(texts, "task_ids", lambda text: self._validator.task_id(text, ""))

    def claim_ref(self, ref: pb.ClaimRef) -> tuple[bytes, int]:
        try:
            return self._validator.claim_ref(ref)
        except RefusedError as error:
            raise error.within("claim") from None

    def reject(
        self,
        answer: HasRejection,
        outcome: Outcome | None,
        refused: RefusedError | None,
        place: str = "",
        *,
        tasks: int = 1,
    ) -> None:
        """`tasks`: how many it is about."""
        message = answer.rejection
        if refused is not None:
            message.reason = refused.reason
            message.message = refused.message
            message.field = refused.field
            message.retry_after_ms = refused.retry_after_ms
        elif isinstance(outcome, Rejection):
            message.reason, message.message = outcome.code, outcome.message
            if outcome.code == rejections.OUTBOX_FULL:
                message.retry_after_ms = OUTBOX_RETRY_MS
            elif outcome.code == rejections.REQUEST_ID_CONFLICT:
                message.field = f"{place}.request_id"
        self._metrics.rejected(message.reason).inc(tasks)


def in_order(
    count: int, outcomes: Sequence[Outcome], refused: dict[int, RefusedError]
) -> Iterable[tuple[int, Outcome | None]]:
    """The outcome of each item of a request, None for those that were refused before they were proposed."""
    if not refused:
        return enumerate(outcomes)
    applied = iter(outcomes)
    return [(index, None if index in refused else next(applied)) for index in range(count)]


def succeeded(outcomes: Sequence[Outcome]) -> int:
    return sum([not isinstance(outcome, Rejection) for outcome in outcomes])
