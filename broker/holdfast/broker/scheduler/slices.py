"""Parts of slices: tasks of a run that wait one behind the other have one place in their line. Pure."""

from collections.abc import Set

from holdfast.machine.effects import ReadyTask
from holdfast.machine.ids import later_task_id
from holdfast.machine.ready_rows import Place


def span(place: Place) -> range:
    """The sequences of its tasks."""
    return range(place[0], place[0] + place[3])


def part(place: Place, first: int, end: int) -> Place:
    """The tasks from a sequence on, up to the one before `end`."""
    sequence, task_id, size_bytes, _ = place
    if first > sequence:
        task_id = later_task_id(task_id, first - sequence)
    return first, task_id, size_bytes, end - first


def without(place: Place, gone: Set[int]) -> list[Place]:
    """What is left of a place without the tasks of these sequences, all of them its own, in order."""
    if not gone:
        return [place]
    left: list[Place] = []
    first, end = place[0], place[0] + place[3]
    for sequence in (*sorted(gone), end):
        if sequence > first:
            left.append(part(place, first, sequence))
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
        place = task.sequence, task.task_id, task.size_bytes, task.tasks
        came.update(span(place))
        for sequence, task_id, _, count in without(place, gone.intersection(span(place))):
            stayed.append(task._replace(sequence=sequence, task_id=task_id, tasks=count))
    return stayed, [task for task in withdrawn if task.sequence not in came]
