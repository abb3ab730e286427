"""What a node counts, for Prometheus. The only file that knows prometheus_client.

Hot paths count once per batch (`inc(n)`) and resolve labels once: `rpc(method)` and `rejected(reason)` hand out
children that the caller or this class keeps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

QUEUES_MAX = 1000

# Queue name and its number of tasks by state (`ready`, `claimed`, ...).
QueueCounts = Iterable[tuple[str, Mapping[str, int]]]

_RPC_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_DISK_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_ENTRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

# The time a series was created doubles the number of series and nothing of ours reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class RpcMetrics:
    """Calls of one method: resolve once, then `observe` each call."""

    def __init__(self, calls: Counter, seconds: Histogram, method: str) -> None:
        self._calls = calls
        self._method = method
        self._seconds = seconds.labels(method)
        self._by_code: dict[str, Counter] = {}

    def observe(self, code: str, seconds: float) -> None:
        """Count a call that ended with this gRPC status code (`OK`, `INVALID_ARGUMENT`, ...)."""
        child = self._by_code.get(code)
        if child is None:
            child = self._by_code[code] = self._calls.labels(self._method, code)
        child.inc()
        self._seconds.observe(seconds)


class Metrics:
    """All metrics of one node, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, doc: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", doc, labels, registry=self._registry)

        def gauge(name: str, doc: str) -> Gauge:
            return Gauge(f"holdfast_{name}", doc, registry=self._registry)

        def histogram(name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"holdfast_{name}", doc, labels, buckets=buckets, registry=self._registry)

        # What happened to tasks
        self.tasks_enqueued = counter("tasks_enqueued", "Tasks accepted, duplicates not included")
        self.duplicates = counter("tasks_duplicate", "Enqueues answered with the task of an earlier request_id")
        self.tasks_claimed = counter("tasks_claimed", "Claims handed to workers")
        self.tasks_acked = counter("tasks_acked", "Tasks finished by an ack")
        self.tasks_failed = counter("tasks_failed", "Attempts that a worker reported as failed")
        self.tasks_expired = counter("tasks_expired", "Claims whose lease ran out")
        self.tasks_promoted = counter("tasks_promoted", "Delayed or retrying tasks that became ready")
        self.tasks_cancelled = counter("tasks_cancelled", "Tasks cancelled")
        self.tasks_dead = counter("tasks_dead", "Tasks that became dead letters")
        self.tasks_purged = counter("tasks_purged", "Finished tasks forgotten after their retention")

        # Calls
        self._rejections = counter("rejections", "Refused items and calls by reason", "reason")
        self._rejections_by_reason: dict[str, Counter] = {}
        self._rpc_calls = counter("rpc_calls", "gRPC calls by method and status code", "method", "code")
        self._rpc_seconds = histogram("rpc_seconds", "Duration of gRPC calls, waiting included", _RPC_SECONDS, "method")

        # The write path
        self.fsync_seconds = histogram("fsync_seconds", "Duration of one log sync", _DISK_SECONDS)
        self.apply_seconds = histogram("apply_seconds", "Time to apply the entries of one round", _DISK_SECONDS)
        self.round_entries = histogram("round_entries", "Log entries sharing one round", _ENTRIES)

        # How the node is now
        self.proposals_waiting = gauge("proposals_waiting", "Writes waiting for the log")
        self.waiters = gauge("waiters", "Reserve calls waiting for a task")
        self.watched_tasks = gauge("watched_tasks", "Tasks that WaitTasks calls wait for")
        self.log_bytes = gauge("log_bytes", "Size of the log on disk")
        self.applied_index = gauge("applied_index", "Index of the last applied log entry")
        self.replicas = gauge("replicas", "Replicas of shards on this node")
        self.shards_led = gauge("shards_led", "Shards that this node leads and serves")
        self.replication_lag_entries = gauge(
            "replication_lag_entries", "Committed entries that a replica of this node has not applied yet, at most"
        )
        self.peers_connected = gauge("peers_connected", "Other nodes that hear this one")
        self.peer_bytes_sent = gauge("peer_bytes_sent", "Bytes sent to other nodes since the start")
        self.peer_frames_dropped = gauge(
            "peer_frames_dropped", "Frames for other nodes that were dropped since the start"
        )
        self.map_revision = gauge("map_revision", "Revision of the partition map that this node has; 0 without etcd")
        self.map_is_current = gauge("map_is_current", "1 while etcd answers; 0 without etcd")
        self.free_bytes = gauge("free_bytes", "Free space of the data directory's file system")
        self.clock_offset_seconds = gauge("clock_offset_seconds", "Wall clock minus shard time")
        self.writes_refused = gauge("writes_refused", "1 while writes are refused for lack of disk space")
        self._queues = _QueueCollector()
        self._registry.register(self._queues)
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def rejected(self, reason: str) -> Counter:
        """The counter of one rejection reason; reasons are the fixed codes of the API, never free text."""
        child = self._rejections_by_reason.get(reason)
        if child is None:
            child = self._rejections_by_reason[reason] = self._rejections.labels(reason)
        return child

    def rpc(self, method: str) -> RpcMetrics:
        return RpcMetrics(self._rpc_calls, self._rpc_seconds, method)

    def watch_queues(self, queue_counts: Callable[[], QueueCounts]) -> None:
        """Where the depths of queues come from; at most QUEUES_MAX of them are exported."""
        self._queues.source = queue_counts

    def refresh(self) -> None:
        """Read the queue depths. Call it where they may be read: on the event loop."""
        self._queues.read()

    def format(self) -> bytes:
        """The text for Prometheus. Safe in another thread, because many queues take a while to print."""
        return generate_latest(self._registry)

    def render(self) -> bytes:
        self.refresh()
        return self.format()


class _QueueCollector(Collector):
    """Depth gauges of queues, read when scraped so that nothing is kept up to date for a queue nobody looks at."""

    def __init__(self) -> None:
        self.source: Callable[[], QueueCounts] = lambda: ()
        self._taken: list[tuple[str, dict[str, int]]] = []
        self._truncated = False

    def read(self) -> None:
        taken = [(queue, dict(counts)) for queue, counts in islice(self.source(), QUEUES_MAX + 1)]
        self._truncated = len(taken) > QUEUES_MAX
        self._taken = taken[:QUEUES_MAX]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        tasks = GaugeMetricFamily("holdfast_queue_tasks", "Tasks of a queue by state", labels=("queue", "state"))
        for queue, counts in self._taken:
            for state, number in counts.items():
                tasks.add_metric((queue, state), number)
        yield tasks
        yield GaugeMetricFamily(
            "holdfast_queues_truncated",
            f"1 if there are more than {QUEUES_MAX} queues and only some are shown",
            value=float(self._truncated),
        )
