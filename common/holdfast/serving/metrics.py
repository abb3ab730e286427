"""What servers count in the same way, for Prometheus."""

from collections.abc import Callable, Iterator, Mapping

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

_CALL_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

# The time a series was created doubles the number of series and nothing of ours reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class MethodMetrics:
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


class CallMetrics:
    """Calls of all methods. `prefix` is how the names of the server's metrics begin."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            f"{prefix}_rpc_calls", "Calls by method and status code", ("method", "code"), registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_rpc_seconds", "Duration of calls, waiting included", ("method",), buckets=_CALL_SECONDS,
            registry=registry,
        )  # fmt: skip
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
        return MethodMetrics(self._calls, self._seconds, method)


class ServerMetrics:
    """All metrics of one server without tasks of its own, in a registry of its own so that tests can have several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, prefix: str, gauges: Mapping[str, str], refusals: str) -> None:
        """How the names of its metrics begin, its gauges with what they are, and what refusals are."""
        self._registry = CollectorRegistry()
        self._refused = Counter(f"{prefix}_refusals", refusals, ("reason",), registry=self._registry)
        self._gauges = {name: Gauge(f"{prefix}_{name}", doc, registry=self._registry) for name, doc in gauges.items()}
        self._read: Callable[[], Mapping[str, float]] = dict
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU, descriptors

    def refused(self, reason: str) -> None:
        """Reasons are the fixed codes of the API, never free text."""
        self._refused.labels(reason).inc()

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
