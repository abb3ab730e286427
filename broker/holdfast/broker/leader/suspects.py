"""Who is given suspects: tasks whose worker fell silent, and which may be what silenced it.

A suspect is handed out alone, to a worker that holds nothing, and that worker is given nothing else until the claim is
settled. So if it falls silent again there is no doubt whose fault it was.

Where no worker is empty-handed, one is asked to run dry: to claim nothing more until its handlers have ended, and then
to ask for a suspect. One worker at a time, and more only where many suspects wait: the others go on. A worker whose
handlers do not end in time is let go, and the next one is asked to be more patient, so that long handlers make suspects
wait, but not for ever. Workers that are empty-handed take turns between suspects and other tasks: neither keeps the
other waiting.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A worker that runs dry asks again so often, to hear whether it still need.
RUN_DRY_MS = 5_000
# How long one may take to run dry before another is asked, at first; twice as long each time that it was not enough.
PATIENCE_MS = 30_000
PATIENCE_MS_MAX = 24 * 60 * 60 * 1000
# One worker that was asked and has not been heard of for so long is not counted on.
_SILENT_MS = 3 * RUN_DRY_MS
# So many suspects are worth one more worker that runs dry.
SUSPECTS_PER_WORKER = 16

_SUSPECTS = b"\0"  # no name of a queue has these
_BUSY = b"\1"


def suspects_line(queue: bytes) -> bytes:
    """The line of those who may be given suspects of the queue."""
    return _SUSPECTS + queue


def busy_line(queue: bytes) -> bytes:
    """The line of those who may be asked to run dry for suspects of the queue."""
    return _BUSY + queue


def queue_of_line(line: bytes) -> bytes:
    return line[1:] if line[:1] in (_SUSPECTS, _BUSY) else line


def is_suspects_line(line: bytes) -> bool:
    return line.startswith(_SUSPECTS)


def is_busy_line(line: bytes) -> bool:
    return line.startswith(_BUSY)


@dataclass(frozen=True, slots=True)
class RunDry:
    """The answer to a worker that shall claim nothing more until it holds nothing, or so long."""

    wait_ms: int = RUN_DRY_MS


class Hands(NamedTuple):
    """What a caller may be given."""

    may_take_suspects: bool  # it holds nothing
    may_run_dry: bool  # it has said that it holds something, and will do as it is asked
    is_its_word: bool = False  # that it holds nothing, and not what this shard knows
    suspects_only: bool = False

    def lines(self, queues: Sequence[bytes]) -> list[bytes]:
        """Where it waits."""
        found = [] if self.suspects_only else list(queues)
        if self.may_take_suspects:
            found += map(suspects_line, queues)
        if self.may_run_dry:
            found += map(busy_line, queues)
        return found


class _Asked:
    __slots__ = ("heard_ms", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.heard_ms = now_ms


class DryRuns:
    """Which workers were asked to run dry. Soft state of a leader: the next one asks anew."""

    def __init__(self) -> None:
        self._asked: dict[bytes, _Asked] = {}
        self._patience_ms = PATIENCE_MS

    def may_ask(self, suspects: int, now_ms: int) -> bool:
        """Whether one more may be asked while so many suspects wait."""
        self._forget_silent(now_ms)
        return len(self._asked) < 1 + (suspects - 1) // SUSPECTS_PER_WORKER

    def ask(self, worker: bytes, suspects: int, now_ms: int) -> bool:
        """Whether this worker shall run dry, or go on doing so."""
        asked = self._asked.get(worker)
        if asked is not None and now_ms - asked.since_ms >= self._patience_ms:
            del self._asked[worker]  # its handlers take long: it goes on as usual, and another one tries
            self._patience_ms = min(2 * self._patience_ms, PATIENCE_MS_MAX)
            return False
        if asked is None:
            if not self.may_ask(suspects, now_ms):
                return False
            asked = self._asked[worker] = _Asked(now_ms)
        asked.heard_ms = now_ms
        return True

    def came(self, worker: bytes) -> None:
        """It holds nothing any more."""
        if self._asked.pop(worker, None) is not None:
            self._patience_ms = PATIENCE_MS

    def _forget_silent(self, now_ms: int) -> None:
        for worker in [name for name, asked in self._asked.items() if now_ms - asked.heard_ms >= _SILENT_MS]:
            del self._asked[worker]


class SuspectTurns:
    """Suspects and other tasks take turns with workers that are empty-handed."""

    def __init__(self) -> None:
        self._others_next: set[bytes] = set()  # queues whose suspects have had their turn

    def suspects_first(self, queues: Iterable[bytes]) -> bool:
        return self._others_next.isdisjoint(queues)

    def gave_suspect(self, queue: bytes) -> None:
        self._others_next.add(queue)

    def gave_others(self, queues: Iterable[bytes]) -> None:
        self._others_next.difference_update(queues)
