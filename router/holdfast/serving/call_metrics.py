"""What every server counts of its gRPC calls, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

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
            f"{prefix}_rpc_calls", "gRPC calls by method and status code", ("method", "code"), registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_rpc_seconds", "Duration of gRPC calls, waiting included", ("method",), buckets=_CALL_SECONDS,
            registry=registry,
        )  # fmt: skip

    def of(self, method: str) -> MethodMetrics:
        return MethodMetrics(self._calls, self._seconds, method)
