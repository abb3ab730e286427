"""What servers count in the same way, for Prometheus.

What is counted on the path of a call is a plain number, and becomes a metric when somebody looks: it is counted on the
event loop and nowhere else, so it needs no lock.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_CALL_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

# The time a series was created doubles the number of series and nothing of ours reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Total(Collector):
    """A counter."""

    def __init__(self, name: str, doc: str, registry: CollectorRegistry | None = None) -> None:
        self._name = name
        self._doc = doc
        self.number: float = 0
        if registry is not None:
            registry.register(self)

    def inc(self, number: float = 1) -> None:
        self.number += number

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._doc, value=self.number)


class TotalsBy(Collector):
    """A counter for each value of a label."""

    def __init__(self, name: str, doc: str, label: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._doc = doc
        self._label = label
        self._totals: dict[str, Total] = {}
        registry.register(self)

    def of(self, value: str) -> Total:
        total = self._totals.get(value)
        if total is None:
            total = self._totals[value] = Total(self._name, self._doc)
        return total

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._doc, labels=(self._label,))
        for value, total in list(self._totals.items()):
            family.add_metric((value,), total.number)
        yield family


class _Buckets:
    """Counts by upper bounds, which belong to their buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Prometheus wants each bucket to have all that is below it."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), list(self.counts), strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))  # type: ignore[no-untyped-call]
        family.add_metric(labels, buckets, self.sum)


class Histogram(_Buckets, Collector):
    """How often what was how large."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        super().__init__(bounds)
        self._name = name
        self._doc = doc
        registry.register(self)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._doc, labels=())
        self.add_to(family, ())
        yield family


class MethodMetrics(_Buckets):
    """Calls of one method."""

    def __init__(self) -> None:
        super().__init__(_CALL_SECONDS)
        self.calls: dict[str, int] = {}  # by code

    def observe(self, code: str, seconds: float) -> None:
        """Count a call that ended with this gRPC status code (`OK`, `INVALID_ARGUMENT`, ...)."""
        self.calls[code] = self.calls.get(code, 0) + 1
        self.counts[bisect_left(_CALL_SECONDS, seconds)] += 1
        self.sum += seconds


class CallMetrics(Collector):
    """Calls of all methods. `prefix` is how the names of the server's metrics begin."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._prefix = prefix
        self._methods: dict[str, MethodMetrics] = {}
        registry.register(self)
        self._frame_connections = Gauge(
            f"{prefix}_frame_connections", "Callers connected by frames, and not by gRPC", registry=registry
        )
        self._frame_calls = Gauge(
            f"{prefix}_frame_calls", "Calls that came in frames since the start", registry=registry
        )

    def show_frames(self, connections: int, calls: int) -> None:
        self._frame_connections.set(connections)
        self._frame_calls.set(calls)

    def of(self, method: str) -> MethodMetrics:
        known = self._methods.get(method)
        if known is None:
            known = self._methods[method] = MethodMetrics()
        return known

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        calls = CounterMetricFamily(
            f"{self._prefix}_rpc_calls", "Calls by method and status code", labels=("method", "code")
        )
        seconds = HistogramMetricFamily(
            f"{self._prefix}_rpc_seconds", "Duration of calls, waiting included", labels=("method",)
        )
        for method, metrics in list(self._methods.items()):
            for code, number in list(metrics.calls.items()):
                calls.add_metric((method, code), number)
            metrics.add_to(seconds, (method,))
        yield from (calls, seconds)


class ServerMetrics:
    """All metrics of one server without tasks of its own, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, prefix: str, gauges: Mapping[str, str], refusals: str) -> None:
        """How the names of its metrics begin, its gauges with what they are, and what refusals are."""
        self._registry = CollectorRegistry()
        self._refused = TotalsBy(f"{prefix}_refusals", refusals, "reason", self._registry)
        self._gauges = {name: Gauge(f"{prefix}_{name}", doc, registry=self._registry) for name, doc in gauges.items()}
        self._read: Callable[[], Mapping[str, float]] = dict
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def refused(self, reason: str) -> None:
        """Reasons are the fixed codes of the API, never free text."""
        self._refused.of(reason).inc()

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Where the values of the gauges come from."""
        self._read = read

    def refresh(self) -> Iterator[None]:
        """Call it on the event loop."""
        for name, value in self._read().items():
            self._gauges[name].set(value)
        yield

    def format(self) -> bytes:
        """The text for Prometheus. Safe in another thread."""
        return generate_latest(self._registry)
