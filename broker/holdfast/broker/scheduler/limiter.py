"""What may be claimed now: pause, caps on claims at the same time, and rates, of a queue, its tenants and limit keys.

A cap counts the claims of the state and those on their way. A rate is a token bucket in shard time whose level is in
the log with every claim, so that the next leader goes on exactly where this one was. Tasks without a tenant or without
a limit key have no limits of that kind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.broker.policy.policies import EffectivePolicy, EffectiveTenantPolicy, Limits
from holdfast.broker.scheduler.lines import Names, ReadyRef
from holdfast.limits.buckets import NEVER_MS, Bucket, Level, Rate
from holdfast.limits.equal_parts import WHOLE, Part, cap_part, rate_part
from holdfast.machine import keys
from holdfast.machine.entries import BucketLevel
from holdfast.machine.machine import Machine
from holdfast.machine.rows import Bucket as BucketRow
from holdfast.machine.running import Counts

LIMITERS_HELD_MAX = 4096  # of tenants, and of limit keys, between two picks
PAIRS_HELD_MAX = 16_384  # of both together
KEY_EXPIRY_STEP_MS = 60_000
PLENTY = 1 << 62

UNTIL_FREED = 0  # closed until a claim ends; other closed times are in shard time

Name = tuple[int, bytes]  # keys.SCOPE_*, and which one of that scope


class Allowance(NamedTuple):
    """What of the limits of a spread queue this shard may use."""

    concurrency: int | None  # instead of the queue's own cap; None: that holds
    rate: Rate | None  # the same
    tenants: Part = WHOLE  # of the limits of each tenant


OWN_LIMITS = Allowance(None, None)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for a queue."""

    paused: bool
    oldest_share_percent: int
    concurrency_max: int | None  # of the queue; None: no cap
    rate: Rate | None
    is_allocated: bool  # the rate is this shard's allocation of one
    limits: Limits  # of tenants and limit keys
    limited: bool  # there is something to look at before a claim
    weights: Mapping[bytes, int]  # of the tenants whose turns are longer than one task
    tenants_limited: bool  # some tenant may be closed
    tenants_rated: bool  # some tenant has a rate
    keys_limited: bool
    tenant: EffectiveTenantPolicy  # of those that have none of their own
    rates_since_ms: int  # levels of buckets from before say nothing any more

    @staticmethod
    def of(policy: EffectivePolicy, allowance: Allowance) -> "Rules":
        limits = _parts_of_tenants(policy.limits, allowance.tenants)
        concurrency_max, rate = limits.concurrency_max or None, limits.rate
        concurrency_max = concurrency_max if allowance.concurrency is None else allowance.concurrency
        rate = rate if allowance.rate is None else allowance.rate
        tenant = EffectiveTenantPolicy(1, limits.tenant_concurrency_max, limits.tenant_rate)
        tenants = (tenant, *limits.tenants.values())
        return Rules(
            policy.paused,
            policy.oldest_share_percent,
            concurrency_max,
            rate,
            allowance.rate is not None,
            limits,
            limited=policy.paused or limits.has_any or concurrency_max is not None or rate is not None,
            weights={name: tenant.weight for name, tenant in limits.tenants.items() if tenant.weight > 1},
            tenants_limited=any(tenant.concurrency_max or tenant.rate is not None for tenant in tenants),
            tenants_rated=any(tenant.rate is not None for tenant in tenants),
            keys_limited=bool(limits.key_concurrency_max or limits.key_rate is not None),
            tenant=tenant,
            rates_since_ms=policy.rates_since_ms,
        )

    def limits_of(self, scope: int, name: bytes) -> tuple[int, Rate | None]:
        """The cap, 0 if there is none, and the rate of a tenant or a limit key."""
        if scope == keys.SCOPE_KEY:
            return self.limits.key_concurrency_max, self.limits.key_rate
        tenant = self.limits.tenants.get(name, self.tenant)
        return tenant.concurrency_max, tenant.rate


def _parts_of_tenants(limits: Limits, part: Part) -> Limits:
    if part.of == 1:
        return limits
    return replace(
        limits,
        tenant_concurrency_max=cap_part(limits.tenant_concurrency_max, part),
        tenant_rate=rate_part(limits.tenant_rate, part),
        tenants={
            name: EffectiveTenantPolicy(
                tenant.weight, cap_part(tenant.concurrency_max, part), rate_part(tenant.rate, part)
            )
            for name, tenant in limits.tenants.items()
        },
    )


