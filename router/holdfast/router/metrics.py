"""What a router counts, for Prometheus. The only file of the router that knows prometheus_client."""

from collections.abc import Callable, Mapping

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

_RPC_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

# What is read when somebody looks: the name of the gauge, and what it is.
GAUGES = {
    "calls_under_way": "Calls that came in and were not answered yet",
    "bytes_under_way": "Bytes of their requests",
    "channels": "Connections to brokers that are kept",
    "attempts_repeated": "Calls sent to a broker again: redirects, lost connections and silent leaders",
    "claims_released": "Claims given back because their caller had gone",
    "claims_not_released": "Claims that should have been given back and were left to their leases",
    "map_revision": "Revision of the partition map",
    "map_is_current": "1 while etcd answers; 0 while the last known map is used",
    "map_shards": "Shards in the map",
    "map_queues": "Queues in the map that differ from the default",
    "map_nodes": "Nodes in the map that hold their lease",
}

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
    """All metrics of one router, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._refused = self._counter("refusals", "Refused calls by reason", "reason")
        self._calls = self._counter("rpc_calls", "gRPC calls by method and status code", "method", "code")
        self._seconds = Histogram(
            "holdfast_router_rpc_seconds", "Duration of gRPC calls, waiting included", ("method",),
            buckets=_RPC_SECONDS, registry=self._registry,
        )  # fmt: skip
        self._gauges = {
            name: Gauge(f"holdfast_router_{name}", doc, registry=self._registry) for name, doc in GAUGES.items()
        }
        self._read: Callable[[], Mapping[str, float]] = dict
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"holdfast_router_{name}", doc, labels, registry=self._registry)

    def rpc(self, method: str) -> RpcMetrics:
        return RpcMetrics(self._calls, self._seconds, method)

    def refused(self, reason: str) -> None:
        """Reasons are the fixed codes of the API, never free text."""
        self._refused.labels(reason).inc()

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Where the values of GAUGES come from."""
        self._read = read

    def refresh(self) -> None:
        """Call it on the event loop."""
        for name, value in self._read().items():
            self._gauges[name].set(value)

    def format(self) -> bytes:
        """The text for Prometheus. Safe in another thread."""
        return generate_latest(self._registry)
