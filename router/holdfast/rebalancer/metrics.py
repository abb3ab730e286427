"""What a rebalancer counts, for Prometheus. The only file of the package that knows prometheus_client."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

# What is read when somebody looks: the name of the gauge, and what it is.
GAUGES = {
    "active": "1 if this process rebalances, 0 if it stands by",
    "paused": "1 while rebalancing is paused",
    "nodes_gone": "Nodes that have replicas and are away",
    "nodes_given_up": "Nodes that were away for too long and are being emptied, or are empty",
    "steps_left": "Steps of the plan under way that are not done",
    "certificates_reloaded": "New certificates for etcd that were taken into use since the start",
    "certificates_unusable": "1 while new files of certificates cannot be used, and the former are kept",
    "map_is_current": "1 while etcd answers",
}


class Metrics:
    """All metrics of one rebalancer, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._actions = Counter(
            "holdfast_rebalancer_actions", "What was done, by kind", ("kind",), registry=self._registry
        )
        self._failed = Counter(
            "holdfast_rebalancer_refusals", "What could not be done, by reason", ("reason",), registry=self._registry
        )
        self._gauges = {
            name: Gauge(f"holdfast_rebalancer_{name}", doc, registry=self._registry) for name, doc in GAUGES.items()
        }
        self._read: Callable[[], Mapping[str, float]] = dict
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def did(self, kind: str) -> None:
        self._actions.labels(kind).inc()

    def refused(self, reason: str) -> None:
        """Reasons are the fixed codes of the API, never free text."""
        self._failed.labels(reason).inc()

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
