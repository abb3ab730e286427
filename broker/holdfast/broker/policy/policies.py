"""What the queues of a shard do in their own way: the leader's view of the settings that are in the log.

The log has a policy as it was written into the map, a QueuePolicy message; what it leaves out is as the configuration
says. A number that makes no sense is moved to the nearest one that does: whoever wrote it cannot be asked any more.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.retry_delays import SHAPES, RetryDelays
from holdfast.limits.buckets import Rate
from holdfast.machine import keys
from holdfast.machine.reader import Reader
from holdfast.machine.rows import Execution, SettingsRow
from holdfast.proto.v1.cluster_pb2 import QueuePolicy as PolicyMessage
from holdfast.proto.v1.cluster_pb2 import TenantPolicy as TenantMessage

POLICIES_CACHED_MAX = 10_000
POLICY_BYTES_MAX = 64 * 1024

ATTEMPTS_MAX = 1000
CLAIMS_MAX = 10_000
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_DAY_MS = 24 * 60 * _MINUTE_MS
_YEAR_MS = 366 * _DAY_MS
FINISHED_RETENTION_MS_MIN = 10 * _MINUTE_MS  # as long as first answers are remembered
RETENTION_MS_MAX = 10 * _YEAR_MS
DEDUP_WINDOW_MS_MIN = 1000
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = _SECOND_MS, 30 * _DAY_MS
TTL_MS_MIN, TTL_MS_MAX = _SECOND_MS, _YEAR_MS
CAP_MAX = 1_000_000  # of claims at the same time, and of a burst
RATE_MILLI_MAX = 1_000_000 * 1000
WEIGHT_MAX = 100
ALERT_MAX = 1_000_000_000


class EffectiveTenantPolicy(NamedTuple):
    """What holds for one tenant of a queue."""

    weight: int = 1  # how many tasks it gives in its turn
    concurrency_max: int = 0  # 0: no cap
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on claims at the same time and rates of claims, of the queue, of each tenant and of each limit_key."""

    concurrency_max: int = 0  # 0: no cap
    tenant_concurrency_max: int = 0
    key_concurrency_max: int = 0
    rate: Rate | None = None
    tenant_rate: Rate | None = None
    key_rate: Rate | None = None
    tenants: Mapping[bytes, EffectiveTenantPolicy] = field(default_factory=dict)  # those that differ from the others

    def tenant(self, name: bytes) -> EffectiveTenantPolicy:
        found = self.tenants.get(name)
        return EffectiveTenantPolicy(1, self.tenant_concurrency_max, self.tenant_rate) if found is None else found

    def changes_rates(self, after: "Limits") -> bool:
        """Whether a rate that there was becomes another one. One that is new begins with a full bucket."""
        if any(old is not None and old != new for old, new in zip(self.rates, after.rates, strict=True)):
            return True
        names = self.tenants.keys() | after.tenants.keys()
        return any((old := self.tenant(name).rate) is not None and old != after.tenant(name).rate for name in names)

    @property
    def rates(self) -> tuple[Rate | None, Rate | None, Rate | None]:
        return self.rate, self.tenant_rate, self.key_rate

    @property
    def limits_tenants(self) -> bool:
        """Whether some tenant has a cap or a rate."""
        default = EffectiveTenantPolicy(1, self.tenant_concurrency_max, self.tenant_rate)
        return any(one.concurrency_max or one.rate is not None for one in (default, *self.tenants.values()))

    @property
    def has_any(self) -> bool:
        return bool(
            self.concurrency_max
            or self.tenant_concurrency_max
            or self.key_concurrency_max
            or self.rate
            or self.tenant_rate
            or self.key_rate
            or self.tenants
        )


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """All that holds for a queue."""

    max_attempts: int
    max_claims: int | None  # None: as the configuration says, and never less than the attempts need
    retry: RetryDelays
    non_retryable: frozenset[str] = frozenset()  # types of errors after which a task is dead at once
    dedup_window_ms: int
    result_ttl_ms: int
    finished_retention_ms: int
    dead_retention_ms: int
    oldest_share_percent: int
    paused: bool = False
    timeout_ms: int = 0  # of tasks that name none; 0: none
    ttl_ms: int = 0  # of tasks that name none; 0: none
    limits: Limits = NO_LIMITS
    rates_since_ms: int = 0  # levels of token buckets from before say nothing any more; 0: all of them count
    dead_alert_at: int = 0  # dead letters on the shard that raise an alert; 0: none do
    dead_alert_url: str = ""  # gets a POST then; empty: nobody does

    @property
    def has_limits(self) -> bool:
        """Whether there is more to look at than priorities and turns. `paused` is apart: then nothing is looked at."""
        return self.limits.has_any