class Limiter:
    """Of one tenant or limit key that has limits, or of the queue itself."""

    __slots__ = (
        "bucket", "cap", "full_name", "name", "open_until", "rate", "running", "scope", "settled", "taken",
    )  # fmt: skip

    def __init__(self, queue: bytes, scope: int, name: bytes, running: Counts) -> None:
        self.scope = scope
        self.name = name
        self.full_name = queue, name
        self.running = running  # all claims of the scope, by full name
        self.cap = 0  # on claims at the same time; 0: none
        self.rate: Rate | None = None
        self.bucket: Bucket | None = None  # once the rate was asked for
        self.taken = 0  # how many were taken for a claim since the limiter was made
        self.settled = 0  # those of them that are claimed by now, or given back
        # The limiter is open while `taken` is below: whatever else happens makes only more room, so there need not be
        # looked before. Never above `taken` where there is a rate.
        self.open_until = 0

    @property
    def coming(self) -> int:
        """Claims on their way."""
        return self.taken - self.settled

    def set_limits(self, cap: int, rate: Rate | None) -> None:
        self.cap, self.rate = cap, rate
        self.open_until = 0

    def is_full(self) -> bool:
        """Whether the cap has no room."""
        if self.taken < self.open_until:
            return False
        free = self.cap - self.running.get(self.full_name, 0) - self.coming if self.cap else PLENTY
        if self.rate is None:
            self.open_until = self.taken + free
        return free <= 0


