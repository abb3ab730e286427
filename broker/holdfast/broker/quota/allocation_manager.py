"""What this shard may use of the queue-wide limits of queues that are spread over several shards.

It asks the leader of each queue's home for an allocation, tells what it uses and could use, and asks again long
before the allocation's lease runs out. Without one nothing of the queue is handed out here: a limit is kept, also while
its coordinator cannot be reached. A shard that has nothing to hand out, or only tasks that other limits hold up, holds
nothing and asks for nothing; what stays unused is not asked for again (see scheduler/allocation_use.py).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.broker.policy.policies import EffectivePolicy, Policies
from holdfast.broker.policy.settings_guard import Homes, SettingsGuard
from holdfast.broker.quota.coordinator import CONCURRENCY, LEASE_MS, RATE, QuotaCoordinator
from holdfast.broker.scheduler.allocation_use import AllocationUse, Outlook, Seen
from holdfast.broker.scheduler.limiter import OWN_LIMITS, Allowance
from holdfast.common.service import Service
from holdfast.limits.allocation import HELD_PERCENT, Grant, Holding
from holdfast.limits.buckets import Rate, part_of
from holdfast.limits.equal_parts import Part
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine.machine import Machine
from holdfast.serving.logs import get_logger

POLL_SECONDS = 0.5
PAUSE_SECONDS = 0.02  # between looks, however often it is woken
ASK_SECONDS = 2.0  # for one answer: by the time it is missed, the allocation that is held has not run out
SAID_SECONDS = 5.0  # after which it is said that a home does not answer; a fail-over is over by then
RETRY_MS = 500  # after a report without an answer
UNDER_ALLOCATED_MS = 1000  # between reports of a shard that could use more than it was given, or much less
BLOCKED_MS = 50  # between looks whether something opened in a queue all of whose tasks were blocked
QUEUES_MAX = 10_000
REPORTS_MAX = 200  # in one call: the coordinator has to write all its answers before it can give them
QUIET_RATE_MILLI = 1000  # of a rate, for tasks that come one by one
FORGET_MS = 2 * LEASE_MS  # after which the coordinator's ledger has nothing of one that was not asked for

_log = get_logger(__name__)


NO_ALLOWANCE = Allowance(0, Rate(0, 0))
NOTHING = Allowance(0, None)  # of a queue whose settings may be others than are known here


class _Limit:
    """One limit of one queue."""

    __slots__ = ("answered", "asked_ms", "booked", "holding", "is_under_allocated", "reported", "shown", "timer")

    def __init__(self, shard: int, term: int) -> None:
        self.holding = Holding(shard, term)
        self.asked_ms = 0  # when the latest report was sent
        self.answered = True
        self.reported = 0  # what the latest report says to be held or in use
        self.booked = 0  # what the coordinator's ledger may have for this shard, by its latest answer
        self.is_under_allocated = False  # more was wanted than given then
        self.shown = 0  # the allowance that the scheduler knows
        self.timer: asyncio.TimerHandle | None = None

    def is_due(self, uses: int, demand: int, now_ms: int) -> bool:
        """Whether there is something to tell or to ask for."""
        allowed = self.holding.allowance(now_ms)
        if not (allowed or demand or self.booked):
            return False
        waited_ms = now_ms - self.asked_ms
        if not self.answered and waited_ms < RETRY_MS:
            return False
        if now_ms >= self.holding.renew_ms or max(allowed, uses) < self.booked:
            return True  # the ledger has more than is needed here: others may wait for it
        if demand > allowed:
            return not self.is_under_allocated or waited_ms >= UNDER_ALLOCATED_MS
        return 2 * demand <= allowed and waited_ms >= UNDER_ALLOCATED_MS

    @property
    def is_idle(self) -> bool:
        return not self.booked and self.answered and not self.shown


class _Shared:
    """One queue."""

    __slots__ = ("claimed_total", "counted_ms", "has_left", "limits", "polled_ms", "use")

    def __init__(self, shard: int, term: int) -> None:
        self.limits = {CONCURRENCY: _Limit(shard, term), RATE: _Limit(shard, term)}
        self.has_left = False  # the queue is on one shard now, and the scheduler knows
        self.claimed_total = 0
        self.counted_ms = 0  # when that was counted
        self.use = AllocationUse()
        self.polled_ms = 0  # when it was last looked whether tasks are blocked

    def count(self, claimed_total: int, now_ms: int) -> None:
        self.claimed_total, self.counted_ms = claimed_total, now_ms

    def asked_ms(self) -> int:
        return max(limit.asked_ms for limit in self.limits.values())


def _boot_seconds() -> float:
    """A lease goes on while a machine is suspended, which time.monotonic leaves out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SpreadQueues(Protocol):
    """Where queues are, as this node knows it."""

    def home_if_spread(self, queue: bytes) -> int | None:
        """The home shard of a queue that is on several shards; None if it is on one."""

    def part_of(self, here: int, queue: bytes) -> Part:
        """Which part of the shards of a queue the shard `here` is."""


