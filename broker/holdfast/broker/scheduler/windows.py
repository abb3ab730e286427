"""What the leader holds of one queue: the lines of its priorities, turns, ages and gates."""

from holdfast.broker.scheduler.limiter import PLENTY, Gates, Name
from holdfast.broker.scheduler.lines import PLAIN, Line, Lines, Names, Spot
from holdfast.broker.scheduler.oldest import Ages, Elder
from holdfast.broker.scheduler.subqueues import Band, Lane, Ring, Shelf, Tenant
from holdfast.machine import keys
from holdfast.machine.effects import ReadyTask
from holdfast.machine.entries import AGE_MARK, Mark
from holdfast.machine.ready_rows import Place
from holdfast.machine.rows import BANDS

LOOKS = 512  # lanes that a pick may look at in vain, and a few more for each task that it finds
LOOKS_OVER_MAX = 512  # further lanes that are held already: nothing need be read for them
ELDERS_MAX = 64  # that are looked at for one that is not blocked
WAKES_MAX = 10_000
KEYS_BLOCKED_MAX = 16_384

EVERYTHING: Name = (0, b"")  # opens all that is blocked

# Tenant and limit key, their line, or the task itself if it is in none that was read; the lane whose turn it is, if any
Found = tuple[Band, Names, Line | Place, Lane | None]


