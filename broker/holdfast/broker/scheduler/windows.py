"""What the leader holds of one queue: the lines of its priorities, turns, ages and limiters."""

from holdfast.broker.scheduler.limiter import PLENTY, Limiters, Name
from holdfast.broker.scheduler.lines import PLAIN, Line, Lines, Names, ReadyRef
from holdfast.broker.scheduler.oldest import OldestReady, OldestReadyIndex
from holdfast.broker.scheduler.subqueues import PriorityLevel, RoundRobin, SharedState, Subqueue, Tenant
from holdfast.machine import keys
from holdfast.machine.effects import ReadyTask
from holdfast.machine.entries import AGE_MARK, Mark
from holdfast.machine.ready_rows import ReadySlice
from holdfast.machine.rows import PRIORITIES

SCAN_BUDGET = 512  # sub-queues that a pick may look at in vain, and a few more for each task that it finds
SCANS_OVER_MAX = 512  # further sub-queues that are held already: nothing need be read for them
OLDEST_MAX = 64  # that are looked at for one that is not blocked
WAKES_MAX = 10_000
KEYS_BLOCKED_MAX = 16_384

EVERYTHING: Name = (0, b"")  # opens all that is blocked

# Tenant and limit key; their line, or the task itself if it is in none that was read; the sub-queue whose turn it is
Found = tuple[PriorityLevel, Names, Line | ReadySlice, Subqueue | None]


