"""What the queues of a shard do in their own way: the leader's view of the settings that are in the log.

The log has a policy as it was written into the map, a QueuePolicy message; what it leaves out is as the configuration
says. A number that makes no sense is moved to the nearest one that does: whoever wrote it cannot be asked any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.broker.config import BrokerConfig
from holdfast.broker.decisions import BackOff
from holdfast.machine import keys
from holdfast.machine.kv import OrderedKV
from holdfast.machine.rows import Execution, Settings
from holdfast.proto.v1.cluster_pb2 import QueuePolicy as PolicyMessage

POLICIES_CACHED_MAX = 10_000
POLICY_BYTES_MAX = 4096

ATTEMPTS_MAX = 1000
CLAIMS_MAX = 10_000
_MINUTE_MS = 60 * 1000
_YEAR_MS = 366 * 24 * 60 * _MINUTE_MS
FINISHED_RETENTION_MS_MIN = 10 * _MINUTE_MS  # as long as first answers are remembered
RETENTION_MS_MAX = 10 * _YEAR_MS
DEDUP_WINDOW_MS_MIN = 1000


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """All that holds for a queue."""

    max_attempts: int
    max_claims: int | None  # None: as the configuration says, and never less than the attempts need
    back_off: BackOff
    dedup_window_ms: int
    result_ttl_ms: int
    finished_retention_ms: int
    dead_retention_ms: int


class Kept(NamedTuple):
    """Items of a batch that are kept equally long."""

    finished_ms: int
    dead_ms: int
    places: list[int]  # in the batch


def default_policy(config: BrokerConfig) -> QueuePolicy:
    return QueuePolicy(
        max_attempts=config.max_attempts_default,
        max_claims=None,
        back_off=BackOff(config.retry_base_ms, config.retry_factor, config.retry_cap_ms, config.retry_jitter),
        dedup_window_ms=config.dedup_window_ms,
        result_ttl_ms=config.result_ttl_default_ms,
        finished_retention_ms=config.finished_retention_ms,
        dead_retention_ms=config.dead_retention_ms,
    )


def parse_policy(data: bytes, default: QueuePolicy, delay_ms_max: int) -> QueuePolicy:
    """A stored policy over the default one. Raises protobuf's DecodeError if it is none."""
    message = PolicyMessage.FromString(data)

    def own(name: str, plain: float, low: float, high: float) -> float:
        # A value that is no number at all fails the first comparison and becomes `low`.
        return min(max(low, getattr(message, name)), high) if message.HasField(name) else plain

    def whole(name: str, plain: int, low: int, high: int) -> int:
        return int(own(name, plain, low, high))

    plain = default.back_off
    return QueuePolicy(
        max_attempts=whole("max_attempts", default.max_attempts, 1, ATTEMPTS_MAX),
        max_claims=whole("max_claims", 0, 1, CLAIMS_MAX) or None,
        back_off=BackOff(
            whole("retry_base_ms", plain.base_ms, 0, delay_ms_max),
            own("retry_factor", plain.factor, 1.0, 100.0),
            whole("retry_cap_ms", plain.cap_ms, 0, delay_ms_max),
            own("retry_jitter", plain.jitter, 0.0, 1.0),
        ),
        dedup_window_ms=whole("dedup_window_ms", default.dedup_window_ms, DEDUP_WINDOW_MS_MIN, _YEAR_MS),
        result_ttl_ms=whole("result_ttl_ms", default.result_ttl_ms, 0, RETENTION_MS_MAX),
        finished_retention_ms=whole(
            "finished_retention_ms", default.finished_retention_ms, FINISHED_RETENTION_MS_MIN, RETENTION_MS_MAX
        ),
        dead_retention_ms=whole("dead_retention_ms", default.dead_retention_ms, 1, RETENTION_MS_MAX),
    )


class Policies:
    """The policies of a shard's queues, while this node leads it."""

    def __init__(self, kv: OrderedKV, config: BrokerConfig) -> None:
        self._kv = kv
        self._delay_ms_max = config.delay_ms_max
        self.default = default_policy(config)
        start, stop = keys.family_start(keys.SETTINGS), keys.family_start(keys.SETTINGS + 1)
        self.is_empty = not kv.scan(start, stop, 1)  # no queue has settings: nobody needs to look for any
        self._known: dict[bytes, QueuePolicy] = {}

    def of(self, queue: bytes) -> QueuePolicy:
        if self.is_empty:
            return self.default
        policy = self._known.get(queue)
        if policy is None:
            if len(self._known) >= POLICIES_CACHED_MAX:
                self._known.clear()
            row = self._kv.get(keys.settings(queue))
            policy = self.default if row is None else self.parse(Settings.decode(row).policy)
            self._known[queue] = policy
        return policy

    def parse(self, data: bytes) -> QueuePolicy:
        return parse_policy(data, self.default, self._delay_ms_max)

    def changed(self, queues: Sequence[bytes]) -> None:
        """The settings of these queues in the state are new."""
        for queue in queues:
            self.is_empty = False
            self._known.pop(queue, None)

    def kept(self, tasks: Sequence[Execution | None]) -> list[Kept]:
        """How long tasks are kept once they end, in groups: an entry has one time for all its items.

        Of a task that is not known nothing is kept, so it may be in any group.
        """
        if self.is_empty:
            return [self.kept_by_default(len(tasks))]
        groups: dict[tuple[int, int], Kept] = {}
        for place, task in enumerate(tasks):
            policy = self.default if task is None else self.of(task.queue)
            times = policy.finished_retention_ms, policy.dead_retention_ms
            groups.setdefault(times, Kept(*times, [])).places.append(place)
        return list(groups.values())

    def kept_by_default(self, count: int) -> Kept:
        return Kept(self.default.finished_retention_ms, self.default.dead_retention_ms, list(range(count)))
