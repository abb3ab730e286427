"""Which single enqueues share a request: those that go to the same shard, as far as that is known.

A client of a router has no map. But the ids of accepted tasks say which shard they are on, and a queue stays where it
is, unless it is spread or pinned. So the shard of a queue is known after its first task.
"""

from collections.abc import Awaitable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.client._memory import SEVERAL_SHARDS, QueueShards
from holdfast.client.errors import Rejected
from holdfast.client.models import Accepted, NewTask
from holdfast.routing.task_ids import shard_of_task

# Groups, so that there are not more requests at once, however many shards and queues there are.
_SHARD_GROUPS = 64
_QUEUE_GROUPS = 16
# Refusals of a shard after which its items are sent again: nothing was done, or sending them again does no harm.
_REPEATED = frozenset({"NOT_LEADER", "SHUTTING_DOWN", "OVERLOADED", "OUTCOME_UNKNOWN"})

# The outcomes of tasks, and the request ids that they were sent with: one each, because what is refused is sent again
# by itself.
Sent = tuple[list[Accepted | Rejected], Sequence[str]]


@dataclass(slots=True, eq=False)
class SingleEnqueue:
    """A task on its way."""

    task: NewTask
    request_id: str = ""  # that it was sent with: the same one for as long as it is repeated


class SendEnqueue(Protocol):
    def __call__(self, tasks: Sequence[NewTask], timeout_s: float, kept: Sequence[str]) -> Awaitable[Sent]:
        """`kept`: the request ids that tasks were sent with before."""
        ...


class SingleEnqueues:
    """Requests of a `Coalescer`."""

    def __init__(self, enqueue: SendEnqueue) -> None:
        self._enqueue = enqueue
        self._shards = QueueShards()

    def group_of(self, item: SingleEnqueue) -> Hashable:
        queue = item.task.queue
        shard = self._shards.of(queue)
        if shard is None:
            return "new", hash(queue) % _QUEUE_GROUPS
        return ("spread", hash(queue) % _QUEUE_GROUPS) if shard == SEVERAL_SHARDS else shard % _SHARD_GROUPS

    def group_of_repeated(self, item: SingleEnqueue, refusal: Rejected) -> Hashable | None:
        if refusal.reason not in _REPEATED or not item.request_id:
            return None
        return "refused", hash(item.task.queue) % _QUEUE_GROUPS

    async def send(self, items: Sequence[SingleEnqueue], timeout_s: float) -> list[Accepted | Rejected]:
        kept = [item.request_id for item in items]
        outcomes, request_ids = await self._enqueue([item.task for item in items], timeout_s, kept)
        known: set[str] = set()
        for item, outcome, request_id in zip(items, outcomes, request_ids, strict=True):
            queue = item.task.queue
            if isinstance(outcome, Rejected):
                item.request_id = request_id
            elif queue not in known:
                known.add(queue)
                self._shards.learn(queue, shard_of_task(outcome.task_id))
        return outcomes
