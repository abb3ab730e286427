"""Turns of tenants within a priority, and of limit keys within a tenant, over the LANE index."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from holdfast.broker.scheduler.lines import PLAIN, Line, Lines, Names
from holdfast.broker.scheduler.round_robin import Looks, Page, Spares, Turns
from holdfast.machine import keys
from holdfast.machine.kv import OrderedKV
from holdfast.machine.ready_rows import Lane as LaneRow

LANES_PAGE = 64  # rows that are read at a time: small, for a producer waits meanwhile
LANES_PAGE_BEHIND_A_WIDE_ONE = 16  # a tenant with many lanes fills a page alone: the next may be one, too
KEYS_PAGE = 64
TENANTS_HELD_MAX = 1024
KEYS_HELD_MAX = 256  # of one tenant
ASIDE_MAX = 4096
LANES_HELD_MAX = 8192  # of one queue
RESUMES_MAX = 10_000
DEBT_MAX = 1000  # of a tenant: it is paid by turns, and forgotten with its last task
LINES_AT_ONCE = 64  # opened together: one read for all of them


class Lane:
    """One line of a tenant's tasks with the same limit key; it is read when its turn comes."""

    __slots__ = ("line", "name", "names", "tenant")

    def __init__(self, name: bytes, tenant: "Tenant", line: Line | None) -> None:
        self.name = name  # the limit key
        self.names: Names = (tenant.name, name) if tenant.name or name else PLAIN
        self.tenant = tenant
        self.line = line


class Tenant:
    """One tenant's lanes of one priority."""

    __slots__ = ("credit", "debt", "has_given", "keys", "name", "only")

    def __init__(self, name: bytes) -> None:
        self.name = name
        # Its lane, while there is surely no other one and it is not known to be empty or blocked. It takes no turns
        # with itself, so nothing of `keys` need be touched for it.
        self.only: Lane | None = None
        self.has_given = False  # a task, while it had only one lane
        self.credit = 0  # how many tasks it may still give in its turn
        self.debt = 0  # how many it gave out of turn, because they were the oldest: its next turns are shorter by them
        self.keys: Keys

    def begin_turn(self, weight: int) -> bool:
        """False if it gave all of this turn before."""
        paid = min(self.debt, weight)
        self.debt -= paid
        self.credit = weight - paid
        return self.credit > 0

    def owe(self) -> None:
        self.debt = min(self.debt + 1, DEBT_MAX)


class _Seeds(NamedTuple):
    """Lanes of one tenant that the walk over all has met."""

    limit_keys: list[bytes]  # in order
    is_all: bool


class Band:
    """The ready tasks of one priority of a queue. Without `ring` there are only those of the plain lane."""

    __slots__ = ("_left", "line", "priority", "ring")

    def __init__(self, priority: int, line: Line) -> None:
        self.priority = priority
        self.line = line
        self.ring: Ring | None = None
        self._left: Ring | None = None  # the last one, for those that are idle

    def open_ring(self, shelf: "Shelf") -> "Ring":
        """A task of another lane came."""
        if self._left is None:
            self.ring = Ring(shelf, self, walks=False)
        else:
            self.ring, self._left = self._left, None
            self.ring.begin_again()
        return self.ring

    def leave_ring(self) -> None:
        """There is only the plain lane left, if at all."""
        assert self.ring is not None
        self.ring.leave()
        self.ring, self._left = None, self.ring

    def forget_idle(self) -> None:
        for ring in (self.ring, self._left):
            if ring is not None:
                ring.forget_idle()


class Shelf:
    """What the rings of a queue share."""

    __slots__ = ("kv", "lanes", "lines", "looks", "lost_keys", "next_sequence", "queue", "spares")

    def __init__(
        self, kv: OrderedKV, queue: bytes, lines: Lines, next_sequence: Callable[[], int], spares: Spares
    ) -> None:
        self.kv = kv
        self.queue = queue
        self.lines = lines
        self.next_sequence = next_sequence
        self.spares = spares
        self.looks = Looks()
        self.lanes = 0  # that are held
        self.lost_keys = False  # a lane was forgotten that is blocked by its limit key