class HandingOut(Protocol):
    """What hands out the tasks of this shard."""

    def limits_changed(self, queue: bytes) -> None:
        """The allowance of the queue is another one."""

    def coming(self, queue: bytes) -> int:
        """Claims of a queue that are on their way into the log."""

    def outlook(self, queue: bytes) -> Outlook:
        """Of a queue that has ready tasks."""


class AllocationManager(Service):
    """The allocations of one shard, while this node leads it."""

    def __init__(
        self,
        term: int,
        machine: Machine,
        policies: Policies,
        coordinator: QuotaCoordinator,
        *,
        view: SpreadQueues,
        others: Homes,
        handing_out: HandingOut,
        settings: SettingsGuard | None = None,
        now_s: Callable[[], float] = _boot_seconds,
    ) -> None:
        """`settings`: without a guard nobody but this shard knows them."""
        super().__init__(self._run)
        self._shard = machine.meta.shard
        self._term = term
        self._machine = machine
        self._policies = policies
        self._coordinator = coordinator
        self._view = view
        self._parts: dict[bytes, Part] = {}  # as the scheduler knows them
        self._others = others
        self._handing_out = handing_out
        self._settings = settings
        self._now_s = now_s
        self.queues: dict[bytes, _Shared] = {}
        self._has_forgotten = False
        self.woken = asyncio.Event()
        self.asking: dict[int, asyncio.Task[None]] = {}  # by home: one call at a time
        self._silent: dict[int, float] = {}  # homes that do not answer, since when; negative once that was said

    # --- what is asked here -----------------------------------------------------------------------------------

    def allowance(self, queue: bytes) -> Allowance:
        """What the scheduler is to keep to. It is told of every change."""
        if self._settings is not None and not self._settings.may_hand_out(queue):
            return NOTHING
        limits = self._policies.of(queue).limits
        own = OWN_LIMITS
        if limits.limits_tenants:
            own = Allowance(None, None, self._watched_part(queue))
        if not limits.concurrency_max and limits.rate is None:
            return own
        shared = self.queues.get(queue)
        if self._view.home_if_spread(queue) is None:
            if shared is not None:
                shared.has_left = True
            return own
        shared = shared or self._take_up(queue)
        if shared is None:
            return NO_ALLOWANCE._replace(tenants=own.tenants)
        shared.has_left = False
        now_ms = self._now_ms()
        for limit in shared.limits.values():
            limit.shown = limit.holding.allowance(now_ms)
        concurrency = shared.limits[CONCURRENCY].shown if limits.concurrency_max else None
        return Allowance(concurrency, limits.rate and part_of(limits.rate, shared.limits[RATE].shown), own.tenants)

    def _watched_part(self, queue: bytes) -> Part:
        """The shards of a queue may become others at any time, and nobody says so."""
        part = self._view.part_of(self._shard, queue)
        if queue not in self._parts:
            if len(self._parts) >= QUEUES_MAX:  # as many as the scheduler has windows, which all asked since
                del self._parts[next(iter(self._parts))]
            self.woken.set()
        self._parts[queue] = part
        return part

    def _poll_parts(self) -> None:
        for queue, part in list(self._parts.items()):
            if self._view.part_of(self._shard, queue) != part:
                del self._parts[queue]  # until it is asked for again
                self._handing_out.limits_changed(queue)

    def takes_part(self, queue: bytes) -> bool:
        """See `AtHome`."""
        if self._view.home_if_spread(queue) != self._shard:
            return False
        shared = self.queues.get(queue)
        if shared is None or shared.has_left:
            self._handing_out.limits_changed(queue)  # so far the scheduler may know the queue's own limits only
            self.allowance(queue)  # it may have nothing to do with the queue, and not ask
        return queue in self.queues

    def in_use(self, queue: bytes) -> int:
        """Claims that are there, and those on their way."""
        row = self._machine.queue(queue)
        return 0 if row is None else row.claimed + self._handing_out.coming(queue)

    @property
    def has_allocations(self) -> bool:
        """Whether there is anybody to tell by `follow`."""
        return bool(self.queues)

    def follow(self, queues: Iterable[bytes]) -> None:
        """Something became ready or ended in these queues: more is asked for at once, not only at the next poll."""
        if not self.queues:
            return
        now_ms = self._now_ms()
        for queue in queues:
            shared = self.queues.get(queue)
            if shared is None:
                if self._has_forgotten:
                    self.allowance(queue)  # takes it up, and wakes
                continue
            if self.woken.is_set():
                continue
            if shared.use.is_blocked and now_ms - shared.polled_ms >= BLOCKED_MS:
                self._check_open(queue, shared, now_ms)
            if self._due(queue, shared, now_ms):
                self.woken.set()

    def _take_up(self, queue: bytes) -> _Shared | None:
        if len(self.queues) >= QUEUES_MAX:
            self._forget_idle()
        if len(self.queues) >= QUEUES_MAX:
            _log.warning(
                "no_allocation", shard=self._shard, queue=queue.decode(), error="too many queues have allocations"
            )
            return None
        shared = self.queues[queue] = _Shared(self._shard, self._term)
        row = self._machine.queue(queue)
        shared.count(0 if row is None else row.claimed_total, self._now_ms())
        self.woken.set()
        return shared

    def _forget_idle(self) -> None:
        """Not before the ledger has forgotten them too: the numbers of reports begin anew."""
        before_ms = self._now_ms() - FORGET_MS
        for queue, shared in list(self.queues.items()):
            if shared.asked_ms() < before_ms and all(limit.is_idle for limit in shared.limits.values()):
                del self.queues[queue]
                self._has_forgotten = True

    # --- life -------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        super().cancel()
        for shared in self.queues.values():
            for limit in shared.limits.values():
                if limit.timer is not None:
                    limit.timer.cancel()

    async def _run(self) -> None:
        while True:
            self.woken.clear()
            self.poll()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if self.queues or self._parts else None):
                    await self.woken.wait()
            await asyncio.sleep(PAUSE_SECONDS)

    # --- asking -----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Begins to ask for what is due. A home that does not answer holds up nobody but the queues it is home of."""
        self._poll_parts()
        by_home: dict[int, list[tuple[bytes, _Shared, list[str]]]] = {}
        now_ms = self._now_ms()
        for queue, shared in list(self.queues.items()):
            self._show(queue, shared, now_ms)
            if shared.use.is_due(now_ms):
                self._note_use(queue, shared, now_ms)
            due = self._due(queue, shared, now_ms)
            if not due:
                continue
            home = self._view.home_if_spread(queue)
            if home is None:
                self._leave(queue, shared, now_ms)
                continue
            if shared.has_left:
                self._handing_out.limits_changed(queue)
                shared.has_left = False
            if home not in self.asking:
                by_home.setdefault(home, []).append((queue, shared, due))
        for home, dues in by_home.items():
            task = self.asking[home] = self.spawn(self._ask(home, dues))
            task.add_done_callback(lambda _done, home=home: self.asking.pop(home, None))  # type: ignore[misc]

    def _leave(self, queue: bytes, shared: _Shared, now_ms: int) -> None:
        """The queue is on one shard now. What is known of reports stays until the ledger has forgotten it."""
        if shared.asked_ms() < now_ms - FORGET_MS:
            del self.queues[queue]
        if not shared.has_left:
            shared.has_left = True
            self._handing_out.limits_changed(queue)

    def _note_use(self, queue: bytes, shared: _Shared, now_ms: int) -> None:
        row, policy = self._machine.queue(queue), self._policies.of(queue)
        if row is None or not row.ready or policy.paused or shared.has_left:
            shared.use.forget()
            return
        shared.polled_ms = now_ms
        outlook = self._handing_out.outlook(queue)
        if outlook.is_open and self._is_under_allocated(policy, shared, now_ms):
            shared.use.forget()  # all that is known is how it was without
        shared.use.note(
            Seen(
                now_ms,
                row.claimed_total,
                max(self.in_use(queue), outlook.most_in_use),
                outlook.is_open,
                slots_hold_up=outlook.is_open and outlook.was_short_of_slots,
                rate_holds_up=outlook.is_open and outlook.was_short_of_rate,
                was_asked=outlook.was_asked,
            )
        )

    def _check_open(self, queue: bytes, shared: _Shared, now_ms: int) -> None:
        """What was blocked has given its allocation back: if it is open now, that is wanted at once."""
        row = self._machine.queue(queue)
        if row is None or not row.ready or not self._is_under_allocated(self._policies.of(queue), shared, now_ms):
            return
        shared.polled_ms = now_ms
        if self._handing_out.outlook(queue).is_open:
            shared.use.forget()

    def _is_under_allocated(self, policy: EffectivePolicy, shared: _Shared, now_ms: int) -> bool:
        """Whether nothing can be handed out for want of an allocation."""
        limits = policy.limits
        if limits.concurrency_max and not shared.limits[CONCURRENCY].holding.allowance(now_ms):
            return True
        return limits.rate is not None and not shared.limits[RATE].holding.allowance(now_ms)

    def _due(self, queue: bytes, shared: _Shared, now_ms: int) -> list[str]:
        """What is only a little more than was thought to be enough is not worth a report: nothing is held up."""
        policy = self._policies.of(queue)
        due = []
        if policy.limits.concurrency_max:
            limit = shared.limits[CONCURRENCY]
            uses, demand = self._slots(queue, policy, shared)
            allowed = limit.holding.allowance(now_ms)
            if allowed and shared.use.slots() is not None:
                demand = max(uses, min(demand, allowed))
            if limit.is_due(uses, demand, now_ms):
                due.append(CONCURRENCY)
        if policy.limits.rate is not None:
            limit = shared.limits[RATE]
            demand = self._rate_demand(queue, policy, shared, now_ms)
            allowed = limit.holding.allowance(now_ms)
            if allowed and demand <= 2 * allowed and shared.use.rate_milli(1, 1) is not None:
                demand = min(demand, allowed)
            if limit.is_due(0, demand, now_ms):
                due.append(RATE)
        return due

    def _slots(self, queue: bytes, policy: EffectivePolicy, shared: _Shared) -> tuple[int, int]:
        """What is in use, and what could be: while there are any, some more than there are tasks, so that the next one
        need not wait; but no more than is enough, if that is known."""
        row = self._machine.queue(queue)
        if row is None:
            return 0, 0
        uses = self.in_use(queue)
        enough = shared.use.slots()
        if enough is not None:
            return uses, max(uses, enough)
        wanted = uses + (0 if policy.paused else row.ready)
        return uses, wanted + 1 + wanted // 4 if wanted else 0

    def _rate_demand(self, queue: bytes, policy: EffectivePolicy, shared: _Shared, now_ms: int) -> int:
        """All of the rate while tasks wait, or as much as is known to be enough; what was used of late, and as much
        again, while they do not."""
        row = self._machine.queue(queue)
        if row is None or policy.limits.rate is None or policy.paused:
            return 0
        total = policy.limits.rate.per_second_milli
        if row.ready:
            enough = shared.use.rate_milli(total, QUIET_RATE_MILLI)
            return total if enough is None else enough
        claimed = row.claimed_total - shared.claimed_total
        if not claimed:
            return 0
        recent = claimed * 1_000_000 // max(1, now_ms - shared.counted_ms)
        return min(total, max(QUIET_RATE_MILLI, 2 * recent))

    def _report(self, queue: bytes, shared: _Shared, what: str) -> LimitReport:
        policy, now_ms, limit = self._policies.of(queue), self._now_ms(), shared.limits[what]
        if what == CONCURRENCY:
            uses, demand = self._slots(queue, policy, shared)
        else:
            uses, demand = 0, self._rate_demand(queue, policy, shared, now_ms)
            row = self._machine.queue(queue)
            shared.count(0 if row is None else row.claimed_total, now_ms)
        report = limit.holding.report(uses, demand, now_ms)
        limit.asked_ms, limit.answered = now_ms, False
        limit.reported, limit.is_under_allocated = max(report.holds, uses), demand > 0
        return LimitReport(queue, what, report.holds, report.uses, report.demand, report.number)

    async def _ask(self, home: int, dues: list[tuple[bytes, _Shared, list[str]]]) -> None:
        """Reports are made when they are sent: their leases count from then."""
        dues = list(dues)
        while dues:
            reports: list[LimitReport] = []
            while dues and len(reports) + len(dues[-1][2]) <= REPORTS_MAX:
                queue, shared, due = dues.pop()
                reports += [self._report(queue, shared, what) for what in due]
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    grants = await self._ask_home(home, reports)
            except Exception as error:  # noqa: BLE001 - however it failed, it is tried again, and said
                self._note_silence(home, error)
                return
            self._silent.pop(home, None)
            demands = {(report.queue, report.what): report.demand for report in reports}
            for grant in grants:
                self._accept(grant, demands.get((grant.queue, grant.what), 0))

    async def _ask_home(self, home: int, reports: list[LimitReport]) -> Sequence[LimitGrant]:
        if home == self._shard:
            return await self._coordinator.allocate(self._shard, reports, self)
        return await self._others.allocate(home, self._shard, reports)

    def _note_silence(self, home: int, error: Exception) -> None:
        now_s = self._now_s()
        since_s = self._silent.setdefault(home, now_s)
        if since_s >= 0 and now_s - since_s >= SAID_SECONDS:
            self._silent[home] = -1.0
            _log.warning("no_allocation", shard=self._shard, home=home, error=str(error) or type(error).__name__)

    # --- what was granted -------------------------------------------------------------------------------------

    def _accept(self, grant: LimitGrant, demand: int) -> None:
        queue = grant.queue
        shared = self.queues.get(queue)
        limit = None if shared is None else shared.limits.get(grant.what)
        if shared is None or limit is None:
            return
        # Without a limit there the home has not heard of one that this shard knows: it will.
        amount = 0 if grant.unlimited else grant.amount
        if not limit.holding.accept(Grant(self._shard, grant.number, amount, grant.lease_ms)):
            return
        limit.answered = True
        limit.booked = max(limit.reported, amount)
        limit.is_under_allocated = demand > amount
        now_ms = self._now_ms()
        self._show(queue, shared, now_ms)
        if limit.timer is not None:
            limit.timer.cancel()
        ends_ms = limit.asked_ms + grant.lease_ms * HELD_PERCENT // 100
        loop = asyncio.get_running_loop()
        limit.timer = loop.call_later(max(0, ends_ms - now_ms + 1) / 1000, self._ran_out, queue)

    def _ran_out(self, queue: bytes) -> None:
        shared = self.queues.get(queue)
        if shared is not None:
            self._show(queue, shared, self._now_ms())

    def _show(self, queue: bytes, shared: _Shared, now_ms: int) -> None:
        """Tells the scheduler if the allowance is another one than it knows."""
        changed = [limit for limit in shared.limits.values() if limit.shown != limit.holding.allowance(now_ms)]
        for limit in changed:
            limit.shown = limit.holding.allowance(now_ms)
        if changed:
            self._handing_out.limits_changed(queue)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
