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

from holdfast.broker.policy.policies import EffectivePolicy
from holdfast.broker.scheduler.allocation_use import NOTHING_OPEN, Outlook
from holdfast.broker.scheduler.limiter import OWN_LIMITS, PLENTY, UNTIL_FREED, Allowance, Limiters, Name, Rules
from holdfast.broker.scheduler.lines import PLAIN, Line, Lines, LinesBudget, ReadyRef
from holdfast.broker.scheduler.oldest import OldestReadyIndex
from holdfast.broker.scheduler.picks import Pick, Picked
from holdfast.broker.scheduler.round_robin import CacheBudget
from holdfast.broker.scheduler.slices import span
from holdfast.broker.scheduler.subqueues import SUBQUEUES_PAGE, PriorityLevel, RoundRobin, SharedState
from holdfast.broker.scheduler.windows import (
    EVERYTHING,
    SCAN_BUDGET,
    WAKES_MAX,
    Found,
    Window,
)
from holdfast.limits.buckets import NEVER_MS
from holdfast.machine import keys
from holdfast.machine.effects import FreedNames, ReadyTask
from holdfast.machine.entries import Mark
from holdfast.machine.ids import later_task_id
from holdfast.machine.machine import Machine
from holdfast.machine.ready_rows import ready_slice_of
from holdfast.machine.rows import PRIORITIES, READY

__all__ = ["Picked", "Scheduler"]

WINDOWS_MAX = 10_000
FULL_WINDOWS = 16  # so many times what one queue may hold in memory is shared among all of them
IDLE_CACHED_MAX = 20_000
SUSPECTS_SCANNED = 256  # those that no limit blocks are looked for among so many of the oldest
EVERYTHING_MS = 100  # how often everything is looked at again where more is blocked than is remembered


