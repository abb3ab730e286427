"""What a router counts, for Prometheus."""

from holdfast.serving.metrics import CallMetrics, MethodMetrics, ServerMetrics
from holdfast.serving.reloading import CERTIFICATE_GAUGES

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
    **CERTIFICATE_GAUGES,
    "audit_lost": "Actions of operators that could not be written to the audit log",
    "map_revision": "Revision of the partition map",
    "map_is_current": "1 while etcd answers; 0 while the last known map is used",
    "map_shards": "Shards in the map",
    "map_queues": "Queues in the map that differ from the default",
    "map_nodes": "Nodes in the map that hold their lease",
}


class Metrics(ServerMetrics):
    """All metrics of one router."""

    def __init__(self) -> None:
        super().__init__("holdfast_router", GAUGES, "Refused calls by reason")
        self.calls = CallMetrics("holdfast_router", self._registry)

    def rpc(self, method: str) -> MethodMetrics:
        return self.calls.of(method)
