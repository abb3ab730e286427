"""Parts of slices: tasks of a run that wait one behind the other have one place in their line. Pure."""

from collections.abc import Set

from holdfast.machine.effects import ReadyTask
from holdfast.machine.ids import later_task_id
from holdfast.machine.ready_rows import ReadySlice


def span(ready_slice: ReadySlice) -> range:
    """The sequences of its tasks."""
    return range(ready_slice[0], ready_slice[0] + ready_slice[3])


def part(ready_slice: ReadySlice, first: int, end: int) -> ReadySlice:
    """The tasks from a sequence on, up to the one before `end`."""
    sequence, task_id, size_bytes, _ = ready_slice
    if first > sequence:
        task_id = later_task_id(task_id, first - sequence)
    return first, task_id, size_bytes, end - first


def without(ready_slice: ReadySlice, gone: Set[int]) -> list[ReadySlice]:
    """What is left of a place without the tasks of these sequences, all of them its own, in order."""
    if not gone:
        return [ready_slice]
    left: list[ReadySlice] = []
    first, end = ready_slice[0], ready_slice[0] + ready_slice[3]
    for sequence in (*sorted(gone), end):
        if sequence > first:
            left.append(part(ready_slice, first, sequence))
        first = sequence + 1
    return left


def still_there(ready: list[ReadyTask], withdrawn: list[ReadyTask]) -> tuple[list[ReadyTask], list[ReadyTask]]:
    """Of tasks that became ready and were withdrawn in one batch: what came and went at once was never there."""
    if not ready or not withdrawn:
        return ready, withdrawn
    gone = {task.sequence for task in withdrawn}
    came: set[int] = set()
    stayed: list[ReadyTask] = []
    for task in ready:
        ready_slice = task.sequence, task.task_id, task.size_bytes, task.tasks
        came.update(span(ready_slice))
        for sequence, task_id, _, count in without(ready_slice, gone.intersection(span(ready_slice))):
            stayed.append(task._replace(sequence=sequence, task_id=task_id, tasks=count))
    return stayed, [task for task in withdrawn if task.sequence not in came]
