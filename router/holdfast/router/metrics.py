"""What a router counts, for Prometheus. The only file of the router that knows prometheus_client."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

from holdfast.serving.call_metrics import CallMetrics, MethodMetrics

# What is read when somebody looks: the name of the gauge, and what it is.
GAUGES = {
    "calls_under_way": "Calls that came in and were not answered yet, but for those that wait",
    "calls_waiting": "Calls that wait: of workers for tasks, and for results",
    "broker_waits": "Waits at brokers, one for each shard of each queue waited for, shared by the calls that wait",
    "bytes_under_way": "Bytes of their requests",
    "channels": "Connections to brokers that are kept",
    "attempts_repeated": "Calls sent to a broker again: redirects, lost connections and silent leaders",
    "claims_released": "Claims given back because their caller had gone",
    "claims_not_released": "Claims that should have been given back and were left to their leases",
    "certificates_reloaded": "New certificates for etcd that were taken into use since the start",
    "certificates_unusable": "1 while new files of certificates cannot be used, and the former are kept",
    "map_revision": "Revision of the partition map",
    "map_is_current": "1 while etcd answers; 0 while the last known map is used",
    "map_shards": "Shards in the map",
    "map_queues": "Queues in the map that differ from the default",
    "map_nodes": "Nodes in the map that hold their lease",
}


class Metrics:
    """All metrics of one router, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._refused = Counter(
            "holdfast_router_refusals", "Refused calls by reason", ("reason",), registry=self._registry
        )
        self._calls = CallMetrics("holdfast_router", self._registry)
        self._gauges = {
            name: Gauge(f"holdfast_router_{name}", doc, registry=self._registry) for name, doc in GAUGES.items()
        }
        self._read: Callable[[], Mapping[str, float]] = dict
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def rpc(self, method: str) -> MethodMetrics:
        return self._calls.of(method)

    def refused(self, reason: str) -> None:
        """Reasons are the fixed codes of the API, never free text."""
        self._refused.labels(reason).inc()

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Where the values of GAUGES come from."""
        self._read = read

    def refresh(self) -> Iterator[None]:
        """Call it on the event loop."""
        for name, value in self._read().items():
            self._gauges[name].set(value)
        yield

    def format(self) -> bytes:
        """The text for Prometheus. Safe in another thread."""
        return generate_latest(self._registry)
