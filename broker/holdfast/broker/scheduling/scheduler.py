"""Picks the tasks that are handed out next: a bounded window onto the ready lines of each queue.

Soft state of the leader: it can be thrown away at any moment and is rebuilt lazily from the indexes, starting at the
replicated low-water marks, so neither start-up nor fail-over gets slower with the backlog or the number of tenants.

The order: the highest priority first; within a priority tenants take turns by weight, within a tenant limit keys take
turns one task at a time, and within a key it is first in, first out. A share of the picks takes the oldest task that no
limit blocks instead, whatever its priority; its tenant's next turn is shorter by it. With S percent, a task that n
older ones were ready before is picked within (n + 1) * ceil(100 / S) picks while no limit holds it up. Where so many
older ones are blocked that the oldest open one is not found, those picks go to the priorities in turn: none starves.
"""

import heapq
from collections.abc import Callable, Iterable

from holdfast.broker.policies import QueuePolicy
from holdfast.broker.scheduling.ages import Ages
from holdfast.broker.scheduling.gates import OWN_LIMITS, UNTIL_FREED, Allowance, Gates, Name, Rules
from holdfast.broker.scheduling.lanes import Band, Ring, Shelf
from holdfast.broker.scheduling.lines import PLAIN, Line, Lines, Spot
from holdfast.broker.scheduling.turns import Spares
from holdfast.broker.scheduling.windows import (
    EVERYTHING,
    LOOKS,
    LOOKS_PER_TASK,
    WAKES_MAX,
    Found,
    Picked,
    Window,
)
from holdfast.broker.share_use import Outlook
from holdfast.limits.buckets import NEVER_MS
from holdfast.machine import keys
from holdfast.machine.effects import FreedNames, ReadyTask
from holdfast.machine.entries import AGE_MARK, Mark
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.machine.rows import BANDS, READY

__all__ = ["Picked", "Scheduler"]

WINDOWS_MAX = 10_000
FULL_WINDOWS = 16  # so many times what one queue may hold in memory is shared among all of them
WINDOW_TASKS_MIN = 1024  # of each, however many there are
SPARES_MAX = 20_000
EVERYTHING_MS = 100  # how often everything is looked at again where more is blocked than is remembered

_Touched = dict[tuple[int, bytes, bytes], Line]


