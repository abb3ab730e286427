"""Request ids that the client makes up for tasks without one, so that their call can be repeated."""

import os
from collections.abc import Callable, Sequence

from holdfast.client.models import NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.placing import specs_of
from holdfast.routing.sets import automatic_key

# An automatic idempotency key must outlive the call: its last repetition may reach the server late.
_AUTOMATIC_KEY_MARGIN_S = 60.0
_AUTOMATIC_KEY_S_MAX = 24 * 3600.0

_KEY_BYTES = 16


def new_key() -> str:
    """Random, and so no other: for the tasks of a call, or for a claim.

    None is drawn before it is needed. A process may go on as two, and not every fork tells Python, nor does a snapshot
    of a whole machine: both would have what was left, and the server take the tasks of one for those of the other.
    """
    return os.urandom(_KEY_BYTES).hex()


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
    without = [index for index, task in enumerate(tasks) if is_without_key(task)]
    if without:
        call_key = new_key()
        specs = specs_of(request)
        for position in without:
            spec = specs[position]
            known = kept[position] if kept else ""
            spec.request_id = known or automatic_key(generation_of(spec.queue), call_key, position)
            spec.request_id_ttl_ms = ttl_ms
    return without


def is_without_key(task: NewTask) -> bool:
    """Whether the client makes one up for it."""
    return task.request_id is None and task.request_id_ttl_ms is None


def told_apart(tasks: Sequence[NewTask], automatic: Sequence[int]) -> Sequence[int]:
    """The places among these where a duplicate cannot be another's task, because there is no unique key."""
    return [index for index in automatic if not tasks[index].unique_key]
