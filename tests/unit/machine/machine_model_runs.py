"""The model of the machine, and runs: what is said of many tasks at once is told task by task."""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.machine import entries, outcomes, run_entries
from holdfast.machine.entries import AckItem, Entry
from holdfast.machine.new_runs import NewRun
from holdfast.machine.new_tasks import NewTask
from tests.unit.machine.machine_model import Model
from tests.unit.machine.machine_model_task import ids_from, tasks_of
from tests.unit.machine.machine_picture import Answer


def ids_of_new_runs(entry: Entry, done: Iterable[outcomes.Outcome]) -> list[bytes]:
    """The tasks that an entry has made in runs."""
    items = entry.items if isinstance(entry, run_entries.EnqueueRuns) else []
    made: list[bytes] = []
    for new, outcome in zip(items, done, strict=False):
        if isinstance(new, NewRun) and isinstance(outcome, outcomes.AcceptedRun) and not outcome.duplicate:
            count = new.tasks - len(outcome.others)
            made += ids_from(outcome.task_id, count) if count else []
    return made


class ModelWithRuns(Model):
    def apply(self, entry: Entry) -> list[Answer]:
        rules: dict[type[Entry], Callable[[Any], list[Answer]]] = {
            run_entries.EnqueueRuns: self._enqueue_runs,
            run_entries.AckRanges: self._ack_ranges,
            run_entries.PurgeRanges: self._purge_ranges,
        }
        if type(entry) not in rules:
            return super().apply(entry)
        self.now_ms = max(self.now_ms, entry.now_ms)
        self.timings = []
        return rules[type(entry)](entry)

    def _enqueue_runs(self, entry: run_entries.EnqueueRuns) -> list[Answer]:
        """Task by task, but that the request id is of all of them, and stands for the first."""
        answers: list[Answer] = []
        for new in entry.items:
            if isinstance(new, NewTask):
                answers.append(self._enqueue(new, entries.Enqueue(self.now_ms, [])))
                continue
            tasks = tasks_of(new)
            if new.request_ids:
                answers.append(self._enqueue_by_own_ids(tasks))
                continue
            known = self._request(tasks[0]._replace(request_id=new.request_id))
            if known is not None:
                answers.append(("AcceptedRun", known[0], True, ()))
                continue
            first, *_ = [self._make(task) for task in tasks]
            if new.request_id:
                handle = ("request", new.queue, new.request_id)
                self.memory[handle] = (first, new.dedup_window_ms, 0), self.now_ms + new.dedup_window_ms
            answers.append(("AcceptedRun", first, False, ()))
        return answers

    def _enqueue_by_own_ids(self, tasks: list[NewTask]) -> Answer:
        """Simply task by task."""
        answers = [self._enqueue(task, entries.Enqueue(self.now_ms, [])) for task in tasks]
        new = [answer[1] for answer in answers if answer[0] == "Accepted" and not answer[2]]
        others = [(place, answer) for place, answer in enumerate(answers) if answer[1] not in new or answer[2]]
        return "AcceptedRun", new[0] if new else b"", False, tuple(others)

    def _ack_ranges(self, entry: run_entries.AckRanges) -> list[Answer]:
        answers: list[Answer] = []
        for task_id, token, count in entry.ranges:
            items = [
                AckItem(one, token + (index << 64), None, ()) for index, one in enumerate(ids_from(task_id, count))
            ]
            codes = [self._ack(item, entry) for item in items]
            answers.append(
                ("AckedRange", tuple((index, code) for index, code in enumerate(codes) if isinstance(code, str)))
            )
        return answers

    def _purge_ranges(self, entry: run_entries.PurgeRanges) -> list[Answer]:
        nobody = entries.Purge(entry.now_ms, [])
        purged = [[self._purge(one, nobody) for one in ids_from(*item)] for item in entry.ranges]
        return [("Changed", sum(not isinstance(answer, str) for answer in answers)) for answers in purged]
