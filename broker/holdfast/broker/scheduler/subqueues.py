"""Turns of tenants within a priority, and of limit keys within a tenant, over the SUBQUEUE index."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from holdfast.broker.scheduler.lines import PLAIN, Line, Lines, Names
from holdfast.broker.scheduler.round_robin import CacheBudget, Page, ScanBudget, Turns
from holdfast.machine import keys
from holdfast.machine.kv import Rows
from holdfast.machine.ready_rows import SubqueueRow

SUBQUEUES_PAGE = 64  # rows that are read at a time: small, for a producer waits meanwhile
SUBQUEUES_PAGE_BEHIND_A_WIDE_ONE = 16  # a tenant with many sub-queues fills a page alone: the next may be one, too
KEYS_PAGE = 64
TENANTS_HELD_MAX = 1024
KEYS_HELD_MAX = 256  # of one tenant
ASIDE_MAX = 4096
SUBQUEUES_HELD_MAX = 8192  # of one queue
RESUMES_MAX = 10_000
DEBT_MAX = 1000  # of a tenant: it is paid by turns, and forgotten with its last task
LINES_AT_ONCE = 64  # opened together: one read for all of them


class Subqueue:
    """One line of a tenant's tasks with the same limit key; it is read when its turn comes."""

    __slots__ = ("line", "name", "names", "tenant")

    def __init__(self, name: bytes, tenant: "Tenant", line: Line | None) -> None:
        self.name = name  # the limit key
        self.names: Names = (tenant.name, name) if tenant.name or name else PLAIN
        self.tenant = tenant
        self.line = line


class Tenant:
    """One tenant's sub-queues of one priority."""

    __slots__ = ("credit", "debt", "has_given", "keys", "name", "only")

    def __init__(self, name: bytes) -> None:
        self.name = name
        # Its sub-queue, while there is surely no other and it is not known to be empty or blocked. It takes no turns
        # with itself, so nothing of `keys` need be touched for it.
        self.only: Subqueue | None = None
        self.has_given = False  # a task, while it had only one sub-queue
        self.credit = 0  # how many tasks it may still give in its turn
        self.debt = 0  # how many it gave out of turn, because they were the oldest: its next turns are shorter by them
        self.keys: LimitKeys

    def begin_turn(self, weight: int) -> bool:
        """False if it gave all of this turn before."""
        paid = min(self.debt, weight)
        self.debt -= paid
        self.credit = weight - paid
        return self.credit > 0

    def owe(self) -> None:
        self.debt = min(self.debt + 1, DEBT_MAX)


class _Seeds(NamedTuple):
    """Sub-queues of one tenant that the walk over all has met."""

    limit_keys: list[bytes]  # in order
    is_all: bool


class PriorityLevel:
    """The ready tasks of one priority of a queue. Without `round_robin` there are only those of the plain sub-queue."""

    __slots__ = ("_left", "line", "priority", "round_robin")

    def __init__(self, priority: int, line: Line) -> None:
        self.priority = priority
        self.line = line
        self.round_robin: RoundRobin | None = None
        self._left: RoundRobin | None = None  # the last one, for those that are idle

    def open_round_robin(self, shared_state: "SharedState") -> "RoundRobin":
        """A task of another sub-queue came."""
        if self._left is None:
            self.round_robin = RoundRobin(shared_state, self, walks=False)
        else:
            self.round_robin, self._left = self._left, None
            self.round_robin.begin_again()
        return self.round_robin

    def leave_round_robin(self) -> None:
        """There is only the plain sub-queue left, if at all."""
        assert self.round_robin is not None
        self.round_robin.leave()
        self.round_robin, self._left = None, self.round_robin

    def forget_idle(self) -> None:
        for round_robin in (self.round_robin, self._left):
            if round_robin is not None:
                round_robin.forget_idle()


class SharedState:
    """What the round robins of a queue share."""

    __slots__ = ("cache_budget", "lines", "lost_keys", "next_sequence", "queue", "rows", "scan_budget", "subqueues")

    def __init__(
        self, rows: Rows, queue: bytes, lines: Lines, next_sequence: Callable[[], int], cache_budget: CacheBudget
    ) -> None:
        self.rows = rows
        self.queue = queue
        self.lines = lines
        self.next_sequence = next_sequence
        self.cache_budget = cache_budget
        self.scan_budget = ScanBudget()
        self.subqueues = 0  # that are held
        self.lost_keys = False  # a sub-queue was forgotten that is blocked by its limit key


