"""The model of the machine, and runs: what is said of many tasks at once is told task by task."""

from collections.abc import Callable
from typing import Any

from holdfast.machine import entries, run_entries
from holdfast.machine.entries import AckItem, Entry
from tests.unit.machine.machine_model import Model
from tests.unit.machine.machine_model_task import ids_from, tasks_of
from tests.unit.machine.machine_picture import Answer


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
        for new in entry.runs:
            tasks = tasks_of(new)
            known = self._request(tasks[0]._replace(request_id=new.request_id))
            if known is not None:
                answers.append(("AcceptedRun", known[0], True))
                continue
            first, *_ = [self._make(task) for task in tasks]
            if new.request_id:
                handle = ("request", new.queue, new.request_id)
                self.memory[handle] = (first, new.dedup_window_ms, 0), self.now_ms + new.dedup_window_ms
            answers.append(("AcceptedRun", first, False))
        return answers

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
