"""Request ids that the client makes up for tasks without one, so that their call can be repeated."""

import uuid
from collections.abc import Callable, Sequence

from holdfast.client.models import NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.placing import specs_of
from holdfast.routing.sets import automatic_key

# An automatic idempotency key must outlive the call: its last repetition may reach the server late.
_AUTOMATIC_KEY_MARGIN_S = 60.0
_AUTOMATIC_KEY_S_MAX = 24 * 3600.0


def automatic_key_ttl_ms(timeout_s: float) -> int:
    """How long the server has to know the automatic idempotency keys of a call."""
    return int(min(max(0.0, timeout_s) + _AUTOMATIC_KEY_MARGIN_S, _AUTOMATIC_KEY_S_MAX) * 1000)


def add_automatic_keys(
    request: pb.EnqueueRequest,
    tasks: Sequence[NewTask],
    ttl_ms: int,
    generation_of: Callable[[str], int],
    kept: Sequence[str] = (),
) -> list[int]:
    """Gives an id to each task without one, so that the call can be repeated, and to each run; returns the places of
    these tasks.

    `tasks`: those of the request and, behind them, one of each run. `generation_of` a queue: of its set of shards. The
    id names it, so that a repetition finds its first attempt. `kept`: for each task its automatic idempotency key of an
    earlier attempt; empty if there was none."""
    without = [index for index, task in enumerate(tasks) if task.request_id is None and task.request_id_ttl_ms is None]
    if without:
        call_key = uuid.uuid4().hex
        specs = specs_of(request)
        for position in without:
            spec = specs[position]
            known = kept[position] if kept else ""
            spec.request_id = known or automatic_key(generation_of(spec.queue), call_key, position)
            spec.request_id_ttl_ms = ttl_ms
    return without


def told_apart(tasks: Sequence[NewTask], automatic: Sequence[int]) -> Sequence[int]:
    """The places among these where a duplicate cannot be another's task, because there is no unique key."""
    return [index for index in automatic if not tasks[index].unique_key]
