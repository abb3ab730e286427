"""What a node counts, for Prometheus. The only file of the broker that knows prometheus_client.

Hot paths count once per batch (`inc(n)`), and what they count are plain numbers until somebody looks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from holdfast.broker.histograms import BOUNDS_MS
from holdfast.serving.metrics import CallMetrics, Histogram, MethodMetrics, Total, TotalsBy
from holdfast.serving.reloading import CERTIFICATE_GAUGES

QUEUES_MAX = 1000
LATENCIES_MAX = 200  # pairs of queue and type


NO_TOTALS: Mapping[str, int] = {}


class QueueFigures(NamedTuple):
    """A queue on one shard, as it is now."""

    queue: str
    tasks: Mapping[str, int]  # by state: `ready`, `claimed`, ...
    totals: Mapping[str, int] = NO_TOTALS  # what ever happened to tasks, by event: `enqueued`, `failed`, ...
    oldest_ready_seconds: float | None = 0.0  # None: not looked for
    is_paused: bool = False
    has_dead_alert: bool | None = None  # None: it has no threshold
    oldest_claim_seconds: float | None = 0.0  # None: not looked for


class Latencies(NamedTuple):
    """How long tasks of one queue and type took on one shard: counts by BOUNDS_MS, and the sum."""

    queue: str
    type: str
    ready_to_claim: Sequence[int]
    ready_to_claim_ms: int
    claim_to_ack: Sequence[int]
    claim_to_ack_ms: int


_DISK_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_BOUNDS_SECONDS = (*(f"{bound_ms / 1000:g}" for bound_ms in BOUNDS_MS), "+Inf")
_ROUND_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_ENTRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Metrics:
    """All metrics of one node, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, doc: str) -> Total:
            return Total(f"holdfast_{name}", doc, self._registry)

        def gauge(name: str, doc: str) -> Gauge:
            return Gauge(f"holdfast_{name}", doc, registry=self._registry)

        def histogram(name: str, doc: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"holdfast_{name}", doc, bounds, self._registry)

        # What happened to tasks
        self.tasks_enqueued = counter("tasks_enqueued", "Tasks accepted, duplicates not included")
        self.duplicates = counter("tasks_duplicate", "Enqueues answered with the task of an earlier request_id")
        self.tasks_claimed = counter("tasks_claimed", "Claims handed to workers")
        self.tasks_acked = counter("tasks_acked", "Tasks finished by an ack")
        self.tasks_failed = counter("tasks_failed", "Attempts that a worker reported as failed")
        self.tasks_expired = counter("tasks_expired", "Claims whose lease ran out")
        self.tasks_timed_out = counter("tasks_timed_out", "Attempts that ran for longer than the task's timeout")
        self.tasks_ttl_expired = counter("tasks_ttl_expired", "Tasks that nobody started within their time to live")
        self.tasks_promoted = counter("tasks_promoted", "Delayed or retrying tasks that became ready")
        self.tasks_cancelled = counter("tasks_cancelled", "Tasks cancelled")
        self.tasks_dead = counter("tasks_dead", "Tasks that became dead letters")
        self.tasks_purged = counter("tasks_purged", "Finished tasks forgotten after their retention")
        self.schedule_ticks_fired = counter("schedule_ticks_fired", "Ticks of schedules that made a task")
        self.schedule_ticks_skipped = counter("schedule_ticks_skipped", "Ticks of schedules that made none")
        self.webhooks_failed = counter("webhooks_failed", "Messages to other systems that were given up or dropped")
        self.audit_lost = counter("audit_lost", "Actions of operators that could not be written to the audit log")

        # Calls
        self._rejections = TotalsBy(
            "holdfast_rejections", "Refused items and calls by reason", "reason", self._registry
        )
        self.calls = CallMetrics("holdfast", self._registry)

        # The write path
        self.fsync_seconds = histogram("fsync_seconds", "Duration of one log sync", _DISK_SECONDS)
        self.fsyncs_in_line = counter("fsyncs_in_line", "Log syncs that the node waited for in line: a fast disk's")
        self.apply_seconds = histogram("apply_seconds", "Time to apply the entries of one round", _DISK_SECONDS)
        self.round_seconds = histogram("round_seconds", "Duration of one round of the log", _ROUND_SECONDS)
        self.round_entries = histogram("round_entries", "Log entries sharing one round", _ENTRIES)

        # How the node is now
        self.proposals_waiting = gauge("proposals_waiting", "Writes waiting for the log")
        self.waiters = gauge("waiters", "Reserve calls waiting for a task")
        self.workers = gauge("workers", "Workers that this node has heard of lately, as the leader of shards")
        self.watched_tasks = gauge("watched_tasks", "Tasks that WaitTasks calls wait for")
        self.log_bytes = gauge("log_bytes", "Size of the log on disk")
        self.applied_index = gauge("applied_index", "Applied indexes of all replicas of this node, added up")
        self.replicas = gauge("replicas", "Replicas of shards on this node")
        self.shards_led = gauge("shards_led", "Shards that this node leads and serves")
        self.replication_lag_entries = gauge(
            "replication_lag_entries", "Committed entries that a replica of this node has not applied yet, at most"
        )
        self.certificates = {name: gauge(name, doc) for name, doc in CERTIFICATE_GAUGES.items()}
        self.peers_connected = gauge("peers_connected", "Other nodes that hear this one")
        self.peer_bytes_sent = gauge("peer_bytes_sent", "Bytes sent to other nodes since the start")
        self.peer_frames_dropped = gauge("peer_frames_dropped", "Frames for other nodes dropped since the start")
        self.map_revision = gauge("map_revision", "Revision of the partition map that this node has; 0 without etcd")
        self.map_is_current = gauge("map_is_current", "1 while etcd answers; 0 without etcd")
        self.free_bytes = gauge("free_bytes", "Free space of the data directory's file system")
        self.clock_offset_seconds = gauge("clock_offset_seconds", "Wall clock minus shard time")
        self.writes_refused = gauge("writes_refused", "1 while writes are refused for lack of disk space")
        self._queues, self._latencies = _QueueCollector(), _LatencyCollector()
        self._registry.register(self._queues)
        self._registry.register(self._latencies)
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def rejected(self, reason: str) -> Total:
        """The counter of one rejection reason; reasons are the fixed codes of the API, never free text."""
        return self._rejections.of(reason)

    def rpc(self, method: str) -> MethodMetrics:
        return self.calls.of(method)

    def watch_queues(self, figures: Callable[[], Iterable[QueueFigures]]) -> None:
        """Where the figures of queues come from, each as often as it has shards; QUEUES_MAX queues are exported."""
        self._queues.source = figures

    def watch_latencies(self, latencies: Callable[[], Iterable[Latencies]]) -> None:
        """Where the latencies of queues come from, likewise; LATENCIES_MAX pairs of queue and type are exported."""
        self._latencies.source = latencies

    def refresh(self) -> Iterator[None]:
        """Read the figures of queues, in steps. Call it where they may be read: on the event loop."""
        yield from self._queues.read()
        yield from self._latencies.read()

    def format(self) -> bytes:
        """The text for Prometheus. Safe in another thread, because many queues take a while to print."""
        return generate_latest(self._registry)

    def render(self) -> bytes:
        for _ in self.refresh():
            pass
        return self.format()


