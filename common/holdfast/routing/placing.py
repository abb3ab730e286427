"""Which shards a call goes to: tasks by their ids, new tasks by their queues. The messages are those of the wire API,
which this package does not know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.routing.sets import HOME_BEGINNING, QueueRoute, is_of_home, parse_automatic_key, shard_for_task
from holdfast.routing.task_ids import shard_of_task


def shard_of_id(task_id: str, shard_count: int) -> int | None:
    """None: no shard of this cluster could have made it. Then any may say so."""
    shard = shard_of_task(task_id)
    return shard if shard is not None and shard < shard_count else None


def shards_of_tasks(task_ids: Sequence[str], shard_count: int) -> list[int]:
    """Of each item; bad ids go where others go, so that they make no call of their own."""
    found = [shard_of_id(task_id, shard_count) for task_id in task_ids]
    anywhere = next((shard for shard in found if shard is not None), 0)
    return [anywhere if shard is None else shard for shard in found]


@dataclass(frozen=True, slots=True)
class PlacedTasks:
    """Where the tasks of an Enqueue go."""

    shards: list[int]  # in the order of `specs_of`; one entry if all go there
    generations: dict[str, int]  # what the caller should know before it makes up more ids


def specs_of(request: Any) -> Sequence[Any]:
    """What an Enqueue says of its tasks, and behind them of its runs: each of these goes whole to one shard, as a task
    with its request id would."""
    return [*request.tasks, *(run.task for run in request.runs)] if request.runs else request.tasks


def place(tasks: Sequence[Any], route: Callable[[str], QueueRoute], pick: int) -> PlacedTasks:
    """Tasks of a queue that was never spread or pinned go to its home. Raises UnknownGenerationError."""
    if len(tasks) == 1 and is_of_home(tasks[0].request_id[:HOME_BEGINNING]):
        own = route(tasks[0].queue)
        if not own.sets:
            return PlacedTasks([own.home], {})
    routes = {queue: route(queue) for queue in {task.queue for task in tasks}}
    # How ids begin says enough, and there are few beginnings: this runs for every task of every call.
    beginnings = {task.request_id[:HOME_BEGINNING] for task in tasks}
    if not any(route.sets for route in routes.values()) and all(map(is_of_home, beginnings)):
        if len({route.home for route in routes.values()}) <= 1:
            return PlacedTasks([next((route.home for route in routes.values()), 0)], {})
        return PlacedTasks([routes[task.queue].home for task in tasks], {})
    shards = []
    generations: dict[str, int] = {}
    # All automatic keys of one call go to one shard, unless their tasks have keys.
    shards_of_calls: dict[tuple[str, int, str], int] = {}
    for task in tasks:
        queue, request_id = task.queue, task.request_id
        automatic = parse_automatic_key(request_id)
        if automatic is None or task.unique_key or task.limit_key:  # no set matters
            shards.append(shard_for_task(routes[queue], request_id, task.unique_key, task.limit_key, pick))
            continue
        if automatic.generation < routes[queue].generation:
            generations[queue] = routes[queue].generation
        key = (queue, automatic.generation, automatic.call_key)
        shard = shards_of_calls.get(key)
        if shard is None:
            shard = shards_of_calls[key] = shard_for_task(routes[queue], request_id, "", "", pick)
        shards.append(shard)
    return PlacedTasks(shards[:1] if len(set(shards)) == 1 else shards, generations)