class Limiters:
    """The limiters of one queue."""

    __slots__ = (
        "_both",
        "_in_use",
        "_machine",
        "_most_in_use",
        "_now_ms",
        "_of_queue",
        "_queue",
        "_reader",
        "_short_of_rate",
        "_short_of_slots",
        "_was_asked",
        "limit_keys",
        "rules",
        "tenants",
    )  # fmt: skip

    def __init__(self, machine: Machine, queue: bytes, now_ms: Callable[[], int], rules: Rules) -> None:
        self._reader = machine.reader
        self._machine = machine
        self._queue = queue
        self._now_ms = now_ms
        self.rules = rules
        self._of_queue = Limiter(queue, keys.SCOPE_QUEUE, b"", {})  # its claims are in the queue's row
        self._of_queue.rate = rules.rate
        self.tenants: dict[bytes, Limiter] = {}
        self.limit_keys: dict[bytes, Limiter] = {}
        self._both: dict[Names, tuple[Limiter, ...]] = {}  # the limiters of a tenant and a limit key, if there are any
        self._short_of_slots = False  # somebody wanted more
        self._short_of_rate = False
        self._in_use = 0  # of the cap, when there was last looked for room
        self._most_in_use = 0
        self._was_asked = False

    def change_rules(self, rules: Rules, claiming: Iterable[Names]) -> None:
        """From now on: until now the queue's bucket gained by the former rate, also if nobody has asked for long.

        What is on its way to a claim is counted anew: where nothing had limits, it was not.
        """
        of_queue = self._of_queue
        if of_queue.bucket is not None and rules.rate is not None:
            of_queue.bucket.change_rate(rules.rate, self._now_ms())
        of_queue.rate = rules.rate
        self.rules = rules
        self._both.clear()
        for limiter in (*self.tenants.values(), *self.limit_keys.values()):
            limiter.taken = limiter.settled = 0
            limiter.set_limits(*rules.limits_of(limiter.scope, limiter.name))
        for tenant, limit_key in claiming:
            self.adopt(tenant, limit_key)

    # --- looks ------------------------------------------------------------------------------------------------

    def room(self, coming: int, now_ms: int, wanted: int = 1) -> tuple[int, int]:
        """How many tasks of the queue may be claimed, with so many on their way; and, if none, when to look again."""
        rules = self.rules
        if not rules.limited:
            self._was_asked = True
            return PLENTY, UNTIL_FREED
        if rules.paused:
            return 0, UNTIL_FREED
        slots = tokens = PLENTY
        wake_ms = UNTIL_FREED
        if rules.concurrency_max is not None:
            row = self._machine.queue(self._queue)
            self._in_use = coming + (0 if row is None else row.claimed)
            slots = max(0, rules.concurrency_max - self._in_use)
        if rules.rate is not None:
            bucket = self._bucket(self._of_queue, rules.rate, now_ms)
            tokens = bucket.available(now_ms)
            if slots and not tokens:
                wake_ms = bucket.ready_at_ms(now_ms)
        self._was_asked = True
        self._short_of_slots |= slots < min(wanted, tokens)
        self._short_of_rate |= tokens < min(wanted, max(1, slots))
        return min(slots, tokens), wake_ms

    def use(self) -> tuple[bool, bool, int, bool]:
        """Whether the queue's cap or its rate had less than was asked for, how much of the cap was in use at most, and
        whether anybody asked, since this was called before."""
        use = self._short_of_slots, self._short_of_rate, self._most_in_use, self._was_asked
        self._short_of_slots = self._short_of_rate = self._was_asked = False
        self._most_in_use = 0
        return use

    def tenant_closed(self, tenant: bytes, now_ms: int, blocked: dict[Name, int] | None = None) -> int | None:
        """None if a task of the tenant may be claimed; otherwise when to look again.

        Into `blocked` goes what a rate holds up, and until when.
        """
        if not tenant or not self.rules.tenants_limited:
            return None
        return self._closed(self.tenants.get(tenant) or self._tenant(tenant), now_ms, blocked)

    def key_closed(self, limit_key: bytes, now_ms: int, blocked: dict[Name, int] | None = None) -> int | None:
        """The same of a limit key."""
        if not limit_key or not self.rules.keys_limited:
            return None
        return self._closed(self.limit_keys.get(limit_key) or self._key(limit_key), now_ms, blocked)

    def _closed(self, limiter: Limiter, now_ms: int, blocked: dict[Name, int] | None) -> int | None:
        if limiter.is_full():
            return UNTIL_FREED
        if limiter.rate is None:
            return None
        bucket = self._bucket(limiter, limiter.rate, now_ms)
        if bucket.available(now_ms):
            return None
        until_ms = bucket.ready_at_ms(now_ms)
        if blocked is not None:
            blocked[limiter.scope, limiter.name] = until_ms
        return until_ms

    # --- claims on their way ----------------------------------------------------------------------------------

    def take(self, names: Names, count: int, now_ms: int) -> None:
        """So many more of a tenant and a limit key are on their way to a claim, after their limiters were found open;
        `take_of_queue` comes for all of them."""
        for limiter in self.of(names) if self.rules.limited else ():
            limiter.taken += count
            if limiter.rate is not None:
                self._bucket(limiter, limiter.rate, now_ms).take(count, now_ms)

    def take_of_queue(self, count: int, now_ms: int) -> None:
        """So many more are on their way, no more than there was room for just now."""
        self._most_in_use = max(self._most_in_use, self._in_use + count)
        if self.rules.rate is not None:
            self._bucket(self._of_queue, self.rules.rate, now_ms).take(count, now_ms)

    def settle(self, ready_refs: Iterable[ReadyRef]) -> None:
        """These are on their way no more."""
        rules = self.rules
        if rules.tenants_limited:
            tenants = self.tenants
            for ready_ref in ready_refs:
                if ready_ref[2]:
                    tenants[ready_ref[2]].settled += ready_ref[1][3]
        if rules.keys_limited:
            limit_keys = self.limit_keys
            for ready_ref in ready_refs:
                if ready_ref[3]:
                    limit_keys[ready_ref[3]].settled += ready_ref[1][3]

    def give_back(self, ready_ref: ReadyRef, taken_ms: int) -> None:
        """What is on its way no more was not claimed: its tokens come back."""
        self.settle([ready_ref])
        _, ready_slice, tenant, limit_key = ready_ref
        now_ms = self._now_ms()
        for limiter in (self._of_queue, self.tenants.get(tenant), self.limit_keys.get(limit_key)):
            if limiter is not None and limiter.bucket is not None:
                limiter.bucket.give_back(ready_slice[3], taken_ms, now_ms)

    def adopt(self, tenant: bytes, limit_key: bytes, tasks: int = 1) -> None:
        """So many are on their way since before a fresh start."""
        for limiter in self.of((tenant, limit_key)):
            limiter.taken += tasks

    def adopt_levels(self, levels: list[BucketLevel]) -> None:
        """What is left after claims that the state does not have yet."""
        for level in levels:
            limiter = self._of_queue
            if level.scope == keys.SCOPE_TENANT:
                limiter = self._tenant(level.name)
            elif level.scope == keys.SCOPE_KEY:
                limiter = self._key(level.name)
            if limiter.rate is not None:
                limiter.bucket = Bucket(limiter.rate, Level(level.level_micro, level.at_ms))

    def levels(self, ready_refs: Iterable[ReadyRef], now_ms: int) -> list[BucketLevel]:
        """What is left in the buckets of which these took tokens, for the log."""
        rules = self.rules
        if not rules.limited:
            return []
        limiters = [] if rules.rate is None else [self._of_queue]
        if rules.tenants_rated:
            limiters += [self.tenants[tenant] for tenant in {ready_ref[2] for ready_ref in ready_refs} if tenant]
        if rules.limits.key_rate is not None:
            limiters += [
                self.limit_keys[limit_key] for limit_key in {ready_ref[3] for ready_ref in ready_refs} if limit_key
            ]
        found = []
        for limiter in limiters:
            if limiter.bucket is not None:
                level = limiter.bucket.level(now_ms)
                key_expiry_ms = _key_expiry_ms(limiter.bucket)
                found.append(
                    BucketLevel(self._queue, limiter.scope, limiter.name, level.level_micro, level.at_ms, key_expiry_ms)
                )
        return found

    # --- the limiters that are held ------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Forgets limiters of which nothing is on its way: the levels of their buckets are in the state."""
        if not self._both:
            return
        if len(self.tenants) > LIMITERS_HELD_MAX:
            self.tenants = {name: limiter for name, limiter in self.tenants.items() if limiter.coming}
            self._both.clear()
        if len(self.limit_keys) > LIMITERS_HELD_MAX:
            self.limit_keys = {name: limiter for name, limiter in self.limit_keys.items() if limiter.coming}
            self._both.clear()
        if len(self._both) > PAIRS_HELD_MAX:
            self._both.clear()

    def of(self, names: Names) -> tuple[Limiter, ...]:
        """The limiters of a tenant and a limit key, as far as they have limits. For use at once."""
        both = self._both.get(names)
        if both is None:
            tenant, limit_key = names
            of_tenant = (self._tenant(tenant),) if tenant and self.rules.tenants_limited else ()
            of_key = (self._key(limit_key),) if limit_key and self.rules.keys_limited else ()
            both = self._both[names] = (*of_tenant, *of_key)
        return both

    def _tenant(self, name: bytes) -> Limiter:
        limiter = self.tenants.get(name)
        if limiter is None:
            limiter = self._made(keys.SCOPE_TENANT, name, self._machine.running.tenants)
            self.tenants[name] = limiter
        return limiter

    def _key(self, name: bytes) -> Limiter:
        limiter = self.limit_keys.get(name)
        if limiter is None:
            limiter = self._made(keys.SCOPE_KEY, name, self._machine.running.limit_keys)
            self.limit_keys[name] = limiter
        return limiter

    def _made(self, scope: int, name: bytes, running: Counts) -> Limiter:
        limiter = Limiter(self._queue, scope, name, running)
        limiter.set_limits(*self.rules.limits_of(scope, name))
        return limiter

    def _bucket(self, limiter: Limiter, rate: Rate, now_ms: int) -> Bucket:
        bucket = limiter.bucket
        if bucket is None:
            level = self._stored_level(limiter)
            if limiter is self._of_queue and self.rules.is_allocated:
                # Others may have had the allocation until now. So it is not full, nor has it gained anything meanwhile.
                level = Level(0 if level is None else level.level_micro, now_ms)
            bucket = limiter.bucket = Bucket(rate, level)
        elif bucket.rate is not rate:
            bucket.change_rate(rate, now_ms)
        return bucket

    def _stored_level(self, limiter: Limiter) -> Level | None:
        """None: full. What was stored before the rates changed was counted, or forgotten, by another rate; then the
        bucket is taken to have been empty when they did."""
        row = self._reader.get(keys.bucket(self._queue, limiter.scope, limiter.name))
        level = None if row is None else Level(*BucketRow.decode(row)[:2])
        since_ms = self.rules.rates_since_ms
        if since_ms and (level is None or level.at_ms < since_ms):
            return Level(0, since_ms)
        return level


def _key_expiry_ms(bucket: Bucket) -> int:
    """When the level need not be known any more. All those of a while are the same, so that a bucket in use is not
    given another time with every claim."""
    return min(NEVER_MS, -(-bucket.full_at_ms() // KEY_EXPIRY_STEP_MS) * KEY_EXPIRY_STEP_MS)