class Window:
    """One queue. What it holds is a part of the index and of the state, as of the newest batch that was applied."""

    __slots__ = (
        "_key_blocked",
        "_levels_tried",
        "_plain",
        "_tenants_blocked",
        "_unread",
        "ages",
        "levels",
        "limiters",
        "lines",
        "maybe_open",
        "picks",
        "queue",
        "round_robins",
        "shared_state",
        "suspect_mark",
        "unfinished",
        "wakes",
    )  # fmt: skip

    def __init__(
        self,
        queue: bytes,
        levels: list[PriorityLevel],
        lines: Lines,
        shared_state: SharedState,
        ages: OldestReadyIndex,
        limiters: Limiters,
        *,
        unread: list[RoundRobin],
        picks: int,
    ) -> None:
        """`unread`: round robins with so few sub-queues that all are read with the first look. `picks`: how many tasks
        were picked before, by other leaders too, so that the share of the oldest goes on where it was."""
        self.queue = queue
        self._unread = unread
        self.levels = levels  # from the highest priority down
        self.lines = lines
        self.shared_state = shared_state
        self.ages = ages
        self.limiters = limiters
        self.picks = picks
        self.round_robins = sum(
            level.round_robin is not None for level in levels
        )  # priorities with other sub-queues than the plain one
        self.unfinished = False  # the last pick stopped looking before it had seen all
        # After a pick that found all blocked: how many tasks may be open since, at least one if any is. None: unknown.
        self.maybe_open: int | None = None
        self.suspect_mark = 0  # no suspect that is ready has a smaller sequence
        self.wakes: dict[Name, int] = {}  # when what a rate blocks opens
        self._key_blocked: dict[bytes, set[tuple[int, bytes]]] = {}  # by limit key: priority and tenant of sub-queues
        self._tenants_blocked = False  # if not, no round robin has set any aside
        self._levels_tried = 0
        # The levels whose plain lines may have tasks, by priority.
        self._plain = {level.priority: level for level in levels if not level.line.is_spent}

    def level(self, priority: int) -> PriorityLevel:
        return self.levels[PRIORITIES - 1 - priority]

    # --- what was applied -------------------------------------------------------------------------------------

    def became_ready(self, task: ReadyTask) -> None:
        _, priority, sequence, task_id, size_bytes, tenant, limit_key, _, count = task
        self._enter(priority, (sequence, task_id, size_bytes, count), tenant, limit_key)
        if self.maybe_open is not None:
            self.maybe_open += count

    def take_back(self, ready_ref: ReadyRef) -> None:
        """What was on its way to a claim and is still ready can be picked again."""
        priority, ready_slice, tenant, limit_key = ready_ref
        for ready in self.lines.let_go(ready_slice):
            self._enter(priority, ready, tenant, limit_key)

    def _enter(self, priority: int, ready_slice: ReadySlice, tenant: bytes, limit_key: bytes) -> None:
        level = self.levels[PRIORITIES - 1 - priority]
        if not tenant and not limit_key:
            self._plain[priority] = level
            self.lines.append(level.line, ready_slice)
            if level.round_robin is not None and level.round_robin.subqueue(b"", b"") is None:
                level.round_robin.came(b"", b"")
            return
        self.ages.came(ready_slice)
        round_robin = level.round_robin
        if round_robin is None:
            round_robin = level.open_round_robin(self.shared_state)
            self.round_robins += 1
        held = round_robin.known.get(tenant)
        subqueue = None if held is None else held.only
        if subqueue is None or subqueue.name != limit_key:
            subqueue = None if held is None else held.keys.known.get(limit_key)
        if held is None or subqueue is None:
            self._enter_new_subqueue(round_robin, ready_slice, tenant, limit_key)
            return
        if tenant in round_robin.idle:
            round_robin.wake(tenant)
        if subqueue is not held.only and held.keys.idle:
            held.keys.wake(limit_key)
            round_robin.open(tenant)  # it may have been set aside because of its other sub-queues
        if subqueue.line is not None:
            self.lines.append(subqueue.line, ready_slice)

    def _enter_new_subqueue(
        self, round_robin: RoundRobin, ready_slice: ReadySlice, tenant: bytes, limit_key: bytes
    ) -> None:
        subqueue = round_robin.came(tenant, limit_key)
        if subqueue is None:
            return
        if subqueue.line is None and self.lines.has_room_for(1):  # with only this task in it, nothing need be read
            prefix = keys.ready_subqueue(self.queue, round_robin.level.priority, tenant, limit_key)
            subqueue.line = Line(prefix, ready_slice[0], complete=True, is_plain=False)
        if subqueue.line is not None:
            self.lines.append(subqueue.line, ready_slice)

    def was_withdrawn(self, task: ReadyTask) -> None:
        if self.lines.is_coming(task.sequence):
            self.lines.withdrawn.add(task.sequence)
            return
        if task.is_suspect:
            return  # in no line
        line = self._line(task)
        if line is not None:
            self.lines.was_withdrawn(line, task.sequence)
        if task.tenant or task.limit_key:
            self.ages.went(task.sequence)

    def pass_over(self, mark: Mark) -> None:
        """Nothing is ready before the mark: the index need not be read there, where it may have many tombstones."""
        if mark.priority == AGE_MARK:
            self.ages.pass_over(mark.sequence)
        elif (line := self._line(mark)) is not None:
            line.cursor = max(line.cursor, mark.sequence)

    def _line(self, task: ReadyTask | Mark) -> Line | None:
        level = self.level(task.priority)
        if not task.tenant and not task.limit_key:
            return level.line
        subqueue = None if level.round_robin is None else level.round_robin.subqueue(task.tenant, task.limit_key)
        return None if subqueue is None else subqueue.line

    # --- what is blocked --------------------------------------------------------------------------------------

    def opened(self, count: int) -> None:
        if self.maybe_open is not None:
            self.maybe_open += count

    def open(self, scope: int, name: bytes) -> None:
        """There may be room for a tenant or a limit key."""
        if scope == keys.SCOPE_TENANT:
            self._open_tenant(name)
        elif scope == keys.SCOPE_KEY:
            self._open_key(name)
        elif (scope, name) == EVERYTHING:
            self.open_all()

    @property
    def has_blocked(self) -> bool:
        """Whether some tenant or limit key is known to be blocked."""
        return self._tenants_blocked or bool(self._key_blocked) or self.shared_state.lost_keys

    def open_names(self, tenant: bytes, limit_key: bytes) -> None:
        """There may be room for both."""
        if tenant and self._tenants_blocked:
            self._open_tenant(tenant)
        if limit_key and (self._key_blocked or self.shared_state.lost_keys):
            self._open_key(limit_key)

    def _open_tenant(self, tenant: bytes) -> None:
        self._tenants_blocked = False
        for level in self.levels if self.round_robins else ():
            if level.round_robin is not None and (level.round_robin.aside or level.round_robin.lost):
                level.round_robin.freed(tenant)
                self._tenants_blocked = True  # as far as is known: there may be others

    def _open_key(self, limit_key: bytes) -> None:
        for priority, tenant in self._key_blocked.pop(limit_key, ()):
            round_robin = self.level(priority).round_robin
            held = None if round_robin is None else round_robin.known.get(tenant)
            if round_robin is not None and held is not None and held.keys.open(limit_key):
                round_robin.open(tenant)
        if self.shared_state.lost_keys:
            self.open_all()

    def forget_idle(self) -> None:
        """Nobody is kept for his return any more."""
        for level in self.levels:
            level.forget_idle()

    def open_all(self) -> None:
        """Nothing that was found blocked need be so any more."""
        self.maybe_open = None
        self._key_blocked.clear()
        self.shared_state.lost_keys = False
        for level in self.levels:
            if level.round_robin is not None:
                level.round_robin.open_all()

    # --- picking ----------------------------------------------------------------------------------------------

    def next_subqueue(self, level: PriorityLevel, now_ms: int, blocked: dict[Name, int]) -> Subqueue | None:
        """The sub-queue of a priority with sub-queues whose turn it is and that is open; its line has a head.

        Into `blocked` goes what a rate holds up, and until when.
        """
        round_robin, scan_budget, limiters = level.round_robin, self.shared_state.scan_budget, self.limiters
        assert round_robin is not None
        while (tenant := round_robin.current(scan_budget)) is not None and scan_budget.left > -SCANS_OVER_MAX:
            held = tenant.keys
            until_ms = limiters.tenant_closed(tenant.name, now_ms, blocked)
            if until_ms is None:
                subqueue = self._open_subqueue(round_robin, tenant, now_ms, blocked)
                if subqueue is not None:
                    if tenant.credit or tenant.begin_turn(limiters.rules.weights.get(tenant.name, 1)):
                        return subqueue
                    round_robin.finish_turn(tenant)  # it gave all of this turn before
                    continue
                if not held.rests and held.empty_scans < 2:
                    break  # there was nothing left to look with
            scan_budget.left -= 1
            tenant.credit = 0
            if held.is_spent():
                round_robin.drop(tenant)
            elif until_ms is None and not held.rests:
                round_robin.finish_turn(
                    tenant
                )  # all was looked at and something came meanwhile: it must not hold up others
            else:
                round_robin.set_aside(tenant)
                self._tenants_blocked = True
        self.unfinished |= not round_robin.rests or tenant is not None
        if round_robin.is_plain and tenant is None:
            self._drop_round_robin(level)
        return None

    def _open_subqueue(
        self, round_robin: RoundRobin, tenant: Tenant, now_ms: int, blocked: dict[Name, int]
    ) -> Subqueue | None:
        """The sub-queue of a tenant whose turn it is, if one is open."""
        scan_budget, held = self.shared_state.scan_budget, tenant.keys
        while (subqueue := held.current(scan_budget)) is not None:
            line = round_robin.line(subqueue) if subqueue.line is None else subqueue.line
            if (line.is_mixed or not line.line) and self.lines.head(line) is None:
                held.drop(subqueue)
            elif subqueue.name and self.limiters.key_closed(subqueue.name, now_ms, blocked) is not None:
                held.set_aside(subqueue)
                self._note_blocked(subqueue.name, round_robin.level.priority, tenant.name)
            else:
                break
            scan_budget.left -= 1
        return subqueue

    def _drop_round_robin(self, level: PriorityLevel) -> None:
        """There is only the plain sub-queue left, if at all."""
        level.leave_round_robin()
        self.round_robins -= 1

    def _note_blocked(self, limit_key: bytes, priority: int, tenant: bytes) -> None:
        if len(self._key_blocked) >= KEYS_BLOCKED_MAX:
            self._key_blocked.clear()
            self.shared_state.lost_keys = True  # looks at all of them again
        self._key_blocked.setdefault(limit_key, set()).add((priority, tenant))

    def begin_scan(self) -> None:
        """Call it before anything is looked for, and after all that was applied is known."""
        if self._unread:
            for round_robin in self._unread:
                round_robin.hold_all()
            self._unread = []
        self.lines.give_room_back()  # what left without a claim, purged or ttl-expired, needs none any more
        self.shared_state.scan_budget.left = SCAN_BUDGET
        self.unfinished = False
        self.limiters.shrink()

    def turns_before_the_oldest(self) -> int:
        """How many tasks are picked by turns before the oldest is: spread evenly, with 10 percent every tenth is."""
        share_percent = self.limiters.rules.oldest_share_percent
        if not share_percent:
            return PLENTY
        shares = self.picks * share_percent // 100  # that were given so far
        return -(-(shares + 1) * 100 // share_percent) - self.picks - 1

    def finish_turn(self, level: PriorityLevel, subqueue: Subqueue, count: int) -> None:
        """The sub-queue whose turn it was gave so many tasks: one, or all that its turn allows if it is alone."""
        round_robin, tenant, line = level.round_robin, subqueue.tenant, subqueue.line
        assert round_robin is not None
        assert line is not None
        is_spent = line.complete and not line.line and not line.returned
        if tenant.only is subqueue:
            tenant.has_given = True
        else:
            is_spent = tenant.keys.gave(subqueue, is_spent=is_spent)
        round_robin.empty_scans = 0
        round_robin.holder = None
        tenant.credit -= count
        if is_spent and round_robin.may_end(tenant):
            if tenant.credit > 0:
                round_robin.drop(tenant)
                round_robin.holder = tenant
            else:
                round_robin.end(tenant)
        elif tenant.credit <= 0:
            tenant.credit = 0
            round_robin.finish_turn(tenant)
            if not tenant.name and round_robin.is_plain:
                self._drop_round_robin(level)

    def oldest(self, now_ms: int) -> Found | None:
        """Where the oldest ready task is that is not blocked; None if there is none among the first."""
        plain, limiters = self._oldest_plain() if self._plain else None, self.limiters
        for oldest in self.ages.oldest_ready(self.lines.claiming, OLDEST_MAX) if self.round_robins else ():
            if plain is not None and plain[0] < oldest.ready_slice[0]:
                break
            if limiters.tenant_closed(oldest.tenant, now_ms) is not None:
                continue
            if limiters.key_closed(oldest.limit_key, now_ms) is None:
                return self._oldest_line(oldest)
        return None if plain is None else (plain[1], PLAIN, plain[1].line, None)

    @property
    def only_level(self) -> PriorityLevel | None:
        """That of the one line, if there is but one; None: nothing is ready."""
        return next(iter(self._plain.values()), None)

    def is_one_line(self) -> bool:
        """Whether all that is ready is in the same line."""
        if not self.round_robins and len(self._plain) > 1:
            self._oldest_plain()
        return not self.round_robins and len(self._plain) < 2

    def _oldest_plain(self) -> tuple[int, PriorityLevel] | None:
        """Its sequence and its level."""
        oldest: tuple[int, PriorityLevel] | None = None
        for level in list(self._plain.values()):
            head = self.lines.head(level.line)
            if head is None:
                del self._plain[level.priority]
            elif oldest is None or head[0] < oldest[0]:
                oldest = head[0], level
        return oldest

    def next_level(self) -> int:
        """The place of a priority, another one each time."""
        self._levels_tried = (self._levels_tried + 1) % PRIORITIES
        return self._levels_tried

    def gave_out_of_turn(self, level: PriorityLevel, tenant: bytes) -> None:
        held = None if level.round_robin is None else level.round_robin.known.get(tenant)
        if held is not None:
            held.owe()

    def _oldest_line(self, oldest: OldestReady) -> Found | None:
        """Of a sub-queue that is not held, or was not read yet, nothing is read for this one task."""
        level = self.level(oldest.priority)
        subqueue = None if level.round_robin is None else level.round_robin.subqueue(oldest.tenant, oldest.limit_key)
        if subqueue is None or subqueue.line is None:
            return level, (oldest.tenant, oldest.limit_key), oldest.ready_slice, None
        if self.lines.head(subqueue.line) is None:
            self.ages.went(oldest.ready_slice[0])
            return None
        return level, subqueue.names, subqueue.line, None
