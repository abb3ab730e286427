"""What a caller that asks for tasks is given: tasks of its queues, one suspect, or nothing while it runs dry."""

from collections.abc import Callable, Iterable

from holdfast.broker.leader.suspects import (
    DryRuns,
    Hands,
    SuspectTurns,
    busy_line,
    is_busy_line,
    is_suspects_line,
    queue_of_line,
    suspects_line,
)
from holdfast.broker.leader.waiters import Waiter
from holdfast.broker.scheduler.limiter import PLENTY
from holdfast.broker.scheduler.picks import Picked
from holdfast.broker.scheduler.scheduler import Scheduler
from holdfast.machine.entries import Claim
from holdfast.machine.machine import Machine
from holdfast.serving.refusals import worker_at_limit, worker_holds_suspect


class Picking:
    """Of one shard. It knows what each worker holds here, claims on their way counted in."""

    def __init__(
        self,
        machine: Machine,
        scheduler: Scheduler,
        *,
        now_ms: Callable[[], int],
        claims_per_worker_max: int,
        bytes_max: int,
    ) -> None:
        """`bytes_max`: of all envelopes of one claim."""
        self._machine = machine
        self._scheduler = scheduler
        self._now_ms = now_ms
        self._claims_per_worker_max = claims_per_worker_max
        self._bytes_max = bytes_max
        self._turns = SuspectTurns()
        self._dry_runs = DryRuns()
        self._coming: dict[bytes, int] = {}  # by worker: claims that are proposed and not yet applied
        self._coming_alone: set[bytes] = set()  # workers for which a suspect is on its way

    # --- who asks ---------------------------------------------------------------------------------------------

    def hands(self, worker: bytes, empty_handed: bool | None, *, suspects_only: bool) -> Hands:
        """Who says that it holds nothing knows best: it may hold tasks of other shards, and what is counted here may be
        of a process of its name that has died. Of the others only what this shard has given them is known."""
        if empty_handed is None:
            return Hands(not self._held_by(worker), may_run_dry=False, suspects_only=suspects_only)
        if empty_handed:
            self._dry_runs.came(worker)
        return Hands(empty_handed, bool(worker) and not empty_handed, empty_handed, suspects_only)

    def _held_by(self, worker: bytes) -> int:
        """How many claims a worker has here, as far as is known; none without a name."""
        return self._machine.worker_claims(worker) + self._coming.get(worker, 0) if worker else 0

    def check_room(self, worker: bytes, *, holds_nothing: bool) -> None:
        """Refuses a worker that holds too many tasks already, or a suspect, unless it says itself that it holds
        nothing."""
        self._room(worker, self._held_by(worker), holds_nothing=holds_nothing)

    def _room(self, worker: bytes, held: int, *, holds_nothing: bool) -> int:
        """How many tasks it may get."""
        if held and not holds_nothing and (worker in self._coming_alone or self._machine.suspects_held_by(worker)):
            raise worker_holds_suspect()
        if held >= self._claims_per_worker_max:
            raise worker_at_limit(self._claims_per_worker_max)
        return self._claims_per_worker_max - held if worker else PLENTY

    # --- what it gets -----------------------------------------------------------------------------------------

    def pick(self, waiter: Waiter, queues: list[bytes]) -> list[Picked]:
        """What to claim for it; nothing also if it is to run dry, which it knows then. `queues`: those of its queues
        that it may take others than suspects of."""
        hands, held = waiter.hands, self._held_by(waiter.worker)
        room = min(waiter.tasks_max, self._room(waiter.worker, held, holds_nothing=hands.is_its_word))
        # It may have been given something by another call meanwhile.
        if not hands.may_take_suspects or (held and not hands.is_its_word):
            waiter.runs_dry = hands.may_run_dry and self._is_to_run_dry(waiter)
            return [] if waiter.runs_dry or hands.suspects_only else self._pick_others(waiter, queues, room)
        is_suspects_turn = hands.suspects_only or self._turns.suspects_first(waiter.queues)
        picks = self._pick_suspect(waiter) if is_suspects_turn else []
        if not picks and not hands.suspects_only:
            picks = self._pick_others(waiter, queues, room)
            self._turns.gave_others(waiter.queues if picks else ())
        return picks if picks or is_suspects_turn else self._pick_suspect(waiter)

    def _pick_suspect(self, waiter: Waiter) -> list[Picked]:
        """One, and nothing else with it."""
        for queue in waiter.queues:
            picked = self._scheduler.pick_suspect(queue)
            if picked is not None:
                self._turns.gave_suspect(queue)
                return [picked]
        return []

    def _is_to_run_dry(self, waiter: Waiter) -> bool:
        suspects = sum(map(self._scheduler.open_suspects, waiter.queues))
        return suspects > 0 and self._dry_runs.ask(waiter.worker, suspects, self._now_ms())

    def _pick_others(self, waiter: Waiter, queues: list[bytes], room: int) -> list[Picked]:
        picks: list[Picked] = []
        room_bytes = self._bytes_max
        for queue in queues:
            picked = self._scheduler.pick(queue, min(room, waiter.queue_tasks_max.get(queue, room)), room_bytes)
            if picked is not None:
                picks.append(picked)
                room -= picked.tasks
                room_bytes -= picked.size_bytes
                if not room or room_bytes <= 0:
                    break
        return picks

    def has_suspects(self, queues: Iterable[bytes]) -> bool:
        """Whether some of the ready tasks are suspects."""
        for queue in queues:
            row = self._machine.queue(queue)
            if row is not None and row.suspects:
                return True
        return False

    # --- claims on their way ----------------------------------------------------------------------------------

    def was_proposed(self, claim: Claim) -> None:
        self._count_coming(claim.worker, claim.tasks)
        if claim.is_alone:
            self._coming_alone.add(claim.worker)

    def was_applied(self, claim: Claim) -> None:
        self._count_coming(claim.worker, -claim.tasks)
        if claim.is_alone:
            self._coming_alone.discard(claim.worker)

    def _count_coming(self, worker: bytes, delta: int) -> None:
        coming = self._coming.pop(worker, 0) + delta
        if worker and coming > 0:
            self._coming[worker] = coming

    def reset(self) -> None:
        """Claims on their way will never be applied."""
        self._coming.clear()
        self._coming_alone.clear()

    # --- lines ------------------------------------------------------------------------------------------------

    def lines_of(self, queues: Iterable[bytes]) -> list[bytes]:
        """The lines in which somebody may wait for something of these queues."""
        lines: list[bytes] = []
        for queue in queues:
            lines.append(queue)
            row = self._machine.queue(queue)
            if row is not None and row.suspects:
                lines += (suspects_line(queue), busy_line(queue))
        return lines

    def available(self, line: bytes) -> int:
        """How many tasks could be claimed by those who wait in a line, as far as is known."""
        queue = queue_of_line(line)
        if is_suspects_line(line):
            return self._scheduler.open_suspects(queue)
        if is_busy_line(line):
            suspects = self._scheduler.open_suspects(queue)
            return int(suspects > 0 and self._dry_runs.may_ask(suspects, self._now_ms()))
        return self._scheduler.available(queue)


def line_of(picked: Picked) -> bytes:
    """Whose tasks these were."""
    return suspects_line(picked.queue) if picked.is_suspect else picked.queue