class LimitKeys(Turns[Subqueue]):
    """The sub-queues of one tenant take turns, one task at a time."""

    __slots__ = ("_round_robin", "_tenant", "last")

    def __init__(self, round_robin: "RoundRobin", tenant: Tenant, seeds: _Seeds | None, resume: bytes | None) -> None:
        self._round_robin = round_robin
        self._tenant = tenant
        self.last: bytes | None = resume  # whose turn was the last one
        names = seeds.limit_keys if seeds is not None and seeds.is_all else None
        walk_from = None if names is not None else b"" if resume is None else resume + b"\0"
        stays = None if tenant.name else b""
        super().__init__(
            walk_from,
            held_max=KEYS_HELD_MAX,
            aside_max=KEYS_HELD_MAX,
            stays=stays,
            cache_budget=round_robin.shared_state.cache_budget,
            few=True,
        )
        if stays is not None:
            self._meet([b""])
        if names is not None:
            if resume is not None:
                start = bisect_right(names, resume)
                names = names[start:] + names[:start]
            self._meet(names)
        self._changed()

    def _changed(self) -> None:
        is_alone = len(self.known) == 1 and self.walk_after is None
        self._tenant.only = next(iter(self.due.values()), None) if is_alone else None

    def is_spent(self) -> bool:
        """Whether the tenant has no task left. If it had several sub-queues it may not be seen at once."""
        if self.walk_after is not None or self.lost or self.active > 1:
            return False
        for waiting in (self.due, self.served, self.aside):
            for subqueue in waiting.values():
                return subqueue.line is not None and subqueue.line.is_spent
        return True

    def add(self, name: bytes) -> Subqueue | None:
        only = self._tenant.only
        if only is not None and self._tenant.has_given:  # it has had a turn, which nobody noted while it was alone
            self._tenant.has_given = False
            self.served[only.name] = self.due.pop(only.name)
            self.last = only.name
        return super().add(name)

    def gave(self, subqueue: Subqueue, *, is_spent: bool) -> bool:
        """The sub-queue whose turn it was gave a task, perhaps its last; returns whether the tenant has none left."""
        self.empty_scans = 0
        if is_spent and self.may_end(subqueue):
            self.end(subqueue)
            return self.is_spent()
        self.finish_turn(subqueue)
        return False

    def finish_turn(self, item: Subqueue) -> None:
        self.last = item.name
        super().finish_turn(item)

    def _read(self, after: bytes) -> Page:
        shared_state = self._round_robin.shared_state
        prefix = keys.subqueue(shared_state.queue, self._round_robin.level.priority, self._tenant.name, b"")
        rows = shared_state.rows.scan(prefix + after, keys.after_prefix(prefix), KEYS_PAGE)
        n = len(prefix)
        names = [key[n:] for key, _ in rows]
        return Page(names, len(rows), names[-1] + b"\0" if len(rows) == KEYS_PAGE else None)

    def _make(self, name: bytes) -> Subqueue:
        self._round_robin.shared_state.subqueues += 1
        is_plain = not name and not self._tenant.name
        return Subqueue(name, self._tenant, self._round_robin.level.line if is_plain else None)

    def _forgotten(self, item: Subqueue) -> None:
        shared_state = self._round_robin.shared_state
        shared_state.subqueues -= 1
        if item.line is not None:
            shared_state.lines.forget(item.line)

    def _rested(self, item: Subqueue) -> None:
        self._round_robin.shared_state.subqueues -= 1

    def _returned(self, item: Subqueue) -> None:
        self._round_robin.shared_state.subqueues += 1

    def begin_again(self) -> None:
        """The tenant is back."""
        self.gone.clear()
        self.empty_scans = 0

    def _lose_one(self) -> bool:
        lost = super()._lose_one()
        self._round_robin.shared_state.lost_keys |= lost
        return lost


