"""What may be claimed now: pause, caps on claims at the same time, and rates, of a queue, its tenants and limit keys.

A cap counts the claims of the state and those on their way. A rate is a token bucket in shard time whose level is in
the log with every claim, so that the next leader goes on exactly where this one was. Tasks without a tenant or without
a limit key have no limits of that kind.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.broker.policies import Limits, QueuePolicy, TenantPolicy
from holdfast.broker.scheduling.lines import Spot
from holdfast.limits.buckets import NEVER_MS, Bucket, Level, Rate
from holdfast.limits.splitting import WHOLE, Part, cap_part, rate_part
from holdfast.machine import keys
from holdfast.machine.entries import BucketLevel
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.machine.rows import Bucket as BucketRow

BUCKETS_HELD_MAX = 4096
FORGET_STEP_MS = 60_000
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
    is_dealt: bool  # the rate is this shard's share of one
    limits: Limits  # of tenants and limit keys
    limited: bool  # there is something to look at before a claim
    weighted: bool
    tenants_limited: bool  # some tenant may be closed
    keys_limited: bool
    tenant: TenantPolicy  # of those that have none of their own
    rates_since_ms: int  # levels of buckets from before say nothing any more

    @staticmethod
    def of(policy: QueuePolicy, allowance: Allowance) -> "Rules":
        limits = _parts_of_tenants(policy.limits, allowance.tenants)
        concurrency_max, rate = limits.concurrency_max or None, limits.rate
        concurrency_max = concurrency_max if allowance.concurrency is None else allowance.concurrency
        rate = rate if allowance.rate is None else allowance.rate
        tenant = TenantPolicy(1, limits.tenant_concurrency_max, limits.tenant_rate)
        return Rules(
            policy.paused,
            policy.oldest_share_percent,
            concurrency_max,
            rate,
            allowance.rate is not None,
            limits,
            limited=policy.paused or limits.has_any or concurrency_max is not None or rate is not None,
            weighted=bool(limits.tenants),
            tenants_limited=any(
                each.concurrency_max or each.rate is not None for each in (tenant, *limits.tenants.values())
            ),
            keys_limited=bool(limits.key_concurrency_max or limits.key_rate is not None),
            tenant=tenant,
            rates_since_ms=policy.rates_since_ms,
        )

    def weight(self, tenant: bytes) -> int:
        return self.limits.tenants.get(tenant, self.tenant).weight if self.weighted else 1

    def rate_of(self, scope: int, name: bytes) -> Rate | None:
        if scope == keys.SCOPE_QUEUE:
            return self.rate
        return self.limits.key_rate if scope == keys.SCOPE_KEY else self.limits.tenants.get(name, self.tenant).rate


def _parts_of_tenants(limits: Limits, part: Part) -> Limits:
    if part.of == 1:
        return limits
    return replace(
        limits,
        tenant_concurrency_max=cap_part(limits.tenant_concurrency_max, part),
        tenant_rate=rate_part(limits.tenant_rate, part),
        tenants={
            name: TenantPolicy(tenant.weight, cap_part(tenant.concurrency_max, part), rate_part(tenant.rate, part))
            for name, tenant in limits.tenants.items()
        },
    )


class Gates:
    """The gates of one queue."""

    __slots__ = (
        "_buckets", "_coming", "_in_use", "_kv", "_machine", "_most_in_use", "_now_ms", "_queue", "_short_of_rate",
        "_short_of_slots", "rules",
    )  # fmt: skip

    def __init__(self, kv: OrderedKV, machine: Machine, queue: bytes, now_ms: Callable[[], int], rules: Rules) -> None:
        self._kv = kv
        self._machine = machine
        self._queue = queue
        self._now_ms = now_ms
        self.rules = rules
        self._coming: dict[Name, int] = {}  # claims on their way
        self._buckets: dict[Name, Bucket] = {}
        self._short_of_slots = False  # somebody wanted more
        self._short_of_rate = False
        self._in_use = 0  # of the cap, when there was last looked for room
        self._most_in_use = 0

    def change_rules(self, rules: Rules) -> None:
        """From now on: until now the queue's bucket gained by the former rate, also if nobody has asked for long."""
        bucket = self._buckets.get((keys.SCOPE_QUEUE, b""))
        if bucket is not None and rules.rate is not None:
            bucket.change_rate(rules.rate, self._now_ms())
        self.rules = rules

    # --- looks ------------------------------------------------------------------------------------------------

    def room(self, coming: int, now_ms: int, wanted: int = 1) -> tuple[int, int]:
        """How many tasks of the queue may be claimed, with so many on their way; and, if none, when to look again."""
        rules = self.rules
        if rules.paused:
            return 0, UNTIL_FREED
        slots = tokens = PLENTY
        wake_ms = UNTIL_FREED
        if rules.concurrency_max is not None:
            row = self._machine.queue(self._queue)
            self._in_use = coming + (0 if row is None else row.claimed)
            slots = max(0, rules.concurrency_max - self._in_use)
        if rules.rate is not None:
            bucket = self._bucket((keys.SCOPE_QUEUE, b""), rules.rate, now_ms)
            tokens = bucket.available(now_ms)
            if slots and not tokens:
                wake_ms = bucket.ready_at_ms(now_ms)
        self._short_of_slots |= slots < min(wanted, tokens)
        self._short_of_rate |= tokens < min(wanted, max(1, slots))
        return min(slots, tokens), wake_ms

    def use(self) -> tuple[bool, bool, int]:
        """Whether the queue's cap or its rate had less than was asked for, and how much of the cap was in use at most,
        since this was called before."""
        use = self._short_of_slots, self._short_of_rate, self._most_in_use
        self._short_of_slots = self._short_of_rate = False
        self._most_in_use = 0
        return use

    def closed(self, scope: int, name: bytes, now_ms: int, blocked: dict[Name, int] | None = None) -> int | None:
        """None if a task of the tenant or the limit key may be claimed; otherwise when to look again.

        Into `blocked` goes what a rate holds up, and until when.
        """
        rules = self.rules
        if scope == keys.SCOPE_KEY:
            if not name or not rules.keys_limited:
                return None
            cap, rate = rules.limits.key_concurrency_max, rules.limits.key_rate
        else:
            if not name or not rules.tenants_limited:
                return None
            _, cap, rate = rules.limits.tenants.get(name, rules.tenant)
        if cap:
            running = self._machine.running(self._queue, scope, name) + self._coming.get((scope, name), 0)
            if running >= cap:
                return UNTIL_FREED
        if rate is not None:
            bucket = self._buckets.get((scope, name))
            if bucket is None or bucket.rate is not rate:
                bucket = self._bucket((scope, name), rate, now_ms)
            if not bucket.available(now_ms):
                until_ms = bucket.ready_at_ms(now_ms)
                if blocked is not None:
                    blocked[scope, name] = until_ms
                return until_ms
        return None

    # --- claims on their way ----------------------------------------------------------------------------------

    def take(self, tenant: bytes, limit_key: bytes, now_ms: int) -> None:
        """One more is on its way to a claim, after its gates were found open; `take_of_queue` comes for all of them."""
        rules, coming = self.rules, self._coming
        if tenant:
            name = keys.SCOPE_TENANT, tenant
            coming[name] = coming.get(name, 0) + 1
            if rules.tenants_limited:
                rate = rules.limits.tenants.get(tenant, rules.tenant).rate
                if rate is not None:
                    self._bucket(name, rate, now_ms).take(1, now_ms)
        if limit_key:
            name = keys.SCOPE_KEY, limit_key
            coming[name] = coming.get(name, 0) + 1
            rate = rules.limits.key_rate
            if rate is not None:
                self._bucket(name, rate, now_ms).take(1, now_ms)

    def take_of_queue(self, count: int, now_ms: int) -> None:
        """So many more are on their way, no more than there was room for just now."""
        self._most_in_use = max(self._most_in_use, self._in_use + count)
        if self.rules.rate is not None:
            self._bucket((keys.SCOPE_QUEUE, b""), self.rules.rate, now_ms).take(count, now_ms)

    def settle(self, tenant: bytes, limit_key: bytes) -> None:
        """One is on its way no more."""
        if tenant:
            self._settle((keys.SCOPE_TENANT, tenant))
        if limit_key:
            self._settle((keys.SCOPE_KEY, limit_key))

    def give_back(self, tenant: bytes, limit_key: bytes, taken_ms: int) -> None:
        """One is on its way no more and was not claimed: its tokens come back."""
        self.settle(tenant, limit_key)
        now_ms = self._now_ms()
        for name in (keys.SCOPE_QUEUE, b""), (keys.SCOPE_TENANT, tenant), (keys.SCOPE_KEY, limit_key):
            bucket = self._buckets.get(name)
            if bucket is not None:
                bucket.give_back(1, taken_ms, now_ms)

    def adopt(self, tenant: bytes, limit_key: bytes) -> None:
        """One is on its way since before a fresh start."""
        for name in (keys.SCOPE_TENANT, tenant), (keys.SCOPE_KEY, limit_key):
            if name[1]:
                self._coming[name] = self._coming.get(name, 0) + 1

    def adopt_levels(self, levels: list[BucketLevel]) -> None:
        """What is left after claims that the state does not have yet."""
        for level in levels:
            name = level.scope, level.name
            rate = self.rules.rate_of(*name)
            if rate is not None:
                self._buckets[name] = Bucket(rate, Level(level.level_micro, level.at_ms))

    def levels(self, spots: Iterable[Spot], now_ms: int) -> list[BucketLevel]:
        """What is left in the buckets of which these took tokens, for the log."""
        rules = self.rules
        names: list[Name] = [] if rules.rate is None else [(keys.SCOPE_QUEUE, b"")]
        if rules.tenants_limited:
            names += [(keys.SCOPE_TENANT, tenant) for tenant in {spot[2] for spot in spots}]
        if rules.limits.key_rate is not None:
            names += [(keys.SCOPE_KEY, limit_key) for limit_key in {spot[3] for spot in spots}]
        found = []
        for name in names:
            bucket = self._buckets.get(name)
            if bucket is not None:
                level = bucket.level(now_ms)
                found.append(BucketLevel(self._queue, *name, level.level_micro, level.at_ms, _forget_ms(bucket)))
        return found

    def shrink(self) -> None:
        """Forgets buckets whose level is in the state; but not the queue's, which is one."""
        if len(self._buckets) > BUCKETS_HELD_MAX:
            self._buckets = {
                name: bucket
                for name, bucket in self._buckets.items()
                if name[0] == keys.SCOPE_QUEUE or self._coming.get(name)
            }

    def _settle(self, name: Name) -> None:
        coming = self._coming.pop(name, 0) - 1
        if coming > 0:
            self._coming[name] = coming

    def _bucket(self, name: Name, rate: Rate, now_ms: int) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= 2 * BUCKETS_HELD_MAX:
                self.shrink()
            level = self._stored_level(name)
            if name[0] == keys.SCOPE_QUEUE and self.rules.is_dealt:
                # Others may have had the share until now. So it is not full, nor has it gained anything meanwhile.
                level = Level(0 if level is None else level.level_micro, now_ms)
            bucket = self._buckets[name] = Bucket(rate, level)
        elif bucket.rate is not rate:
            bucket.change_rate(rate, now_ms)
        return bucket

    def _stored_level(self, name: Name) -> Level | None:
        """None: full. What was stored before the rates changed was counted, or forgotten, by another rate; then the
        bucket is taken to have been empty when they did."""
        row = self._kv.get(keys.bucket(self._queue, *name))
        level = None if row is None else Level(*BucketRow.decode(row)[:2])
        since_ms = self.rules.rates_since_ms
        if since_ms and (level is None or level.at_ms < since_ms):
            return Level(0, since_ms)
        return level


def _forget_ms(bucket: Bucket) -> int:
    """When the level need not be known any more. All those of a while are the same, so that a bucket in use is not
    given another time with every claim."""
    return min(NEVER_MS, -(-bucket.full_at_ms() // FORGET_STEP_MS) * FORGET_STEP_MS)
