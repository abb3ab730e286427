"""What a rebalancer counts, for Prometheus. The only file of the package that knows prometheus_client."""

from prometheus_client import Counter

from holdfast.serving.metrics import ServerMetrics
from holdfast.serving.reloading import CERTIFICATE_GAUGES

# What is read when somebody looks: the name of the gauge, and what it is.
GAUGES = {
    "active": "1 if this process rebalances, 0 if it stands by",
    "paused": "1 while rebalancing is paused",
    "nodes_gone": "Nodes that have replicas and are away",
    "nodes_given_up": "Nodes that were away for too long and are being emptied, or are empty",
    "steps_left": "Steps of the plan under way that are not done",
    **CERTIFICATE_GAUGES,
    "map_is_current": "1 while etcd answers",
}


class Metrics(ServerMetrics):
    """All metrics of one rebalancer."""

    def __init__(self) -> None:
        super().__init__("holdfast_rebalancer", GAUGES, "What could not be done, by reason")
        self._actions = Counter(
            "holdfast_rebalancer_actions", "What was done, by kind", ("kind",), registry=self._registry
        )

    def did(self, kind: str) -> None:
        self._actions.labels(kind).inc()