class Scheduler:
    """The picks of one shard.

    `allowance` says how much of the limits of a spread queue this shard may use.
    `wake_at` is told of the shard time at which a rate lets something through again: call `open_due` then.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        policy_of: Callable[[bytes], EffectivePolicy],
        now_ms: Callable[[], int],
        window_tasks_max: int,
        allowance: Callable[[bytes], Allowance] = lambda _queue: OWN_LIMITS,
        wake_at: Callable[[int], None] = lambda _when_ms: None,
    ) -> None:
        self._reader = machine.reader
        self._machine = machine
        self._policy_of = policy_of
        self._now_ms = now_ms
        self._window_tasks_max = window_tasks_max
        self.allowance = allowance
        self._wake_at = wake_at
        self.windows: dict[bytes, Window] = {}
        self.lines_budget = LinesBudget(FULL_WINDOWS * window_tasks_max)
        self._cache_budget = CacheBudget(IDLE_CACHED_MAX)
        self.wakes: list[tuple[int, bytes, Name]] = []  # a heap: when, queue and what a rate lets through then
        self.unfinished: set[bytes] = set()  # queues whose last pick stopped looking before it had seen all

    # --- what was applied -------------------------------------------------------------------------------------

    def became_ready(self, tasks: Iterable[ReadyTask]) -> None:
        """Takes note of tasks that entered the ready line. Call it for a whole batch before anything is picked."""
        queue, window = b"", None
        for task in tasks:
            if task.queue != queue:
                queue, window = task.queue, self.windows.get(task.queue)
            if window is not None:  # otherwise the index has it, and a window made later reads the index
                if task.is_suspect:  # which are always read from the index
                    window.suspect_mark = min(window.suspect_mark, task.sequence)
                else:
                    window.became_ready(task)

    def was_withdrawn(self, tasks: Iterable[ReadyTask]) -> None:
        """Takes note of tasks that left the ready line without a claim."""
        for task in tasks:
            window = self.windows.get(task.queue)
            if window is not None:
                window.was_withdrawn(task)

    def marks_were_raised(self, marks: Iterable[Mark]) -> None:
        """Nothing is ready before these marks, which were not raised by claims."""
        for mark in marks:
            window = self.windows.get(mark.queue)
            if window is not None:
                window.pass_over(mark)

    def was_freed(self, freed: FreedNames) -> list[bytes]:
        """Takes note of claims that have ended; returns the queues in which a cap may have room again."""
        opened: list[bytes] = []
        for queue, names in freed.items():
            window = self.windows.get(queue)
            if window is None:
                if self._policy_of(queue).has_limits:
                    opened.append(queue)
            elif window.limiters.rules.limited:
                window.opened(len(names))
                for tenant, limit_key in names if window.has_blocked else ():
                    window.open_names(tenant, limit_key)
                opened.append(queue)
        return opened

    def limits_changed(self, queue: bytes) -> None:
        """The policy or the allowance of the queue is another one."""
        window = self.windows.get(queue)
        if window is not None:
            window.limiters.change_rules(self._rules(queue), window.lines.claiming.values())
            window.open_all()

    def open_due(self) -> list[bytes]:
        """Returns the queues in which a rate may let something through by now."""
        now_ms = self._now_ms()
        opened: dict[bytes, None] = {}
        while self.wakes and self.wakes[0][0] <= now_ms:
            when_ms, queue, name = heapq.heappop(self.wakes)
            window = self.windows.get(queue)
            if window is not None and window.wakes.get(name) == when_ms:
                del window.wakes[name]
                window.opened(1)
                window.open(*name)
            opened[queue] = None  # also without a window: somebody may wait for it
        if self.wakes:
            self._wake_at(self.wakes[0][0])
        return list(opened)

    # --- picking ----------------------------------------------------------------------------------------------

    def pick(self, queue: bytes, tasks_max: int, bytes_max: int) -> Picked | None:
        """Takes tasks out of the window, or None if nothing is ready; the first one also if it is larger.

        None also while limits block what is ready, and if it is not found out in time: then the queue is in
        `unfinished`, and the next pick goes on looking.
        """
        window = self.windows.get(queue) or self._open_window(queue)
        if window is None:
            return None
        now_ms = self._now_ms()
        limiters = window.limiters
        allowed, wake_ms = limiters.room(window.lines.coming, now_ms, tasks_max)
        if not allowed:
            self._note_wake(window, (keys.SCOPE_QUEUE, b""), wake_ms)
            window.maybe_open = 0
            return None
        window.begin_scan()
        pick = Pick(window, min(tasks_max, allowed), bytes_max, now_ms)
        self._fill(pick)
        limiters.take_of_queue(pick.tasks, now_ms)
        self._note_end(pick)
        row = self._machine.queue(queue)
        return pick.picked(row.mark_version if row is not None else 0)

    def _fill(self, pick: Pick) -> None:
        window = pick.window
        if window.is_one_line():  # then the next one is always the oldest, too
            self._fill_from_one_line(pick)
            return
        first = 0  # place of the highest priority that may have something: nothing becomes ready meanwhile
        while not pick.is_full:
            found: Found | None = None
            turns = window.turns_before_the_oldest()
            if not turns:
                found = window.oldest(pick.now_ms) or self._in_next_level(pick)
            elif pick.take_turns(window.levels[first], turns):
                continue
            if found is None:
                first, found = self._top(pick, first)
                if found is None:
                    break
            pick.take(found, max(1, turns))

    def _fill_from_one_line(self, pick: Pick) -> None:
        level = pick.window.only_level
        while level is not None and not pick.is_full and pick.window.lines.head(level.line) is not None:
            pick.take((level, PLAIN, level.line, None), PLENTY)

    def _forget_idle(self) -> None:
        """Those that are not used any more would take the place of others for ever."""
        for window in self.windows.values():
            window.forget_idle()
        self._cache_budget.left = IDLE_CACHED_MAX

    def _top(self, pick: Pick, first: int) -> tuple[int, Found | None]:
        """The next task by priority and turns, from the level in place `first` on, and in which place it was found."""
        window = pick.window
        for priority in range(first, PRIORITIES):
            found = self._in_level(pick, priority)
            if found is not None:
                return priority, found
            round_robin = window.levels[priority].round_robin
            if window.unfinished and round_robin is not None and round_robin.empty_scans < 2:
                break  # there may be something yet
            window.shared_state.scan_budget.left = SCAN_BUDGET
        return first, None

    def _in_next_level(self, pick: Pick) -> Found | None:
        """The next task by turns of another priority each time."""
        window = pick.window
        found = self._in_level(pick, window.next_level())
        window.shared_state.scan_budget.left = SCAN_BUDGET
        return found

    def _in_level(self, pick: Pick, priority: int) -> Found | None:
        """The next task by turns of the priority in place `at`."""
        window = pick.window
        level = window.levels[priority]
        if level.round_robin is None:
            return None if window.lines.head(level.line) is None else (level, PLAIN, level.line, None)
        subqueue = window.next_subqueue(level, pick.now_ms, pick.blocked)
        if subqueue is None:
            return None
        assert subqueue.line is not None
        return level, subqueue.names, subqueue.line, subqueue

    def _note_end(self, pick: Pick) -> None:
        window = pick.window
        found_no_more = pick.tasks < pick.tasks_max and pick.room_bytes > 0
        if pick.blocked:
            self._note_wakes(pick)
        if window.unfinished and found_no_more:
            self.unfinished.add(window.queue)
        elif window.limiters.rules.limited:
            if found_no_more:
                window.maybe_open = 0
            elif window.maybe_open is not None:
                window.maybe_open = max(1, window.maybe_open - pick.tasks)

    def _note_wakes(self, pick: Pick) -> None:
        for name, until_ms in pick.blocked.items():
            self._note_wake(pick.window, name, until_ms)

    def available(self, queue: bytes) -> int:
        """How many tasks could be picked now, by the queue's counters; what is on its way to a claim is not among them.
        Too few while a claim is applied and not yet settled: whoever waits for more must look again then. Where tenants
        or limit keys have limits it may be too many until a pick was tried."""
        row = self._machine.queue(queue)
        if row is None or not row.in_line:
            return 0
        window = self.windows.get(queue)
        if window is None:
            rules = self._rules(queue)
            if not rules.limited:
                return row.in_line
            window = self._open_window(queue)
            assert window is not None
        lines = window.lines
        ready = max(0, row.in_line - lines.coming_from_lines)
        if not window.limiters.rules.limited or not ready:
            return ready
        allowed, wake_ms = window.limiters.room(lines.coming, self._now_ms())
        if not allowed:
            self._note_wake(window, (keys.SCOPE_QUEUE, b""), wake_ms)
        return min(ready, allowed) if window.maybe_open is None else min(ready, allowed, window.maybe_open)

    # --- suspects ---------------------------------------------------------------------------------------------

    def open_suspects(self, queue: bytes) -> int:
        """How many suspects are ready and not on their way to a claim; 0 if limits block all that are looked at."""
        row = self._machine.queue(queue)
        if row is None or not row.suspects:
            return 0
        window = self.windows.get(queue) or self._open_window(queue)
        assert window is not None
        waiting = row.suspects - len(window.lines.suspects)
        return max(1, waiting) if self._first_suspect(window, self._now_ms()) is not None else 0

    def pick_suspect(self, queue: bytes) -> Picked | None:
        """Takes the oldest suspect that no limit blocks, or None if there is none; whatever its priority, so that none
        starves among suspects."""
        row = self._machine.queue(queue)
        if row is None or not row.suspects:
            return None
        window = self.windows.get(queue) or self._open_window(queue)
        assert window is not None
        now_ms = self._now_ms()
        ready_ref = self._first_suspect(window, now_ms)
        if ready_ref is None:
            return None
        _, ready_slice, *names = ready_ref
        window.lines.claiming[ready_slice[0]] = names[0], names[1]
        window.lines.suspects.add(ready_slice[0])
        window.limiters.take((names[0], names[1]), 1, now_ms)
        window.limiters.take_of_queue(1, now_ms)
        window.picks += 1
        levels = window.limiters.levels([ready_ref], now_ms)
        return Picked(window, [ready_ref], [], ready_slice[2], levels, 1, now_ms, is_suspect=True)

    def _first_suspect(self, window: Window, now_ms: int) -> ReadyRef | None:
        limiters, claiming = window.limiters, window.lines.claiming
        allowed, wake_ms = limiters.room(window.lines.coming, now_ms)
        if not allowed:
            self._note_wake(window, (keys.SCOPE_QUEUE, b""), wake_ms)
            return None
        limiters.shrink()
        start, stop = keys.suspect(window.queue, window.suspect_mark), keys.after_prefix(keys.suspects_of(window.queue))
        rows = self._reader.scan(start, stop, SUSPECTS_SCANNED + len(window.lines.suspects))
        if rows:
            window.suspect_mark = keys.ready_sequence(rows[0][0])
        ready_slices = [ready_slice_of(keys.ready_sequence(key), row) for key, row in rows]
        ready_slices = [ready_slice for ready_slice in ready_slices if ready_slice[0] not in claiming]
        blocked: dict[Name, int] = {}
        found: ReadyRef | None = None
        for ready_slice, task in zip(
            ready_slices, self._machine.executions([ready_slice[1] for ready_slice in ready_slices]), strict=True
        ):
            if task is None or task.state != READY or not task.is_suspect or task.sequence != ready_slice[0]:
                continue  # the state lags behind the machine
            tenant, limit_key = task.tenant, task.limit_key
            is_closed = limiters.tenant_closed(tenant, now_ms, blocked) is not None
            if not is_closed and limiters.key_closed(limit_key, now_ms, blocked) is None:
                found = task.priority, ready_slice, tenant, limit_key
                break
        for name, until_ms in blocked.items() if found is None else ():
            self._note_wake(window, name, until_ms)
        return found

    def outlook(self, queue: bytes) -> Outlook:
        """Whether anything is open but for the queue's own cap and rate. Where so much is blocked that it was not all
        looked at, something may be; the next look goes on."""
        window = self.windows.get(queue) or self._open_window(queue)
        if window is None:
            return NOTHING_OPEN
        now_ms = self._now_ms()
        rules = window.limiters.rules
        row = self._machine.queue(queue)
        lines = window.lines
        is_open = row is not None and row.in_line > lines.coming_from_lines and not rules.paused
        if is_open and (rules.tenants_limited or rules.keys_limited):
            window.begin_scan()
            probe = Pick(window, 1, 1, now_ms)
            is_open = self._top(probe, 0)[1] is not None or window.unfinished
            self._note_wakes(probe)
        if row is not None and row.suspects > len(lines.suspects) and not rules.paused:
            is_open = True
        return Outlook(is_open, *window.limiters.use())

    def coming(self, queue: bytes) -> int:
        """How many tasks are on their way to a claim."""
        window = self.windows.get(queue)
        return 0 if window is None else window.lines.coming

    # --- claims on their way ----------------------------------------------------------------------------------

    def give_back(self, picked: Picked) -> None:
        """The tasks were not claimed after all and are still ready."""
        window = picked.window
        if not self._is_open(window):
            return
        lines = window.lines
        for ready_ref in picked.ready_refs:
            window.limiters.give_back(ready_ref, picked.taken_ms)
            if picked.is_suspect:
                lines.let_go(ready_ref[1])
            else:
                window.take_back(ready_ref)
        lines.settle_suspects(picked.ready_refs if picked.is_suspect else ())
        self._reopen(picked)

    def settle(self, picked: Picked, *, refused: bool = True) -> None:
        """The claim was applied: the tasks are claimed, or, as far as it was `refused`, were not ready any more."""
        window = picked.window
        if not self._is_open(window):
            return
        lines, limiters = window.lines, window.limiters
        for _, ready_slice, _, _ in picked.ready_refs:
            if ready_slice[3] == 1 and not lines.withdrawn:
                lines.claiming.pop(ready_slice[0], None)
            else:
                lines.let_go(ready_slice)
        if picked.is_suspect:
            lines.settle_suspects(picked.ready_refs)
        lines.give_room_back()
        if limiters.rules.limited:
            limiters.settle(picked.ready_refs)
            if refused:
                self._reopen(picked)
        if self._cache_budget.left <= 0:
            self._forget_idle()

    def _reopen(self, picked: Picked) -> None:
        """Something that was on its way was not claimed: there may be room."""
        window = picked.window
        if window.limiters.rules.limited:
            window.opened(picked.tasks)
            for _, _, tenant, limit_key in picked.ready_refs:
                window.open_names(tenant, limit_key)

    def reset(self) -> None:
        """Throws everything away, claims on their way included: their entries will never be applied."""
        self.windows.clear()
        self._count_lines_budget()
        self.wakes.clear()
        self.unfinished.clear()

    def adopt(self, picked: Picked) -> None:
        """After a reset, and before anything is picked: these will be applied nevertheless. In the order of the log."""
        window = self.windows.get(picked.queue) or self._open_window(picked.queue)
        if window is None:
            return
        picked.window = window
        lines = window.lines
        window.picks += picked.tasks
        for _, ready_slice, tenant, limit_key in picked.ready_refs:
            lines.hold_back(ready_slice, (tenant, limit_key))
            if picked.is_suspect:
                lines.suspects.add(ready_slice[0])
            window.limiters.adopt(tenant, limit_key, ready_slice[3])
        lines.withdrawn.update(self._no_longer_ready(picked))
        window.limiters.adopt_levels(picked.levels)

    def _no_longer_ready(self, picked: Picked) -> list[int]:
        """The sequences of such tasks."""
        ready_slices = [ready_ref[1] for ready_ref in picked.ready_refs]
        sequences = [sequence for ready_slice in ready_slices for sequence in span(ready_slice)]
        task_ids = [
            later_task_id(ready_slice[1], index) for ready_slice in ready_slices for index in range(ready_slice[3])
        ]
        return [
            sequence
            for sequence, task in zip(sequences, self._machine.executions(task_ids), strict=True)
            if task is None or task.state != READY or task.sequence != sequence
        ]

    # --- windows ----------------------------------------------------------------------------------------------

    def _is_open(self, window: Window) -> bool:
        """Whether the window was not thrown away since."""
        return self.windows.get(window.queue) is window

    def _open_window(self, queue: bytes) -> Window | None:
        row = self._machine.queue(queue)
        if row is None:
            return None
        if len(self.windows) >= WINDOWS_MAX:
            self.windows = {name: window for name, window in self.windows.items() if window.lines.coming}
            self._count_lines_budget()
        lines = Lines(self._reader, self._window_tasks_max, self.lines_budget)
        shared_state = SharedState(
            self._reader, queue, lines, lambda: self._machine.meta.next_sequence, self._cache_budget
        )
        levels: list[PriorityLevel] = []
        unread: list[RoundRobin] = []
        for priority in range(PRIORITIES - 1, -1, -1):
            cursor = row.marks[priority] if row.in_line else shared_state.next_sequence()
            line = Line(keys.ready_subqueue(queue, priority), cursor, complete=not row.in_line, is_plain=True)
            level = PriorityLevel(priority, line)
            if row.subqueues[priority]:
                level.round_robin = RoundRobin(shared_state, level, walks=True)
                if row.subqueues[priority] < SUBQUEUES_PAGE and row.in_line <= self._window_tasks_max:
                    unread.append(level.round_robin)
            levels.append(level)
        has_subqueues = any(row.subqueues)
        cursor = row.age_mark if has_subqueues else shared_state.next_sequence()
        ages = OldestReadyIndex(self._machine, queue, cursor, complete=not has_subqueues)
        limiters = Limiters(self._machine, queue, self._now_ms, self._rules(queue))
        window = self.windows[queue] = Window(
            queue, levels, lines, shared_state, ages, limiters, unread=unread, picks=row.claimed_total
        )
        return window

    def _count_lines_budget(self) -> None:
        """After windows were thrown away."""
        taken = sum(window.lines.room_taken for window in self.windows.values())
        self.lines_budget.left = FULL_WINDOWS * self._window_tasks_max - taken

    def _rules(self, queue: bytes) -> Rules:
        return Rules.of(self._policy_of(queue), self.allowance(queue))

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
        heapq.heappush(self.wakes, (when_ms, window.queue, name))
        if self.wakes[0][0] == when_ms:
            self._wake_at(when_ms)