class Scheduler:
    """The picks of one shard.

    `allowance` says how much of the limits of a spread queue this shard may use.
    `wake_at` is told of the shard time at which a rate lets something through again: call `open_due` then.
    """

    def __init__(
        self,
        kv: OrderedKV,
        machine: Machine,
        *,
        policy_of: Callable[[bytes], QueuePolicy],
        now_ms: Callable[[], int],
        window_tasks_max: int,
        allowance: Callable[[bytes], Allowance] = lambda _queue: OWN_LIMITS,
        wake_at: Callable[[int], None] = lambda _when_ms: None,
    ) -> None:
        self._kv = kv
        self._machine = machine
        self._policy_of = policy_of
        self._now_ms = now_ms
        self._window_tasks_max = window_tasks_max
        self._allowance = allowance
        self._wake_at = wake_at
        self._windows: dict[bytes, Window] = {}
        self._room_tasks = FULL_WINDOWS * window_tasks_max
        self._spares = Spares(SPARES_MAX)
        self._wakes: list[tuple[int, bytes, Name]] = []  # a heap: when, queue and what a rate lets through then
        self.unfinished: set[bytes] = set()  # queues whose last pick stopped looking before it had seen all

    # --- what was applied -------------------------------------------------------------------------------------

    def became_ready(self, tasks: Iterable[ReadyTask]) -> None:
        """Takes note of tasks that entered the ready line. Call it for a whole batch before anything is picked."""
        queue, window = b"", None
        for task in tasks:
            if task.queue != queue:
                queue, window = task.queue, self._windows.get(task.queue)
            if window is not None:  # otherwise the index has it, and a window made later reads the index
                window.became_ready(task)

    def was_withdrawn(self, tasks: Iterable[ReadyTask]) -> None:
        """Takes note of tasks that left the ready line without a claim."""
        for task in tasks:
            window = self._windows.get(task.queue)
            if window is not None:
                window.was_withdrawn(task)

    def marks_were_raised(self, marks: Iterable[Mark]) -> None:
        """Nothing is ready before these marks, which were not raised by claims."""
        for mark in marks:
            window = self._windows.get(mark.queue)
            if window is not None:
                window.pass_over(mark)

    def was_freed(self, freed: FreedNames) -> list[bytes]:
        """Takes note of claims that have ended; returns the queues in which a cap may have room again."""
        opened: list[bytes] = []
        for queue, names in freed.items():
            window = self._windows.get(queue)
            if window is None:
                if self._policy_of(queue).has_limits:
                    opened.append(queue)
            elif window.gates.rules.limited:
                window.opened(len(names))
                for tenant, limit_key in names if window.has_blocked else ():
                    window.open_names(tenant, limit_key)
                opened.append(queue)
        return opened

    def limits_changed(self, queue: bytes) -> None:
        """The policy or the allowance of the queue is another one."""
        window = self._windows.get(queue)
        if window is not None:
            window.gates.change_rules(self._rules(queue), window.lines.claiming.values())
            window.open_all()

    def open_due(self) -> list[bytes]:
        """Returns the queues in which a rate may let something through by now."""
        now_ms = self._now_ms()
        opened: dict[bytes, None] = {}
        while self._wakes and self._wakes[0][0] <= now_ms:
            when_ms, queue, name = heapq.heappop(self._wakes)
            window = self._windows.get(queue)
            if window is not None and window.wakes.get(name) == when_ms:
                del window.wakes[name]
                window.opened(1)
                window.open(*name)
            opened[queue] = None  # also without a window: somebody may wait for it
        if self._wakes:
            self._wake_at(self._wakes[0][0])
        return list(opened)

    # --- picking ----------------------------------------------------------------------------------------------

    def pick(self, queue: bytes, tasks_max: int, bytes_max: int) -> Picked | None:
        """Takes tasks out of the window, or None if nothing is ready; the first one also if it is larger.

        None also while limits block what is ready, and if it is not found out in time: then the queue is in
        `unfinished`, and the next pick goes on looking.
        """
        window = self._windows.get(queue) or self._open_window(queue)
        if window is None:
            return None
        if window.rings or window.gates.rules.limited:
            return self._pick_by_turns(window, tasks_max, bytes_max)
        places: list[Spot] = []
        touched: _Touched = {}
        room = bytes_max
        lines = window.lines
        share_percent = window.gates.rules.oldest_share_percent
        top: Band | None = None  # stays the highest band while it holds a task: nothing becomes ready meanwhile
        while len(places) < tasks_max and (room > 0 or not places):
            if top is None or lines.head(top.line) is None:
                top = next((band for band in window.bands if lines.head(band.line) is not None), None)
                if top is None:
                    break
            window.picks += 1
            band = top
            if window.picks * share_percent % 100 < share_percent:
                band = _oldest_plain(window)
            place = lines.pop(band.line, PLAIN)
            touched[band.priority, b"", b""] = band.line
            places.append((band.priority, place, b"", b""))
            room -= place[2]
        if not places:
            return None
        return Picked(window, places, self._marks(window, touched), bytes_max - room, [], 0)

    def _pick_by_turns(self, window: Window, tasks_max: int, bytes_max: int) -> Picked | None:
        now_ms = self._now_ms()
        gates, lines = window.gates, window.lines
        allowed, wake_ms = gates.room(len(lines.claiming), now_ms, tasks_max)
        if not allowed:
            self._note_wake(window, (keys.SCOPE_QUEUE, b""), wake_ms)
            window.hope = 0
            return None
        looks, went = window.shelf.looks, window.ages.went
        looks.left = LOOKS
        window.unfinished = False
        places: list[Spot] = []
        touched: _Touched = {}
        blocked: dict[Name, int] = {}
        room, first = bytes_max, 0
        tasks_max = min(tasks_max, allowed)
        share_percent = gates.rules.oldest_share_percent
        while len(places) < tasks_max and (room > 0 or not places):
            found: Found | None = None
            picks = window.picks + 1
            if picks * share_percent % 100 < share_percent:  # spread evenly: with 10, every tenth pick
                found = window.oldest(now_ms) or self._in_next_band(window, now_ms, blocked)
            if found is None:
                first, found = self._top(window, first, now_ms, blocked)
                if found is None:
                    break
            band, names, source, lane = found
            tenant, limit_key = names
            if isinstance(source, Line):
                place = lines.pop(source, names)
                if source.until_mark <= 0:
                    touched[band.priority, tenant, limit_key] = source
            else:
                place = source
                lines.claiming[place[0]] = names
            if lane is not None:
                window.finish_turn(band, lane)
            else:
                window.gave_out_of_turn(band, tenant)
            window.picks = picks
            looks.left += LOOKS_PER_TASK
            if tenant or limit_key:
                went(place[0])
            gates.take(tenant, limit_key, now_ms)
            places.append((band.priority, place, tenant, limit_key))
            room -= place[2]
        gates.take_of_queue(len(places), now_ms)
        self._note_end(window, blocked, len(places), len(places) < tasks_max and room > 0)
        if not places:
            return None
        return self._picked(window, places, touched, bytes_max - room, now_ms)

    def _forget_idle(self) -> None:
        """Those that are not used any more would take the place of others for ever."""
        for window in self._windows.values():
            window.forget_idle()
        self._spares.left = SPARES_MAX

    def _top(self, window: Window, first: int, now_ms: int, blocked: dict[Name, int]) -> tuple[int, Found | None]:
        """The next task by priority and turns, from the band in place `first` on, and in which place it was found."""
        band = window.bands[first]
        lane = None if band.ring is None else window.lane_at_once(band.ring)
        if lane is not None and lane.line is not None:
            return first, (band, lane.names, lane.line, lane)
        looks = window.shelf.looks
        for at in range(first, BANDS):
            found = self._in_band(window, at, now_ms, blocked)
            if found is not None:
                return at, found
            ring = window.bands[at].ring
            if window.unfinished and ring is not None and ring.barren < 2:
                break  # there may be something yet
            looks.left = LOOKS
        return first, None

    def _in_next_band(self, window: Window, now_ms: int, blocked: dict[Name, int]) -> Found | None:
        """The next task by turns of another priority each time."""
        found = self._in_band(window, window.next_band(), now_ms, blocked)
        window.shelf.looks.left = LOOKS
        return found

    def _in_band(self, window: Window, at: int, now_ms: int, blocked: dict[Name, int]) -> Found | None:
        """The next task by turns of the priority in place `at`."""
        band = window.bands[at]
        if band.ring is None:
            return None if window.lines.head(band.line) is None else (band, PLAIN, band.line, None)
        lane = window.next_lane(band, now_ms, blocked)
        if lane is None:
            return None
        assert lane.line is not None
        return band, lane.names, lane.line, lane

    def _picked(self, window: Window, places: list[Spot], touched: _Touched, size_bytes: int, now_ms: int) -> Picked:
        marks = self._marks(window, touched)
        if any(tenant or limit_key for _, _, tenant, limit_key in places):
            marks.append(Mark(window.queue, self._version(window), AGE_MARK, window.ages.mark(window.lines.claiming)))
        return Picked(window, places, marks, size_bytes, window.gates.levels(places, now_ms), now_ms)

    def _marks(self, window: Window, touched: _Touched) -> list[Mark]:
        version = self._version(window)
        marks = []
        for (priority, tenant, limit_key), line in touched.items():
            if line.is_plain or not line.is_spent:  # a lane that has given its last begins anew with the next task
                line.was_marked()
                marks.append(Mark(window.queue, version, priority, line.mark(), tenant, limit_key))
        return marks

    def _version(self, window: Window) -> int:
        row = self._machine.queue(window.queue)
        return row.mark_version if row is not None else 0

    def _note_end(self, window: Window, blocked: dict[Name, int], count: int, found_no_more: bool) -> None:
        for name, until_ms in blocked.items():
            self._note_wake(window, name, until_ms)
        if window.unfinished and found_no_more:
            self.unfinished.add(window.queue)
        elif window.gates.rules.limited:
            if found_no_more:
                window.hope = 0
            elif window.hope is not None:
                window.hope = max(1, window.hope - count)

    def available(self, queue: bytes) -> int:
        """How many tasks could be picked now, by the queue's counters; what is on its way to a claim is not among them.
        Too few while a claim is applied and not yet settled: whoever waits for more must look again then. Where tenants
        or limit keys have limits it may be too many until a pick was tried."""
        row = self._machine.queue(queue)
        if row is None or not row.ready:
            return 0
        window = self._windows.get(queue)
        if window is None:
            rules = self._rules(queue)
            if not rules.limited:
                return row.ready
            window = self._open_window(queue)
            assert window is not None
        lines = window.lines
        ready = max(0, row.ready - (len(lines.claiming) - len(lines.withdrawn)))
        if not window.gates.rules.limited or not ready:
            return ready
        allowed, wake_ms = window.gates.room(len(lines.claiming), self._now_ms())
        if not allowed:
            self._note_wake(window, (keys.SCOPE_QUEUE, b""), wake_ms)
        return min(ready, allowed) if window.hope is None else min(ready, allowed, window.hope)

    def outlook(self, queue: bytes) -> Outlook:
        """Whether anything is open but for the queue's own cap and rate. Where so much is blocked that it was not all
        looked at, something may be; the next look goes on."""
        window = self._windows.get(queue) or self._open_window(queue)
        if window is None:
            return Outlook(is_open=False, was_short_of_slots=False, was_short_of_rate=False, most_in_use=0)
        now_ms = self._now_ms()
        rules = window.gates.rules
        row = self._machine.queue(queue)
        lines = window.lines
        is_open = row is not None and row.ready > len(lines.claiming) - len(lines.withdrawn) and not rules.paused
        if is_open and (rules.tenants_limited or rules.keys_limited):
            window.shelf.looks.left = LOOKS
            window.unfinished = False
            blocked: dict[Name, int] = {}
            is_open = self._top(window, 0, now_ms, blocked)[1] is not None or window.unfinished
            for name, until_ms in blocked.items():
                self._note_wake(window, name, until_ms)
        return Outlook(is_open, *window.gates.use())

    def coming(self, queue: bytes) -> int:
        """How many tasks are on their way to a claim."""
        window = self._windows.get(queue)
        return 0 if window is None else len(window.lines.claiming)

    # --- claims on their way ----------------------------------------------------------------------------------

    def give_back(self, picked: Picked) -> None:
        """The tasks were not claimed after all and are still ready."""
        window = picked.window
        if not self._is_open(window):
            return
        lines = window.lines
        for spot in picked.places:
            place = spot[1]
            lines.claiming.pop(place[0], None)
            window.gates.give_back(spot, picked.taken_ms)
            if place[0] in lines.withdrawn:
                lines.withdrawn.discard(place[0])
            else:
                window.take_back(spot)
        self._reopen(picked)

    def settle(self, picked: Picked, *, refused: bool = True) -> None:
        """The claim was applied: the tasks are claimed, or, as far as it was `refused`, were not ready any more."""
        window = picked.window
        if not self._is_open(window):
            return
        lines, gates = window.lines, window.gates
        for _, place, _, _ in picked.places:
            lines.claiming.pop(place[0], None)
            if lines.withdrawn:
                lines.withdrawn.discard(place[0])
        gates.settle(picked.places)
        if gates.rules.limited:
            gates.shrink()
            if refused:
                self._reopen(picked)
        if self._spares.left <= 0:
            self._forget_idle()

    def _reopen(self, picked: Picked) -> None:
        """Something that was on its way was not claimed: there may be room."""
        window = picked.window
        if window.gates.rules.limited:
            window.opened(len(picked.places))
            for _, _, tenant, limit_key in picked.places:
                window.open_names(tenant, limit_key)

    def reset(self) -> None:
        """Throws everything away, claims on their way included: their entries will never be applied."""
        self._windows.clear()
        self._room_tasks = FULL_WINDOWS * self._window_tasks_max
        self._wakes.clear()
        self.unfinished.clear()

    def adopt(self, picked: Picked) -> None:
        """After a reset, and before anything is picked: these will be applied nevertheless. In the order of the log."""
        window = self._windows.get(picked.queue) or self._open_window(picked.queue)
        if window is None:
            return
        picked.window = window
        for spot, task in zip(picked.places, self._machine.executions(picked.task_ids), strict=True):
            _, place, tenant, limit_key = spot
            window.lines.claiming[place[0]] = tenant, limit_key
            window.gates.adopt(tenant, limit_key)
            if task is None or task.state != READY or task.sequence != place[0]:
                window.lines.withdrawn.add(place[0])
        window.gates.adopt_levels(picked.levels)

    # --- windows ----------------------------------------------------------------------------------------------

    def _is_open(self, window: Window) -> bool:
        """Whether the window was not thrown away since."""
        return self._windows.get(window.queue) is window

    def _open_window(self, queue: bytes) -> Window | None:
        row = self._machine.queue(queue)
        if row is None:
            return None
        if len(self._windows) >= WINDOWS_MAX:
            self._windows = {name: window for name, window in self._windows.items() if window.lines.claiming}
            self._room_tasks = FULL_WINDOWS * self._window_tasks_max
            self._room_tasks -= sum(window.lines.tasks_max for window in self._windows.values())
        # Mostly a few queues are long. Where many are, each holds less: what is not held is read when its turn comes.
        tasks_max = min(self._window_tasks_max, max(WINDOW_TASKS_MIN, self._room_tasks // 4))
        self._room_tasks -= tasks_max
        lines = Lines(self._kv, tasks_max)
        shelf = Shelf(self._kv, queue, lines, lambda: self._machine.meta.next_sequence, self._spares)
        bands = []
        for priority in range(BANDS - 1, -1, -1):
            cursor = row.marks[priority] if row.ready else shelf.next_sequence()
            line = Line(keys.ready_lane(queue, priority), cursor, complete=not row.ready, is_plain=True)
            band = Band(priority, line)
            if row.lanes[priority]:
                band.ring = Ring(shelf, band, walks=True)
            bands.append(band)
        has_lanes = any(row.lanes)
        cursor = row.age_mark if has_lanes else shelf.next_sequence()
        ages = Ages(self._kv, self._machine, queue, cursor, complete=not has_lanes)
        gates = Gates(self._kv, self._machine, queue, self._now_ms, self._rules(queue))
        window = self._windows[queue] = Window(queue, bands, lines, shelf, ages, gates)
        return window

    def _rules(self, queue: bytes) -> Rules:
        return Rules.of(self._policy_of(queue), self._allowance(queue))

    def _note_wake(self, window: Window, name: Name, when_ms: int) -> None:
        if when_ms in (UNTIL_FREED, NEVER_MS):
            return
        known_ms = window.wakes.get(name)
        if known_ms is not None and known_ms <= when_ms:
            return
        if known_ms is None and len(window.wakes) >= WAKES_MAX:
            name, when_ms = EVERYTHING, max(when_ms, self._now_ms() + EVERYTHING_MS)
            if name in window.wakes:
                return
        window.wakes[name] = when_ms
        heapq.heappush(self._wakes, (when_ms, window.queue, name))
        if self._wakes[0][0] == when_ms:
            self._wake_at(when_ms)


def _oldest_plain(window: Window) -> Band:
    """The band with the oldest task, where there are only plain lanes and at least one task."""
    heads = [(head[0], band.priority) for band in window.bands if (head := window.lines.head(band.line)) is not None]
    return window.band(min(heads)[1])