class Window:
    """One queue. What it holds is a part of the index and of the state, as of the newest batch that was applied."""

    __slots__ = (
        "_bands_tried", "_key_blocked", "_plain", "_tenants_blocked", "_unread", "ages", "bands", "gates", "hope",
        "lines", "picks", "queue", "rings", "shelf", "suspect_mark",
        "unfinished", "wakes",
    )  # fmt: skip

    def __init__(
        self,
        queue: bytes,
        bands: list[Band],
        lines: Lines,
        shelf: Shelf,
        ages: Ages,
        gates: Gates,
        *,
        unread: list[Ring],
        picks: int,
    ) -> None:
        """`unread`: rings with so few lanes that all are read with the first look. `picks`: how many tasks were picked
        before, by other leaders too, so that the share of the oldest goes on where it was."""
        self.queue = queue
        self._unread = unread
        self.bands = bands  # from the highest priority down
        self.lines = lines
        self.shelf = shelf
        self.ages = ages
        self.gates = gates
        self.picks = picks
        self.rings = sum(band.ring is not None for band in bands)  # priorities with other lanes than the plain one
        self.unfinished = False  # the last pick stopped looking before it had seen all
        # After a pick that found all blocked: how many tasks may be open since, at least one if any is. None: unknown.
        self.hope: int | None = None
        self.suspect_mark = 0  # no suspect that is ready has a smaller sequence
        self.wakes: dict[Name, int] = {}  # when what a rate blocks opens
        self._key_blocked: dict[bytes, set[tuple[int, bytes]]] = {}  # by limit key: priority and tenant of lanes
        self._tenants_blocked = False  # if not, no ring has set any aside
        self._bands_tried = 0
        # The bands whose plain lines may have tasks, by priority.
        self._plain = {band.priority: band for band in bands if not band.line.is_spent}

    def band(self, priority: int) -> Band:
        return self.bands[BANDS - 1 - priority]

    # --- what was applied -------------------------------------------------------------------------------------

    def became_ready(self, task: ReadyTask) -> None:
        _, priority, sequence, task_id, size_bytes, tenant, limit_key, _ = task
        self._enter(priority, (sequence, task_id, size_bytes), tenant, limit_key)
        if self.hope is not None:
            self.hope += 1

    def take_back(self, spot: Spot) -> None:
        """What was on its way to a claim is ready again."""
        self._enter(*spot)

    def _enter(self, priority: int, place: Place, tenant: bytes, limit_key: bytes) -> None:
        band = self.bands[BANDS - 1 - priority]
        if not tenant and not limit_key:
            self._plain[priority] = band
            self.lines.append(band.line, place)
            if band.ring is not None and band.ring.lane(b"", b"") is None:
                band.ring.came(b"", b"")
            return
        self.ages.came(place[0], place[1])
        ring = band.ring
        if ring is None:
            ring = band.open_ring(self.shelf)
            self.rings += 1
        held = ring.known.get(tenant)
        lane = None if held is None else held.only
        if lane is None or lane.name != limit_key:
            lane = None if held is None else held.keys.known.get(limit_key)
        if held is None or lane is None:
            self._enter_new_lane(ring, place, tenant, limit_key)
            return
        if tenant in ring.idle:
            ring.wake(tenant)
        if lane is not held.only and held.keys.idle:
            held.keys.wake(limit_key)
            ring.open(tenant)  # it may have been set aside because of its other lanes
        if lane.line is not None:
            self.lines.append(lane.line, place)

    def _enter_new_lane(self, ring: Ring, place: Place, tenant: bytes, limit_key: bytes) -> None:
        lane = ring.came(tenant, limit_key)
        if lane is None:
            return
        if lane.line is None and self.lines.has_room_for(1):  # with only this task in it, nothing need be read
            prefix = keys.ready_lane(self.queue, ring.band.priority, tenant, limit_key)
            lane.line = Line(prefix, place[0], complete=True, is_plain=False)
        if lane.line is not None:
            self.lines.append(lane.line, place)

    def was_withdrawn(self, task: ReadyTask) -> None:
        if task.sequence in self.lines.claiming:
            self.lines.withdrawn.add(task.sequence)
            return
        if task.is_suspect:
            return  # in no line
        line = self._line(task)
        if line is not None and task.sequence < line.cursor:
            line.withdrawn.add(task.sequence)
        if task.tenant or task.limit_key:
            self.ages.went(task.sequence)

    def pass_over(self, mark: Mark) -> None:
        """Nothing is ready before the mark: the index need not be read there, where it may have many tombstones."""
        if mark.priority == AGE_MARK:
            self.ages.pass_over(mark.sequence)
        elif (line := self._line(mark)) is not None:
            line.cursor = max(line.cursor, mark.sequence)

    def _line(self, place: ReadyTask | Mark) -> Line | None:
        band = self.band(place.priority)
        if not place.tenant and not place.limit_key:
            return band.line
        lane = None if band.ring is None else band.ring.lane(place.tenant, place.limit_key)
        return None if lane is None else lane.line

    # --- what is blocked --------------------------------------------------------------------------------------

    def opened(self, count: int) -> None:
        if self.hope is not None:
            self.hope += count

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
        return self._tenants_blocked or bool(self._key_blocked) or self.shelf.lost_keys

    def open_names(self, tenant: bytes, limit_key: bytes) -> None:
        """There may be room for both."""
        if tenant and self._tenants_blocked:
            self._open_tenant(tenant)
        if limit_key and (self._key_blocked or self.shelf.lost_keys):
            self._open_key(limit_key)

    def _open_tenant(self, tenant: bytes) -> None:
        self._tenants_blocked = False
        for band in self.bands if self.rings else ():
            if band.ring is not None and (band.ring.aside or band.ring.lost):
                band.ring.freed(tenant)
                self._tenants_blocked = True  # as far as is known: there may be others

    def _open_key(self, limit_key: bytes) -> None:
        for priority, tenant in self._key_blocked.pop(limit_key, ()):
            ring = self.band(priority).ring
            held = None if ring is None else ring.known.get(tenant)
            if ring is not None and held is not None and held.keys.open(limit_key):
                ring.open(tenant)
        if self.shelf.lost_keys:
            self.open_all()

    def forget_idle(self) -> None:
        """Nobody is kept for his return any more."""
        for band in self.bands:
            band.forget_idle()

    def open_all(self) -> None:
        """Nothing that was found blocked need be so any more."""
        self.hope = None
        self._key_blocked.clear()
        self.shelf.lost_keys = False
        for band in self.bands:
            if band.ring is not None:
                band.ring.open_all()

    # --- picking ----------------------------------------------------------------------------------------------

    def next_lane(self, band: Band, now_ms: int, blocked: dict[Name, int]) -> Lane | None:
        """The lane of a priority with lanes whose turn it is and that is open; its line has a head.

        Into `blocked` goes what a rate holds up, and until when.
        """
        ring, looks, gates = band.ring, self.shelf.looks, self.gates
        assert ring is not None
        while (tenant := ring.current(looks)) is not None and looks.left > -LOOKS_OVER_MAX:
            held = tenant.keys
            until_ms = gates.tenant_closed(tenant.name, now_ms, blocked)
            if until_ms is None:
                lane = self._open_lane(ring, tenant, now_ms, blocked)
                if lane is not None:
                    if tenant.credit or tenant.begin_turn(gates.rules.weights.get(tenant.name, 1)):
                        return lane
                    ring.finish_turn(tenant)  # it gave all of this turn before
                    continue
                if not held.rests and held.barren < 2:
                    break  # there was nothing left to look with
            looks.left -= 1
            tenant.credit = 0
            if held.is_spent():
                ring.drop(tenant)
            elif until_ms is None and not held.rests:
                ring.finish_turn(tenant)  # all was looked at and something came meanwhile: it must not hold up others
            else:
                ring.set_aside(tenant)
                self._tenants_blocked = True
        self.unfinished |= not ring.rests or tenant is not None
        if ring.is_plain and tenant is None:
            self._drop_ring(band)
        return None

    def _open_lane(self, ring: Ring, tenant: Tenant, now_ms: int, blocked: dict[Name, int]) -> Lane | None:
        """The lane of a tenant whose turn it is, if one is open."""
        looks, held = self.shelf.looks, tenant.keys
        while (lane := held.current(looks)) is not None:
            line = ring.line(lane) if lane.line is None else lane.line
            if (line.is_mixed or not line.line) and self.lines.head(line) is None:
                held.drop(lane)
            elif lane.name and self.gates.key_closed(lane.name, now_ms, blocked) is not None:
                held.set_aside(lane)
                self._note_blocked(lane.name, ring.band.priority, tenant.name)
            else:
                break
            looks.left -= 1
        return lane

    def _drop_ring(self, band: Band) -> None:
        """There is only the plain lane left, if at all."""
        band.leave_ring()
        self.rings -= 1

    def _note_blocked(self, limit_key: bytes, priority: int, tenant: bytes) -> None:
        if len(self._key_blocked) >= KEYS_BLOCKED_MAX:
            self._key_blocked.clear()
            self.shelf.lost_keys = True  # looks at all of them again
        self._key_blocked.setdefault(limit_key, set()).add((priority, tenant))

    def begin_look(self) -> None:
        """Call it before anything is looked for, and after all that was applied is known."""
        for ring in self._unread:
            ring.hold_all()
        self._unread = []
        self.lines.give_room_back()  # what left without a claim, purged or lapsed, needs none any more
        self.shelf.looks.left = LOOKS
        self.unfinished = False
        self.gates.shrink()

    def turns_before_the_oldest(self) -> int:
        """How many tasks are picked by turns before the oldest is: spread evenly, with 10 percent every tenth is."""
        share_percent = self.gates.rules.oldest_share_percent
        if not share_percent:
            return PLENTY
        shares = self.picks * share_percent // 100  # that were given so far
        return -(-(shares + 1) * 100 // share_percent) - self.picks - 1

    def finish_turn(self, band: Band, lane: Lane, count: int) -> None:
        """The lane whose turn it was has given so many tasks: one, or of a tenant's only lane what its turn allows."""
        ring, tenant, line = band.ring, lane.tenant, lane.line
        assert ring is not None
        assert line is not None
        is_spent = line.complete and not line.line and not line.returned
        if tenant.only is lane:
            tenant.has_given = True
        else:
            is_spent = tenant.keys.gave(lane, is_spent=is_spent)
        ring.barren = 0
        ring.holder = None
        tenant.credit -= count
        if is_spent and ring.may_end(tenant):
            if tenant.credit > 0:
                ring.drop(tenant)
                ring.holder = tenant
            else:
                ring.end(tenant)
        elif tenant.credit <= 0:
            tenant.credit = 0
            ring.finish_turn(tenant)
            if not tenant.name and ring.is_plain:
                self._drop_ring(band)

    def oldest(self, now_ms: int) -> Found | None:
        """Where the oldest ready task is that is not blocked; None if there is none among the first."""
        plain, gates = self._oldest_plain() if self._plain else None, self.gates
        for elder in self.ages.elders(self.lines.claiming, ELDERS_MAX) if self.rings else ():
            if plain is not None and plain[0] < elder.place[0]:
                break
            if gates.tenant_closed(elder.tenant, now_ms) is not None:
                continue
            if gates.key_closed(elder.limit_key, now_ms) is None:
                return self._elder_line(elder)
        return None if plain is None else (plain[1], PLAIN, plain[1].line, None)

    def _oldest_plain(self) -> tuple[int, Band] | None:
        """Its sequence and its band."""
        oldest: tuple[int, Band] | None = None
        for band in list(self._plain.values()):
            head = self.lines.head(band.line)
            if head is None:
                del self._plain[band.priority]
            elif oldest is None or head[0] < oldest[0]:
                oldest = head[0], band
        return oldest

    def next_band(self) -> int:
        """The place of a priority, another one each time."""
        self._bands_tried = (self._bands_tried + 1) % BANDS
        return self._bands_tried

    def gave_out_of_turn(self, band: Band, tenant: bytes) -> None:
        held = None if band.ring is None else band.ring.known.get(tenant)
        if held is not None:
            held.owe()

    def _elder_line(self, elder: Elder) -> Found | None:
        """Of a lane that is not held, or was not read yet, nothing is read for this one task."""
        band = self.band(elder.priority)
        lane = None if band.ring is None else band.ring.lane(elder.tenant, elder.limit_key)
        if lane is None or lane.line is None:
            return band, (elder.tenant, elder.limit_key), elder.place, None
        if self.lines.head(lane.line) is None:
            self.ages.went(elder.place[0])
            return None
        return band, lane.names, lane.line, None