class RoundRobin(Turns[Tenant]):
    """The tenants of one priority take turns."""

    __slots__ = ("_page_subqueues", "_prefix", "_resumes", "_seeds", "holder", "level", "shared_state")

    def __init__(self, shared_state: SharedState, level: PriorityLevel, *, walks: bool) -> None:
        self.shared_state = shared_state
        self.level = level
        self._prefix = keys.subqueue_level(shared_state.queue, level.priority)
        self._page_subqueues = SUBQUEUES_PAGE
        self._seeds: dict[bytes, _Seeds] = {}
        self._resumes: dict[bytes, bytes] = {}  # of tenants that were forgotten: the limit key that had its turn last
        self.holder: Tenant | None = None  # gave its last before its turn was over, and nobody had a turn since
        walk_from = b"" if walks else None
        super().__init__(
            walk_from, held_max=TENANTS_HELD_MAX, aside_max=ASIDE_MAX, stays=b"", cache_budget=shared_state.cache_budget
        )  # fmt: skip
        self._take_plain(walks=walks)

    def leave(self) -> None:
        """There is nothing but the plain sub-queue: only those that are idle are kept."""
        for waiting in (self.due, self.served, self.aside):
            for tenant in waiting.values():
                self._forget(tenant)
            waiting.clear()
        self.holder = None
        self.gone.clear()
        self.empty_scans = 0

    def begin_again(self) -> None:
        """After it was left."""
        self._take_plain(walks=False)

    def _take_plain(self, *, walks: bool) -> None:
        level = self.level
        if level.line.head() is not None or not level.line.complete:
            if not walks:
                self._seeds[b""] = _Seeds([], is_all=True)
            self.add(b"")
            self._read_up()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the plain sub-queue, if at all."""
        if not self.rests or self.lost or self.active > 1:
            return False
        tenant = self.known.get(b"")
        if tenant is None:
            return not self.active
        held = tenant.keys
        return not self.aside and held.rests and not held.lost and held.active <= (b"" in held.known)

    def subqueue(self, tenant: bytes, limit_key: bytes) -> Subqueue | None:
        """The sub-queue, if it is held."""
        held = self.known.get(tenant)
        return None if held is None else held.keys.known.get(limit_key)

    def subqueue_at_once(self) -> Subqueue | None:
        """The sub-queue whose turn it is, where it is plain to see that its line has a task; None: look closely."""
        for tenant in self.due.values():
            subqueue = tenant.only or next(iter(tenant.keys.due.values()), None)
            line = None if subqueue is None else subqueue.line
            return subqueue if line is not None and line.line and not line.returned and not line.withdrawn else None
        return None

    def came(self, tenant: bytes, limit_key: bytes) -> Subqueue | None:
        """A sub-queue that is not held has a task. Returns the sub-queue if it is held now and has no other one."""
        held = self.known.get(tenant)
        if held is not None:
            is_all = held.keys.rests and not held.keys.lost
            self.wake(tenant)
            subqueue = held.keys.add(limit_key)
            self.open(tenant)
            return subqueue if is_all else None
        is_all = self.rests and not self.lost
        if is_all:
            self._seeds[tenant] = _Seeds([limit_key] if tenant or limit_key else [], is_all=True)
        added = self.add(tenant)
        if self._seeds:
            self._read_up()
        return added.keys.known.get(limit_key) if is_all and added is not None else None

    def line(self, subqueue: Subqueue) -> Line:
        """The sub-queue's tasks."""
        if subqueue.line is None:
            self._open(self._next_closed(subqueue))
        assert subqueue.line is not None
        return subqueue.line

    def hold_all(self) -> None:
        """Reads all sub-queues and their tasks, of which there are few. What comes later is added to them: while they
        stay few, nothing need ever be read again."""
        self._walk(b"")
        self.empty_scans = 0  # nobody was asked for a task
        self._open(
            [subqueue for tenant in self.due.values() for subqueue in tenant.keys.due.values() if subqueue.line is None]
        )

    def _next_closed(self, subqueue: Subqueue) -> list[Subqueue]:
        """The sub-queue, and those without a line whose turns come soon after it, as far as there is room."""
        subqueues = [subqueue]
        following = (next(iter(tenant.keys.due.values()), None) for tenant in self.due.values())
        for later in islice(following, LINES_AT_ONCE):
            if later is not None and later is not subqueue:
                if later.line is not None or not self.shared_state.lines.has_room_for(len(subqueues)):
                    break
                subqueues.append(later)
        return subqueues

    def _open(self, subqueues: list[Subqueue]) -> None:
        """Reads the tasks of sub-queues that are not plain, from the marks of the state on."""
        shared_state, priority = self.shared_state, self.level.priority
        queue = shared_state.queue
        rows = shared_state.rows.get_many([keys.subqueue(queue, priority, *subqueue.names) for subqueue in subqueues])
        for subqueue, row in zip(subqueues, rows, strict=True):
            prefix = keys.ready_subqueue(queue, priority, *subqueue.names)
            if row is None:
                subqueue.line = Line(prefix, shared_state.next_sequence(), complete=True, is_plain=False)
                continue
            known = SubqueueRow.decode(row)
            subqueue.line = Line(prefix, known.mark, complete=False, is_plain=False)
            if not known.has_rows:
                shared_state.lines.begin(subqueue.line, known.ready_slices())

    def freed(self, tenant: bytes) -> None:
        """Something of the tenant has ended."""
        if not self.open(tenant) and self.lost and tenant not in self.known:
            self.known[tenant] = self.due[tenant] = self._make(tenant)

    def finish_turn(self, item: Tenant) -> None:
        super().finish_turn(item)
        while self.shared_state.subqueues > SUBQUEUES_HELD_MAX and self.forget_one():
            pass

    def open_all(self) -> None:
        super().open_all()
        for tenant in self.known.values():
            tenant.keys.open_all()

    def _read(self, after: bytes) -> Page:
        page_subqueues = self._page_subqueues
        rows = self.shared_state.rows.scan(self._prefix + after, keys.after_prefix(self._prefix), page_subqueues)
        found: dict[bytes, list[bytes]] = {}
        for key, _ in rows:
            tenant, limit_key = keys.subqueue_names(key, self._prefix)
            found.setdefault(tenant, []).append(limit_key)
        names = list(found)
        is_cut = len(rows) == page_subqueues
        self._seeds = {name: _Seeds(found[name], is_all=not is_cut or name != names[-1]) for name in names}
        self._page_subqueues = SUBQUEUES_PAGE_BEHIND_A_WIDE_ONE if is_cut and len(names) == 1 else SUBQUEUES_PAGE
        # Behind all sub-queues of the last tenant, also those that did not fit: its own walk finds them.
        return Page(names, len(rows), names[-1] + b"\1" if is_cut else None)

    def _read_up(self) -> None:
        self._seeds = {}

    def _make(self, name: bytes) -> Tenant:
        tenant = Tenant(name)
        tenant.keys = LimitKeys(self, tenant, self._seeds.get(name), self._resumes.pop(name, None))
        return tenant

    def _forgotten(self, item: Tenant) -> None:
        held = item.keys
        if held.last is not None and (len(held.known) > 1 or not held.rests):
            if len(self._resumes) >= RESUMES_MAX:
                del self._resumes[next(iter(self._resumes))]
            self._resumes[item.name] = held.last
        self.shared_state.lost_keys |= bool(held.aside or held.lost)
        self.shared_state.subqueues -= held.active
        self.shared_state.cache_budget.left += len(held.idle)
        for subqueue in held.known.values():
            if subqueue.line is not None:
                self.shared_state.lines.forget(subqueue.line)

    def _discard(self, item: Tenant) -> None:
        item.only = None
        del item.keys  # they know the tenant: both would wait for the garbage collector, and a producer for that

    def _rested(self, item: Tenant) -> None:
        item.debt = 0  # it is forgotten with the last task
        self.shared_state.subqueues -= item.keys.active if item.only is None else 1

    def _returned(self, item: Tenant) -> None:
        if item.only is None:
            item.keys.begin_again()
        self.shared_state.subqueues += item.keys.active if item.only is None else 1
        if item is not self.holder:
            item.credit = 0

    def wake(self, name: bytes) -> None:
        goes_on = self.holder is not None and self.idle.get(name) is self.holder
        if goes_on:
            self.gone.discard(name)  # its turn is not over
        super().wake(name)
        if goes_on:
            assert isinstance(self.due, OrderedDict)
            self.due.move_to_end(name, last=False)

    def forget_idle(self) -> None:
        for tenant in self.known.values():
            tenant.keys.forget_idle()
        super().forget_idle()
