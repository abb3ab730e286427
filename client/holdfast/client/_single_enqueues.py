"""Which single enqueues share a request: those that go to the same shard, as far as that is known.

A client of a router has no map. But the ids of accepted tasks say which shard they are on, and a queue stays where it
is, unless it is spread or pinned. So the shard of a queue is known after its first task.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from holdfast.client import _wire
from holdfast.client._coalescing import Ended
from holdfast.client._memory import SEVERAL_SHARDS, QueueShards, put_bounded
from holdfast.client.errors import Rejected
from holdfast.client.models import Accepted, NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.task_ids import shard_of_task

# Groups, so that there are not more requests at once, however many shards and queues there are.
_SHARD_GROUPS = 64
_QUEUE_GROUPS = 16
# Refusals of a shard after which its items are sent again: nothing was done, or sending them again does no harm.
REPEATED = frozenset({"NOT_LEADER", "SHUTTING_DOWN", "OVERLOADED", "OUTCOME_UNKNOWN"})

# The outcomes of tasks, and the request ids that they were sent with: one each, because what is refused is sent again
# by itself.
Sent = tuple[list[Accepted | Rejected], Sequence[str]]


@dataclass(slots=True, eq=False)
class SingleEnqueue:
    """A task on its way."""

    task: NewTask
    request_id: str = ""  # that it was sent with: the same one for as long as it is repeated
    spec: pb.TaskSpec = field(init=False)  # without an automatic key

    def __post_init__(self) -> None:
        self.spec = _wire.single_spec(self.task)

    @property
    def size_bytes(self) -> int:
        """In a request."""
        return self.spec.ByteSize() + _KEY_BYTES


# Where in an id its shard is, and nothing that differs from one task of a shard to the next.
_SHARD_IN_ID = slice(14, 21)
_KEY_BYTES = 100  # of an automatic key, its time to live, and what the encoding adds


class BeginEnqueue(Protocol):
    def __call__(
        self,
        items: Sequence[SingleEnqueue],
        timeout_s: float,
        end: Callable[[list[Accepted] | Awaitable[Sent]], None],
    ) -> bool:
        """`end` hears of ids for all of them, or how to find out what became of them. False if there is no such way at
        the moment."""
        ...


class SendEnqueue(Protocol):
    def __call__(self, tasks: Sequence[NewTask], timeout_s: float, kept: Sequence[str]) -> Awaitable[Sent]:
        """`kept`: the request ids that tasks were sent with before."""
        ...


class SingleEnqueues:
    """Requests of a `Coalescer`."""

    def __init__(self, enqueue: SendEnqueue, begin: BeginEnqueue = lambda *_: False) -> None:
        self._enqueue = enqueue
        self._begin = begin
        self._shards = QueueShards()
        self._seen: dict[str, str] = {}  # of the last id of a queue, where its shard is

    def group_of(self, item: SingleEnqueue) -> Hashable:
        queue = item.task.queue
        shard = self._shards.of(queue)
        if shard is None:
            return "new", hash(queue) % _QUEUE_GROUPS
        return ("spread", hash(queue) % _QUEUE_GROUPS) if shard == SEVERAL_SHARDS else shard % _SHARD_GROUPS

    def group_of_repeated(self, item: SingleEnqueue, refusal: Rejected) -> Hashable | None:
        if refusal.reason not in REPEATED or not item.request_id:
            return None
        return "refused", hash(item.task.queue) % _QUEUE_GROUPS

    def begin(self, items: Sequence[SingleEnqueue], timeout_s: float, end: Callable[[Ended[Accepted]], None]) -> bool:
        return self._begin(items, timeout_s, partial(self._ended, items, end))

    def _ended(
        self,
        items: Sequence[SingleEnqueue],
        end: Callable[[Ended[Accepted]], None],
        sent: list[Accepted] | Awaitable[Sent],
    ) -> None:
        if isinstance(sent, list):
            for item, accepted in zip(items, sent, strict=True):
                if self._seen.get(item.task.queue) != accepted.task_id[_SHARD_IN_ID]:
                    self._learn(item.task.queue, accepted.task_id)
            end([*sent])
        else:
            end(self._find_out(items, sent))

    async def send(self, items: Sequence[SingleEnqueue], timeout_s: float) -> list[Accepted | Rejected]:
        kept = [item.request_id for item in items]
        return await self._find_out(items, self._enqueue([item.task for item in items], timeout_s, kept))

    async def _find_out(self, items: Sequence[SingleEnqueue], sent: Awaitable[Sent]) -> list[Accepted | Rejected]:
        outcomes, request_ids = await sent
        for item, outcome, request_id in zip(items, outcomes, request_ids, strict=True):
            if isinstance(outcome, Rejected):
                item.request_id = request_id
            else:
                self._learn(item.task.queue, outcome.task_id)
        return outcomes

    def _learn(self, queue: str, task_id: str) -> None:
        put_bounded(self._seen, queue, task_id[_SHARD_IN_ID])
        self._shards.learn(queue, shard_of_task(task_id))
