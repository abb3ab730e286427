"""Which tasks of a batch travel as runs: those that share everything but their payloads and request ids.

They need not follow each other in the batch. First in, first out is promised within a queue, a priority, a tenant and a
limit key: within a line. So a run gathers tasks over those of other lines, and ends with the next task of its own line
that is not like it.
"""

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from holdfast.client.models import NewTask, UniqueScope

PRIORITY_DEFAULT = 5  # what servers take for none

# All in one go: this is done for every task of every batch.
_SHARED = attrgetter(*(field.name for field in fields(NewTask) if field.name not in ("payload", "request_id")))
_OF_NO_RUN = attrgetter("unique_key", "run_at_ms", "delay_ms", "ttl_ms")
_NOTHING = ("", None, None, None)


def in_order(tasks: Sequence[NewTask]) -> tuple[list[int], list[list[int]], list[int]]:
    """The places of those that go alone, those of each run, and how many of the first go before each run. No runs if
    hardly any tasks are alike."""
    groups = _groups(tasks)
    runs = [group for group in groups if may_be_in_a_run(tasks[group[0]])]
    if not runs or 2 * len(runs) > sum(map(len, runs)) or _names_one_twice(tasks):
        return [*range(len(tasks))], [], []
    alone: list[int] = []
    behind: list[int] = []
    for group in groups:
        if may_be_in_a_run(tasks[group[0]]):
            behind.append(len(alone))
        else:
            alone += group
    return alone, runs, behind


def _groups(tasks: Sequence[NewTask]) -> list[list[int]]:
    """Tasks that are alike, in the order of the first of each."""
    groups: list[list[int]] = []
    # By line, and of the task before: what the tasks of its last group share, and the group.
    last: dict[Any, tuple[object, list[int]]] = {}
    shared_before, group = None, list[int]()
    for place, task in enumerate(tasks):
        shared = _shared(task)
        if shared is not None and shared == shared_before:
            group.append(place)
            continue
        line = _line(task) if shared is not None else None
        known = last.get(line) if line is not None else None
        if known is not None and known[0] == shared and may_be_in_a_run(task):
            group = known[1]
            group.append(place)
        else:
            group = [place]
            groups.append(group)
            if line is not None:
                last[line] = shared, group
            else:  # nobody knows which line it is of
                last.clear()
        shared_before = shared
    return groups


def _shared(task: NewTask) -> object:
    """None of what is no task, or has names of another kind: that is told when the request is made."""
    try:
        return _SHARED(task), _kind_of_id(task.request_id)
    except AttributeError:
        return None


def _line(task: NewTask) -> object:
    """Within which first in is first out; None if it cannot be one."""
    priority = PRIORITY_DEFAULT if task.priority is None else task.priority
    line = task.queue, priority, task.tenant, task.limit_key
    try:
        hash(line)
    except TypeError:
        return None
    return line


def _kind_of_id(request_id: str | None) -> object:
    """None: a client makes one up; empty: there is none. With others each task has its own, if that may be one."""
    return request_id if not request_id else _is_own_id(request_id)


def _is_own_id(request_id: str) -> bool:
    return isinstance(request_id, str) and not request_id.startswith("~")


def may_be_in_a_run(task: NewTask) -> bool:
    """Not what waits for itself or is the only one; nor what looks like an id that a client makes up."""
    if not isinstance(task, NewTask) or _OF_NO_RUN(task) != _NOTHING or task.unique_scope is not UniqueScope.UNTIL_DONE:
        return False
    if not task.request_id:
        return task.request_id_ttl_ms is None
    return _is_own_id(task.request_id)


def _names_one_twice(tasks: Sequence[NewTask]) -> bool:
    """Whether two tasks have the same request id: the first of them in the batch is the one that counts."""
    try:
        own = [(task.queue, task.request_id) for task in tasks if task.request_id]
        return len(set(own)) < len(own)
    except (AttributeError, TypeError):
        return False
