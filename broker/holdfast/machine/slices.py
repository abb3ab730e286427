"""Consecutive tasks, as they are found in runs and beside them."""

from collections.abc import Iterator

from holdfast.machine.draft import Draft
from holdfast.machine.ids import later_task_id
from holdfast.machine.run_rows import DEPARTED, Run, Stretch

# A run, the place of the first task in it, the stretch that all are in, and where that begins.
Slice = tuple[Run, int, Stretch, int]


def slice_of(draft: Draft, task_id: bytes) -> Slice | None:
    """Where in its run a task is; None if it is in none, or not any more."""
    # What is at hand depends on the replica. What is done must not: a task is in a run or has rows, never both.
    run = draft.runs.at_hand(task_id)
    place = None if run is None else run.place(task_id)
    if run is None and draft.own_execution(task_id) is None and (found := draft.runs.find(task_id)) is not None:
        run, place = found
    if run is None or place is None:
        return None
    start, stretch = run.stretch_at(place)
    return (run, place, stretch, start) if stretch.state != DEPARTED else None


def slices(draft: Draft, task_id: bytes, count: int) -> Iterator[tuple[int, int, Slice | None]]:
    """Consecutive tasks, in parts: which is the first, how many, and where in their run they are; None if they are in
    no run, or not any more. What is done with a part may change the run before the next part is asked for."""
    index = 0
    while index < count:
        found = draft.runs.find(later_task_id(task_id, index))
        if found is None:
            yield index, 1, None
            index += 1
            continue
        run, place = found
        start, stretch = run.stretch_at(place)
        part = min(count - index, stretch.end - place)
        yield index, part, (run, place, stretch, start) if stretch.state != DEPARTED else None
        index += part