class Keys(Turns[Lane]):
    """The lanes of one tenant take turns, one task at a time."""

    __slots__ = ("_ring", "_tenant", "last")

    def __init__(self, ring: "Ring", tenant: Tenant, seeds: _Seeds | None, resume: bytes | None) -> None:
        self._ring = ring
        self._tenant = tenant
        self.last: bytes | None = resume  # whose turn was the last one
        names = seeds.limit_keys if seeds is not None and seeds.is_all else None
        walk_from = None if names is not None else b"" if resume is None else resume + b"\0"
        stays = None if tenant.name else b""
        super().__init__(
            walk_from, held_max=KEYS_HELD_MAX, aside_max=KEYS_HELD_MAX, stays=stays, spares=ring.shelf.spares, few=True
        )
        if stays is not None:
            self._meet([b""])
        if names is not None:
            if resume is not None:
                at = bisect_right(names, resume)
                names = names[at:] + names[:at]
            self._meet(names)
        self._changed()

    def _changed(self) -> None:
        is_alone = len(self.known) == 1 and self.walk_after is None
        self._tenant.only = next(iter(self.due.values()), None) if is_alone else None

    def is_spent(self) -> bool:
        """Whether the tenant has no task left. If it had several lanes it may not be seen at once."""
        if self.walk_after is not None or self.lost or self.active > 1:
            return False
        for waiting in (self.due, self.served, self.aside):
            for lane in waiting.values():
                return lane.line is not None and lane.line.is_spent
        return True

    def add(self, name: bytes) -> Lane | None:
        only = self._tenant.only
        if only is not None and self._tenant.has_given:  # it has had a turn, which nobody noted while it was alone
            self._tenant.has_given = False
            self.served[only.name] = self.due.pop(only.name)
            self.last = only.name
        return super().add(name)

    def gave(self, lane: Lane, *, is_spent: bool) -> bool:
        """The lane whose turn it was has given a task, perhaps its last; returns whether the tenant has none left."""
        self.barren = 0
        if is_spent and self.may_end(lane):
            self.end(lane)
            return self.is_spent()
        self.finish_turn(lane)
        return False

    def finish_turn(self, item: Lane) -> None:
        self.last = item.name
        super().finish_turn(item)

    def _read(self, after: bytes) -> Page:
        shelf = self._ring.shelf
        prefix = keys.lane(shelf.queue, self._ring.band.priority, self._tenant.name, b"")
        rows = shelf.kv.scan(prefix + after, keys.after_prefix(prefix), KEYS_PAGE)
        n = len(prefix)
        names = [key[n:] for key, _ in rows]
        return Page(names, len(rows), names[-1] + b"\0" if len(rows) == KEYS_PAGE else None)

    def _make(self, name: bytes) -> Lane:
        self._ring.shelf.lanes += 1
        is_plain = not name and not self._tenant.name
        return Lane(name, self._tenant, self._ring.band.line if is_plain else None)

    def _forgotten(self, item: Lane) -> None:
        shelf = self._ring.shelf
        shelf.lanes -= 1
        if item.line is not None:
            shelf.lines.forget(item.line)

    def _rested(self, item: Lane) -> None:
        self._ring.shelf.lanes -= 1

    def _returned(self, item: Lane) -> None:
        self._ring.shelf.lanes += 1

    def begin_again(self) -> None:
        """The tenant is back."""
        self._gone.clear()
        self.barren = 0

    def _lose_one(self) -> bool:
        lost = super()._lose_one()
        self._ring.shelf.lost_keys |= lost
        return lost


