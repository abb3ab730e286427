"""Request ids that the client makes up for tasks without one, so that their call can be repeated."""

import uuid
from collections.abc import Callable, Sequence

from holdfast.client.models import NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import made_up_id

# A made-up request id must outlive the call: its last repetition may reach the server late.
_MADE_UP_SPARE_S = 60.0
_MADE_UP_S_MAX = 24 * 3600.0


def made_up_ttl_ms(timeout_s: float) -> int:
    """How long the server has to know the request ids that are made up for a call."""
    return int(min(max(0.0, timeout_s) + _MADE_UP_SPARE_S, _MADE_UP_S_MAX) * 1000)


def make_up_request_ids(
    request: pb.EnqueueRequest,
    tasks: Sequence[NewTask],
    ttl_ms: int,
    generation_of: Callable[[str], int],
    kept: Sequence[str] = (),
) -> list[int]:
    """Gives an id to each task without one, so that the call can be repeated; returns the places of these tasks.

    `generation_of` a queue: of its set of shards. The id names it, so that a repetition finds its first attempt.
    `kept`: for each task the id that was made up for it before; empty if none was."""
    without = [at for at, task in enumerate(tasks) if task.request_id is None and task.request_id_ttl_ms is None]
    if without:
        call_key = uuid.uuid4().hex
        specs = request.tasks
        for at in without:
            spec = specs[at]
            known = kept[at] if kept else ""
            spec.request_id = known or made_up_id(generation_of(spec.queue), call_key, at)
            spec.request_id_ttl_ms = ttl_ms
    return without


def told_apart(tasks: Sequence[NewTask], made_up: Sequence[int]) -> Sequence[int]:
    """The places among these where a duplicate cannot be another's task, because there is no unique key."""
    return [at for at in made_up if not tasks[at].unique_key]
