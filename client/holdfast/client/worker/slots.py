"""How many tasks may run at once, and of which queues. Pure: no clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

# What one call may claim.
_ASK_TASKS_MAX = 1_000
# Tasks that a worker holds, running or not reported, however many shards do not answer.
_HELD_PER_SLOT_MAX = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """What to claim now."""

    queues: list[str]  # those that may have more, in the order in which they are tried
    tasks_max: int
    tasks_max_by_queue: dict[str, int]  # for queues with a limit of their own
    empty_handed: bool  # nothing is held
    suspects_only: bool = False


class Slots:
    """A slot is taken from the claim of a task until its handler has ended.

    What has ended but is not reported yet does not hold a slot, so that the next handler need not wait for the network.
    It is bounded all the same: as many as there are slots. Reports that wait for a shard which does not answer have a
    bound of their own, so that they do not keep tasks of other shards from their handlers.
    """

    def __init__(self, concurrency: int, queues: Mapping[str, int | None]) -> None:
        self._concurrency = concurrency
        self._limits = dict(queues)  # None: only the slots limit it
        self._running = dict.fromkeys(queues, 0)
        self.running = 0  # of all queues
        self._unreported = 0
        self.late = 0  # of those, how many wait for a shard that does not answer
        self._turn = 0
        self._is_alone = False  # what is held must stay the only one
        self.is_quiet = False  # nothing is to be claimed

    @property
    def held(self) -> int:
        """Tasks that this worker has claimed and not yet given an account of."""
        return self.running + self._unreported

    @property
    def is_empty_handed(self) -> bool:
        """Whether no handler runs and all that can be reported is: a shard that does not answer may take for ever."""
        return self.held - self.late <= 0

    def ask_for_suspect(self) -> Ask:
        """When nothing is held."""
        return Ask(list(self._limits), 1, {}, empty_handed=True, suspects_only=True)

    def ask(self) -> Ask | None:
        """What there is room for; None if there is none. Queues take turns at being first, so that none starves."""
        if self._is_alone and not self.is_empty_handed:
            return None
        self._is_alone = False
        slots = self._concurrency
        reports_room = min(2 * slots + self.late, _HELD_PER_SLOT_MAX * slots) - self.held
        room = min(slots - self.running, reports_room, _ASK_TASKS_MAX)
        queues = [queue for queue in self._limits if self._room_of(queue) > 0]
        if room <= 0 or not queues:
            return None
        first = self._turn % len(queues)
        self._turn += 1
        limits = {queue: self._room_of(queue) for queue in queues if self._limits[queue] is not None}
        return Ask(queues[first:] + queues[:first], room, limits, self.is_empty_handed)

    def _room_of(self, queue: str) -> int:
        limit = self._limits[queue]
        return self._concurrency if limit is None else limit - self._running[queue]

    def take(self, queue: str, *, is_alone: bool = False) -> None:
        """`is_alone`: nothing else may be claimed until it is reported."""
        self._is_alone = self._is_alone or is_alone
        self._running[queue] = self._running.get(queue, 0) + 1
        self.running += 1

    def has_room_for(self, queue: str, *, is_alone: bool = False) -> bool:
        """For a task that was claimed: another may have come in its place."""
        if is_alone:
            return self.is_empty_handed and not self.is_quiet
        if self.is_quiet or (self._is_alone and not self.is_empty_handed):
            return False
        return self.running < self._concurrency and self._room_of(queue) > 0

    def ended(self, queue: str) -> bool:
        """The handler has ended and its outcome is to be reported; tells whether its queue was at its limit."""
        was_full = self._room_of(queue) <= 0
        self._running[queue] -= 1
        self.running -= 1
        self._unreported += 1
        return was_full

    def reported(self) -> None:
        self._unreported -= 1