class Ring(Turns[Tenant]):
    """The tenants of one priority take turns."""

    __slots__ = ("_page_lanes", "_prefix", "_resumes", "_seeds", "band", "holder", "shelf")

    def __init__(self, shelf: Shelf, band: Band, *, walks: bool) -> None:
        self.shelf = shelf
        self.band = band
        self._prefix = keys.lane_band(shelf.queue, band.priority)
        self._page_lanes = LANES_PAGE
        self._seeds: dict[bytes, _Seeds] = {}
        self._resumes: dict[bytes, bytes] = {}  # of tenants that were forgotten: the limit key that had its turn last
        self.holder: Tenant | None = None  # gave its last before its turn was over, and nobody had a turn since
        walk_from = b"" if walks else None
        super().__init__(
            walk_from, held_max=TENANTS_HELD_MAX, aside_max=ASIDE_MAX, stays=b"", spares=shelf.spares
        )  # fmt: skip
        self._take_plain(walks=walks)

    def leave(self) -> None:
        """There is nothing but the plain lane: only those that are idle are kept."""
        for waiting in (self.due, self.served, self.aside):
            for tenant in waiting.values():
                self._forget(tenant)
            waiting.clear()
        self.holder = None
        self._gone.clear()
        self.barren = 0

    def begin_again(self) -> None:
        """After it was left."""
        self._take_plain(walks=False)

    def _take_plain(self, *, walks: bool) -> None:
        band = self.band
        if band.line.head() is not None or not band.line.complete:
            if not walks:
                self._seeds[b""] = _Seeds([], is_all=True)
            self.add(b"")
            self._read_up()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the plain lane, if at all."""
        if not self.rests or self.lost or self.active > 1:
            return False
        tenant = self.known.get(b"")
        if tenant is None:
            return not self.active
        held = tenant.keys
        return not self.aside and held.rests and not held.lost and held.active <= (b"" in held.known)

    def lane(self, tenant: bytes, limit_key: bytes) -> Lane | None:
        """The lane, if it is held."""
        held = self.known.get(tenant)
        return None if held is None else held.keys.known.get(limit_key)

    def lane_at_once(self) -> Lane | None:
        """The lane whose turn it is, where it is plain to see that its line has a task; None: look closely."""
        for tenant in self.due.values():
            lane = tenant.only or next(iter(tenant.keys.due.values()), None)
            line = None if lane is None else lane.line
            return lane if line is not None and line.line and not line.returned and not line.withdrawn else None
        return None

    def came(self, tenant: bytes, limit_key: bytes) -> Lane | None:
        """A lane that is not held has a task. Returns the lane if it is held now and has no other one."""
        held = self.known.get(tenant)
        if held is not None:
            is_all = held.keys.rests and not held.keys.lost
            self.wake(tenant)
            lane = held.keys.add(limit_key)
            self.open(tenant)
            return lane if is_all else None
        is_all = self.rests and not self.lost
        if is_all:
            self._seeds[tenant] = _Seeds([limit_key] if tenant or limit_key else [], is_all=True)
        added = self.add(tenant)
        if self._seeds:
            self._read_up()
        return added.keys.known.get(limit_key) if is_all and added is not None else None

    def line(self, lane: Lane) -> Line:
        """The lane's tasks."""
        if lane.line is None:
            self._open(self._next_closed(lane))
        assert lane.line is not None
        return lane.line

    def hold_all(self) -> None:
        """Reads all lanes and their tasks, of which there are few. What comes later is added to them: while they stay
        few, nothing need ever be read again."""
        self._walk(b"")
        self.barren = 0  # nobody was asked for a task
        self._open([lane for tenant in self.due.values() for lane in tenant.keys.due.values() if lane.line is None])

    def _next_closed(self, lane: Lane) -> list[Lane]:
        """The lane, and those without a line whose turns come soon after it, as far as there is room."""
        lanes = [lane]
        following = (next(iter(tenant.keys.due.values()), None) for tenant in self.due.values())
        for each in islice(following, LINES_AT_ONCE):
            if each is not None and each is not lane:
                if each.line is not None or not self.shelf.lines.has_room_for(len(lanes)):
                    break
                lanes.append(each)
        return lanes

    def _open(self, lanes: list[Lane]) -> None:
        """Reads the tasks of lanes that are not plain, from the marks of the state on."""
        shelf, priority = self.shelf, self.band.priority
        queue = shelf.queue
        rows = shelf.kv.get_many([keys.lane(queue, priority, *lane.names) for lane in lanes])
        for lane, row in zip(lanes, rows, strict=True):
            prefix = keys.ready_lane(queue, priority, *lane.names)
            if row is None:
                lane.line = Line(prefix, shelf.next_sequence(), complete=True, is_plain=False)
                continue
            known = LaneRow.decode(row)
            lane.line = Line(prefix, known.mark, complete=False, is_plain=False)
            if not known.has_rows:
                shelf.lines.begin(lane.line, known.places())

    def freed(self, tenant: bytes) -> None:
        """Something of the tenant has ended."""
        if not self.open(tenant) and self.lost and tenant not in self.known:
            self.known[tenant] = self.due[tenant] = self._make(tenant)

    def finish_turn(self, item: Tenant) -> None:
        super().finish_turn(item)
        while self.shelf.lanes > LANES_HELD_MAX and self.forget_one():
            pass

    def open_all(self) -> None:
        super().open_all()
        for tenant in self.known.values():
            tenant.keys.open_all()

    def _read(self, after: bytes) -> Page:
        page_lanes = self._page_lanes
        rows = self.shelf.kv.scan(self._prefix + after, keys.after_prefix(self._prefix), page_lanes)
        found: dict[bytes, list[bytes]] = {}
        for key, _ in rows:
            tenant, limit_key = keys.lane_names(key, self._prefix)
            found.setdefault(tenant, []).append(limit_key)
        names = list(found)
        is_cut = len(rows) == page_lanes
        self._seeds = {name: _Seeds(found[name], is_all=not is_cut or name != names[-1]) for name in names}
        self._page_lanes = LANES_PAGE_BEHIND_A_WIDE_ONE if is_cut and len(names) == 1 else LANES_PAGE
        # Behind all lanes of the last tenant, also those that did not fit: its own walk finds them.
        return Page(names, len(rows), names[-1] + b"\1" if is_cut else None)

    def _read_up(self) -> None:
        self._seeds = {}

    def _make(self, name: bytes) -> Tenant:
        tenant = Tenant(name)
        tenant.keys = Keys(self, tenant, self._seeds.get(name), self._resumes.pop(name, None))
        return tenant

    def _forgotten(self, item: Tenant) -> None:
        held = item.keys
        if held.last is not None and (len(held.known) > 1 or not held.rests):
            if len(self._resumes) >= RESUMES_MAX:
                del self._resumes[next(iter(self._resumes))]
            self._resumes[item.name] = held.last
        self.shelf.lost_keys |= bool(held.aside or held.lost)
        self.shelf.lanes -= held.active
        self.shelf.spares.left += len(held.idle)
        for lane in held.known.values():
            if lane.line is not None:
                self.shelf.lines.forget(lane.line)

    def _discard(self, item: Tenant) -> None:
        item.only = None
        del item.keys  # they know the tenant: both would wait for the garbage collector, and a producer for that

    def _rested(self, item: Tenant) -> None:
        item.debt = 0  # it is forgotten with the last task
        self.shelf.lanes -= item.keys.active if item.only is None else 1

    def _returned(self, item: Tenant) -> None:
        if item.only is None:
            item.keys.begin_again()
        self.shelf.lanes += item.keys.active if item.only is None else 1
        if item is not self.holder:
            item.credit = 0

    def wake(self, name: bytes) -> None:
        goes_on = self.holder is not None and self.idle.get(name) is self.holder
        if goes_on:
            self._gone.discard(name)  # its turn is not over
        super().wake(name)
        if goes_on:
            assert isinstance(self.due, OrderedDict)
            self.due.move_to_end(name, last=False)

    def forget_idle(self) -> None:
        for tenant in self.known.values():
            tenant.keys.forget_idle()
        super().forget_idle()
