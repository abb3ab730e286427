"""Accepting tasks, one by one and in runs."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from holdfast.broker.api.answering import Answering, in_order
from holdfast.broker.api.conversion import fill_accepted
from holdfast.broker.api.gathering import Gathering
from holdfast.broker.api.home_guard import HomeGuard
from holdfast.broker.api.validation import Validator
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.run_specs import CheckedRun
from holdfast.broker.replica.shard import Shard
from holdfast.machine.ids import format_task_id
from holdfast.machine.new_runs import NewRun
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, AcceptedRun, Outcome
from holdfast.machine.run_entries import EnqueueRuns
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import RefusedError


class Enqueueing:
    """Of one shard."""

    def __init__(
        self, shard: Shard, validator: Validator, answering: Answering, homes: HomeGuard, metrics: Metrics
    ) -> None:
        self._shard = shard
        self._validator = validator
        self._answering = answering
        self._homes = homes
        self._metrics = metrics
        self._gathering = Gathering(shard)

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        validator, validate = self._validator, self._answering.validate
        count = len(request.tasks)
        counts = [len(run.payloads) for run in request.runs]
        validator.batch(count + sum(counts), "runs.payloads" if counts else "tasks")
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        members, refused = validate(request.tasks, "tasks", validator.new_member, now_ms, policies)
        new_tasks = [member.task for member in members]
        self._homes.check_tasks(new_tasks)
        if not counts:
            del request  # the entry has the payloads: a second copy would wait for the log with it
            outcomes = await self._gathering.submit(members) if members else []
            response = pb.EnqueueResponse()
            self._fill_tasks(response, count, outcomes, refused)
            return response
        runs, refused_runs = validate(request.runs, "runs", validator.new_run, now_ms, policies)
        self._homes.check_tasks([run.task for run in runs])
        del request
        items = _in_order(new_tasks, [place for place in range(count) if place not in refused], runs)
        outcomes = await self._shard.submit(EnqueueRuns(now_ms, items)) if items else []
        response = pb.EnqueueResponse()
        applied = list(zip(items, outcomes, strict=True))
        if count:
            self._fill_tasks(response, count, [done for new, done in applied if isinstance(new, NewTask)], refused)
        of_runs = iter([done for new, done in applied if isinstance(new, NewRun)])
        checked = ((run, next(of_runs) if run.sizes else None) for run in runs)
        self._fill_runs(response, counts, checked, refused_runs)
        return response

    def _fill_tasks(
        self, response: pb.EnqueueResponse, count: int, outcomes: Sequence[Outcome], refused: dict[int, RefusedError]
    ) -> None:
        accepted = duplicates = 0
        for index, outcome in in_order(count, outcomes, refused):
            item = response.outcomes.add()
            if isinstance(outcome, Accepted):
                fill_accepted(item.accepted, outcome)
                accepted += 1
                duplicates += outcome.duplicate
            else:
                self._answering.reject(item, outcome, refused.get(index), f"tasks[{index}]")
        self._metrics.tasks_enqueued.inc(accepted - duplicates)
        if duplicates:
            self._metrics.duplicates.inc(duplicates)

    def _fill_runs(
        self,
        response: pb.EnqueueResponse,
        counts: list[int],
        checked: Iterator[tuple[CheckedRun, Outcome | None]],
        refused: dict[int, RefusedError],
    ) -> None:
        for index, count in enumerate(counts):
            answer = response.runs.add()
            if index in refused:
                self._answering.reject(answer, None, refused[index], tasks=count)
                continue
            run, outcome = next(checked)
            for place, error in run.refused.items():
                self._answering.reject(answer.refused.add(at=place), None, error.within(f"runs[{index}]"))
            if isinstance(outcome, AcceptedRun):
                self._fill_run(answer, run, outcome, index, count)
            elif outcome is not None:
                self._answering.reject(answer, outcome, None, tasks=run.tasks)

    def _fill_run(self, answer: pb.RunOutcome, run: CheckedRun, outcome: AcceptedRun, index: int, count: int) -> None:
        """`index` of the run, and how many tasks it had."""
        if outcome.task_id:
            answer.first_task_id, answer.duplicate = format_task_id(outcome.task_id), outcome.duplicate
            counter = self._metrics.duplicates if outcome.duplicate else self._metrics.tasks_enqueued
            counter.inc(run.tasks - len(outcome.others))
        if not outcome.others:
            return
        places = run.places(count)
        for known, other in outcome.others:
            place = places[known]
            if isinstance(other, Accepted):
                fill_accepted(answer.duplicates.add(at=place).accepted, other)
                self._metrics.duplicates.inc()
            else:
                self._answering.reject(answer.refused.add(at=place), other, None)
                answer.refused[-1].rejection.field = f"runs[{index}].request_ids[{place}]"
        if run.refused:
            answer.refused.sort(key=lambda item: item.at)


def _in_order(
    new_tasks: Sequence[NewTask], places: Sequence[int], runs: Sequence[CheckedRun]
) -> list[NewRun | NewTask]:
    """Tasks and what is left of runs, in the order of the call. `places`: of the tasks among all that it brought."""
    items: list[NewRun | NewTask] = []
    first = 0
    for run in runs:
        if run.behind is None:
            behind = len(places)
        else:
            behind = max(first, bisect_left(places, run.behind))
        items += new_tasks[first:behind]
        first = behind
        if run.sizes:
            items.append(run.new_run())
    return [*items, *new_tasks[first:]]
