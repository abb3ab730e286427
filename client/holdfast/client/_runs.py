"""Batches of new tasks. Those that share everything but their payloads and request ids travel as runs: what they share
once, and one id that the client makes up for all of them, or their own. Outcomes come back for each task, in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from holdfast.client import _wire
from holdfast.client._fitting import MISFITS, misfit
from holdfast.client._grouping import in_order, may_be_in_a_run
from holdfast.client._lazy import LazyList
from holdfast.client._places import Places
from holdfast.client._request_ids import add_automatic_keys, is_without_key, told_apart
from holdfast.client.errors import InvalidArgument, Rejected, UnexpectedAnswer
from holdfast.client.models import Accepted, NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.placing import specs_of
from holdfast.routing.task_ids import later_task_ids, shard_of_task


class EnqueueBatch:
    """The request of a batch, and what its answer says of each task."""

    def __init__(self, tasks: Sequence[NewTask], *, in_runs: bool = True) -> None:
        """`in_runs`: may their ids be ids of runs? Not of tasks that are repeated one by one."""
        alone, runs, behind = in_order(tasks) if in_runs else ([*range(len(tasks))], [], [])
        single = [tasks[place] for place in alone]
        self._set(_wire.enqueue_request(single, alone), alone, runs)
        self._heads = [*single, *(tasks[places[0]] for places in runs)]
        for places, before in zip(runs, behind, strict=True):
            _put_run(self.request, tasks, places, before if before < len(alone) else None)

    def _set(self, request: pb.EnqueueRequest, alone: Sequence[int], runs: Sequence[Sequence[int]]) -> None:
        self.request = request
        self._places: Places[Accepted] = Places("tasks", "runs", alone, runs)
        self._told_apart: Sequence[int] = ()

    @classmethod
    def of_payloads(cls, task: NewTask, payloads: Sequence[bytes]) -> Self:
        """One task for each payload. Those with something that no run has go one by one."""
        _refuse_own(task)
        if len(payloads) < 2 or not may_be_in_a_run(task):
            return cls([replace(task, payload=payload) for payload in payloads])
        batch = cls([])
        batch._set(batch.request, (), [range(len(payloads))])
        batch._heads = [task]
        run = batch.request.runs.add()
        _wire.put_task(run.task, task, "task")
        _put_payloads(run, payloads, lambda index: f"payloads[{index}]")
        return batch

    @classmethod
    def of_request(cls, tasks: Sequence[NewTask], request: pb.EnqueueRequest) -> Self:
        """One that was sent already. All its tasks go alone, and have ids."""
        batch = cls([])
        batch._set(request, range(len(tasks)), [])
        batch._heads = [*tasks]
        batch._told_apart = [place for place, task in enumerate(tasks) if is_without_key(task) and not task.unique_key]
        return batch

    @property
    def queues(self) -> set[str]:
        return {task.queue for task in self._heads}

    @property
    def is_repeatable(self) -> bool:
        """Without a request_id the server cannot tell a repeated task from a new one."""
        return all(spec.request_id for spec in specs_of(self.request))

    @property
    def request_ids(self) -> list[str]:
        """Of the tasks that go alone."""
        return [spec.request_id for spec in self.request.tasks]

    def add_automatic_keys(self, ttl_ms: int, generation_of: Callable[[str], int], kept: Sequence[str]) -> None:
        automatic = add_automatic_keys(self.request, self._heads, ttl_ms, generation_of, kept)
        self._told_apart = [index for index in told_apart(self._heads, automatic) if index < len(self.request.tasks)]

    def outcomes(self, response: pb.EnqueueResponse) -> list[Accepted | Rejected]:
        runs = self._places.groups
        if len(runs) == len(response.runs) == 1 and not self._places.alone and not response.outcomes:
            [outcome] = response.runs
            if not outcome.refused and not outcome.duplicates and shard_of_task(outcome.first_task_id) is not None:
                return _accepted_run(outcome.first_task_id, len(runs[0]))
        alone = _wire.enqueue_outcomes(response, len(self._places.alone), self._told_apart)
        if len(response.runs) != len(runs):
            raise UnexpectedAnswer(f"{len(response.runs)} outcomes for {len(runs)} runs")
        return self._places.join(alone, [self._of_run(index, outcome) for index, outcome in enumerate(response.runs)])

    def _of_run(self, index: int, outcome: pb.RunOutcome) -> list[Accepted | Rejected]:
        """If the run is there already, that was this call's own first attempt: others do not know its id."""
        count = len(self._places.groups[index]) - len(outcome.refused) - len(outcome.duplicates)
        try:
            ids = later_task_ids(outcome.first_task_id, count) if outcome.first_task_id else []
        except ValueError:
            raise UnexpectedAnswer("a run without the id of its first task") from None
        if len(ids) < count and not outcome.HasField("rejection"):
            raise UnexpectedAnswer("a run without the id of its first task")
        known = [(item.at, _wire.accepted(item.accepted)) for item in outcome.duplicates]
        return self._places.group(index, outcome, map(Accepted, ids), known)

    def named(self, refusal: Rejected) -> Rejected:
        """Of the whole call, with the places that the caller knows."""
        return self._places.named(refusal)


def _accepted_run(first_task_id: str, count: int) -> list[Accepted | Rejected]:
    accepted: LazyList[Accepted | Rejected] = LazyList()
    accepted.put_off(count, lambda: map(Accepted, later_task_ids(first_task_id, count)))
    return accepted


def _put_run(request: pb.EnqueueRequest, tasks: Sequence[NewTask], places: Sequence[int], behind: int | None) -> None:
    """`behind`: how many tasks that go alone come before it; None: all."""
    run, head = request.runs.add(), tasks[places[0]]
    _wire.put_task(run.task, head, f"tasks[{places[0]}]")
    run.task.ClearField("payload")
    if head.request_id:
        run.request_ids.extend([tasks[place].request_id or "" for place in places])
    if behind is not None:
        run.behind = behind
    _put_payloads(run, [tasks[place].payload for place in places], lambda index: f"tasks[{places[index]}].payload")


def _put_payloads(run: pb.TaskRun, payloads: Sequence[bytes], name: Callable[[int], str]) -> None:
    try:
        run.payloads.extend(payloads)
    except MISFITS as found:
        index = next((position for position, payload in enumerate(payloads) if not isinstance(payload, bytes)), 0)
        raise misfit(name(index), found, "bytes") from None


def _refuse_own(task: NewTask) -> None:
    """What only one of the tasks could have."""
    for field, value in (("payload", task.payload), ("request_id", task.request_id)):
        if value:
            raise InvalidArgument(
                f"Expected a task without a {field}, because each payload is a task, but it has one.",
                reason="INVALID_FIELD",
                field=f"task.{field}",
            )