class _QueueCollector(Collector):
    """Numbers of queues, read when scraped so that nothing is kept up to date for a queue nobody looks at."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[QueueFigures]] = lambda: ()
        self._taken: dict[str, QueueFigures] = {}
        self._truncated = False

    def read(self) -> Iterator[None]:
        taken: dict[str, QueueFigures] = {}
        is_truncated = False
        for figures in self.source():
            known = taken.get(figures.queue)
            if known is None and len(taken) >= QUEUES_MAX:
                is_truncated = True
                break
            taken[figures.queue] = figures if known is None else _together(known, figures)
            yield
        self._taken, self._truncated = taken, is_truncated

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        def gauge(name: str, doc: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"holdfast_{name}", doc, labels=labels)

        tasks = gauge("queue_tasks", "Tasks of a queue by state", "queue", "state")
        events = CounterMetricFamily(
            "holdfast_queue_events",
            "What happened to the tasks of a queue since it was first used",
            labels=("queue", "event"),
        )
        claims = gauge("queue_oldest_claim_seconds", "For how long the oldest claim has been held", "queue")
        oldest = gauge("queue_oldest_ready_seconds", "How long the oldest ready task has been in the line", "queue")
        paused = gauge("queue_paused", "1 while the queue is paused", "queue")
        alerts = gauge(
            "queue_dead_alert",
            "1 while as many are dead on a shard as the queue's dead_alert_at, if it has one",
            "queue",
        )
        for queue, figures in self._taken.items():
            for state, number in figures.tasks.items():
                tasks.add_metric((queue, state), number)
            for event, number in figures.totals.items():
                events.add_metric((queue, event), number)
            if figures.oldest_ready_seconds is not None:
                oldest.add_metric((queue,), figures.oldest_ready_seconds)
            if figures.oldest_claim_seconds is not None:
                claims.add_metric((queue,), figures.oldest_claim_seconds)
            paused.add_metric((queue,), figures.is_paused)
            if figures.has_dead_alert is not None:
                alerts.add_metric((queue,), figures.has_dead_alert)
        yield from (tasks, events, oldest, claims, paused, alerts)
        yield GaugeMetricFamily(
            "holdfast_claims_held",
            "Claims that workers hold, of the queues that are shown",
            value=sum(figures.tasks.get("claimed", 0) for figures in self._taken.values()),
        )
        yield GaugeMetricFamily(
            "holdfast_queues_truncated",
            f"1 if there are more than {QUEUES_MAX} queues and only some are shown",
            value=float(self._truncated),
        )


def _together(one: QueueFigures, other: QueueFigures) -> QueueFigures:
    """A queue that is on several shards of this node."""
    ages = [figures.oldest_ready_seconds for figures in (one, other) if figures.oldest_ready_seconds is not None]
    held = [figures.oldest_claim_seconds for figures in (one, other) if figures.oldest_claim_seconds is not None]
    alerts = [figures.has_dead_alert for figures in (one, other) if figures.has_dead_alert is not None]
    return QueueFigures(
        one.queue,
        _added(one.tasks, other.tasks),
        _added(one.totals, other.totals),
        max(ages, default=None),
        one.is_paused or other.is_paused,
        any(alerts) if alerts else None,
        max(held, default=None),
    )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys((*one, *other))}


class _LatencyCollector(Collector):
    """Histograms that are counted elsewhere, read when scraped."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[Latencies]] = lambda: ()
        self._taken: dict[tuple[str, str], Latencies] = {}
        self._truncated = False

    def read(self) -> Iterator[None]:
        taken: dict[tuple[str, str], Latencies] = {}
        is_truncated = False
        for entry in self.source():
            known = taken.get(entry[:2])
            if known is None and len(taken) >= LATENCIES_MAX:
                is_truncated = True
                break
            # Copied or summed: they are counted further while this is printed in another thread.
            taken[entry[:2]] = _sum(entry, known)
            yield
        self._taken, self._truncated = taken, is_truncated

    def collect(self) -> Iterator[HistogramMetricFamily | GaugeMetricFamily]:
        labels = ("queue", "type")
        waits = HistogramMetricFamily(
            "holdfast_task_ready_to_claim_seconds", "How long tasks were ready before they were claimed", labels=labels
        )
        runs = HistogramMetricFamily(
            "holdfast_task_claim_to_ack_seconds", "How long tasks were claimed before they were acked", labels=labels
        )
        for name, latencies in self._taken.items():
            waits.add_metric(name, _buckets(latencies.ready_to_claim), latencies.ready_to_claim_ms / 1000)
            runs.add_metric(name, _buckets(latencies.claim_to_ack), latencies.claim_to_ack_ms / 1000)
        yield from (waits, runs)
        yield GaugeMetricFamily(
            "holdfast_latencies_truncated",
            f"1 if there are more than {LATENCIES_MAX} pairs of queue and type and only some are shown",
            value=float(self._truncated),
        )


def _sum(one: Latencies, other: Latencies | None) -> Latencies:
    if other is None:
        return one._replace(ready_to_claim=list(one.ready_to_claim), claim_to_ack=list(one.claim_to_ack))
    return Latencies(
        one.queue,
        one.type,
        [a + b for a, b in zip(one.ready_to_claim, other.ready_to_claim, strict=True)],
        one.ready_to_claim_ms + other.ready_to_claim_ms,
        [a + b for a, b in zip(one.claim_to_ack, other.claim_to_ack, strict=True)],
        one.claim_to_ack_ms + other.claim_to_ack_ms,
    )


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus wants each bucket to have all that is below it."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(_BOUNDS_SECONDS, counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
