"""What a client remembers from one call to the next. Bounded: what was learned first is forgotten first."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

QUEUES_MAX = 10_000
RESERVES_MAX = 1_000
SEVERAL_SHARDS = -1


class Generations:
    """Of the sets of shards of queues, as servers told them. They go into the request ids that the client makes up.

    >>> generations = Generations()
    >>> generations.learn({"mail": 3})
    >>> generations.learn({"mail": 2})  # from a server that has not heard of the third yet
    >>> generations.of("mail"), generations.of("reports")
    (3, 0)
    """

    def __init__(self) -> None:
        self._by_queue: dict[str, int] = {}

    def of(self, queue: str) -> int:
        """0, the home of the queue, for all that is known: always a right place, if not the best."""
        return self._by_queue.get(queue, 0)

    def learn(self, generations: Mapping[str, int]) -> None:
        for queue, generation in generations.items():
            if generation > self.of(queue):
                put_bounded(self._by_queue, queue, generation)

    def replace(self, queue: str, generation: int) -> bool:
        """A server does not know the set that was named, and names its newest, which may be an older one: e.g. of a map
        that was restored. Whether that is another one."""
        is_another = generation != self.of(queue)
        if is_another:
            put_bounded(self._by_queue, queue, generation)
        return is_another


class QueueShards:
    """Where queues are, as the ids of their tasks say.

    >>> shards = QueueShards()
    >>> shards.learn("mail", 3)
    >>> shards.of("mail"), shards.of("reports")
    (3, None)
    >>> shards.learn("mail", 4)
    >>> shards.of("mail") == SEVERAL_SHARDS
    True
    """

    def __init__(self) -> None:
        self._by_queue: dict[str, int] = {}

    def of(self, queue: str) -> int | None:
        """The only shard that its tasks were seen on, or SEVERAL_SHARDS; None if none was seen."""
        return self._by_queue.get(queue)

    def learn(self, queue: str, shard: int | None) -> None:
        known = self._by_queue.get(queue)
        if shard is None or known in (shard, SEVERAL_SHARDS):
            return
        put_bounded(self._by_queue, queue, shard if known is None else SEVERAL_SHARDS)


class Unanswered:
    """Reserves that had no answer, by their claim_request_id: when such a one is repeated, the server is told so.

    >>> reserves = Unanswered()
    >>> reserves.begin("a"), reserves.begin("a"), reserves.answered("a"), reserves.begin("a")
    (1, 2, None, 1)
    """

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}

    def begin(self, claim_request_id: str) -> int:
        """Which attempt this is."""
        if not claim_request_id:
            return 1
        attempt = self._attempts.get(claim_request_id, 0) + 1
        put_bounded(self._attempts, claim_request_id, attempt, RESERVES_MAX)
        return attempt

    def answered(self, claim_request_id: str) -> None:
        self._attempts.pop(claim_request_id, None)


def put_bounded(memory: dict[str, T], key: str, value: T, entries_max: int = QUEUES_MAX) -> None:
    """In the place of the oldest entry, if there are too many."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > entries_max:
        del memory[next(iter(memory))]