class RetentionPart(NamedTuple):
    """Items of a batch that are kept equally long."""

    finished_ms: int
    dead_ms: int
    places: list[int]  # in the batch


def default_policy(config: BrokerConfig) -> EffectivePolicy:
    return EffectivePolicy(
        max_attempts=config.max_attempts_default,
        max_claims=None,
        retry=RetryDelays(
            config.retry_base_ms, config.retry_factor, config.retry_cap_ms, config.retry_jitter, config.retry_shape
        ),
        dedup_window_ms=config.dedup_window_ms,
        result_ttl_ms=config.result_ttl_default_ms,
        finished_retention_ms=config.finished_retention_ms,
        dead_retention_ms=config.dead_retention_ms,
        oldest_share_percent=config.oldest_share_percent,
        dead_alert_url=config.dead_alert_url or "",
    )


def nearest(value: float, low: float, high: float) -> float:
    """A value that is no number at all fails the first comparison and becomes `low`."""
    return min(max(low, value), high)


def alerts(settings: SettingsRow) -> bool:
    """Whether a queue has a number of dead letters that raises an alert."""
    return bool(PolicyMessage.FromString(settings.policy).dead_alert_at)


def parse_policy(data: bytes, default: EffectivePolicy, delay_ms_max: int) -> EffectivePolicy:
    """A stored policy over the default one. Raises protobuf's DecodeError if it is none."""
    message = PolicyMessage.FromString(data)
    own = _Reader(message)
    return EffectivePolicy(
        max_attempts=own.whole("max_attempts", default.max_attempts, 1, ATTEMPTS_MAX),
        max_claims=own.whole("max_claims", 0, 1, CLAIMS_MAX) or None,
        retry=_parse_retry(own, default.retry, delay_ms_max),
        non_retryable=frozenset(message.non_retryable),
        dedup_window_ms=own.whole("dedup_window_ms", default.dedup_window_ms, DEDUP_WINDOW_MS_MIN, _YEAR_MS),
        result_ttl_ms=own.whole("result_ttl_ms", default.result_ttl_ms, 0, RETENTION_MS_MAX),
        finished_retention_ms=own.whole(
            "finished_retention_ms", default.finished_retention_ms, FINISHED_RETENTION_MS_MIN, RETENTION_MS_MAX
        ),
        dead_retention_ms=own.whole("dead_retention_ms", default.dead_retention_ms, 1, RETENTION_MS_MAX),
        oldest_share_percent=own.whole("oldest_share_percent", default.oldest_share_percent, 0, 100),
        paused=message.paused,
        timeout_ms=own.whole("timeout_ms", 0, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        ttl_ms=own.whole("ttl_ms", 0, TTL_MS_MIN, TTL_MS_MAX),
        limits=_parse_limits(own, message),
        dead_alert_at=own.whole("dead_alert_at", 0, 1, ALERT_MAX),
        dead_alert_url=message.dead_alert_url if message.HasField("dead_alert_url") else default.dead_alert_url,
    )


class _Reader:
    """Fields of a stored message; what it has not is as by default, and what makes no sense is moved."""

    def __init__(self, message: PolicyMessage | TenantMessage) -> None:
        self._message = message

    def number(self, name: str, plain: float, low: float, high: float) -> float:
        return nearest(getattr(self._message, name), low, high) if self._message.HasField(name) else plain

    def whole(self, name: str, plain: int, low: int, high: int) -> int:
        return int(self.number(name, plain, low, high))

    def text(self, name: str, plain: str, known: Collection[str]) -> str:
        value: str = getattr(self._message, name)
        return value if value in known else plain

    def cap(self, name: str, plain: int = 0) -> int:
        return self.whole(name, plain, 1, CAP_MAX)

    def rate(self, name: str, plain: Rate | None = None) -> Rate | None:
        """`name` has a rate and a burst, by default one second's worth. Never more than was said: thousandths that a
        bucket cannot count are left out."""
        if not self._message.HasField(f"{name}_per_second"):
            return plain
        # A little is added because 1.001 x 1000 is less than 1001 in binary fractions.
        milli = int(nearest(getattr(self._message, f"{name}_per_second") * 1000 + 1e-6, 1, RATE_MILLI_MAX))
        return Rate(milli, self.cap(f"{name}_burst", -(-milli // 1000)))


def _parse_retry(own: _Reader, plain: RetryDelays, delay_ms_max: int) -> RetryDelays:
    return RetryDelays(
        own.whole("retry_base_ms", plain.base_ms, 0, delay_ms_max),
        own.number("retry_factor", plain.factor, 1.0, 100.0),
        own.whole("retry_cap_ms", plain.cap_ms, 0, delay_ms_max),
        own.number("retry_jitter", plain.jitter, 0.0, 1.0),
        own.text("retry_shape", plain.shape, SHAPES),
    )


def _parse_limits(own: _Reader, message: PolicyMessage) -> Limits:
    tenant_concurrency_max, tenant_rate = own.cap("tenant_concurrency_max"), own.rate("tenant_rate")
    tenants: dict[bytes, EffectiveTenantPolicy] = {}
    for tenant in message.tenants:
        its = _Reader(tenant)
        tenants[tenant.tenant.encode()] = EffectiveTenantPolicy(
            its.whole("weight", 1, 1, WEIGHT_MAX),
            its.cap("concurrency_max", tenant_concurrency_max),
            its.rate("rate", tenant_rate),
        )
    found = Limits(
        own.cap("concurrency_max"),
        tenant_concurrency_max,
        own.cap("key_concurrency_max"),
        own.rate("rate"),
        tenant_rate,
        own.rate("key_rate"),
        tenants,
    )
    return found if found.has_any else NO_LIMITS


class Policies:
    """The policies of a shard's queues, while this node leads it."""

    def __init__(
        self, reader: Reader, config: BrokerConfig, is_expected: Callable[[bytes], bool] = lambda _queue: False
    ) -> None:
        self._reader = reader
        self._is_expected = is_expected  # whether the map has a policy of a queue
        self._delay_ms_max = config.delay_ms_max
        self.default = default_policy(config)
        start, stop = keys.family_start(keys.SETTINGS), keys.family_start(keys.SETTINGS + 1)
        self.is_empty = not reader.scan(start, stop, 1)  # no queue has settings: nobody needs to look for any
        self._known: dict[bytes, EffectivePolicy] = {}

    def of(self, queue: bytes) -> EffectivePolicy:
        if self.is_empty:
            return self.default
        policy = self._known.get(queue)
        if policy is None:
            if len(self._known) >= POLICIES_CACHED_MAX:
                self._known.clear()
            settings = self._reader.settings(queue)
            policy = self.default if settings is None else self._read(settings)
            self._known[queue] = policy
        return policy

    def to_claim(self, queue: bytes) -> EffectivePolicy:
        """The same for handing out. A shard that has just got a queue does nothing against a policy that the map has
        and its own log has not yet: it waits for it."""
        policy = self.of(queue)
        if self._is_expected(queue) and self._reader.get(keys.settings(queue)) is None:
            return replace(policy, paused=True)
        return policy

    def _read(self, settings: SettingsRow) -> EffectivePolicy:
        return replace(self.parse(settings.policy), rates_since_ms=settings.rates_since_ms)

    def parse(self, data: bytes) -> EffectivePolicy:
        return parse_policy(data, self.default, self._delay_ms_max)

    def changed(self, queues: Sequence[bytes]) -> None:
        """The settings of these queues in the state are new."""
        for queue in queues:
            self.is_empty = False
            self._known.pop(queue, None)

    def kept(self, tasks: Sequence[Execution | None]) -> list[RetentionPart]:
        """How long tasks are kept once they end, in groups: an entry has one time for all its items.

        Of a task that is not known nothing is kept, so it may be in any group.
        """
        queues = set() if self.is_empty else {task.queue for task in tasks if task is not None}
        if len(queues) < 2:  # as nearly always
            return [_kept(self.of(queues.pop()) if queues else self.default, range(len(tasks)))]
        groups: dict[tuple[int, int], RetentionPart] = {}
        for place, task in enumerate(tasks):
            policy = self.default if task is None else self.of(task.queue)
            times = policy.finished_retention_ms, policy.dead_retention_ms
            groups.setdefault(times, RetentionPart(*times, [])).places.append(place)
        return list(groups.values())


def _kept(policy: EffectivePolicy, places: Iterable[int]) -> RetentionPart:
    return RetentionPart(policy.finished_retention_ms, policy.dead_retention_ms, list(places))
