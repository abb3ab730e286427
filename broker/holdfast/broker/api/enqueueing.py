"""Accepting tasks, one by one and in runs."""

from collections.abc import Iterator, Sequence

from holdfast.broker.api.answering import Answering, in_order
from holdfast.broker.api.conversion import fill_accepted
from holdfast.broker.api.home_guard import HomeGuard
from holdfast.broker.api.validation import Validator
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.run_specs import CheckedRun
from holdfast.broker.replica.shard import Shard
from holdfast.machine.entries import Enqueue, Entry
from holdfast.machine.ids import format_task_id
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

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        validator, validate = self._validator, self._answering.validate
        count = len(request.tasks)
        counts = [len(run.payloads) for run in request.runs]
        validator.batch(count + sum(counts), "runs.payloads" if counts else "tasks")
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        new_tasks, refused = validate(request.tasks, "tasks", validator.new_task, now_ms, policies)
        self._homes.check_tasks(new_tasks)
        if not counts:
            del request  # the entry has the payloads: a second copy would wait for the log with it
            outcomes = await self._shard.submit(Enqueue(now_ms, new_tasks)) if new_tasks else []
            response = pb.EnqueueResponse()
            self._fill_tasks(response, count, outcomes, refused)
            return response
        runs, refused_runs = validate(request.runs, "runs", validator.new_run, now_ms, policies)
        self._homes.check_tasks([run.task for run in runs])
        del request
        outcomes, of_runs = await self._submit(now_ms, new_tasks, runs)
        response = pb.EnqueueResponse()
        if count:
            self._fill_tasks(response, count, outcomes, refused)
        self._fill_runs(response, counts, zip(runs, of_runs, strict=True), refused_runs)
        return response

    async def _submit(
        self, now_ms: int, new_tasks: list[NewTask], runs: list[CheckedRun]
    ) -> tuple[list[Outcome], list[Outcome | None]]:
        """The outcomes of tasks and of runs; none of a run of which nothing was left."""
        some = [run for run in runs if run.sizes]
        entries: list[Entry] = []
        if new_tasks:
            entries.append(Enqueue(now_ms, new_tasks))
        if some:
            entries.append(EnqueueRuns(now_ms, [run.new_run() for run in some]))
        if len(entries) == 1:
            applied = iter([await self._shard.submit(entries[0])])
        else:
            applied = iter(await self._shard.submit_all(entries) if entries else [])
        outcomes = next(applied) if new_tasks else []
        accepted = iter(next(applied) if some else [])
        return outcomes, [next(accepted) if run.sizes else None for run in runs]

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
                answer.first_task_id, answer.duplicate = format_task_id(outcome.task_id), outcome.duplicate
                counter = self._metrics.duplicates if outcome.duplicate else self._metrics.tasks_enqueued
                counter.inc(run.tasks)
            elif outcome is not None:
                self._answering.reject(answer, outcome, None, tasks=run.tasks)
