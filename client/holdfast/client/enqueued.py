"""What becomes of many calls that an app hands over together: for each its handle, or why it was refused."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from holdfast.client._batches import take_batch
from holdfast.client._fitting import at_place, changed
from holdfast.client._unknown_outcomes import PASSING
from holdfast.client._wire import approximate_bytes
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import (
    HoldfastError,
    InvalidArgument,
    NotAllAccepted,
    OutcomeUnknown,
    Rejected,
    ServerError,
    as_rejected,
    rejected,
)
from holdfast.client.models import Accepted, NewTask

_CALL_TASKS = 1_000
_CALL_BYTES = 4 * 1024 * 1024
_TOO_LARGE = frozenset({"BATCH_TOO_LARGE", "TOO_LARGE"})
# In a row. The second one has outlasted any election; the rest need not wait for as long again, each of them.
_FAILED_CALLS_MAX = 2
_MAY_BE_ACCEPTED = (OutcomeUnknown, ServerError)

HandleT = TypeVar("HandleT")


class Enqueued(list[HandleT | Rejected]):
    """What has become of each call, in order: the handle of its task, or a `Rejected` that says why there is none.

    An `OutcomeUnknown` or a `ServerError` in the place of a handle says that the task may have been accepted, any other
    refusal that it was not.

    >>> outcomes = Enqueued(["a handle", InvalidArgument("Too much.", field="tasks[1].payload")])
    >>> outcomes.accepted, outcomes.refused
    (['a handle'], {1: InvalidArgument('Too much.', reason='', field='tasks[1].payload')})
    >>> Enqueued(["a handle", "another"]).handles()
    ['a handle', 'another']
    >>> outcomes.handles()
    Traceback (most recent call last):
    ...
    holdfast.client.errors.NotAllAccepted: 1 of 2 calls were refused; `accepted` has the handles of the others, \
`refused` says why. The first, tasks[1]: tasks[1].payload: Too much. (no reason given)
    """

    def __init__(self, outcomes: Iterable[HandleT | Rejected] = (), repeatable: Sequence[int] = ()) -> None:
        super().__init__(outcomes)
        # Where to hand the call over again: what it was refused for may pass, and no second task can come of it,
        # because nothing was done or because it has a request_id.
        self.repeatable = list(repeatable)

    @property
    def accepted(self) -> list[HandleT]:
        """The handles, without the refusals."""
        return [outcome for outcome in self if not isinstance(outcome, Rejected)]

    @property
    def refused(self) -> dict[int, Rejected]:
        """The refusals by their places."""
        return {place: outcome for place, outcome in enumerate(self) if isinstance(outcome, Rejected)}

    def handles(self) -> list[HandleT]:
        """The handles of all calls. Raises `NotAllAccepted`, which has those of the others, if one was refused."""
        refused = self.refused
        if refused:
            raise NotAllAccepted(self.accepted, refused, self.repeatable) from next(iter(refused.values()))
        return self.accepted


async def enqueue_each(
    client: AsyncClient, tasks: Sequence[NewTask | Rejected], handle: Callable[[Accepted], HandleT]
) -> Enqueued[HandleT]:
    """In as many calls as it needs, one after the other, so that tasks stay in order. What was refused before it could
    be sent stays in its place."""
    outcomes: dict[int, Accepted | Rejected] = {}
    waiting: dict[int, NewTask] = {}
    for place, task in enumerate(tasks):
        if isinstance(task, Rejected):
            outcomes[place] = task
        else:
            waiting[place] = task
    calls, line = _Calls(client), deque(waiting)
    while places := take_batch(line, _CALL_TASKS, _CALL_BYTES, lambda place: _size_bytes(waiting[place])):
        answers = await calls.outcomes([waiting[place] for place in places])
        outcomes |= zip(places, answers, strict=True)
    results: list[HandleT | Rejected] = []
    repeatable: list[int] = []
    for place in range(len(tasks)):
        outcome = outcomes[place]
        if isinstance(outcome, Accepted):
            results.append(handle(outcome))
            continue
        has_request_id = place in waiting and bool(waiting[place].request_id)
        results.append(_refusal_of(outcome, place, has_request_id))
        if _is_repeatable(outcome, has_request_id):
            repeatable.append(place)
    return Enqueued(results, repeatable)


class _Calls:
    """Of one batch, each of which is answered or has failed by itself."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._failed = 0  # in a row
        self._failure: Rejected | None = None

    async def outcomes(self, tasks: Sequence[NewTask]) -> Sequence[Accepted | Rejected]:
        """Of one call, or of several if the server takes less in one than others do."""
        if self._failed >= _FAILED_CALLS_MAX:
            return [_not_sent(self._failed, self._failure)] * len(tasks)
        try:
            answers: Sequence[Accepted | Rejected] = await self._client.enqueue_many(tasks)
        except InvalidArgument as refused:
            if len(tasks) > 1 and refused.reason in _TOO_LARGE:
                half = len(tasks) // 2
                return [*await self.outcomes(tasks[:half]), *await self.outcomes(tasks[half:])]
            answers = [refused] * len(tasks)
        except HoldfastError as error:
            self._failed += 1
            self._failure = as_rejected(error)
            return [self._failure] * len(tasks)
        self._failed = 0
        return answers


def _not_sent(calls: int, failure: Rejected | None) -> Rejected:
    sentence = f"Not sent, because the {calls} calls before it failed, the last one so: {failure}"
    return rejected("NOT_LEADER", sentence, retry_after_ms=max(1, failure.retry_after_ms if failure else 0))


def _size_bytes(task: NewTask) -> int:
    try:
        return approximate_bytes(task)
    except (TypeError, AttributeError):  # it will be refused by the field that does not fit
        return 0


def _refusal_of(refusal: Rejected, place: int, has_request_id: bool) -> Rejected:
    """Names the task by its place among all, and says what to do if nobody knows whether it was accepted."""
    refusal = at_place(refusal, place)
    field, message = refusal.field, refusal.message
    if isinstance(refusal, InvalidArgument) and not field.startswith("tasks["):
        field = f"tasks[{place}]"  # of a call that had no other task
    if isinstance(refusal, _MAY_BE_ACCEPTED):
        advice = (
            "hand it over again, its request_id makes one task of both"
            if has_request_id
            else "it has no request_id, so a second task may come of it if it is handed over again"
        )
        message = f"{message} It may have been accepted: {advice}."
    return changed(refusal, message=message, field=field)  # one for each, because errors are raised


def _is_repeatable(refusal: Rejected, has_request_id: bool) -> bool:
    if isinstance(refusal, _MAY_BE_ACCEPTED):
        return has_request_id
    return refusal.retry_after_ms > 0 or refusal.reason in PASSING
